package health

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
)

// happened is one thing that a machine was told.
type happened struct {
	kind      byte // 'c' a check, 'd' a dial, 'f' a fault, 's' served
	ok        bool
	began, at time.Time
	client    byte
}

// model restates the rules over all that has happened, which it keeps.
type model struct {
	rise, fall, mostRise int
	answers              bool

	changes []time.Time // down, up, down...
	start   time.Time
	log     []happened // since the last change
}

func (m *model) down() bool { return len(m.changes)%2 == 1 }

func (m *model) since() time.Time {
	if len(m.changes) == 0 {
		return m.start
	}
	return m.changes[len(m.changes)-1]
}

func (m *model) tell(e happened) {
	if e.began.Before(m.since()) {
		return
	}
	m.log = append(m.log, e)
	if m.down() && m.successes() >= m.needed() || !m.down() && m.failures() >= m.fall {
		m.changes = append(m.changes, e.at)
		m.log = nil
	}
}

// refutes reports whether b, which comes after a, clears it.
func (m *model) refutes(a, b happened) bool {
	switch {
	case !b.ok:
		return false
	case a.kind == 'f':
		return b.kind == 's' || b.kind == 'c' && m.answers
	case a.kind == 'd':
		return b.kind == 'd' || b.kind == 'c'
	case a.kind == 'c':
		return b.kind == 'c' || b.kind == 'd' && !m.answers
	}
	return false
}

func (m *model) refuted(i, upTo int) bool {
	for _, b := range m.log[i+1 : upTo+1] {
		if m.refutes(m.log[i], b) {
			return true
		}
	}
	return false
}

func (m *model) failures() (n int) {
	counted := m.start
	for i, e := range m.log {
		if e.ok || e.kind != 'c' && e.kind != 'd' || e.began.Before(counted) {
			continue
		}
		counted = e.at
		if !m.refuted(i, len(m.log)-1) {
			n++
		}
	}
	return n + m.doubts()
}

// doubts counts back from the end the checks that found clients in the right.
func (m *model) doubts() (n int) {
	for i := len(m.log) - 1; i >= 0; i-- {
		switch e := m.log[i]; {
		case m.refutes(happened{kind: 'f'}, e):
			return n
		case e.kind == 'c' && m.unserved(i) < 4:
			return n
		case e.kind == 'c':
			n++
		}
	}
	return n
}

// unserved is how many clients' faults counted when i happened.
func (m *model) unserved(i int) int {
	clients := map[byte]bool{}
	for j, e := range m.log[:i+1] {
		if e.kind == 'f' && m.log[i].at.Sub(e.at) < 30*time.Second && !m.refuted(j, i) {
			clients[e.client] = true
		}
	}
	return len(clients)
}

func (m *model) successes() (n int) {
	for _, e := range m.log {
		switch {
		case e.kind == 'c' && e.ok:
			n++
		case e.kind == 'c':
			n = 0
		}
	}
	return n
}

func (m *model) needed() int {
	n, flaps := m.rise, m.flaps()
	for range flaps {
		n *= 2
	}
	return min(n, m.mostRise)
}

func (m *model) flaps() (flaps int) {
	for i := 2; i < len(m.changes); i += 2 { // each time it went down, but for the first
		up := m.changes[i].Sub(m.changes[i-1])
		doubled := m.rise
		for range flaps {
			doubled *= 2
		}
		if up >= time.Minute {
			flaps = max(0, flaps-int(up.Minutes()))
		} else if doubled < m.mostRise {
			flaps++
		}
	}
	return flaps
}

// replay decodes rules and then events from data, and tells the machine and the model
// side by side.
func replay(t *testing.T, data []byte) {
	next := func(below int) int {
		if len(data) == 0 {
			return 0
		}
		v := int(data[0])
		data = data[1:]
		return v % below
	}
	rise := 1 + next(3)
	m := &machine{rise: rise, fall: 1 + next(4), mostRise: rise + next(20), answers: next(2) == 1, since: epoch}
	ref := &model{rise: m.rise, fall: m.fall, mostRise: m.mostRise, answers: m.answers, start: epoch}
	now := epoch
	pauses := []time.Duration{0, time.Millisecond, time.Second, 7 * time.Second, 30 * time.Second, 2 * time.Minute}
	for step := 0; len(data) > 0; step++ {
		now = now.Add(pauses[next(len(pauses))])
		e := happened{kind: "ccddffs"[next(7)], ok: next(3) == 0, began: now, at: now}
		before := m.down
		var changed bool
		switch e.kind {
		case 'c', 'd':
			if !(e.kind == 'd' && e.ok) { // such a dial is told without its beginning
				e.began = now.Add(-pauses[next(4)])
			}
			changed = tell(m, e)
		case 'f':
			e.ok, e.client = false, byte(next(6))
			m.unservedClient(now, netip.AddrFrom4([4]byte{e.client}), FaultReset)
		case 's':
			e.ok = true
			m.served()
		}
		ref.tell(e)
		if m.down != ref.down() || changed != (m.down != before) || m.since != ref.since() {
			t.Fatalf("step %d, %+v: down = %v (changed %v) since %v, want %v since %v", step, e, m.down, changed, m.since, ref.down(), ref.since())
		}
		compare(t, step, now, m, ref)
	}
}

// tell tells the machine of a check or a dial.
func tell(m *machine, e happened) (changed bool) {
	var err error
	if !e.ok {
		err = errFailed
	}
	switch {
	case e.kind == 'c':
		return m.checked(e.began, e.at, err)
	case e.ok:
		m.dialed()
		return false
	default:
		return m.dialFailed(e.began, e.at, err)
	}
}

func compare(t *testing.T, step int, now time.Time, m *machine, ref *model) {
	t.Helper()
	if m.down != (m.why != nil) {
		t.Fatalf("step %d: down = %v for %v", step, m.down, m.why)
	}
	if m.down {
		if m.successes != ref.successes() || m.needed() != ref.needed() {
			t.Fatalf("step %d: %d of %d successes, want %d of %d", step, m.successes, m.needed(), ref.successes(), ref.needed())
		}
		return
	}
	if m.failures() != ref.failures() {
		t.Fatalf("step %d: %d failures, want %d", step, m.failures(), ref.failures())
	}
	if n := len(ref.log); n > 0 && ref.log[n-1].at.Equal(now) && m.unserved.count(now) != min(4, ref.unserved(n-1)) {
		t.Fatalf("step %d: %d clients, want %d", step, m.unserved.count(now), ref.unserved(n-1))
	}
	if m.quiet() {
		was := *m
		m.served()
		m.dialed()
		if m.failures() != was.failures() || m.unserved.count(now) != was.unserved.count(now) {
			t.Fatalf("step %d: quiet, but a success changed %+v to %+v", step, was, *m)
		}
	}
}

func TestMachineDoesAsTheModel(t *testing.T) {
	for range 200 {
		seed := rand.Uint64()
		t.Logf("seed %d", seed) // the last one shown is the one that fails
		rng := rand.New(rand.NewPCG(seed, 0))
		data := make([]byte, 600) // about 170 events
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		replay(t, data)
	}
}

func FuzzMachine(f *testing.F) {
	f.Add([]byte(nil))
	f.Add([]byte{0, 2, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0})             // three failed checks
	f.Add([]byte{0, 0, 9, 1, 1, 2, 1, 0, 1, 0, 0, 0, 1, 2, 1, 0, 1, 0, 0, 0}) // down and up
	f.Add([]byte{1, 2, 0, 0, 1, 4, 0, 0, 1, 4, 0, 1, 1, 4, 0, 2, 1, 4, 0, 3, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0})
	f.Fuzz(replay)
}
