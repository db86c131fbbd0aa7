package pool

import "sync/atomic"

// A Reason tells why the pool closed a connection.
type Reason int

// The reasons for a close.
const (
	fit           Reason = iota // it was not closed
	VirginTimeout               // no client came for it in time
	IdleTimeout                 // it had been used, and lay idle for too long
	Lifetime                    // its age
	BackendClosed               // its backend ended it while it lay idle
	StrayBytes                  // its backend sent bytes after its client had gone
	Used                        // its session ended: a client's bytes have passed on it
	Failed                      // it, or its backend, failed
	Shutdown                    // the pool was closed
	Surplus                     // more lay idle than there may be: its backend is drained, or max was lowered
	numReasons
)

var reasonNames = [numReasons]string{"fit", "virgin_timeout", "idle_timeout", "lifetime", "backend_closed",
	"stray_bytes", "used", "failed", "shutdown", "surplus"}

// String returns the name of the reason, as logs and metrics have it.
func (r Reason) String() string { return reasonNames[r] }

type counters struct {
	dials, dialed, dialErrors, ready atomic.Int64
	closed                           [numReasons]atomic.Int64
}

// Stats counts what a pool has done since it was made.
type Stats struct {
	Dials      int64            // dials begun, for clients and ahead
	Dialed     int64            // dials that gave a connection
	DialErrors int64            // dials failed
	Ready      int64            // leases that found an idle connection
	Closed     map[string]int64 // connections closed, by the name of the Reason
}

// Stats returns a snapshot. It takes no lock.
func (p *Pool) Stats() Stats {
	s := Stats{
		Dials:      p.counters.dials.Load(),
		Dialed:     p.counters.dialed.Load(),
		DialErrors: p.counters.dialErrors.Load(),
		Ready:      p.counters.ready.Load(),
		Closed:     make(map[string]int64),
	}
	for r := fit + 1; r < numReasons; r++ {
		if n := p.counters.closed[r].Load(); n > 0 {
			s.Closed[r.String()] = n
		}
	}
	return s
}
