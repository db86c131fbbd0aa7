// What changed while the page looked on. It is said once, in the one live region.

import {byID, element} from './dom.js';

const most = 50; // lines, and changes of a backend

export class Watch {
  #seen = new Map(); // of each backend: [{at, state}], the oldest first
  #pools;

  // look compares with what was seen before.
  look(pools, at) {
    const before = this.#pools;
    this.#pools = pools;
    for (const b of pools.backends) this.#lookAt(b, at, before);
    if (!before) return;
    for (const name of this.#seen.keys()) {
      if (pools.backends.some(b => b.name === name)) continue;
      this.#seen.delete(name);
      say(`${name} was removed`);
    }
    if (pools.queue.paused !== before.queue.paused) say(pools.queue.paused ? 'paused: clients wait' : 'resumed');
    if (pools.draining && !before.draining) say('the proxy is draining');
  }

  #lookAt(b, at, before) {
    const changes = this.#seen.get(b.name);
    if (changes?.at(-1).state === b.state) return;
    if (changes) say(`${b.name}: ${b.state}` + (b.why ? `, ${b.why}` : ''), b.state);
    else if (before) say(`${b.name} was added`);
    this.#seen.set(b.name, [...changes ?? [], {at, state: b.state}].slice(-most));
  }

  // history returns the changes of a backend: those that the proxy tells from before
  // the page was opened, and those that were seen since.
  history(b, now) {
    const seen = this.#seen.get(b.name);
    const told = (b.health?.history ?? []).map(h => ({at: now - h.at_ms_ago, state: h.up ? 'up' : 'down'}));
    const all = [...told.filter(h => h.at < seen[0].at).sort((x, y) => x.at - y.at), ...seen];
    return all.filter((h, i) => h.state !== all[i - 1]?.state);
  }

  // forget is for a proxy that was started anew.
  forget() {
    this.#seen.clear();
    this.#pools = undefined;
  }
}

// say adds a line. state gives it its mark.
export function say(what, state = '') {
  const clock = new Date();
  const time = element('time', {datetime: clock.toISOString()}, clock.toLocaleTimeString('en-GB'));
  const list = byID('changes');
  list.prepend(element('li', {'data-state': state}, time, ' ', what));
  while (list.children.length > most) list.lastChild.remove();
  byID('quiet').hidden = true;
}
