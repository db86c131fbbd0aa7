package loadtest

import (
	"sync/atomic"
	"time"
)

// A tally counts the events of a run, for all clients.
type tally struct {
	requests   atomic.Int64
	replies    atomic.Int64
	oneways    atomic.Int64
	sessions   atomic.Int64
	open       atomic.Int64
	errors     atomic.Int64
	mismatches atomic.Int64
	abandoned  atomic.Int64
	faults     faults
}

// reply counts a request that was answered rightly.
func (t *tally) reply() {
	t.requests.Add(1)
	t.replies.Add(1)
}

// oneway counts a request that has been sent and gets no reply.
func (t *tally) oneway() {
	t.requests.Add(1)
	t.oneways.Add(1)
}

// requestFault counts a request that was not.
func (t *tally) requestFault(f *fault) {
	if f.abandoned {
		t.abandoned.Add(1)
		return
	}
	t.requests.Add(1)
	t.fault(f)
}

// fault counts f by itself: a connection that did not end well, say.
func (t *tally) fault(f *fault) {
	switch {
	case f.abandoned:
		return
	case f.mismatch:
		t.mismatches.Add(1)
	default:
		t.errors.Add(1)
	}
	t.faults.add(f)
}

func (t *tally) snapshot(elapsed time.Duration) Snapshot {
	return Snapshot{
		Elapsed:    elapsed,
		Open:       t.open.Load(),
		Requests:   t.requests.Load(),
		Sessions:   t.sessions.Load(),
		Errors:     t.errors.Load(),
		Mismatches: t.mismatches.Load(),
	}
}

func (t *tally) result() Result {
	res := Result{
		Requests:   t.requests.Load(),
		Replies:    t.replies.Load(),
		Oneways:    t.oneways.Load(),
		Sessions:   t.sessions.Load(),
		Errors:     t.errors.Load(),
		Mismatches: t.mismatches.Load(),
		Abandoned:  t.abandoned.Load(),
	}
	res.Faults, res.FirstError = t.faults.list()
	return res
}
