// Changes: their buttons, which are there once a token was typed in, and the question
// before each.

import {byID, text} from './dom.js';

const changes = {
  ready: {verb: 'Make ready', about: 'It gets work again, as far as its health allows.'},
  drain: {verb: 'Drain', about: 'It gets no new work. What runs on it goes on.'},
  maintain: {verb: 'Maintain', about: 'It gets no new work and is not checked until it is made ready.'},
  pause: {verb: 'Pause', about: 'Clients wait in the queue until you resume, at most for --pause-timeout.'},
  resume: {verb: 'Resume', about: 'Those who wait are served, in their order.'},
};

export class Control {
  #token = ''; // kept here alone: it is gone with the page
  #asked; // the change that the dialog is about

  // done is called after a change.
  constructor(done) {
    this.done = done;
    byID('unlock').addEventListener('click', () => this.#unlock());
    byID('token').querySelector('form').addEventListener('submit', () => this.#take(byID('token-value').value.trim()));
    byID('confirm').querySelector('form').addEventListener('submit', e => {
      e.preventDefault();
      this.#make();
    });
    for (const b of document.querySelectorAll('dialog [data-close]')) {
      b.addEventListener('click', () => b.closest('dialog').close());
    }
    byID('token').addEventListener('close', () => { byID('token-value').value = ''; });
    byID('pause').addEventListener('click', () => this.#ask(this.paused ? 'resume' : 'pause'));
  }

  // offer makes buttons those of changes to a backend.
  offer(buttons, backend) {
    for (const b of buttons) {
      b.hidden = !this.#token;
      b.setAttribute('aria-label', `${b.textContent} ${backend}`);
      b.addEventListener('click', () => {
        if (b.getAttribute('aria-disabled') !== 'true') this.#ask(b.dataset.change, backend);
      });
    }
  }

  // mark disables the button of the state that a backend is in. It keeps the focus.
  mark(row, state) {
    for (const b of row.querySelectorAll('[data-change]')) {
      b.setAttribute('aria-disabled', b.dataset.change === state || b.dataset.change === 'ready' && state === 'up');
    }
  }

  set queue(q) {
    this.paused = q.paused;
    text(byID('pause'), q.paused ? 'Resume' : 'Pause');
  }

  #unlock() {
    if (this.#token) this.#take('');
    else byID('token').showModal();
  }

  #take(token) {
    this.#token = token;
    for (const b of document.querySelectorAll('[data-change], #pause')) b.hidden = !token;
    text(byID('unlock'), token ? 'Lock' : 'Unlock…');
  }

  #ask(change, backend) {
    const {verb, about} = changes[change];
    const path = backend ? `api/backends/${encodeURIComponent(backend)}/${change}` : `api/${change}`;
    this.#asked = {path, verb};
    text(byID('confirm-title'), `${verb} ${backend ?? 'the proxy'}?`);
    text(byID('confirm-about'), about);
    text(byID('confirm-do'), verb);
    byID('confirm-error').hidden = true;
    byID('confirm').showModal();
    byID('confirm-do').focus();
  }

  // make makes the change that was asked about. The dialog stays open where it fails.
  async #make() {
    const button = byID('confirm-do');
    if (button.disabled) return;
    button.disabled = true;
    const error = await post(this.#asked.path, this.#token);
    button.disabled = false;
    if (!error) {
      byID('confirm').close();
      return this.done();
    }
    text(byID('confirm-error'), error);
    byID('confirm-error').hidden = false;
    byID('confirm-error').focus();
  }
}

// post returns what went wrong, in the server's words.
async function post(path, token) {
  try {
    const answer = await fetch(path, {method: 'POST', headers: {Authorization: 'Bearer ' + token}, signal: AbortSignal.timeout(10_000)});
    if (answer.ok) return '';
    const said = await answer.json().catch(() => ({}));
    return said.error ?? `${answer.status} ${answer.statusText}`;
  } catch (e) {
    return `The proxy does not answer: ${e.message}`;
  }
}
