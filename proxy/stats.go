package proxy

import (
	"time"

	"forebay/balance"
	"forebay/pool"
)

// Stats is a snapshot of what a server has done and is doing.
type Stats struct {
	Clients int // sessions now
	Waiting int // of them, in the queue

	Ended    map[string]int64 // sessions, by the name of their Reason
	Stale    int64            // connections met that their backends had ended; no client noticed
	Queued   int64            // sessions that waited in the queue
	QueueSum time.Duration    // how long, in all
	QueueMax time.Duration    // the longest

	Backends []BackendStats // in the order of Config.Backends
}

// BackendStats is the part of one backend.
type BackendStats struct {
	Backend
	Sessions int64 // that it has served
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
	return s
}
