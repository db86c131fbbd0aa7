// What the samples say, in the words of the page.

import {quantile, requestsOf, since, sum, waits} from './metrics.js';
import {minute} from './samples.js';

const rateSpan = 5_000, quantileSpan = 10_000;

const total = counts => Object.values(counts ?? {}).reduce((a, b) => a + b, 0);

// Sessions that ended so are no fault; nor are connections that were closed for any
// other reason than these.
const ordinary = new Set(['done', 'client_left', 'client_reset', 'drained']);
const failures = new Set(['failed', 'stray_bytes']);

export const faultsOnly = ended => Object.fromEntries(Object.entries(ended).filter(([reason]) => !ordinary.has(reason)));
export const isFailure = reason => failures.has(reason);

// Counters of a sample.
export const accepted = s => s.pools.sessions + total(s.pools.ended);
export const requests = s => s.pools.requests;

// errors are what clients met: sessions ended by a fault, and requests without a reply.
export const errors = s => s.pools.errors + total(faultsOnly(s.pools.ended));
export const bytes = s => s.pools.backends.reduce((n, b) => n + b.bytes_up + b.bytes_down, 0);

// of returns a counter of one backend, or of nobody once it is gone.
export const of = (name, counter) => s => s.backends.has(name) ? counter(s.backends.get(name)) : null;

export const failed = b => b.dial_errors + [...failures].reduce((n, reason) => n + (b.closes[reason] ?? 0), 0);

export const rate = (samples, counter) => samples.rate(counter, rateSpan);

export const inMinute = (samples, counter) => samples.grown(counter, minute);

const between = (from, to, name) =>
  from?.histograms && to.histograms ? since(from.histograms.get(name), to.histograms.get(name)) : new Map();

const allRequests = (from, to) => sum(to.pools.backends.map(b => between(from, to, requestsOf(b.name))));

const newest = samples => [samples.before(quantileSpan), samples.last];

// quantiles returns p50 and p99 of what ended lately, in seconds.
const both = h => ({p50: quantile(0.5, h), p99: quantile(0.99, h)});
export const waitQuantiles = samples => both(between(...newest(samples), waits));
export const requestQuantiles = samples => both(allRequests(...newest(samples)));
export const backendQuantiles = (samples, name) => both(between(...newest(samples), requestsOf(name)));
