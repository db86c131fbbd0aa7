// A few of the sessions.

import {byID, element, Keyed, text} from './dom.js';
import {bytes, count, dash, time} from './format.js';

export const shown = 8;

const rows = new Keyed(byID('session-rows'), () => {
  const client = element('th', {scope: 'row'});
  const cells = Array.from({length: 6}, (_, i) => element('td', {class: i < 2 ? '' : 'n'}));
  return {nodes: [element('tr', {}, client, ...cells)], cells: [client, ...cells]};
});

// sessions shows a list, or nothing where the proxy tells none.
export function sessions(list, open) {
  byID('sessions').hidden = !list;
  if (!list) return;
  text(byID('sessions').querySelector('small'), list.length < open ? `${list.length} of ${count(open)}` : '');
  rows.update(list.map(s => s.id)).forEach(({cells}, i) => {
    const s = list[i];
    const texts = [s.client, s.backend || dash, s.state, time(s.age_ms / 1000), count(s.requests), bytes(s.bytes_up), bytes(s.bytes_down)];
    texts.forEach((value, j) => text(cells[j], value));
  });
}
