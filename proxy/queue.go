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
	events   dispatcherEvents

	mu      sync.Mutex
	bal     *balance.Balancer
	waiters list.List // of *waiter, by ticket: the oldest session first
	waited  bool      // somebody waits, or did when the lock was last given back
	closed  bool      // nobody waits or dials ahead any more
	health  []health
	all     []int // every backend
}

// dispatcherEvents is told, without the lock, when a backend goes down or comes up
// again, and when it has got room that no client waits for.
type dispatcherEvents interface {
	backendDown(i int, err error)
	backendUp(i int)
	backendHasRoom(i int)
}

// health is what the dispatcher knows of a backend besides its slots.
type health struct {
	err        error // of the newest failed dial, while the backend is down
	recovering int   // dials that must still succeed before it counts as healthy
}

// claim is what a session asks with.
type claim struct {
	ticket uint64 // its place: a lower one goes first
	tried  []int  // the backends that have failed it

	// established tells that the session has been relayed before, and lost a
	// connection that its backend had ended: shutdown does not refuse it.
	established bool
}

// waiter is a session in the queue.
type waiter struct {
	claim
	ctx    context.Context // ends when the session no longer waits
	grantc chan grant      // buffered(1): whoever grants never waits
}

// grant ends the wait: a slot, or the reason why there will be none.
type grant struct {
	choice balance.Choice
	err    error
}

func newDispatcher(bal *balance.Balancer, backends, parallel, limit int, events dispatcherEvents) *dispatcher {
	d := &dispatcher{bal: bal, parallel: parallel, limit: limit, events: events, health: make([]health, backends)}
	for i := range backends {
		d.all = append(d.all, i)
	}
	return d
}

// pick reserves a slot of a backend that may serve the claim, if one is there now.
// balance.ErrFull means that waiting may help.
func (d *dispatcher) pick(c claim) (balance.Choice, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pickLocked(c)
}

func (d *dispatcher) pickLocked(c claim) (balance.Choice, error) {
	if d.closed && !c.established {
		return balance.Choice{}, errShutdown
	}
	choice, err := d.bal.Pick(c.tried)
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

// wait is pick for a session that waits until there is a slot, or ctx ends.
func (d *dispatcher) wait(ctx context.Context, c claim) (balance.Choice, error) {
	w := &waiter{claim: c, ctx: ctx, grantc: make(chan grant, 1)}
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
	defer d.unlock()
	choice, err := d.pickLocked(w.claim)
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
	defer d.unlock(d.all...) // a slot that was granted goes back, too
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
		if d.answer(e) && len(e.Value.(*waiter).tried) == 0 {
			return // everything is full
		}
	}
}

// refuse ends the wait of those who have no hope left, wherever they stand. It is
// called with the lock held, after a change that takes hope.
func (d *dispatcher) refuse() {
	var next *list.Element
	for e := d.waiters.Front(); e != nil; e = next {
		next = e.Next()
		d.answer(e)
	}
}

// answer gives a waiter a slot, or the reason why there will be none. It reports
// whether there is neither yet, because all that it may use is full.
func (d *dispatcher) answer(e *list.Element) (full bool) {
	w := e.Value.(*waiter)
	if w.ctx.Err() != nil {
		return false // it is about to leave
	}
	choice, err := d.pickLocked(w.claim)
	if errors.Is(err, balance.ErrFull) {
		return true
	}
	d.waiters.Remove(e)
	w.grantc <- grant{choice, err}
	return false
}

// move changes the state of a slot of backend i that the caller holds.
func (d *dispatcher) move(i int, from, to balance.State) {
	d.mu.Lock()
	d.bal.Move(i, from, to)
	if to == balance.Free || to == balance.Idle {
		d.serve()
	}
	if to == balance.Free {
		d.unlock(i)
	} else {
		d.unlock()
	}
}

// unlock gives the lock back. If no client waits, the pools of the backends are
// told that they may have room to dial ahead: while one waited, they had not.
func (d *dispatcher) unlock(backends ...int) {
	waiting := d.waiters.Len() > 0
	if d.waited && !waiting {
		backends = d.all // each may have been refused meanwhile
	}
	d.waited = waiting
	d.mu.Unlock()
	if waiting {
		return
	}
	for _, i := range backends {
		d.events.backendHasRoom(i)
	}
}

// dialed notes that a client's dial has succeeded: the slot is leased.
func (d *dispatcher) dialed(i int) {
	d.mu.Lock()
	d.bal.Move(i, balance.Dialing, balance.Leased)
	if d.recover(i) {
		d.unlock(i)
	} else {
		d.unlock()
	}
}

// recover counts a dial that succeeded. After as many as may be under way at
// once, a recovering backend is healthy and dials up to its max. It reports
// whether this dial changed anything.
func (d *dispatcher) recover(i int) bool {
	h := &d.health[i]
	if h.recovering == 0 {
		return false
	}
	if h.recovering--; h.recovering == 0 {
		d.bal.LimitDials(i, 0)
	}
	d.serve() // one dial less is under way
	return true
}

// close refuses those who wait, and everyone after them.
func (d *dispatcher) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.refuse()
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
	defer s.unlock()
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
	s.refuse()
	s.unlock()
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
	s.unlock()
	s.events.backendUp(s.backend)
}

// without returns tried and i.
func without(tried []int, i int) []int {
	if slices.Contains(tried, i) {
		return tried
	}
	return append(slices.Clone(tried), i)
}
