package proxy

import (
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"forebay/proxy/engine"
)

// maxStale is how many connections that their backends had ended a session may
// meet, one after the other, before the end of one is taken for the answer.
const maxStale = 8

// session is one client connection, from accept to close.
type session struct {
	srv    *Server
	id     uint64
	ticket uint64 // its place in the queue, from when it first asked for a lease
	client engine.Conn
	start  time.Time

	lease    *lease
	again    bool          // it asks once more for what it has asked for
	pinned   bool          // it needs a connection that nobody has used
	unread   []byte        // of the client, to be relayed first
	backend  string        // of the newest lease
	ready    bool          // each of its leases was of a ready connection
	wait     time.Duration // for leases, in all
	stale    int           // connections met that their backends had ended
	up, down int64         // bytes delivered

	requests, oneways, errors int64 // see exchange.Stats
}

// run serves the client, from its first byte to its lease; relayed goes on when
// the engine has moved the bytes.
func (s *session) run() {
	if s.srv.requests != nil {
		s.serveRequests()
		return
	}
	if err := s.awaitFirstByte(); err != nil {
		s.end(refusal(err), err)
		return
	}
	s.serve()
}

// serve leases a connection and has the engine relay.
func (s *session) serve() {
	begin := time.Now()
	l, err := s.acquire()
	s.wait += time.Since(begin)
	if err != nil {
		if s.stale > 0 {
			s.client.Abort() // it was established: a FIN would pass for the backend's
		}
		s.end(refusal(err), err)
		return
	}
	s.hold(l)
	cfg := s.relayConfig()
	s.unread = nil // where the relay does not get rid of it, the engine keeps it
	s.srv.cfg.Engine.Relay(s.srv.cutCtx, s.client, l.conn(), cfg, s.relayed)
}

// hold takes a lease.
func (s *session) hold(l *lease) {
	first := s.lease == nil && s.backend == ""
	s.lease = l
	s.backend = s.srv.names[l.backend]
	s.ready = l.ready && (s.ready || first)
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
		Unread: s.unread,
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
	s.srv.served[s.lease.backend].Add(1)
	s.up, s.down = s.up+r.Up.Moved, s.down+r.Down.Moved
	s.end(ending(r.End), r.Err)
}

// awaitFirstByte holds a client without a lease until it has sent something, at
// most for the first-byte wait. An error means that it left, or that the proxy
// shuts down.
func (s *session) awaitFirstByte() error {
	if s.srv.cfg.FirstByteWait <= 0 {
		return nil
	}
	firstc := make(chan error, 1) // buffered: the watch never waits
	unwatch := s.client.Watch(func(bytes bool, end error) bool {
		switch {
		case hasLeft(bytes, end, s.srv.cfg.AbortOnFIN):
			firstc <- errClientLeft
		case bytes:
			firstc <- nil
		default:
			return true
		}
		return false
	})
	defer unwatch()
	timer := time.NewTimer(s.srv.cfg.FirstByteWait)
	defer timer.Stop()
	select {
	case err := <-firstc:
		return err
	case <-timer.C:
		return nil
	case <-s.srv.drainCtx.Done():
		return errShutdown
	}
}

// end closes the client and accounts for the session: one reason, one counter,
// one log line.
func (s *session) end(reason Reason, err error) {
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
		Str("backend", s.backend).
		Stringer("reason", reason).
		Dur("wait_ms", s.wait.Round(time.Microsecond)).
		Dur("total_ms", time.Since(s.start).Round(time.Microsecond)).
		Int64("bytes_up", s.up).
		Int64("bytes_down", s.down).
		Bool("ready", s.ready).
		Func(s.logRequests).
		Err(err). // adds nothing when nil
		Msg("session ended")
}

// logRequests adds what request pooling tells of a session.
func (s *session) logRequests(e *zerolog.Event) {
	if s.srv.requests != nil {
		e.Int64("requests", s.requests).Int64("oneways", s.oneways).Int64("errors", s.errors)
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
func (c *counters) waited(d time.Duration) {
	c.queued.Add(1)
	c.queueSum.Add(int64(d))
	for w := int64(d); ; {
		most := c.queueMax.Load()
		if w <= most || c.queueMax.CompareAndSwap(most, w) {
			return
		}
	}
}
