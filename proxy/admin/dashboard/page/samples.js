// What was seen in the last minute, and how fast it changed.

export const minute = 60_000;

// A sample is {at, pools, backends, histograms, p99}: milliseconds, the answer of
// /api/pools, its backends by name, the histograms of /metrics, and what these say.
export class Samples {
  #all = [];

  add(sample) {
    this.#all.push(sample);
    while (this.#all[0].at < sample.at - minute - 2000) this.#all.shift();
  }

  clear() { this.#all = []; }

  get last() { return this.#all.at(-1); }

  // before returns the oldest sample of the last ms milliseconds.
  before(ms) { return this.#all.find(s => s.at >= this.last.at - ms - 500); }

  // grown returns by how much a counter grew in the last ms milliseconds. of takes a
  // sample. It is null where that cannot be told.
  grown(of, ms) { return difference(of(this.before(ms)), of(this.last)); }

  // rate returns what a counter grew by in a second, over the last ms milliseconds.
  rate(of, ms) {
    const from = this.before(ms);
    if (from === this.last) return null;
    const n = difference(of(from), of(this.last));
    return n == null ? null : n * 1000 / (this.last.at - from.at);
  }

  // rates returns the rate of a counter from each sample to the next, as points.
  rates(of) {
    return this.#all.slice(1).map((s, i) => {
      const n = difference(of(this.#all[i]), of(s));
      return {at: s.at, value: n == null ? null : n * 1000 / (s.at - this.#all[i].at)};
    });
  }

  // values returns a gauge as points.
  values(of) { return this.#all.map(s => ({at: s.at, value: of(s) ?? null})); }
}

// A counter that is lower than before was begun anew.
function difference(from, to) {
  if (from == null || to == null || to < from) return null;
  return to - from;
}
