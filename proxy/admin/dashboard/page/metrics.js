// The histograms of /metrics, and quantiles of what went into one lately.

const bucket = /^(forebay_(?:request|queue_wait)_seconds)_bucket\{(.*)\} (\S+)/;
const started = /^process_start_time_seconds (\S+)/m;

// parse returns when the process began, and the histograms: for each a Map from a
// bucket's upper bound to the count up to it. Their names are requestsOf(backend)
// and waits.
export function parse(text) {
  const histograms = new Map();
  for (const line of text.split('\n')) {
    const m = bucket.exec(line);
    if (!m) continue;
    const labels = labelsOf(m[2]);
    const name = m[1] === waits ? waits : requestsOf(labels.backend);
    if (!histograms.has(name)) histograms.set(name, new Map());
    histograms.get(name).set(labels.le === '+Inf' ? Infinity : Number(labels.le), Number(m[3]));
  }
  return {started: started.exec(text)?.[1], histograms};
}

export const waits = 'forebay_queue_wait_seconds';
export const requestsOf = backend => 'request ' + backend;

function labelsOf(text) {
  const labels = {};
  for (const [, name, value] of text.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
    labels[name] = value.replace(/\\(.)/g, (_, c) => c === 'n' ? '\n' : c);
  }
  return labels;
}

// since returns what went into a histogram after it was as before. One that has
// less in it than before was begun anew.
export function since(before, now) {
  if (!now) return new Map();
  const total = h => h.get(Infinity) ?? 0;
  if (!before || total(before) > total(now)) return now;
  return new Map([...now].map(([le, n]) => [le, n - (before.get(le) ?? 0)]));
}

// sum adds histograms of the same bounds.
export function sum(histograms) {
  const all = new Map();
  for (const h of histograms) {
    for (const [le, n] of h) all.set(le, (all.get(le) ?? 0) + n);
  }
  return all;
}

// quantile estimates as Prometheus does: evenly spread inside a bucket. It is null
// for an empty histogram, and the last bound for what lies beyond it.
export function quantile(q, histogram) {
  const bounds = [...histogram.keys()].sort((a, b) => a - b);
  const rank = q * (histogram.get(Infinity) ?? 0);
  if (!(rank > 0)) return null;
  let lower = 0, below = 0;
  for (const le of bounds) {
    const n = histogram.get(le);
    if (n >= rank) return le === Infinity ? lower : lower + (le - lower) * (rank - below) / (n - below);
    lower = le;
    below = n;
  }
  return null;
}
