// How numbers are written. What is not known, null or undefined, is a dash.

export const dash = '–';

const grouped = new Intl.NumberFormat('en');

// count is exact.
export const count = n => n == null ? dash : grouped.format(n);

// short has three digits or fewer, and a prefix.
export function short(n) {
  if (n == null) return dash;
  const units = ['', ' k', ' M', ' G', ' T'];
  let i = 0;
  while (n >= 999.5 && i < units.length - 1) {
    n /= 1000;
    i++;
  }
  return digits(n, i > 0) + units[i];
}

// bytes is short with a unit that is always there.
export function bytes(n) {
  const s = short(n);
  if (n == null) return s;
  return s.includes(' ') ? s + 'B' : s + ' B';
}

function digits(n, fraction) {
  if (n === 0 || Number.isInteger(n) && !fraction) return String(n);
  if (n < 0.05) return '<0.1';
  return n < 9.95 ? n.toFixed(1) : n.toFixed(0);
}

// time writes seconds in the unit that gives the shortest number.
export function time(s) {
  if (s == null) return dash;
  if (s === 0) return '0 s';
  if (s < 0.0009995) return (s * 1e6).toFixed(0) + ' µs';
  if (s < 0.9995) return digits(s * 1e3, true) + ' ms';
  if (s < 119.5) return digits(s, true) + ' s';
  if (s < 7170) return (s / 60).toFixed(0) + ' min';
  return digits(s / 3600, true) + ' h';
}
