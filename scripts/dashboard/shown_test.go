package dashboard

import (
	"reflect"
	"testing"
	"time"

	"forebay/proxy/admin"
)

// numbers are what the page and /api/pools have in common.
type numbers struct {
	Sessions, Waiting int
	Backends          []backend
}

type backend struct {
	Name, State                            string
	Leased, Dialing, Closing, Idle         int
	Max, Weight                            int
	Sessions, Requests, BytesUp, BytesDown int64
	Dials, DialErrors, Reused              int64
	Closes                                 map[string]int64
	Up                                     int // the percentage of the bar that is filled
}

func numbersOf(p admin.Pools) numbers {
	n := numbers{Sessions: p.Sessions, Waiting: p.Queue.Length}
	for _, b := range p.Backends {
		closes := make(map[string]int64)
		for reason, count := range b.Closes {
			if count > 0 {
				closes[reason] = count
			}
		}
		open := b.Leased + b.Dialing + b.Closing + b.Idle
		n.Backends = append(n.Backends, backend{Name: b.Name, State: b.State, Leased: b.Leased, Dialing: b.Dialing,
			Closing: b.Closing, Idle: b.Idle, Max: b.Max, Weight: b.Weight, Sessions: b.Sessions, Requests: b.Requests,
			BytesUp: b.BytesUp, BytesDown: b.BytesDown, Dials: b.Dials, DialErrors: b.DialErrors, Reused: b.Reused,
			Closes: closes, Up: 100 * open / max(b.Max, open)})
	}
	return n
}

// read returns what the page shows, and the answers that it may be of. The script runs
// without a break: what it reads is of one moment.
const read = `(() => {
  const number = e => Number(e.textContent.replaceAll(',', ''));
  const at = (root, f) => root.querySelector('[data-f=' + f + ']');
  const backends = [...document.querySelectorAll('#rows > tr:not(.details)')].map(row => {
    const details = row.nextElementSibling;
    const fact = name => number(details.querySelector('[data-fact="' + name + '"]'));
    const table = [...details.querySelectorAll('table')].find(t => t.caption.textContent.startsWith('Connections closed'));
    const closes = {};
    for (const r of table.tBodies[0].rows) closes[r.dataset.reason] = number(r.cells[2]);
    const b = {name: at(row, 'name').textContent, state: at(row, 'state').textContent, closes,
      up: Math.floor([...row.querySelector('.bar').children].reduce((n, part) => n + parseFloat(part.style.width), 0) + 0.01)};
    for (const f of ['leased', 'dialing', 'closing', 'idle', 'max', 'weight']) b[f] = number(at(row, f));
    for (const f of ['sessions', 'requests', 'dials']) b[f] = fact(f);
    [b.bytesUp, b.bytesDown, b.dialErrors, b.reused] = ['bytes up', 'bytes down', 'dials failed', 'found ready'].map(fact);
    return b;
  });
  const flow = document.querySelector('.flow');
  return {answers, shown: {sessions: number(at(flow, 'sessions')), waiting: number(at(flow, 'waiting')), backends}};
})()`

func (p *page) read() (shown numbers, answers []admin.Pools) {
	p.t.Helper()
	var got struct {
		Answers []admin.Pools
		Shown   numbers
	}
	p.eval(read, &got)
	return got.Shown, got.Answers
}

// same fails the test unless the page shows one of the answers that it got last: the
// newest may have come a moment before it is shown.
func (p *page) same() {
	p.t.Helper()
	shown, answers := p.read()
	for _, a := range answers {
		if reflect.DeepEqual(shown, numbersOf(a)) {
			return
		}
	}
	p.t.Errorf("the page shows\n%+v\nthe last answers were", shown)
	for _, a := range answers {
		p.t.Errorf("%+v", numbersOf(a))
	}
}

// settles waits until the page shows what the admin listener says to others.
func (p *page) settles(t *testing.T, r rig) {
	t.Helper()
	var want, shown numbers
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		want = numbersOf(r.pools(t))
		if shown, _ = p.read(); reflect.DeepEqual(shown, want) {
			return
		}
	}
	t.Errorf("the page shows\n%+v; want\n%+v", shown, want)
}

// fits fails the test where the page is wider than its window.
func (p *page) fits(width int) {
	p.t.Helper()
	var got int
	if p.eval("document.documentElement.scrollWidth", &got); got > width {
		p.t.Errorf("at %d px the page is %d px wide: %s", width, got, p.text(`[...document.querySelectorAll('body *')]
			.filter(e => e.getBoundingClientRect().right > innerWidth && !e.closest('.scroll')).map(e => e.outerHTML.slice(0, 80)).join('\n')`))
	}
}
