package proxy

import (
	"context"

	"forebay/balance"
)

// A check is a connection to the backend, and so takes a slot. Where all are leased it
// waits for the next one that is free, in front of every client: a check is short, and a
// backend that hangs would not be found out otherwise. Where one lies idle it is closed.

// check reserves a slot for a check.
func (s slots) check() (release func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.backend
	switch {
	case !b.checked():
		return nil, false
	case b.checkReady:
		b.checkReady = false
	case s.bal.TryMove(b.index, balance.Free, balance.Checking):
	default:
		b.checkWaits.Store(s.checks)
		s.tidy(b)
		return nil, false
	}
	b.checkWaits.Store(false)
	return func() { s.move(b, balance.Checking, balance.Free) }, true
}

// checked reports whether it is to be found out if the backend is up. It is asked with
// the dispatcher's lock.
func (b *backend) checked() bool { return !b.gone && !b.removed && b.state != Maintain }

// grantCheck gives a check that waits the slot that has become free, with the lock held.
func (d *dispatcher) grantCheck(b *backend) {
	if b.checkWaits.Load() && d.bal.TryMove(b.index, balance.Free, balance.Checking) {
		b.checkWaits.Store(false)
		b.checkReady = true
		b.monitor.SlotFree()
	}
}

// lacksSlot reports, with the lock held, whether a check waits for whom no connection is
// being closed yet: one is enough.
func (d *dispatcher) lacksSlot(b *backend) bool {
	return b.checkWaits.Load() && d.bal.Count(b.index, balance.Closing)+d.bal.Count(b.index, balance.Expiring) == 0
}

// closesForCheck reports whether a leased connection is to be closed for a check that
// waits, rather than kept. Then its slot is closing.
func (d *dispatcher) closesForCheck(b *backend) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	lacks := d.lacksSlot(b)
	if lacks {
		d.bal.Move(b.index, balance.Leased, balance.Closing)
	}
	return lacks
}

// endCheck ends the wait of a check that will not be made, with the lock held.
func (d *dispatcher) endCheck(b *backend) {
	b.checkWaits.Store(false)
	if b.checkReady {
		b.checkReady = false
		d.bal.Move(b.index, balance.Checking, balance.Free)
	}
}

// watch has the monitor of a backend run.
func (srv *Server) watch(ctx context.Context, b *backend) {
	b.monitor.Run(ctx)
	srv.dispatcher.mu.Lock()
	defer srv.dispatcher.unlock()
	srv.dispatcher.endCheck(b)
}
