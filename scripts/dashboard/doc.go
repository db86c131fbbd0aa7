// Package dashboard tests the dashboard of forebay in a real browser, Chromium without
// a window, over a real proxy with live traffic. It has no code of its own.
//
// The tests skip where no Chromium is installed; scripts/dashboard.sh installs Debian's.
// They drive it by the DevTools protocol over the pipe that Chromium offers, which takes
// a page of code and no library: the usual ones bring the whole protocol as types, for
// the ten methods that are used here.
package dashboard
