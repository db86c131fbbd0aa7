package health

import (
	"fmt"
	"net/netip"
	"time"
)

// calm is how long a backend must stay up for one flap to be forgotten, and about how
// long at most a flapping backend is held down though its checks succeed.
const calm = time.Minute

// machine decides whether one backend is up. It does arithmetic only: what happens and
// the time come in, and a change is what comes out.
//
// A success clears what it contradicts, and no more: that the backend accepts a
// connection is no answer to checks that found nobody behind it (a stopped program's
// kernel goes on accepting), and what it serves over connections that are open already
// says nothing of new ones.
type machine struct {
	rise, fall int
	mostRise   int  // what dampening may raise rise to
	answers    bool // a check that succeeds has heard the program, not its kernel alone

	down  bool
	why   error     // it went down; nil while it is up
	since time.Time // of the last change, or of the beginning
	downs int       // changes to down
	flaps int       // as of since

	failedChecks int // up: in a row
	failedDials  int // up: in a row
	doubts       int // up: checks in a row that did not clear the clients' suspicion
	failed       time.Time
	unserved     witnesses
	successes    int // down: checks in a row
}

// checked takes the end of a check. It reports whether the backend has changed.
func (m *machine) checked(began, now time.Time, err error) (changed bool) {
	if began.Before(m.since) {
		return false // of another time
	}
	if m.down {
		return m.checkedDown(now, err)
	}
	if err == nil {
		m.failedChecks, m.failedDials = 0, 0
		if m.answers {
			m.served()
		}
	} else if m.isNew(began, now) {
		m.failedChecks++
	}
	if !m.suspect(now) {
		m.doubts = 0
		return m.judge(now, err)
	}
	m.doubts++
	if err == nil {
		err = errUnserved{m.unserved[len(m.unserved)-1]}
	}
	return m.judge(now, err)
}

// checkedDown counts the successes until there are enough for the backend to be up.
func (m *machine) checkedDown(now time.Time, err error) (changed bool) {
	if err != nil {
		m.successes = 0
		return false
	}
	if m.successes++; m.successes < m.needed() {
		return false
	}
	m.change(now, nil)
	return true
}

// dialFailed takes a dial for a client, or ahead, that the backend failed.
func (m *machine) dialFailed(began, now time.Time, err error) (changed bool) {
	if m.down || began.Before(m.since) || !m.isNew(began, now) {
		return false
	}
	m.failedDials++
	return m.judge(now, err)
}

// dialed takes a dial that succeeded.
func (m *machine) dialed() {
	m.failedDials = 0
	if !m.answers {
		m.failedChecks = 0 // they dial, and no more
	}
}

// unservedClient takes a fault that a client met. It does not change the backend:
// only checks draw the conclusion.
func (m *machine) unservedClient(now time.Time, client netip.Addr, f Fault) {
	m.unserved.add(witness{client: network(client), fault: f, at: now})
}

// served takes a success that a client met.
func (m *machine) served() {
	m.unserved = nil
	m.doubts = 0
}

// isNew reports whether a failure counts. One that was under way when another was
// counted is of the same moment: a hundred dials that meet one restart are one failure.
func (m *machine) isNew(began, now time.Time) bool {
	if began.Before(m.failed) {
		return false
	}
	m.failed = now
	return true
}

// judge takes the backend down for err if enough has failed.
func (m *machine) judge(now time.Time, err error) (changed bool) {
	if m.failures() < m.fall {
		return false
	}
	m.flaps = m.flapsAt(now)
	if again := m.downs > 0 && now.Sub(m.since) < calm; again && m.rise<<m.flaps < m.mostRise {
		m.flaps++
	}
	m.downs++
	m.change(now, err)
	return true
}

// failures is what has failed in a row.
func (m *machine) failures() int { return m.failedChecks + m.failedDials + m.doubts }

// change begins a new time, in which nothing of the old one counts: down where there is
// a reason for it, else up.
func (m *machine) change(now time.Time, why error) {
	m.down, m.why, m.since = why != nil, why, now
	m.failedChecks, m.failedDials, m.successes = 0, 0, 0
	m.served()
}

// suspect reports whether so many clients were not served that it is hardly theirs.
func (m *machine) suspect(now time.Time) bool { return m.unserved.count(now) == enough }

// needed is how many checks in a row must succeed before the backend is up.
func (m *machine) needed() int { return min(m.rise<<m.flaps, m.mostRise) }

// flapsAt is how often the backend went down soon after it had come up, less one for
// each minute that it has been up since.
func (m *machine) flapsAt(now time.Time) int {
	if m.down {
		return m.flaps
	}
	return max(0, m.flaps-int(now.Sub(m.since)/calm))
}

// urgent reports whether something waits for a check to settle it.
func (m *machine) urgent(now time.Time) bool {
	return !m.down && (m.failedChecks+m.failedDials > 0 || m.unserved.count(now) > 0)
}

// quiet reports whether a success of a client would change nothing.
func (m *machine) quiet() bool {
	return m.down || m.failedChecks+m.failedDials == 0 && len(m.unserved) == 0
}

// errUnserved is why a backend is down that its clients alone found out about.
type errUnserved struct{ last witness }

func (e errUnserved) Error() string {
	return fmt.Sprintf("%d clients in a row were not served: %v", enough, e.last.fault)
}
