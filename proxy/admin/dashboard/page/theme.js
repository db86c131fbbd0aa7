// The colours: the system's choice, or one of the reader's own, which is kept.

import {byID, text} from './dom.js';

const themes = ['auto', 'light', 'dark'];
const key = 'forebay theme';

let theme = Math.max(themes.indexOf(localStorage.getItem(key)), 0);
show();

byID('theme').addEventListener('click', () => {
  theme = (theme + 1) % themes.length;
  localStorage.setItem(key, themes[theme]);
  show();
});

function show() {
  document.documentElement.dataset.theme = themes[theme];
  byID('theme').setAttribute('aria-label', `Theme: ${themes[theme]}`);
  text(byID('theme').lastChild, themes[theme]);
}
