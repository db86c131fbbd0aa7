package proxy

import (
	"time"

	"forebay/balance"
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

	Backends []BackendStats // in the order of Config.Backends
}

// BackendStats is the part of one backend.
type BackendStats struct {
	Backend
	Sessions int64 // that it has served
	Requests int64 // likewise, with request pooling
	Load     balance.Load
	Pool     pool.Stats
}

// Stats returns a snapshot. It takes the lock of the slots, for as long as a
// pick does.
func (srv *Server) Stats() Stats {
	loads, waiting := srv.dispatcher.loads()
	s := Stats{
		Clients:  int(srv.running.Load()),
		Waiting:  waiting,
		Ended:    make(map[string]int64),
		Stale:    srv.counters.stale.Load(),
		Queued:   srv.counters.queued.Load(),
		QueueSum: time.Duration(srv.counters.queueSum.Load()),
		QueueMax: time.Duration(srv.counters.queueMax.Load()),
	}
	for r := range numReasons {
		if n := srv.counters.reasons[r].Load(); n > 0 {
			s.Ended[r.String()] = n
		}
	}
	for i, b := range srv.cfg.Backends {
		s.Backends = append(s.Backends, BackendStats{Backend: b, Sessions: srv.served[i].Load(), Load: loads[i], Pool: srv.pools[i].Stats()})
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
	for i := range s.Backends {
		s.Backends[i].Requests = r.served[i].Load()
	}
}
