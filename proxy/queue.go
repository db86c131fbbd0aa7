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
	parallel int  // dials at once, ahead and of a recovering backend
	limit    int  // of the queue
	checks   bool // the backends are checked at intervals
	events   dispatcherEvents

	mu      sync.Mutex
	bal     *balance.Balancer
	waiters list.List  // of *waiter, by ticket: the oldest session first
	triers  int        // of them, those that a backend has failed
	grants  []*waiter  // out of the queue, to be told when the lock is given back
	begun   bool       // the pools run
	untold  []*backend // see tellLater
	backups bool       // they serve, as was last told
	closed  bool       // nobody waits or dials ahead any more, but for the established
	isCut   bool       // nor do these
	paused  time.Time  // since then nobody is served; zero: they are
	alarm   alarm

	// backends are those of the account, by index; nil where one is gone. The slice
	// is replaced when they change, and never written to.
	backends []*backend
	tried    []int // scratch of pickLocked
}

// dispatcherEvents is told, without the lock, when a backend goes down, fails a dial or
// comes up again, when backups begin or cease to serve, and when a backend has got room
// that no client waits for. The others are told with the lock, and must not wait or ask
// for anything: backendBegins when its pool is to run, backendRises when it has just come
// up, and backendHasSurplus.
type dispatcherEvents interface {
	backendBegins(b *backend)
	backendDown(b *backend, err error)
	backendStillDown(b *backend, err error)
	backendUp(b *backend)
	backupsServe(begun bool)
	backendRises(b *backend, ups int)
	backendHasRoom(b *backend)
	backendHasSurplus(b *backend)
}

// choice is a slot that was reserved: that of a connection that is ready, or one to
// dial in.
type choice struct {
	backend *backend
	ready   bool
}

// claim is what a session asks with.
type claim struct {
	ticket uint64         // its place: a lower one goes first
	tried  []*backend     // those that have failed it
	client balance.Client // where the strategy goes by it

	// established tells that the session has been relayed before, and lost a
	// connection that its backend had ended: shutdown does not refuse it.
	established bool
}

// waiter is a session in the queue.
type waiter struct {
	claim
	deadline time.Time
	standing standing

	// granted is called once, when the wait has ended other than by leave: with a
	// slot, or the reason why there will be none. It may be called under locks of the
	// pool that made the change, and must not wait.
	granted func(choice, error)

	elem   *list.Element // nil out of the queue
	choice choice
	err    error
}

func newDispatcher(bal *balance.Balancer, parallel, limit int, events dispatcherEvents) *dispatcher {
	return &dispatcher{bal: bal, parallel: parallel, limit: limit, events: events}
}

// pick reserves a slot of a backend that may serve the claim, if one is there now.
// balance.ErrFull means that waiting may help.
func (d *dispatcher) pick(c claim) (choice, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pickLocked(c)
}

func (d *dispatcher) pickLocked(c claim) (choice, error) {
	switch {
	case d.closed && !c.established:
		return choice{}, errShutdown
	case d.isCut:
		return choice{}, errCut
	case !d.paused.IsZero():
		return choice{}, balance.ErrFull
	}
	picked, err := d.bal.Pick(c.client, d.indices(c.tried))
	switch {
	case err == nil:
		return choice{d.backends[picked.Backend], picked.Ready}, nil
	case errors.Is(err, balance.ErrNone):
		err = noBackendError{d.whyNone()}
	}
	return choice{}, err
}

// indices returns those of backends that are not gone: the index of one that is may be
// another's.
func (d *dispatcher) indices(backends []*backend) []int {
	if len(backends) == 0 {
		return nil // as a rule
	}
	d.tried = d.tried[:0]
	for _, b := range backends {
		if !b.gone {
			d.tried = append(d.tried, b.index)
		}
	}
	return d.tried
}

// whyNone returns what keeps the backends from serving, as far as that is known.
func (d *dispatcher) whyNone() error {
	why := errNoneLeft
	for _, b := range d.backends {
		switch {
		case b == nil:
		case b.err != nil:
			return b.err
		case b.removed || b.state != Ready:
			why = errDrained
		case why == errNoneLeft:
			why = nil
		}
	}
	return why
}

// join puts w into the queue and reports whether it waits there. If not, there is a
// slot after all, or no hope of one: that is returned, and w is told nothing.
func (d *dispatcher) join(w *waiter) (waits bool, c choice, err error) {
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
	if len(w.tried) > 0 {
		d.triers++
	}
	if !d.paused.IsZero() {
		w.standStill(time.Now())
	}
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
	if len(w.tried) > 0 {
		d.triers--
	}
}

// giveBack undoes a grant that came too late.
func (d *dispatcher) giveBack(c choice) {
	d.mu.Lock()
	defer d.unlock(c.backend)
	if c.ready {
		d.bal.Move(c.backend.index, balance.Leased, balance.Idle)
	} else {
		d.bal.Move(c.backend.index, balance.Dialing, balance.Free)
	}
	d.freed(c.backend)
}

// freed is called with the lock held when a slot of b has become free or idle: it is for
// the check that waits for one, or for the oldest waiter that may use it.
func (d *dispatcher) freed(b *backend) {
	d.grantCheck(b)
	d.serve()
	d.tidy(b)
}

// serve hands what capacity there is to the oldest waiters that may use it. It
// is called with the lock held, after every change that may free some.
//
// All that no backend has failed may use the same, so that one is asked for all of them.
// It may have to wait where another need not: the backups are for that one, which has
// tried the others.
func (d *dispatcher) serve() {
	full, triers := false, d.triers
	d.eachWaiter(func(w *waiter, now time.Time) (more bool) {
		switch {
		case len(w.tried) > 0:
			triers--
			d.answer(w, now)
		case !full:
			full = d.answer(w, now)
		}
		return !full || triers > 0
	})
}

// answerAll ends the wait of those who have no hope left, wherever they stand, and of
// those who can be served. It is called with the lock held, after a change that takes
// hope.
func (d *dispatcher) answerAll() {
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
		d.grant(w, choice{}, errAcquireTimeout)
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
func (d *dispatcher) grant(w *waiter, c choice, err error) {
	d.remove(w)
	w.choice, w.err = c, err
	d.grants = append(d.grants, w)
}

// move changes the state of a slot of b that the caller holds.
func (d *dispatcher) move(b *backend, from, to balance.State) {
	d.mu.Lock()
	d.bal.Move(b.index, from, to)
	if to == balance.Free || to == balance.Idle {
		d.freed(b)
	}
	if to == balance.Free {
		d.unlock(b)
	} else {
		d.unlock()
	}
}

// tellLater has the pool of b told that it may have room when no client waits any more:
// it has got some, or asked for it, while one did, and what is free is for the client.
// It is called with the lock held.
func (d *dispatcher) tellLater(b *backend) {
	if b != nil && !b.untold {
		b.untold = true
		d.untold = append(d.untold, b)
	}
}

// unlock gives the lock back, and tells those whose wait has ended, the oldest
// first. The pools of the backends are told that they may have room to dial ahead, now
// or later, and with them those that were to be told later.
func (d *dispatcher) unlock(backends ...*backend) {
	var few [4]*waiter // as a rule it is one
	grants := append(few[:0], d.grants...)
	clear(d.grants)
	d.grants = d.grants[:0]
	switch {
	case d.waiters.Len() > 0:
		for _, b := range backends {
			d.tellLater(b)
		}
		backends = nil
	case len(d.untold) > 0:
		for _, b := range backends {
			d.tellLater(b)
		}
		backends, d.untold = d.untold, nil
		for _, b := range backends {
			b.untold = false
		}
	}
	backups := d.bal.OnBackups()
	turned := backups != d.backups
	d.backups = backups
	d.mu.Unlock()
	if turned {
		d.events.backupsServe(backups)
	}
	for _, w := range grants {
		w.granted(w.choice, w.err)
	}
	for _, b := range backends {
		if b != nil {
			d.events.backendHasRoom(b)
		}
	}
}

// close refuses those who wait, and everyone after them, but for the established:
// they wait on until cut. A pause ends, which would have them wait for nothing.
func (d *dispatcher) close() {
	d.mu.Lock()
	defer d.unlock()
	d.closed = true
	if !d.paused.IsZero() {
		d.runOn()
	}
	d.answerAll()
}

// cut refuses these too.
func (d *dispatcher) cut() {
	d.mu.Lock()
	defer d.unlock()
	d.closed, d.isCut = true, true
	d.answerAll()
	d.alarm.stop()
}

// without returns tried and b.
func without(tried []*backend, b *backend) []*backend {
	if slices.Contains(tried, b) {
		return tried
	}
	return append(slices.Clone(tried), b)
}
