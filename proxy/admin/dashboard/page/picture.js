// The picture: clients → queue → backends.

import {byID, fields, text, write} from './dom.js';
import {spark} from './draw.js';
import {bytes, count, short, time} from './format.js';
import * as lately from './lately.js';

const flow = document.querySelector('.flow');
const at = fields(flow);
const sparks = Object.fromEntries([...flow.querySelectorAll('[data-spark]')].map(e => [e.dataset.spark, e]));

export function picture(samples) {
  const {pools} = samples.last;
  clients(samples, pools);
  queue(samples, pools.queue);
  backends(samples, pools);
  line('sessionRate', samples, samples.rates(lately.accepted));
  line('requestRate', samples, samples.rates(lately.requests));
  line('waiting', samples, samples.values(s => s.pools.queue.length));
  line('byteRate', samples, samples.rates(lately.bytes));
  line('latency', samples, samples.values(s => s.p99));
}

const line = (name, samples, points) => spark(sparks[name], points, samples.last.at);

function clients(samples, pools) {
  write(at, {
    sessions: count(pools.sessions),
    sessionRate: short(lately.rate(samples, lately.accepted)),
    requestRate: short(lately.rate(samples, lately.requests)),
  });
  const errors = lately.inMinute(samples, lately.errors);
  byID('failing').hidden = !errors;
  text(byID('failing'), count(errors) + (errors === 1 ? ' error' : ' errors') + ' in 1 min');
}

function queue(samples, q) {
  const {p50, p99} = lately.waitQuantiles(samples);
  const peak = Math.max(...samples.values(s => s.pools.queue.length).map(p => p.value));
  write(at, {
    waiting: count(q.length),
    peakWaiting: count(peak),
    wait: `${time(p50)}, ${time(p99)}`,
    longestWait: q.max_ms > 0 ? `longest ${time(q.max_ms / 1000)}` : '',
  });
  byID('paused').hidden = !q.paused;
  text(byID('paused'), `paused for ${time(q.paused_ms / 1000)}`);
}

function backends(samples, pools) {
  const sum = of => pools.backends.reduce((n, b) => n + of(b), 0);
  const rate = counter => bytes(lately.rate(samples, s => s.pools.backends.reduce((n, b) => n + b[counter], 0)));
  const {p50, p99} = lately.requestQuantiles(samples);
  samples.last.p99 = p99;
  write(at, {
    up: `${sum(b => b.state === 'up' ? 1 : 0)} of ${pools.backends.length}`,
    leased: `${count(sum(b => b.leased))} of ${count(sum(b => b.max))}`,
    byteRate: `${rate('bytes_up')} ↑ ${rate('bytes_down')} ↓`,
    latency: `${time(p50)}, ${time(p99)}`,
  });
  byID('draining').hidden = !pools.draining;
}
