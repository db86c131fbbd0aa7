package proxy

import (
	"container/list"
	"errors"
	"slices"
	"sync"
	"time"

	"forebay/balance"
)

// dispatcher is the authority over the slots of every backend, and runs the one
// queue for all of them. Both are under one lock, so that a slot cannot become
// free between the look at the slots and the joining of the queue.
//
// It keeps one rule: after each change, no capacity is left that a waiter may
// use. A newcomer can therefore take what it finds without overtaking anybody.
//
// Nobody waits in it: a waiter's granted is called, without the lock, by whoever
// made the change.
type dispatcher struct {
	parallel int // dials at once, ahead and of a recovering backend
	limit    int // of the queue
	events   dispatcherEvents

	mu      sync.Mutex
	bal     *balance.Balancer
	waiters list.List // of *waiter, by ticket: the oldest session first
	grants  []*waiter // out of the queue, to be told when the lock is given back
	waited  bool      // somebody waits, or did when the lock was last given back
	closed  bool      // nobody waits or dials ahead any more, but for the established
	isCut   bool      // nor do these
	alarm   alarm
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
	deadline time.Time

	// granted is called once, when the wait has ended other than by leave: with a
	// slot, or the reason why there will be none. It may be called under locks of the
	// pool that made the change, and must not wait.
	granted func(balance.Choice, error)

	elem   *list.Element // nil out of the queue
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
	switch {
	case d.closed && !c.established:
		return balance.Choice{}, errShutdown
	case d.isCut:
		return balance.Choice{}, errCut
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

// join puts w into the queue and reports whether it waits there. If not, there is a
// slot after all, or no hope of one: that is returned, and w is told nothing.
func (d *dispatcher) join(w *waiter) (waits bool, c balance.Choice, err error) {
	d.mu.Lock()
	defer d.unlock()
	c, err = d.pickLocked(w.claim)
	if !errors.Is(err, balance.ErrFull) {
		return false, c, err
	}
	if d.waiters.Len() >= d.limit {
		return false, c, errQueueFull
	}
	w.elem = d.insert(w)
	d.expireAt(w.deadline)
	return true, c, nil
}

// insert finds w its place: seldom far from the end.
func (d *dispatcher) insert(w *waiter) *list.Element {
	for e := d.waiters.Back(); e != nil; e = e.Prev() {
		if e.Value.(*waiter).ticket < w.ticket {
			return d.waiters.InsertAfter(w, e)
		}
	}
	return d.waiters.PushFront(w)
}

// leave takes a session out of the queue that no longer waits, and reports whether
// it was there. If not, its grant has come, or is about to.
func (d *dispatcher) leave(w *waiter) bool {
	d.mu.Lock()
	defer d.unlock()
	if w.elem == nil {
		return false
	}
	d.remove(w)
	return true
}

func (d *dispatcher) remove(w *waiter) {
	d.waiters.Remove(w.elem)
	w.elem = nil
}

// giveBack undoes a grant that came too late.
func (d *dispatcher) giveBack(c balance.Choice) {
	d.mu.Lock()
	defer d.unlock(c.Backend)
	d.undo(c)
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
	d.eachWaiter(func(w *waiter, now time.Time) (more bool) {
		return !d.answer(w, now) || len(w.tried) > 0 // else everything is full
	})
}

// refuse ends the wait of those who have no hope left, wherever they stand. It is
// called with the lock held, after a change that takes hope.
func (d *dispatcher) refuse() {
	d.eachWaiter(func(w *waiter, now time.Time) (more bool) {
		d.answer(w, now)
		return true
	})
}

// eachWaiter calls f, which may take its waiter out, from the oldest to the newest.
func (d *dispatcher) eachWaiter(f func(w *waiter, now time.Time) (more bool)) {
	if d.waiters.Len() == 0 {
		return // as a rule, and the clock need not be asked
	}
	now := time.Now()
	var next *list.Element
	for e := d.waiters.Front(); e != nil; e = next {
		next = e.Next()
		if !f(e.Value.(*waiter), now) {
			return
		}
	}
}

// answer grants a waiter a slot, or the reason why there will be none. It reports
// whether there is neither yet, because all that it may use is full.
func (d *dispatcher) answer(w *waiter, now time.Time) (full bool) {
	if !now.Before(w.deadline) {
		d.grant(w, balance.Choice{}, errAcquireTimeout)
		return false
	}
	choice, err := d.pickLocked(w.claim)
	if errors.Is(err, balance.ErrFull) {
		return true
	}
	d.grant(w, choice, err)
	return false
}

// grant ends a wait; unlock tells.
func (d *dispatcher) grant(w *waiter, c balance.Choice, err error) {
	d.remove(w)
	w.choice, w.err = c, err
	d.grants = append(d.grants, w)
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

// unlock gives the lock back, and tells those whose wait has ended, the oldest
// first. If no client waits, the pools of the backends are told that they may have
// room to dial ahead: while one waited, they had not.
func (d *dispatcher) unlock(backends ...int) {
	var few [4]*waiter // as a rule it is one
	grants, waiting := append(few[:0], d.grants...), d.waiters.Len() > 0
	clear(d.grants)
	d.grants = d.grants[:0]
	if d.waited && !waiting {
		backends = d.all // each may have been refused meanwhile
	}
	d.waited = waiting
	d.mu.Unlock()
	for _, w := range grants {
		w.granted(w.choice, w.err)
	}
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

// close refuses those who wait, and everyone after them, but for the established:
// they wait on until cut.
func (d *dispatcher) close() {
	d.mu.Lock()
	defer d.unlock()
	d.closed = true
	d.refuse()
}

// cut refuses these too.
func (d *dispatcher) cut() {
	d.mu.Lock()
	defer d.unlock()
	d.closed, d.isCut = true, true
	d.refuse()
	d.alarm.stop()
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
// hope are refused, after the cause has been told.
func (s slots) Down(err error) {
	s.mu.Lock()
	s.bal.SetDown(s.backend, true)
	s.health[s.backend] = health{err: err}
	s.mu.Unlock()
	s.events.backendDown(s.backend, err)
	s.mu.Lock()
	defer s.unlock()
	s.refuse()
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
