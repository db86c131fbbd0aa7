// What is done to the document. Data reaches it as text alone.

export const byID = id => document.getElementById(id);

// fields returns the elements of root that have a data-f, by its value.
export function fields(root) {
  return Object.fromEntries([...root.querySelectorAll('[data-f]')].map(e => [e.dataset.f, e]));
}

// write sets the texts of fields, where they are others.
export function write(into, texts) {
  for (const [name, value] of Object.entries(texts)) text(into[name], value);
}

export function text(e, value) {
  const s = String(value);
  if (e.textContent !== s) e.textContent = s;
}

// element makes one, with attributes and with children or texts.
export function element(name, attributes, ...children) {
  const e = document.createElement(name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  e.append(...children);
  return e;
}

// A Keyed list of elements makes one for each key, keeps it while its key is there,
// and has them in the order of the keys: focus and open details stay.
export class Keyed {
  #made = new Map();

  constructor(parent, make) {
    this.parent = parent;
    this.make = make; // of a key: {nodes, ...}
  }

  update(keys) {
    for (const [key, one] of this.#made) {
      if (keys.includes(key)) continue;
      one.nodes.forEach(n => n.remove());
      this.#made.delete(key);
    }
    let at = this.parent.firstElementChild;
    return keys.map(key => {
      if (!this.#made.has(key)) this.#made.set(key, this.make(key));
      const one = this.#made.get(key);
      for (const n of one.nodes) {
        if (n === at) at = at.nextElementSibling;
        else this.parent.insertBefore(n, at);
      }
      return one;
    });
  }
}
