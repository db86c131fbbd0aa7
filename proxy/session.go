package proxy

import (
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"forebay/balance"
	"forebay/proxy/engine"
	"forebay/proxy/exchange"
)

// maxStale is how many connections that their backends had ended a session may
// meet, one after the other, before the end of one is taken for the answer.
const maxStale = 8

// session is one client connection, from accept to close. There are as many as
// clients, most of them quiet: it is kept small.
type session struct {
	srv    *Server
	id     uint64
	ticket uint64 // its place in the queue, from when it first asked for a lease
	client engine.Conn
	start  time.Duration // on the server's clock

	source   balance.Client // once it has asked, where the strategy goes by it
	lease    *lease
	stale    uint8           // connections met that their backends had ended, at most maxStale
	again    bool            // it asks once more for what it has asked for
	ready    bool            // each of its leases was of a ready connection
	backend  *backend        // of the newest lease; nil: there was none
	pinned   *pinned         // it needs a connection that nobody has used; nil: any will do
	wait     time.Duration   // for leases, in all
	up, down int64           // bytes delivered
	requests *exchange.Stats // of its requests, once they have ended
	entry    *entry          // in the registry; nil: nobody asked for it
}

// pinned is the rest of a session that was pooled before.
type pinned struct {
	unread []byte // of the client, to be relayed first
}

// run serves the client. Nothing in it waits: each step goes on to the next, or has it
// called when what it needs has come: serve, leased, relayed, end.
func (s *session) run() {
	switch {
	case s.srv.requests != nil:
		s.serveRequests()
	case s.srv.cfg.FirstByteWait > 0:
		s.awaitFirstByte()
	default:
		s.serve()
	}
}

// serve asks for a connection; leased has it.
func (s *session) serve() {
	s.acquire(s.leased)
}

// leased has the engine relay; relayed goes on when it has moved the bytes.
func (s *session) leased(l *lease, err error) {
	if err != nil {
		if s.stale > 0 {
			s.client.Abort() // it was established: a FIN would pass for the backend's
		}
		s.end(refusal(err), err)
		return
	}
	s.hold(l)
	cfg := s.relayConfig()
	if p := s.pinned; p != nil {
		cfg.Unread, p.unread = p.unread, nil // where the relay does not get rid of it, the engine keeps it
	}
	s.srv.cfg.Engine.Relay(s.srv.cutCtx, s.client, l.conn(), cfg, s.relayed)
	s.begun()
}

// hold takes a lease.
func (s *session) hold(l *lease) {
	first := s.backend == nil
	s.lease = l
	s.backend = l.backend
	s.ready = l.ready && (s.ready || first)
	s.shows(Leased)
	if s.entry != nil && s.srv.cfg.Health.CutOnDown && l.Outdated() {
		s.entry.end(errBackendDown) // cutSessions came before it could be seen
	}
}

func (s *session) relayConfig() engine.RelayConfig {
	cfg := &s.srv.cfg
	return engine.RelayConfig{
		IdleTimeout:      cfg.SessionIdleTimeout,
		HalfCloseTimeout: cfg.HalfCloseTimeout,
		KeepQuiet:        cfg.ReuseQuiet,
		// What a backend does with a connection that was dialed for this very
		// client is its answer; one that lay ready may have ended before.
		Replay: s.lease.Ready && s.stale < maxStale,
	}
}

// relayed releases the lease and accounts for the session, or takes it to
// another connection where its backend had ended this one before.
func (s *session) relayed(r engine.Result) {
	s.srv.release(s.lease, r)
	if r.End == engine.Stale {
		s.stale++
		s.again = true
		s.serve()
		return
	}
	s.lease.backend.relayed(r, s.client)
	s.up, s.down = s.up+r.Up.Moved, s.down+r.Down.Moved
	s.end(ending(r.End), r.Err)
}

// end closes the client and accounts for the session: one reason, one counter,
// one log line.
func (s *session) end(reason Reason, err error) {
	if why := s.leavesRegistry(); why != nil {
		reason, err = refusal(why), why
	}
	s.client.Close()
	s.srv.counters.ended(s, reason)
	s.log(reason, err)
	s.srv.forget()
}

// log says how the session ended: faults and refusals at info, ordinary ends at
// debug.
func (s *session) log(reason Reason, err error) {
	level := zerolog.InfoLevel
	if reason.ordinary() {
		level = zerolog.DebugLevel
	}
	e := s.srv.cfg.Log.WithLevel(level)
	if !e.Enabled() {
		return // the fields cost more than the pick did
	}
	e.Uint64("session", s.id).
		Stringer("client", s.client.RemoteAddr()).
		Str("backend", s.backendName()).
		Stringer("reason", reason).
		Dur("wait_ms", s.wait.Round(time.Microsecond)).
		Dur("total_ms", (s.srv.clock()-s.start).Round(time.Microsecond)).
		Int64("bytes_up", s.up).
		Int64("bytes_down", s.down).
		Bool("ready", s.ready).
		Func(s.logRequests).
		Err(err). // adds nothing when nil
		Msg("session ended")
}

// backendName names the backend of its newest lease, as logs have it.
func (s *session) backendName() string {
	if s.backend == nil {
		return ""
	}
	return s.backend.name
}

// logRequests adds what request pooling tells of a session.
func (s *session) logRequests(e *zerolog.Event) {
	if r := s.requests; r != nil {
		e.Int64("requests", r.Requests).Int64("oneways", r.Oneways).Int64("errors", r.Errors)
	}
}

// counters count what the server's sessions did.
type counters struct {
	reasons  [numReasons]atomic.Int64
	stale    atomic.Int64
	queued   atomic.Int64 // waits in the queue
	queueSum atomic.Int64 // how long, in nanoseconds
	queueMax atomic.Int64
}

func (c *counters) ended(s *session, reason Reason) {
	c.reasons[reason].Add(1)
	c.stale.Add(int64(s.stale))
}

// waited counts one wait in the queue.
func (srv *Server) waited(d time.Duration) {
	if o := srv.cfg.Observer; o != nil {
		o.QueueWaited(d)
	}
	c := &srv.counters
	c.queued.Add(1)
	c.queueSum.Add(int64(d))
	for w := int64(d); ; {
		most := c.queueMax.Load()
		if w <= most || c.queueMax.CompareAndSwap(most, w) {
			return
		}
	}
}
