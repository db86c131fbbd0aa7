package proxy

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"
	"time"

	"forebay/balance"
	"forebay/pool"
	"forebay/proxy/engine"
	"forebay/proxy/exchange"
	"forebay/proxy/frame"
)

// Requests describes request pooling: a lease for each request instead of one for
// the session. What is said of no zero value is required.
type Requests struct {
	// Codec finds the messages.
	Codec frame.Codec

	// Session leases once for a session, at its first request.
	Session bool

	// Trust pools messages without an id: the operator vouches that each request
	// gets one reply.
	Trust bool

	// Oneway are methods without a reply, whatever type their calls have;
	// LearnOneway finds out about others (see exchange.Methods).
	Oneway      []string
	LearnOneway bool

	// Idempotent are methods that may be executed twice.
	Idempotent []string

	// ReplyTimeout and Quarantine: see exchange.Config.
	ReplyTimeout time.Duration
	Quarantine   time.Duration

	// ReplyBuffer is how many bytes of replies are read ahead of a slow client,
	// and BufferMemory of all of them together.
	ReplyBuffer  int
	BufferMemory int64
}

// requestPooling is what the sessions of a server share that lease for requests.
type requestPooling struct {
	exchange.Config
	faults  [exchange.NumFaults]atomic.Int64
	desyncs repeated // of those, what should never happen
	totals  requestTotals
}

// requestTotals sum exchange.Stats.
type requestTotals struct {
	requests, oneways, errors, repeats atomic.Int64
}

func (srv *Server) newRequestPooling(cfg Requests) *requestPooling {
	r := &requestPooling{
		Config: exchange.Config{
			Codec:        cfg.Codec,
			Methods:      exchange.NewMethods(cfg.Oneway, cfg.LearnOneway),
			Budget:       &exchange.Budget{Max: cfg.BufferMemory},
			Session:      cfg.Session,
			Trust:        cfg.Trust,
			Idempotent:   make(map[string]bool),
			AbortOnFIN:   srv.cfg.AbortOnFIN,
			ReplyTimeout: cfg.ReplyTimeout,
			IdleTimeout:  srv.cfg.SessionIdleTimeout,
			Quarantine:   cfg.Quarantine,
			ReplyBuffer:  cfg.ReplyBuffer,
		},
	}
	for _, name := range cfg.Idempotent {
		r.Idempotent[name] = true
	}
	r.Methods.Learned = srv.learned
	return r
}

// learned says what has been found out about a method; each is said once.
func (srv *Server) learned(method string, oneway bool) {
	if oneway {
		srv.cfg.Log.Info().Str("method", method).Msg("learned that the method is oneway: its calls are never answered (--learn-oneway)")
		return
	}
	srv.cfg.Log.Warn().Str("method", method).Msg("a method taken for oneway was answered; it is not any more")
}

// backendConn is a backend connection with what its exchanges know of it.
type backendConn struct {
	engine.Conn
	exchange *exchange.Conn // nil without request pooling
}

func (srv *Server) newBackendConn(c engine.Conn) *backendConn {
	b := &backendConn{Conn: c}
	if srv.requests != nil {
		b.exchange = exchange.NewConn()
	}
	return b
}

// requests is a session that leases for each request: the machine decides, and
// what it asks of the pools is done here.
type requests struct {
	*exchange.Machine
	*session
	counted exchange.Stats // by the server

	answered func(*lease, error) // answer, bound once
	leased   func()              // the engine's, while a lease is asked for
	now      time.Time           // of the newest step
	since    time.Time           // the lease began; set where somebody wants to know
}

// ops are the engine's words for the machine's.
var ops = [...]engine.Op{exchange.Wait: engine.OpWait, exchange.Lease: engine.OpLease, exchange.Release: engine.OpRelease,
	exchange.FinishClient: engine.OpFinishClient, exchange.Done: engine.OpDone}

// serveRequests has the engine drive the exchanges of the session.
func (s *session) serveRequests() {
	r := &requests{Machine: exchange.New(&s.srv.requests.Config), session: s}
	r.answered = r.answer
	s.srv.cfg.Engine.Drive(s.srv.cutCtx, s.client, r, engine.DriveConfig{Wake: s.srv.drainCtx}, r.driven)
	s.begun()
}

// Next asks the machine.
func (r *requests) Next(now time.Time) engine.Step {
	if r.srv.drainCtx.Err() != nil {
		r.Drain()
	}
	r.now = now
	s := r.Machine.Next(now)
	return engine.Step{Op: ops[s.Op], ToClient: s.ToClient, ToBackend: s.ToBackend,
		FromClient: s.FromClient, FromBackend: s.FromBackend, ClientFirst: s.ClientFirst, Until: s.Until}
}

// Lease asks for a connection for the machine's request; answer has it.
func (r *requests) Lease(leased func()) {
	if !r.again {
		r.ticket = 0
	}
	r.leased = leased
	r.acquire(r.answered)
}

func (r *requests) answer(l *lease, err error) {
	r.again = false
	switch {
	case err == nil:
		r.hold(l)
		l.backend.requests.Add(1)
		if l.backend.observe != nil {
			r.since = time.Now()
		}
		r.Leased(l.exchange())
	case errors.Is(err, errClientLeft), errors.Is(err, errDisconnected), errors.Is(err, errBackendDown):
		r.ClientEnded(err)
	default:
		r.shows(Idle) // the session goes on
		r.Refused(err, r.srv.excuse(err))
	}
	r.leased()
}

// Backend returns the leased connection.
func (r *requests) Backend() engine.Conn {
	if r.lease == nil {
		return nil
	}
	return r.lease.conn()
}

// Release ends the lease as the facts allow. The session goes on at once; where the
// backend's kernel has yet to take something, the slot stays leased till it has.
func (r *requests) Release() {
	l, f := r.lease, r.Facts()
	answered := f.Fault == exchange.NoFault && f.Used && !r.Unanswered()
	l.backend.ended(f, answered, r.client)
	if answered && l.backend.observe != nil {
		l.backend.observe(r.now.Sub(r.since))
	}
	r.again = f.Fault == exchange.Stale
	if r.mayBeUnread(f) && l.conn().Unacked() > 0 {
		r.srv.sessions.Go(func() { r.srv.releaseArrived(l, f) })
	} else {
		r.desync(f)
		r.srv.releaseRequests(l, f)
	}
	r.lease = nil
	r.Released()
	r.count()
	r.shows(Idle)
}

// mayBeUnread reports whether no reply has shown that the backend got all that was
// written, and its connection is not about to be reset, or over.
func (r *requests) mayBeUnread(f exchange.Facts) bool {
	if abandoned(f) || f.Fault == exchange.BackendEnded || f.Fault == exchange.Stale {
		return false
	}
	return r.Unanswered() || f.Outstanding > 0
}

// desync says that a backend sent what no request asked for: it should never be.
func (r *requests) desync(f exchange.Facts) {
	if f.Fault == exchange.WrongReply || f.Fault == exchange.StrayBytes {
		r.srv.desync(r.backendName(), f.Fault, r.Oddity())
	}
}

func (srv *Server) desync(backend string, f exchange.Fault, bytes []byte) {
	srv.requests.desyncs.say(func(more int) {
		summed(srv.cfg.Log.Error(), more).Str("backend", backend).Stringer("fault", f).Hex("bytes", bytes).
			Msg("a backend sent what no request asked for; the connection is closed and nobody got it")
	})
}

// excuse is what a client is told that got no connection.
func (srv *Server) excuse(err error) string {
	switch {
	case errors.Is(err, errQueueFull):
		return fmt.Sprintf("the queue is full (%d requests wait)", srv.cfg.Queue)
	case errors.Is(err, errAcquireTimeout):
		srv.dispatcher.mu.Lock()
		defer srv.dispatcher.mu.Unlock()
		return fmt.Sprintf("waited %.1fs for one of %d connections", srv.cfg.AcquireTimeout.Seconds(), srv.dispatcher.total())
	}
	return err.Error()
}

// driven goes on when the machine has ended.
func (r *requests) driven() {
	s := r.session
	end, err := r.End()
	r.count()
	st := r.Stats
	s.up, s.down = st.Up, st.Down
	s.requests = &st
	if end == exchange.Pinned {
		s.pin(r.Unread())
		return
	}
	if r.Abrupt() {
		s.client.Abort()
	}
	s.end(requestsEnding(end, err), err)
}

// count adds to the server's totals what the session has done since it last did.
func (r *requests) count() {
	t, now, last := &r.srv.requests.totals, r.Stats, r.counted
	add := func(to *atomic.Int64, n int64) {
		if n != 0 { // all sessions share these: most have nothing to add but a request
			to.Add(n)
		}
	}
	add(&t.requests, now.Requests-last.Requests)
	add(&t.oneways, now.Oneways-last.Oneways)
	add(&t.errors, now.Errors-last.Errors)
	add(&t.repeats, now.Repeats-last.Repeats)
	add(&r.srv.counters.stale, now.Stale-last.Stale)
	if r.backend != nil {
		// What the client took of a reply after its lease counts for the next one's backend.
		r.backend.traffic.moved(now.Up-last.Up, now.Down-last.Down)
	}
	if e := r.entry; e != nil {
		e.mu.Lock()
		e.requests, e.up, e.down = now.Requests, now.Up, now.Down
		e.mu.Unlock()
	}
	r.counted = now
}

// pin relays the rest of the session over a connection of its own, that no other
// client has used or will.
func (s *session) pin(unread []byte) {
	s.pinned = &pinned{unread}
	s.ticket, s.again = 0, false
	s.serve()
}

// requestsEnding returns the reason of a session whose machine ended.
func requestsEnding(end exchange.End, err error) Reason {
	switch end {
	case exchange.Finished:
		return Done
	case exchange.ClientGone:
		return clientGone(err)
	case exchange.Idle:
		return IdleTimeout
	case exchange.Malformed:
		return ProtocolError
	case exchange.BackendClosed:
		return BackendClosed
	case exchange.Unserved:
		if isRefusal(err) {
			return refusal(err)
		}
		return BrokenReply
	case exchange.BrokenReply:
		return BrokenReply
	case exchange.Drained:
		return Drained
	default:
		return Cut
	}
}

func clientGone(err error) Reason {
	switch {
	case errors.Is(err, errClientLeft), err == io.EOF:
		return ClientLeft
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return ClientReset
	default:
		return ClientFailed
	}
}

// isRefusal reports whether err is why there was no lease.
func isRefusal(err error) bool {
	for _, cause := range []error{errQueueFull, errAcquireTimeout, errShutdown, errCut, balance.ErrNone} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return pool.IsLocal(err)
}

// largestHead is as much of a message as tells whose it is: a method's name and what
// lies around it.
const largestHead = 2048

// shownBytes is how many bytes of what nobody asked for the log shows.
const shownBytes = 16

// stray says what a connection sent while it lay idle. Of raw bytes that is what
// --reuse quiet expects to happen; there is a counter.
func (srv *Server) stray(from *backend, c pool.Conn) {
	if srv.requests == nil {
		return
	}
	b := c.(*backendConn)
	bytes := make([]byte, largestHead)
	bytes = bytes[:b.PeekBytes(bytes)]
	if srv.requests.Disowned(b.exchange, bytes) {
		srv.requests.faults[exchange.OnewayAnswered].Add(1)
		return
	}
	srv.requests.faults[exchange.StrayBytes].Add(1)
	srv.desync(from.name, exchange.StrayBytes, bytes[:min(len(bytes), shownBytes)])
}
