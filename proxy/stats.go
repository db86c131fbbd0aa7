package proxy

import (
	"time"

	"forebay/balance"
	"forebay/balance/health"
	"forebay/pool"
	"forebay/proxy/exchange"
)

// Stats is a snapshot of what a server has done and is doing.
type Stats struct {
	Clients int // sessions now
	Waiting int // of them, in the queue

	Ended    map[string]int64 // sessions, by the name of their Reason
	Stale    int64            // connections met that their backends had ended; no client noticed
	Queued   int64            // waits in the queue: of sessions, or of requests
	QueueSum time.Duration    // how long, in all
	QueueMax time.Duration    // the longest

	// Of request pooling.
	Requests int64            // read whole
	Oneways  int64            // of these, without a reply
	Errors   int64            // of these, answered with an exception of the proxy's, or lost
	Repeats  int64            // requests sent once more, of methods named idempotent
	Faults   map[string]int64 // connections not kept, by the name of the exchange.Fault
	Buffered int64            // bytes of replies that slow clients have yet to take

	Paused   time.Time        // since when; zero: it is not
	Balance  balance.Strategy // of Config.Balance; never empty
	Backends []BackendStats   // in the order of Config.Backends; one that is added takes the place of one that is gone
}

// BackendStats is the part of one backend.
type BackendStats struct {
	Backend        // as it is now
	Status  string // "up"; or why it gets no leases: "removed", "maintain", "drain" or "down", the first that is so

	Sessions int64 // that it has served
	Requests int64 // likewise, with request pooling

	BytesUp, BytesDown int64            // delivered to it and from it, counted when a lease ends
	Results            map[string]int64 // leases for requests that ended: "ok", or the exchange.Fault

	Health health.Snapshot
	Load   balance.Load
	Pool   pool.Stats
}

// snapshot is what the dispatcher has of one backend.
type snapshot struct {
	*backend
	dispatched
	load balance.Load
}

// snapshot returns one of each backend, how many clients wait, and since when all do.
func (d *dispatcher) snapshot() (backends []snapshot, waiting int, paused time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, b := range d.backends {
		if b != nil {
			backends = append(backends, snapshot{b, b.dispatched, d.bal.Load(b.index)})
		}
	}
	return backends, d.waiters.Len(), d.paused
}

// stats adds what the backend counts itself.
func (b snapshot) stats() BackendStats {
	s := b.dispatched
	return BackendStats{
		Backend:   s.Backend,
		Status:    s.status(),
		Sessions:  b.sessions.Load(),
		Requests:  b.requests.Load(),
		BytesUp:   b.traffic.up.Load(),
		BytesDown: b.traffic.down.Load(),
		Results:   b.traffic.byResult(),
		Health:    b.monitor.Snapshot(),
		Load:      b.load,
		Pool:      b.pool.Stats(),
	}
}

func (b *dispatched) status() string {
	switch {
	case b.removed:
		return "removed"
	case b.state != Ready:
		return b.state.String()
	case b.err != nil:
		return "down"
	}
	return "up"
}

// Stats returns a snapshot. It takes the lock of the slots, for as long as a
// pick does.
func (srv *Server) Stats() Stats {
	backends, waiting, paused := srv.dispatcher.snapshot()
	s := Stats{
		Clients:  int(srv.running.Load()),
		Waiting:  waiting,
		Ended:    make(map[string]int64),
		Stale:    srv.counters.stale.Load(),
		Queued:   srv.counters.queued.Load(),
		QueueSum: time.Duration(srv.counters.queueSum.Load()),
		QueueMax: time.Duration(srv.counters.queueMax.Load()),
		Paused:   paused,
		Balance:  srv.cfg.Balance,
	}
	for r := range numReasons {
		if n := srv.counters.reasons[r].Load(); n > 0 {
			s.Ended[r.String()] = n
		}
	}
	for _, b := range backends {
		s.Backends = append(s.Backends, b.stats())
	}
	if srv.requests != nil {
		srv.requests.add(&s)
	}
	return s
}

// add adds what request pooling counts.
func (r *requestPooling) add(s *Stats) {
	t := &r.totals
	s.Requests, s.Oneways, s.Errors, s.Repeats = t.requests.Load(), t.oneways.Load(), t.errors.Load(), t.repeats.Load()
	s.Buffered = r.Budget.Held()
	s.Faults = make(map[string]int64)
	for f := exchange.NoFault + 1; f < exchange.NumFaults; f++ {
		if n := r.faults[f].Load(); n > 0 {
			s.Faults[f.String()] = n
		}
	}
}
