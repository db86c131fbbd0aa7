package proxy

import (
	"context"
	"errors"
	"io"
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
	backend int
	ready   bool // it did not wait for a dial
}

func (l *lease) conn() engine.Conn { return l.Conn().(*backendConn).Conn }

func (l *lease) exchange() *exchange.Conn { return l.Conn().(*backendConn).exchange }

// acquire is one session's way to a lease: pick a backend, wait while all are
// full, dial where no connection is ready, and after a dial error go to the next
// backend, each at most once.
type acquire struct {
	s     *session
	claim claim
	last  error // of the newest dial
	pause time.Duration

	// The wait, begun by the first thing that takes time: a lease of a ready
	// connection needs neither timer nor watch.
	ctx  context.Context
	stop func()
}

// acquire returns a lease, or why there is none: errClientLeft, errQueueFull,
// errAcquireTimeout, errShutdown, balance.ErrNone or a fault of this machine.
func (s *session) acquire() (*lease, error) {
	if s.ticket == 0 {
		s.ticket = s.srv.tickets.Add(1)
	}
	a := &acquire{s: s, pause: firstLocalPause, claim: claim{ticket: s.ticket, established: s.again}}
	l, err := a.run()
	if a.ctx == nil {
		return l, err
	}
	a.stop()
	if err == nil && errors.Is(context.Cause(a.ctx), errClientLeft) {
		s.srv.keep(l, false) // it left as its turn came
		return nil, errClientLeft
	}
	return l, err
}

func (a *acquire) run() (*lease, error) {
	for {
		choice, err := a.pick()
		if err != nil {
			return nil, a.explain(err)
		}
		l, err := a.open(choice)
		if err == nil {
			return l, nil
		}
		if a.ctx.Err() != nil {
			return nil, a.explain(context.Cause(a.ctx))
		}
		a.last = err
		if !pool.IsLocal(err) {
			a.claim.tried = without(a.claim.tried, choice.Backend)
		} else if err := a.rest(outOfDescriptors(err)); err != nil {
			return nil, a.explain(err)
		}
	}
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

func (a *acquire) pick() (balance.Choice, error) {
	d := a.s.srv.dispatcher
	choice, err := d.pick(a.claim)
	if !errors.Is(err, balance.ErrFull) {
		return choice, err
	}
	begin := time.Now()
	choice, err = d.wait(a.waiting(), a.claim)
	if !errors.Is(err, errQueueFull) {
		a.s.srv.counters.waited(time.Since(begin))
	}
	return choice, err
}

// open makes a lease of a reserved slot. After an error the slot is free again.
func (a *acquire) open(c balance.Choice) (*lease, error) {
	srv := a.s.srv
	p := srv.pools[c.Backend]
	if c.Ready {
		if l := p.Take(); l != nil && !(a.s.pinned && l.Used()) {
			return &lease{Lease: l, backend: c.Backend, ready: true}, nil
		} else if l != nil {
			l.Close(pool.Used) // its slot goes to one that nobody has used
		}
		srv.dispatcher.move(c.Backend, balance.Leased, balance.Dialing)
	}
	ctx := a.waiting()
	l, err := p.Dial(ctx)
	for err == nil && a.s.pinned && l.Used() { // another session's came into the idle set behind the dial
		l.Close(pool.Used)
		l, err = p.Dial(ctx)
	}
	switch {
	case err == nil:
		srv.dispatcher.dialed(c.Backend)
		return &lease{Lease: l, backend: c.Backend}, nil
	case errors.Is(err, pool.ErrOrphaned): // the pool goes on with the dial, and has the slot
	default:
		srv.dispatcher.move(c.Backend, balance.Dialing, balance.Free)
	}
	return nil, err
}

// waiting begins the wait, once: it ends with the acquire timeout, at shutdown (for
// an established session: when it is cut), or when the client leaves.
func (a *acquire) waiting() context.Context {
	if a.ctx != nil {
		return a.ctx
	}
	srv := a.s.srv
	life := srv.drainCtx
	if a.claim.established {
		life = srv.cutCtx
	}
	timed, cancelTimer := context.WithTimeoutCause(life, srv.cfg.AcquireTimeout, errAcquireTimeout)
	ctx, cancel := context.WithCancelCause(timed)
	unwatch := a.s.client.Watch(func(bytes bool, end error) bool {
		if hasLeft(bytes || a.s.hasSpoken(), end, srv.cfg.AbortOnFIN) {
			cancel(errClientLeft)
			return false
		}
		return true
	})
	a.ctx = ctx
	a.stop = func() {
		unwatch()
		cancel(nil)
		cancelTimer()
	}
	return ctx
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
		a.s.srv.starving.Add(1)
		defer a.s.srv.starving.Add(-1)
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
