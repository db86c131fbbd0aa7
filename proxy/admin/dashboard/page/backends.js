// The table of the backends: a row for each, its details below.

import {byID, element, fields, Keyed, text, write} from './dom.js';
import {bar, spark, strip, stripSpan} from './draw.js';
import {bytes, count, dash, short, time} from './format.js';
import * as lately from './lately.js';
import {Reasons} from './reasons.js';

export class Backends {
  #rows;

  constructor(samples, watch, control) {
    this.samples = samples;
    this.watch = watch;
    this.control = control;
    this.#rows = new Keyed(byID('rows'), name => this.#make(name));
  }

  render() {
    const {pools} = this.samples.last;
    const rows = this.#rows.update(pools.backends.map(b => b.name));
    rows.forEach((row, i) => this.#update(row, pools.backends[i]));
    byID('no-backends').hidden = rows.length > 0;
  }

  #make(name) {
    const [main, details] = byID('backend').content.cloneNode(true).children;
    const row = {nodes: [main, details], at: fields(main), bar: main.querySelector('.bar'),
      spark: main.querySelector('.spark'), strip: main.querySelector('.strip'), more: new Details(details, name)};
    const toggle = main.querySelector('[data-details]');
    details.id = 'details of ' + name;
    toggle.addEventListener('click', () => {
      details.hidden = !details.hidden;
      toggle.setAttribute('aria-expanded', !details.hidden);
    });
    this.control.offer(main.querySelectorAll('[data-change]'), name);
    return row;
  }

  #update(row, b) {
    const {samples} = this;
    const rate = counter => lately.rate(samples, lately.of(b.name, counter));
    const {p50, p99} = lately.backendQuantiles(samples, b.name);
    write(row.at, {
      name: b.name, state: b.state, why: b.why, leased: count(b.leased), dialing: count(b.dialing),
      closing: count(b.closing), idle: count(b.idle), max: count(b.max), weight: count(b.weight),
      sessionRate: short(rate(x => x.sessions)), requestRate: short(rate(x => x.requests)),
      upRate: bytes(rate(x => x.bytes_up)) + ' ↑', downRate: bytes(rate(x => x.bytes_down)) + ' ↓',
      p50: time(p50), p99: time(p99),
      errors: count(lately.inMinute(samples, lately.of(b.name, lately.failed))),
    });
    row.at.state.dataset.state = b.state;
    row.at.backup.hidden = !b.backup;
    row.at.errors.classList.toggle('bad', Number(row.at.errors.textContent) > 0);
    this.control.mark(row.nodes[0], b.state);
    bar(row.bar, b);
    spark(row.spark, samples.rates(lately.of(b.name, busy(b))), samples.last.at);
    this.#history(row.strip, b);
    row.more.update(samples, b);
  }

  #history(into, b) {
    const now = this.samples.last.at;
    const changes = this.watch.history(b, now);
    strip(into, changes, now);
    const n = changes.slice(1).filter(c => c.at > now - stripSpan).length;
    into.setAttribute('role', 'img');
    into.setAttribute('aria-label', `${b.state} for ${time((now - changes.at(-1).at) / 1000)}, ` +
      `${n} ${n === 1 ? 'change' : 'changes'} in 10 minutes`);
  }
}

// busy counts what a backend does: requests where they are known.
const busy = b => b.requests > 0 ? x => x.requests : x => x.sessions;

// Details are the numbers of a backend since it was added.
class Details {
  constructor(row, name) {
    this.row = row;
    const into = row.querySelector('.tables');
    this.facts = element('dl', {class: 'facts'});
    into.append(element('div', {}, element('h3', {}, 'Since it was added'), this.facts));
    this.closes = new Reasons(into, 'Connections closed', name);
    this.results = new Reasons(into, 'Requests by result', name);
    this.made = new Keyed(this.facts, () => {
      const dt = element('dt', {}), dd = element('dd', {});
      return {nodes: [element('div', {}, dt, dd)], dt, dd};
    });
  }

  update(samples, b) {
    if (this.row.hidden) return;
    const facts = Object.entries({...totals(b), ...health(b.health)}).filter(([, value]) => value !== '');
    this.made.update(facts.map(([name]) => name)).forEach(({dt, dd}, i) => {
      text(dt, facts[i][0]);
      text(dd, facts[i][1]);
      dd.dataset.fact = facts[i][0];
    });
    const of = field => reason => lately.of(b.name, x => x[field][reason] ?? 0);
    this.closes.update(samples, b.closes, of('closes'), lately.isFailure);
    this.results.update(samples, b.results, of('results'), result => result !== 'ok');
  }
}

const totals = b => ({
  sessions: count(b.sessions), requests: count(b.requests), 'bytes up': count(b.bytes_up), 'bytes down': count(b.bytes_down),
  dials: count(b.dials), 'dials failed': count(b.dial_errors), 'found ready': count(b.reused), 'last error': b.last_error,
});

// Any part of health may be missing. The newest changes come first.
function health(h) {
  if (!h) return {};
  const ago = ms => ms == null ? dash : time(ms / 1000) + ' ago';
  const history = [...h.history ?? []].sort((a, b) => a.at_ms_ago - b.at_ms_ago).slice(0, 5);
  return {
    'last check': ago(h.last_check_ms),
    'checks in a row': h.failures > 0 ? `${count(h.failures)} failed` : `${count(h.successes)} passed`,
    ...Object.fromEntries(history.map(c => [ago(c.at_ms_ago), (c.up ? 'up' : 'down') + (c.why ? `: ${c.why}` : '')])),
  };
}
