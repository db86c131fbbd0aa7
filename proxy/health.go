package proxy

import (
	"time"

	"forebay/balance"
	"forebay/balance/health"
	"forebay/pool"
)

// Health describes how it is found out which backends are down, and what follows. Of the
// zero value no backend is checked while it is up: one failed dial takes it down, and
// dials bring it up (see package health).
type Health struct {
	// Interval, Timeout, Fall, Rise and Talk: see health.Config.
	Interval, Timeout time.Duration
	Fall, Rise        int
	Talk              health.Talk

	// SlowStart is how long a backend that came up takes to get the whole of its max,
	// and, by balance.LeastConn, of its share. Zero: it has them at once.
	SlowStart time.Duration

	// CutOnDown ends the sessions of a backend that goes down: those that have a lease
	// then. It sets Config.Registry.
	CutOnDown bool

	// TryAllDown dials backends that are down for clients that may use none which is up,
	// backups included; those that are down come last. Otherwise such clients are refused.
	TryAllDown bool
}

// newMonitor returns what watches a backend.
func (srv *Server) newMonitor(b *backend) (*health.Monitor, error) {
	h := srv.cfg.Health
	return health.New(health.Config{
		Network: b.Network, Addr: b.Addr,
		Owner:    owner{srv, b},
		Interval: h.Interval, Timeout: h.Timeout, Fall: h.Fall, Rise: h.Rise, Talk: h.Talk,
		Reserve: slots{srv.dispatcher, b}.check, IsLocal: pool.IsLocal,
	})
}

// owner is the server as the monitor of one backend sees it.
type owner struct {
	srv     *Server
	backend *backend
}

// Down takes the backend out of the choice, has what lies idle closed, and cuts the
// sessions that run, if that is wanted.
func (o owner) Down(why error) {
	o.srv.dispatcher.down(o.backend, why)
	o.backend.pool.Flush()
	if !o.srv.cfg.Health.CutOnDown {
		return
	}
	if n := o.srv.cutSessions(o.backend); n > 0 {
		o.srv.cfg.Log.Warn().Str("backend", o.backend.name).Int("sessions", n).Msg("sessions of a backend that is down are cut")
	}
}

// Up puts it back.
func (o owner) Up() { o.srv.dispatcher.up(o.backend) }

// down takes a backend out of the choice. Those who wait and have no other hope are
// refused; the cause is told before that.
func (d *dispatcher) down(b *backend, why error) {
	d.mu.Lock()
	if b.gone {
		d.mu.Unlock()
		return
	}
	d.bal.SetOut(b.index, balance.Down, true)
	b.err, b.recovering = why, 0
	b.ups++ // what began with the last one is over, and its bounds: it may be tried all the same
	d.bal.LimitDials(b.index, 0)
	d.bal.SetLimit(b.index, 0)
	d.answerAll() // with the same lock: where backends that are down are tried, nobody overtakes
	d.mu.Unlock() // who was answered hears of it later
	d.events.backendDown(b, why)
	d.mu.Lock()
	d.unlock()
}

// up puts a backend back, with few dials at once until it has shown that it is well.
func (d *dispatcher) up(b *backend) {
	d.mu.Lock()
	if b.gone {
		d.mu.Unlock()
		return
	}
	d.bal.SetOut(b.index, balance.Down, false)
	d.bal.LimitDials(b.index, d.parallel)
	b.err, b.recovering = nil, d.parallel
	b.ups++
	d.events.backendRises(b, b.ups)
	d.serve()
	d.unlock(b)
	d.events.backendUp(b)
}

// dialed notes that a client's dial has succeeded: the slot is leased.
func (d *dispatcher) dialed(b *backend) {
	d.mu.Lock()
	d.bal.Move(b.index, balance.Dialing, balance.Leased)
	if d.recover(b) {
		d.unlock(b)
	} else {
		d.unlock()
	}
}

// recover counts a dial that succeeded. After as many as may be under way at
// once, a recovering backend is healthy and dials up to its max. It reports
// whether this dial changed anything.
func (d *dispatcher) recover(b *backend) bool {
	if b.recovering == 0 {
		return false
	}
	if b.recovering--; b.recovering == 0 {
		d.bal.LimitDials(b.index, 0)
	}
	d.serve() // one dial less is under way
	return true
}

// dialFailed notes a dial that failed because of its backend.
func (d *dispatcher) dialFailed(b *backend, began time.Time, err error) {
	d.events.backendStillDown(b, err)
	b.monitor.DialFailed(began, err)
}
