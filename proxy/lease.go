package proxy

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"forebay/balance"
	"forebay/pool"
	"forebay/proxy/engine"
	"forebay/proxy/exchange"
)

// The pauses of a session whose dial failed for want of something on this
// machine, until it has been freed or the acquire timeout passes.
const (
	firstLocalPause = 5 * time.Millisecond
	lastLocalPause  = 200 * time.Millisecond
)

// lease is a session's hold on one connection of one backend.
type lease struct {
	*pool.Lease
	backend *backend
	ready   bool // it did not wait for a dial
}

func (l *lease) conn() engine.Conn { return l.Conn().(*backendConn).Conn }

func (l *lease) exchange() *exchange.Conn { return l.Conn().(*backendConn).exchange }

// acquire is one session's way to a lease: pick a backend, wait while all are
// full, dial where no connection is ready, and after a dial error go to the next
// backend, each at most once. At any time one goroutine has it, and goes on when what
// it waits for has come: who asked, who made the grant, the one that dials.
type acquire struct {
	waiter
	s    *session
	done func(*lease, error)

	begun   time.Time
	last    error // of the newest dial
	pause   time.Duration
	joined  time.Time // the queue
	unwatch func()    // nil before the client is watched

	// The wait for dials, begun by the first.
	ctx   context.Context
	until time.Time // its deadline
	stop  func()

	mu   sync.Mutex              // orders the client's leaving and what it is to end
	gone error                   // why nobody waits any more: the client left, or is disconnected
	quit context.CancelCauseFunc // of ctx
}

// acquire calls done with a lease, or why there is none: errClientLeft, errQueueFull,
// errAcquireTimeout, errShutdown, errCut, balance.ErrNone or a fault of this machine.
// It does not wait. Where a connection is ready, done is called before it returns, and
// nothing is begun that would have to be ended.
func (s *session) acquire(done func(*lease, error)) {
	if s.ticket == 0 {
		s.ticket = s.srv.tickets.Add(1)
	}
	asks := claim{ticket: s.ticket, established: s.again}
	if s.srv.cfg.Balance.Hashes() {
		if s.source == 0 {
			s.source = balance.ClientAt(addrOf(s.client))
		}
		asks.client = s.source
	}
	choice, err := s.srv.dispatcher.pick(asks)
	if err == nil && choice.ready {
		if l := s.take(choice.backend); l != nil {
			done(l, nil)
			return
		}
		choice.ready = false
	}
	a := &acquire{s: s, done: done, pause: firstLocalPause, begun: time.Now()}
	a.waiter = waiter{claim: asks, deadline: a.begun.Add(s.srv.cfg.AcquireTimeout), granted: a.granted,
		standing: standing{left: s.srv.cfg.PauseTimeout}}
	if why := s.waitsFor(a); why != nil {
		a.leave(why) // before it waits for anything: each step will see it
	}
	a.next(choice, err)
}

// next goes on with what a pick has given.
func (a *acquire) next(c choice, err error) {
	if errors.Is(err, balance.ErrFull) {
		var waits bool
		if waits, c, err = a.join(); waits {
			return
		}
	}
	if err != nil {
		a.finish(nil, a.explain(err))
		return
	}
	a.open(c)
}

// join has the session wait in the queue. The client is watched before it is there,
// so that it can leave; where it had left by then, nobody else takes it out.
func (a *acquire) join() (waits bool, c choice, err error) {
	a.watch()
	a.joined = time.Now()
	a.s.shows(Waiting)
	waits, c, err = a.s.srv.dispatcher.join(&a.waiter)
	if why := a.whyGone(); waits && why != nil && a.s.srv.dispatcher.leave(&a.waiter) {
		a.waited()
		return false, c, why
	}
	return waits, c, err
}

// granted goes on when the wait in the queue has ended.
func (a *acquire) granted(c choice, err error) {
	a.waited()
	if why := a.whyGone(); err == nil && why != nil {
		a.s.srv.dispatcher.giveBack(c)
		err = why
	}
	a.next(c, err)
}

// waited counts a wait in the queue.
func (a *acquire) waited() { a.s.srv.waited(time.Since(a.joined)) }

// open makes a lease of a reserved slot.
func (a *acquire) open(c choice) {
	if c.ready {
		if l := a.s.take(c.backend); l != nil {
			a.finish(l, nil)
			return
		}
	}
	a.watch()
	a.s.srv.sessions.Go(func() { a.dial(c.backend) })
}

// take leases the idle connection that is reserved at backend b. Where that cannot
// serve, the slot is for a dial.
func (s *session) take(b *backend) *lease {
	l := b.pool.Take()
	if l != nil && (s.pinned == nil || !l.Used()) {
		return &lease{Lease: l, backend: b, ready: true}
	}
	if l != nil {
		l.Close(pool.Used) // its slot goes to one that nobody has used
	}
	s.srv.dispatcher.move(b, balance.Leased, balance.Dialing)
	return nil
}

// dial makes a lease of a slot that is reserved for a dial. It waits, as nothing
// else does, and has a goroutine.
func (a *acquire) dial(b *backend) {
	a.wait()
	a.s.shows(Dialing)
	l, err := a.dialIn(b)
	switch {
	case err == nil:
		a.finish(l, nil)
		return
	case a.ctx.Err() != nil:
		a.finish(nil, a.explain(context.Cause(a.ctx)))
		return
	}
	a.last = err
	if !pool.IsLocal(err) {
		a.tried = without(a.tried, b)
	} else if err := a.rest(outOfDescriptors(err)); err != nil {
		a.finish(nil, a.explain(err))
		return
	}
	a.next(a.s.srv.dispatcher.pick(a.claim))
}

// dialIn dials in a slot of backend b, which is free again after an error.
func (a *acquire) dialIn(b *backend) (*lease, error) {
	srv := a.s.srv
	l, err := b.pool.Dial(a.ctx)
	for err == nil && a.s.pinned != nil && l.Used() { // another session's came into the idle set behind the dial
		l.Close(pool.Used)
		l, err = b.pool.Dial(a.ctx)
	}
	switch {
	case err == nil:
		srv.dispatcher.dialed(b)
		return &lease{Lease: l, backend: b}, nil
	case errors.Is(err, pool.ErrOrphaned): // the pool goes on with the dial, and has the slot
	default:
		srv.dispatcher.move(b, balance.Dialing, balance.Free)
	}
	return nil, err
}

// finish ends the waiting, and says what has come of it.
func (a *acquire) finish(l *lease, err error) {
	if a.unwatch != nil {
		a.unwatch()
	}
	if a.stop != nil {
		a.stop()
	}
	a.s.waitsFor(nil)
	if why := a.whyGone(); err == nil && why != nil {
		a.s.srv.keep(l, false) // it left as its turn came
		l, err = nil, why
	}
	a.s.wait += time.Since(a.begun)
	a.done(l, err)
}

// explain prefers what is known about the backends to what ended the wait.
func (a *acquire) explain(err error) error {
	switch {
	case a.last == nil:
	case errors.Is(err, balance.ErrNone):
		return noBackendError{a.last}
	case errors.Is(err, errAcquireTimeout) && pool.IsLocal(a.last):
		return a.last
	}
	return err
}

// wait begins the wait for dials, once, or again where the deadline has been put off by
// a pause: it ends with the acquire timeout, at shutdown (for an established session:
// when it is cut), or when the client leaves.
func (a *acquire) wait() {
	switch {
	case a.ctx == nil:
	case a.until.Equal(a.deadline):
		return
	default:
		a.stop()
	}
	life := a.s.srv.drainCtx
	if a.established {
		life = a.s.srv.cutCtx
	}
	life, quit := context.WithCancelCause(life)
	ctx, stopTimer := context.WithDeadlineCause(life, a.deadline, errAcquireTimeout)
	a.ctx, a.until = ctx, a.deadline
	a.stop = func() {
		quit(nil)
		stopTimer()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.quit = quit
	if a.gone != nil {
		quit(a.gone)
	}
}

// watch begins to watch the client, once: a session that need not wait costs no watch.
func (a *acquire) watch() {
	if a.unwatch == nil {
		a.unwatch = a.s.client.Watch(a.look)
	}
}

// look ends the waiting of a client that has left.
func (a *acquire) look(bytes bool, end error) (more bool) {
	if !hasLeft(bytes || a.s.hasSpoken(), end, a.s.srv.cfg.AbortOnFIN) {
		return true
	}
	a.leave(errClientLeft)
	return false
}

// leave ends the waiting because of why, from any goroutine.
func (a *acquire) leave(why error) {
	a.mu.Lock()
	if a.gone == nil {
		a.gone = why
	}
	if a.quit != nil {
		a.quit(why)
	}
	a.mu.Unlock()
	srv := a.s.srv
	if srv.dispatcher.leave(&a.waiter) {
		a.waited()
		srv.sessions.Go(func() { a.finish(nil, why) }) // a watch is not stopped from within
	}
}

// whyGone returns why nobody waits any more; nil: somebody does.
func (a *acquire) whyGone() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.gone
}

// hasSpoken reports whether bytes of the client have been taken that wait to be
// served.
func (s *session) hasSpoken() bool { return s.srv.requests != nil }

// hasLeft tells a client that is gone from one that has only finished sending: a
// failure, or a FIN with nothing before it. With abortOnFIN, any FIN.
func hasLeft(bytes bool, end error, abortOnFIN bool) bool {
	if end == nil {
		return false
	}
	return end != io.EOF || !bytes || abortOnFIN
}

// rest waits for this machine to have what a dial needs. It returns why the wait
// ended, if it did. While sessions starve for a descriptor no client is accepted,
// who would take the next one that is free.
func (a *acquire) rest(starving bool) error {
	if starving {
		a.s.srv.starve(1)
		defer a.s.srv.starve(-1)
	}
	t := time.NewTimer(a.pause)
	defer t.Stop()
	a.pause = min(2*a.pause, lastLocalPause)
	select {
	case <-t.C:
		return nil
	case <-a.ctx.Done():
		return context.Cause(a.ctx)
	}
}
