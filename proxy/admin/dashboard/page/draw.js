// Lines, bars and strips. Each stands beside the same as text, or tells it itself.

import {minute} from './samples.js';

const svgNamespace = 'http://www.w3.org/2000/svg';

function svg(name, attributes) {
  const e = document.createElementNS(svgNamespace, name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  return e;
}

function chart(into, width, height) {
  if (into.firstChild) return into.firstChild;
  const s = svg('svg', {viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', 'aria-hidden': 'true'});
  into.append(s);
  return s;
}

// spark draws the points of the last minute up to now, from zero to the highest. A
// point without a value is a gap.
export function spark(into, points, now) {
  const s = chart(into, 120, 24);
  if (!s.firstChild) s.append(svg('path', {class: 'area'}), svg('path', {}));
  const top = Math.max(...points.map(p => p.value ?? 0)) || 1;
  const runs = [[]];
  for (const {at, value} of points) {
    const x = 120 * (1 - (now - at) / minute), y = 23 - 22 * value / top;
    if (value == null) runs.push([]);
    else if (x >= 0) runs.at(-1).push([x.toFixed(1), y.toFixed(1)]);
  }
  const lines = runs.filter(run => run.length).map(run => ({from: run[0][0], to: run.at(-1)[0], line: run.join('L')}));
  s.firstChild.setAttribute('d', lines.map(l => `M${l.from} 24L${l.line}L${l.to} 24Z`).join(''));
  s.lastChild.setAttribute('d', lines.map(l => 'M' + l.line).join(''));
}

const states = ['leased', 'dialing', 'closing', 'idle'];

// bar shows the connections of a backend as parts of its max.
export function bar(meter, b) {
  const open = b.leased + b.dialing + b.closing + b.idle;
  const whole = Math.max(b.max, open, 1); // a max that was lowered takes its time
  states.forEach((state, i) => { meter.children[i].style.width = 100 * b[state] / whole + '%'; });
  meter.setAttribute('aria-label', 'connections of ' + b.name);
  meter.setAttribute('aria-valuemax', whole);
  meter.setAttribute('aria-valuenow', open);
  meter.setAttribute('aria-valuetext', `${open} of ${b.max}: ` + states.map(state => `${b[state]} ${state}`).join(', '));
}

export const stripSpan = 10 * minute;

// heights tell the states apart without their colours. The others are of 7.
const heights = {up: 4, down: 10};

// strip draws which state a backend was in, from changes: {at, state}, the oldest first.
export function strip(into, changes, now) {
  const s = chart(into, 600, 10);
  const begin = now - stripSpan;
  const x = at => 600 * (Math.max(at, begin) - begin) / stripSpan;
  const parts = changes.map(({at, state}, i) => {
    const from = x(at), to = x(changes[i + 1]?.at ?? now), height = heights[state] ?? 7;
    return svg('rect', {x: from, width: Math.max(to - from, 0), y: 10 - height, height, class: state});
  });
  s.replaceChildren(...parts.filter(p => p.getAttribute('width') > 0));
}
