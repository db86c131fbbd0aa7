package health

import (
	"slices"
	"time"
)

// A Snapshot is what a Monitor knows, for operators.
type Snapshot struct {
	Up    bool
	Since time.Time // of the last change, or of New
	Why   string    // why it is down; "" while it is up

	Failures int // up: those in a row that count towards Fall
	Unserved int // clients that were not served lately, with no success between; at most 4
	Flaps    int // how often it went down soon after coming up, less those forgotten
	Needed   int // down: checks that must still succeed

	Record
	History []Transition // the newest 32, the oldest first
}

// A Record counts what a Monitor has seen since New. Dials that succeeded and clients
// that were served are not counted: those who serve them do.
type Record struct {
	Checks       int64 // that told something
	FailedChecks int64 // of these
	Skipped      int64 // checks for which there was no slot, or that this machine failed
	FailedDials  int64
	ClientFaults int64

	LastCheck   time.Time     // when the last one that told something ended; zero: none has
	Took        time.Duration // how long it took
	LastFailure time.Time     // of a check or a dial; zero: none
	LastError   string        // what it was
	LastSkip    string        // why the last check that was skipped was
}

// A Transition is one change.
type Transition struct {
	At  time.Time
	Up  bool
	Why string // why it went down; "" for up
}

// keep is how many transitions are remembered.
const keep = 32

// record is what is kept for operators alone.
type record struct {
	Record
	history []Transition
}

func (r *record) checked(began, now time.Time, err error) {
	r.Checks++
	r.LastCheck, r.Took = now, now.Sub(began)
	if err != nil {
		r.FailedChecks++
		r.failure(now, err)
	}
}

func (r *record) failedDial(now time.Time, err error) {
	r.FailedDials++
	r.failure(now, err)
}

func (r *record) failure(now time.Time, err error) {
	r.LastFailure, r.LastError = now, text(err)
}

func (r *record) skipped(err error) {
	r.Skipped++
	r.LastSkip = text(err)
}

func (r *record) changed(t Transition) {
	if len(r.history) == keep {
		r.history = slices.Delete(r.history, 0, 1)
	}
	r.history = append(r.history, t)
}

// Snapshot returns what the Monitor knows now.
func (m *Monitor) Snapshot() Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	s := Snapshot{
		Up:       !m.machine.down,
		Since:    m.machine.since,
		Why:      text(m.machine.why),
		Failures: m.machine.failures(),
		Unserved: m.machine.unserved.count(now),
		Flaps:    m.machine.flapsAt(now),
		Record:   m.record.Record,
		History:  slices.Clone(m.record.history),
	}
	if m.machine.down {
		s.Needed = m.machine.needed() - m.machine.successes
	}
	return s
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
