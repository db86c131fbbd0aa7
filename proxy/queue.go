package proxy

import (
	"container/list"
	"context"
	"errors"
	"slices"
	"sync"

	"forebay/balance"
)

// dispatcher is the authority over the slots of every backend, and runs the one
// queue for all of them. Both are under one lock, so that a slot cannot become
// free between the look at the slots and the joining of the queue.
//
// It keeps one rule: after each change, no capacity is left that a waiter may
// use. A newcomer can therefore take what it finds without overtaking anybody.
type dispatcher struct {
	parallel int // dials at once, ahead and of a recovering backend
	limit    int // of the queue
	events   healthEvents

	mu      sync.Mutex
	bal     *balance.Balancer
	waiters list.List // of *waiter, by ticket: the oldest session first
	closed  bool      // nobody waits or dials ahead any more
	health  []health
}

// healthEvents is told when a backend goes down or comes up again.
type healthEvents interface {
	backendDown(i int, err error)
	backendUp(i int)
}

// health is what the dispatcher knows of a backend besides its slots.
type health struct {
	err        error // of the newest failed dial, while the backend is down
	recovering int   // dials that must still succeed before it counts as healthy
}

// waiter is a session in the queue.
type waiter struct {
	ctx    context.Context // ends when the session no longer waits
	ticket uint64
	tried  []int
	grantc chan grant // buffered(1): whoever grants never waits
}

// grant ends the wait: a slot, or the reason why there will be none.
type grant struct {
	choice balance.Choice
	err    error
}

func newDispatcher(bal *balance.Balancer, backends, parallel, limit int, events healthEvents) *dispatcher {
	return &dispatcher{bal: bal, parallel: parallel, limit: limit, events: events, health: make([]health, backends)}
}

// pick reserves a slot of a backend not in tried, if one is there now.
// balance.ErrFull means that waiting may help.
func (d *dispatcher) pick(tried []int) (balance.Choice, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pickLocked(tried)
}

func (d *dispatcher) pickLocked(tried []int) (balance.Choice, error) {
	if d.closed {
		return balance.Choice{}, errShutdown
	}
	choice, err := d.bal.Pick(tried)
	if errors.Is(err, balance.ErrNone) {
		err = noBackendError{d.lastError()}
	}
	return choice, err
}

// lastError returns why some backend is down.
func (d *dispatcher) lastError() error {
	for _, h := range d.health {
		if h.err != nil {
			return h.err
		}
	}
	return nil
}

// wait is pick for a session that waits until there is a slot, or ctx ends. The
// ticket is the session's place: a lower one goes first.
func (d *dispatcher) wait(ctx context.Context, ticket uint64, tried []int) (balance.Choice, error) {
	w := &waiter{ctx: ctx, ticket: ticket, tried: tried, grantc: make(chan grant, 1)}
	elem, choice, err := d.join(w)
	if elem == nil {
		return choice, err
	}
	select {
	case g := <-w.grantc:
		return g.choice, g.err
	case <-ctx.Done():
		d.leave(elem)
		return balance.Choice{}, context.Cause(ctx)
	}
}

// join puts w into the queue. Where there is a slot after all, or no hope of
// one, it returns that and a nil element.
func (d *dispatcher) join(w *waiter) (*list.Element, balance.Choice, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	choice, err := d.pickLocked(w.tried)
	if !errors.Is(err, balance.ErrFull) {
		return nil, choice, err
	}
	if d.waiters.Len() >= d.limit {
		return nil, choice, errQueueFull
	}
	for e := d.waiters.Back(); e != nil; e = e.Prev() {
		if e.Value.(*waiter).ticket < w.ticket {
			return d.waiters.InsertAfter(w, e), choice, nil
		}
	}
	return d.waiters.PushFront(w), choice, nil
}

// leave takes a session out of the queue that no longer waits. A slot that was
// granted meanwhile goes back.
func (d *dispatcher) leave(elem *list.Element) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := elem.Value.(*waiter)
	select {
	case g := <-w.grantc: // it is out of the queue already
		if g.err == nil {
			d.undo(g.choice)
		}
	default:
		d.waiters.Remove(elem)
	}
}

// undo gives back a slot that was reserved and not used.
func (d *dispatcher) undo(c balance.Choice) {
	if c.Ready {
		d.bal.Move(c.Backend, balance.Leased, balance.Idle)
	} else {
		d.bal.Move(c.Backend, balance.Dialing, balance.Free)
	}
	d.serve()
}

// serve hands what capacity there is to the oldest waiters that may use it. It
// is called with the lock held, after every change that may free some.
func (d *dispatcher) serve() {
	var next *list.Element
	for e := d.waiters.Front(); e != nil; e = next {
		next = e.Next()
		w := e.Value.(*waiter)
		if w.ctx.Err() != nil {
			continue // it is about to leave
		}
		choice, err := d.pickLocked(w.tried)
		if !errors.Is(err, balance.ErrFull) {
			d.waiters.Remove(e)
			w.grantc <- grant{choice, err}
		} else if len(w.tried) == 0 {
			return // everything is full
		}
	}
}

// move changes the state of a slot of backend i that the caller holds.
func (d *dispatcher) move(i int, from, to balance.State) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bal.Move(i, from, to)
	if to == balance.Free || to == balance.Idle {
		d.serve()
	}
}

// dialed notes that a client's dial has succeeded: the slot is leased.
func (d *dispatcher) dialed(i int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bal.Move(i, balance.Dialing, balance.Leased)
	d.recover(i)
}

// recover counts a dial that succeeded. After as many as may be under way at
// once, a recovering backend is healthy and dials up to its max.
func (d *dispatcher) recover(i int) {
	h := &d.health[i]
	if h.recovering == 0 {
		return
	}
	if h.recovering--; h.recovering == 0 {
		d.bal.LimitDials(i, 0)
	}
	d.serve() // one dial less is under way
}

// close refuses those who wait, and everyone after them.
func (d *dispatcher) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.serve()
}

func (d *dispatcher) loads() (loads []balance.Load, waiting int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.bal.Loads(), d.waiters.Len()
}

// slots is the dispatcher as the pool of one backend sees it.
type slots struct {
	*dispatcher
	backend int
}

// Ahead reserves a free slot to dial ahead. While a client waits there is none:
// what is free is for it.
func (s slots) Ahead(want int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closed && s.waiters.Len() == 0 && s.bal.ReserveAhead(s.backend, want, s.parallel)
}

// Probe reserves a free slot though the backend is down.
func (s slots) Probe() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bal.TryMove(s.backend, balance.Free, balance.DialingAhead)
}

// AheadDone ends a dial ahead.
func (s slots) AheadDone(ok bool) {
	if !ok {
		s.move(s.backend, balance.DialingAhead, balance.Free)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bal.Move(s.backend, balance.DialingAhead, balance.Idle)
	s.recover(s.backend)
	s.serve()
}

// Orphaned turns the dial of a client that left into one ahead.
func (s slots) Orphaned() { s.move(s.backend, balance.Dialing, balance.DialingAhead) }

// Expire takes an idle connection out of the choice, if one is not reserved.
func (s slots) Expire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bal.TryMove(s.backend, balance.Idle, balance.Expiring)
}

// Expired frees the slot of such a connection.
func (s slots) Expired() { s.move(s.backend, balance.Expiring, balance.Free) }

// Down takes the backend out of the choice. Those who wait and have no other
// hope are refused.
func (s slots) Down(err error) {
	s.mu.Lock()
	s.bal.SetDown(s.backend, true)
	s.health[s.backend] = health{err: err}
	s.serve()
	s.mu.Unlock()
	s.events.backendDown(s.backend, err)
}

// Up puts the backend back, with few dials at once until it has shown that it is
// well.
func (s slots) Up() {
	s.mu.Lock()
	s.bal.SetDown(s.backend, false)
	s.bal.LimitDials(s.backend, s.parallel)
	s.health[s.backend] = health{recovering: s.parallel}
	s.serve()
	s.mu.Unlock()
	s.events.backendUp(s.backend)
}

// without returns tried and i.
func without(tried []int, i int) []int {
	if slices.Contains(tried, i) {
		return tried
	}
	return append(slices.Clone(tried), i)
}
