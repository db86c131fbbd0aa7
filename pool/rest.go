package pool

import (
	"sync"
	"time"
)

// localRest is how long dialing ahead rests after a fault of this machine.
const localRest = time.Second

// earlyEnd is the age below which the end of a virgin connection is taken for a
// refusal: its backend, or what stands in front of it, accepts and closes.
const earlyEnd = time.Second

// The rests after early ends double from the first to the last of these.
const (
	firstRest = 100 * time.Millisecond
	lastRest  = 5 * time.Second
)

// rest keeps the pool from dialing ahead where that leads to nothing. Dials for
// clients are not affected.
type rest struct {
	mu    sync.Mutex
	until time.Time
	next  time.Duration // the rest after the next early end; 0: the first one is free
}

// over returns when the rest is over; zero where there is none.
func (r *rest) over() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.until.IsZero() && !time.Now().Before(r.until) {
		r.until = time.Time{}
	}
	return r.until
}

// unless does f and returns what it does, unless there is a rest: none begins
// meanwhile.
func (r *rest) unless(f func() bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !time.Now().Before(r.until) && f()
}

// begin rests after a fault of this machine.
func (r *rest) begin(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.until = now.Add(localRest)
}

// ended learns how a connection dialed ahead ended, used or not. An early end
// makes dialing ahead rest, longer each time.
func (r *rest) ended(early bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !early:
		r.next = 0
	case r.next == 0:
		r.next = firstRest
	default:
		if until := time.Now().Add(r.next); until.After(r.until) {
			r.until = until
		}
		r.next = min(2*r.next, lastRest)
	}
}
