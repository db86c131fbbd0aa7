// Tables of counters by reason.

import {element, Keyed, text} from './dom.js';
import {count} from './format.js';
import * as lately from './lately.js';

export class Reasons {
  // parent gets a table with that caption; of says whose it is, where there are several.
  constructor(parent, caption, of = '') {
    const body = element('tbody', {});
    this.none = element('span', {class: 'note'}, 'none so far');
    this.head = element('thead', {}, element('tr', {}, head('reason'), head('1 min', 'n'), head('total', 'n')));
    parent.append(element('table', {class: 'reasons'},
      element('caption', {}, caption, element('span', {class: 'unseen'}, of && ' of ' + of), this.none), this.head, body));
    this.rows = new Keyed(body, row);
  }

  // update shows the reasons that were met. counter returns the counter of a reason in
  // a sample. Those that are bad are marked.
  update(samples, totals, counter, isBad = () => true) {
    const met = Object.keys(totals ?? {}).filter(reason => totals[reason] > 0).sort((a, b) => totals[b] - totals[a]);
    this.none.hidden = met.length > 0;
    this.head.hidden = met.length === 0;
    this.rows.update(met).forEach(({nodes, recent, total}, i) => {
      const n = lately.inMinute(samples, counter(met[i]));
      text(recent, count(n));
      text(total, count(totals[met[i]]));
      nodes[0].classList.toggle('bad', isBad(met[i]) && n > 0);
    });
  }
}

const head = (name, kind = '') => element('th', {scope: 'col', class: kind}, name);

function row(reason) {
  const recent = element('td', {class: 'n'}), total = element('td', {class: 'n'});
  return {nodes: [element('tr', {'data-reason': reason}, element('th', {scope: 'row'}, reason.replaceAll('_', ' ')), recent, total)], recent, total};
}

// The errors of the proxy, as far as they are no backend's alone.
export class Errors {
  constructor(parent) {
    this.ended = new Reasons(parent, 'Sessions ended by a fault');
    this.faults = new Reasons(parent, 'Connections not kept');
    this.closes = new Reasons(parent, 'Connections failed');
  }

  update(samples) {
    const {pools} = samples.last;
    this.ended.update(samples, lately.faultsOnly(pools.ended), reason => s => s.pools.ended[reason] ?? 0);
    this.faults.update(samples, pools.faults, reason => s => s.pools.faults?.[reason] ?? 0);
    this.closes.update(samples, failures(pools), reason => s => failures(s.pools)[reason] ?? 0);
  }
}

// failures are dials and connections that failed, over all backends.
function failures(pools) {
  const all = {dial: 0};
  for (const b of pools.backends) {
    all.dial += b.dial_errors;
    for (const [reason, n] of Object.entries(b.closes)) {
      if (lately.isFailure(reason)) all[reason] = (all[reason] ?? 0) + n;
    }
  }
  return all;
}
