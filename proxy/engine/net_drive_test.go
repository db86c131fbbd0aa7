package engine

import (
	"testing"
	"time"

	"forebay/proxy/proxytest"
)

func TestPacerForgetsDrives(t *testing.T) {
	e := NewNet(Config{})
	b := newBench(t, func(Config) Engine { return e })
	cc, client := b.client("tcp")
	bc, _ := b.backend("tcp")
	listed := func() int {
		e.pacer.mu.Lock()
		defer e.pacer.mu.Unlock()
		return len(e.pacer.drives)
	}
	w := newWaiter(t, bc, map[want]bool{fromClient: true, fromBackend: true}, 0)
	d := b.drive(cc, w, DriveConfig{})
	proxytest.Receive(t, w.waiting, "the wait")
	proxytest.Eventually(t, "a wait that lasts to be forgotten", func() bool { return e.pacer.ticks.Load() > 0 && listed() == 0 })
	ticks := e.pacer.ticks.Load()
	pause(10 * grace)
	if n := e.pacer.ticks.Load(); n > ticks+1 {
		t.Errorf("%d ticks for nothing", n-ticks)
	}
	write(t, client, "x")
	d.wait()
	proxytest.Eventually(t, "the drive to be forgotten", func() bool { return listed() == 0 })
}

// TestOtherThingsAreWaitedForAtOnce: where the client is what ends the waits, though
// the backend was expected to, it is not held up by the grace each time.
func TestOtherThingsAreWaitedForAtOnce(t *testing.T) {
	e := NewNet(Config{})
	b := newBench(t, func(Config) Engine { return e })
	cc, client := b.client("tcp")
	bc, _ := b.backend("tcp")
	const n = 500
	p := b.wants(bc, Step{FromBackend: 1, FromClient: 1, ToClient: make([]byte, n)}, func(p *puppet) bool { return len(p.up) == n })
	next := p.play
	p.play = func(p *puppet, now time.Time) Step {
		s := next(p, now)
		s.ToClient = s.ToClient[:min(len(s.ToClient), len(p.up)-p.wroteDown)] // an echo
		return s
	}
	d := b.drive(cc, p, DriveConfig{})
	for range n - 1 {
		write(t, client, "x")
		expect(t, client, "\x00")
	}
	write(t, client, "x")
	d.wait()
	if ticks := e.pacer.ticks.Load(); ticks > 10 { // they run during such waits only
		t.Errorf("%d ticks for %d echoes", ticks, n)
	}
}
