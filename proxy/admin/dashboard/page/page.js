// The page asks the proxy every second while somebody can see it, and shows the answers.

import {Backends} from './backends.js';
import {Control} from './control.js';
import {byID, text} from './dom.js';
import {time} from './format.js';
import {parse} from './metrics.js';
import {picture} from './picture.js';
import {Errors} from './reasons.js';
import {Samples} from './samples.js';
import {sessions, shown} from './sessions.js';
import {say, Watch} from './watch.js';

import('./theme.js').catch(() => {}); // where a browser may keep nothing there is no choice

const period = 1000, patience = 5000;

const samples = new Samples();
const watch = new Watch();
const control = new Control(() => tick());
const backends = new Backends(samples, watch, control);
const errors = new Errors(byID('errors'));

let started, answered = 0, silent = false, tellsSessions = true, timer, asking = false;

async function get(path) {
  const answer = await fetch(path, {cache: 'no-store', signal: AbortSignal.timeout(patience)});
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`, {cause: answer.status});
  return answer;
}

// ask returns the answers of one moment. The page can do without all but the pools.
async function ask() {
  const [pools, metrics, list] = await Promise.all([
    get('api/pools').then(r => r.json()),
    get('metrics').then(r => r.text()).then(parse).catch(() => null),
    tellsSessions ? get(`api/sessions?limit=${shown}`).then(r => r.json()).catch(e => {
      tellsSessions = e.cause !== 501;
      return null;
    }) : null,
  ]);
  return {pools, metrics, list, at: performance.now()};
}

function show({pools, metrics, list, at}) {
  if (metrics?.started !== started && metrics) {
    if (started) restarted();
    started = metrics.started;
  }
  samples.add({at, pools, backends: new Map(pools.backends.map(b => [b.name, b])), histograms: metrics?.histograms});
  watch.look(pools, at);
  control.queue = pools.queue;
  picture(samples);
  backends.render();
  errors.update(samples);
  sessions(list, pools.sessions);
}

function restarted() {
  samples.clear();
  watch.forget();
  say('the proxy was started anew');
}

// tick asks, shows, and comes again. While nobody can see the page it rests.
async function tick() {
  if (asking) return;
  clearTimeout(timer);
  if (document.hidden) return pulse('hidden', 'resting while hidden');
  asking = true;
  const begin = performance.now();
  const answers = await ask().catch(() => null);
  asking = false;
  answers ? live(answers) : silence();
  timer = setTimeout(tick, Math.max(0, begin + period - performance.now()));
}

function live(answers) {
  if (silent) say('the proxy answers again');
  silent = false;
  answered = answers.at;
  pulse('live', 'live');
  show(answers);
}

function silence() {
  const since = time((performance.now() - answered) / 1000);
  pulse('silent', answered ? `no answer for ${since}; this is what was seen last` : 'the proxy does not answer');
  if (!silent) say('the proxy does not answer', 'down');
  silent = true;
}

function pulse(state, what) {
  byID('pulse').dataset.state = state;
  text(byID('pulse'), what);
  document.title = state === 'live' || state === 'waiting' ? 'forebay' : `forebay: ${what}`;
  document.body.classList.toggle('stale', state === 'silent');
}

document.addEventListener('visibilitychange', tick);
tick();
