package proxy

import (
	"time"

	"forebay/balance"
)

// slots is the dispatcher as the pool of one backend sees it. Whoever has a slot keeps
// its backend from being gone; who asks for one may find that it is.
type slots struct {
	*dispatcher
	backend *backend
}

// Ahead reserves a free slot to dial ahead. While a client waits there is none:
// what is free is for it.
func (s slots) Ahead(want int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.begun || s.closed || !s.paused.IsZero() || s.backend.gone {
		return false
	}
	if s.waiters.Len() > 0 {
		s.tellLater(s.backend)
		return false
	}
	return s.bal.ReserveAhead(s.backend.index, want, s.parallel)
}

// AheadDone ends a dial ahead.
func (s slots) AheadDone(ok bool) {
	if !ok {
		s.move(s.backend, balance.DialingAhead, balance.Free)
		return
	}
	s.mu.Lock()
	defer s.unlock()
	s.bal.Move(s.backend.index, balance.DialingAhead, balance.Idle)
	s.recover(s.backend)
	s.freed(s.backend)
}

// Orphaned turns the dial of a client that left into one ahead. That may let a waiter have
// an idle connection which, with max lowered, was one too many beside the client's.
func (s slots) Orphaned() {
	s.mu.Lock()
	defer s.unlock()
	s.bal.Move(s.backend.index, balance.Dialing, balance.DialingAhead)
	s.serve()
}

// Expire takes an idle connection out of the choice, if one is not reserved.
func (s slots) Expire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.backend.gone && s.bal.TryMove(s.backend.index, balance.Idle, balance.Expiring)
}

// Expired frees the slot of such a connection.
func (s slots) Expired() { s.move(s.backend, balance.Expiring, balance.Free) }

// Surplus returns how many idle connections are more than there may be.
func (s slots) Surplus() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.surplus(s.backend)
}

// DialFailed tells of a dial that failed because of the backend.
func (s slots) DialFailed(began time.Time, err error) { s.dialFailed(s.backend, began, err) }

// DialSucceeded tells of one that succeeded.
func (s slots) DialSucceeded() { s.backend.monitor.DialSucceeded() }
