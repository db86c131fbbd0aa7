package exchange

import (
	"io"
	"time"

	"forebay/proxy/frame"
)

// Sizes.
const (
	maxFlight   = 64 << 10 // how much of a request is kept until a connection is leased, and for another one
	maxHold     = 64 << 10 // how much of a reply is kept until it is whole
	maxRead     = 64 << 10 // taken from either side at a time
	maxPending  = 64 << 10 // of what a client sends behind a request that is out
	maxCalls    = 64       // out at once on one connection
	maxAttempts = 8        // connections that were proved not to have got a request
)

// Config describes the machines of a server. What is said of no zero value is
// required.
type Config struct {
	Codec   frame.Codec
	Methods *Methods
	Budget  *Budget

	// Session keeps the lease until the client ends, as sessions with state need.
	Session bool

	// Trust takes the next reply for the answer where neither has an id.
	Trust bool

	// Idempotent are the methods that may be executed twice.
	Idempotent map[string]bool

	// AbortOnFIN takes a client that has sent its FIN for one that has gone.
	AbortOnFIN bool

	// ReplyTimeout is the longest wait for a reply, from when its request is
	// sent. Zero means no limit.
	ReplyTimeout time.Duration

	// IdleTimeout ends a session in which no request is out and no byte moved.
	// Zero means no limit.
	IdleTimeout time.Duration

	// Quarantine is how long a connection stays with its client after a oneway
	// call. Zero trusts backends not to answer them.
	Quarantine time.Duration

	// ReplyBuffer is how many bytes of replies are read ahead of a slow client.
	ReplyBuffer int
}

// An Op is what is to be done.
type Op int

// The operations.
const (
	Wait         Op = iota // move bytes as the step says, or wait
	Lease                  // lease a connection, then call Leased or Refused
	Release                // end the lease as Facts says, then call Released
	FinishClient           // send the client a FIN
	Done                   // the session is over; see End
)

// A Step is what to do next. The slices are valid until the next call.
type Step struct {
	Op                      Op
	ToClient, ToBackend     []byte
	FromClient, FromBackend int       // bytes that may be read; 0: none
	ClientFirst             bool      // the client is likelier than the backend to be next
	Until                   time.Time // zero: no limit
}

// Stats count what a session did.
type Stats struct {
	Requests int64 // that were read whole, oneways among them
	Oneways  int64 // of these, such without a reply
	Errors   int64 // of these, answered with an exception of the machine's own, or lost
	Stale    int64 // connections met that their backends had ended
	Repeats  int64 // requests sent once more, since their method is idempotent
	Up, Down int64 // bytes delivered to backends, and to the client
}

// A Machine is one client's exchanges. Its methods are called by one goroutine at
// a time: an event, then Next until it says what to wait for.
type Machine struct {
	cfg   *Config
	Stats Stats

	now, last time.Time // of this step; when anything last happened
	touched   bool      // something has happened since the last step

	in       frame.Scanner
	pending  queue // read from the client and not looked at
	req      request
	fin      bool  // the client sends no more
	gone     error // the connection to the client is gone
	toClient queue

	conn       *Conn // nil without a lease
	calls      []call
	toBackend  queue
	out        frame.Scanner
	reply      reply
	facts      Facts
	unanswered bool     // see Unanswered
	forgotten  int      // calls without a reply in this lease
	spent      bool     // nothing more is to be had of the connection
	oddity     [16]byte // the first bytes of what was no reply
	oddLen     int
	bound      bool      // the session has had a reply on its lease, which may keep state since
	bereft     bool      // the session has lost its lease
	cause      error     // of the newest failure
	leaving    time.Time // when the reply to a client that has gone is waited for no longer

	draining  bool
	cut       bool
	end       End
	err       error
	torn      bool  // the client will not get the rest of a reply
	finish    phase // of the connection to the client, once ended
	lingering time.Time
}

// New returns the machine of a client.
func New(cfg *Config) *Machine {
	return &Machine{cfg: cfg, in: cfg.Codec.Requests(), out: cfg.Codec.Replies()}
}

// Facts tell what decides about the leased connection.
func (m *Machine) Facts() Facts {
	f := m.facts
	f.Outstanding = len(m.calls)
	f.MidRequest = m.toBackend.len() > 0 || m.req.state == sending && !m.req.whole
	f.MidReply = m.out.Begun() && !m.out.Done()
	return f
}

// Unanswered reports whether the last that was written has no reply, which would show
// that it was read.
func (m *Machine) Unanswered() bool { return m.unanswered }

// Oddity returns the first bytes of what was no reply to a call that is out.
func (m *Machine) Oddity() []byte { return m.oddity[:m.oddLen] }

// Unread returns what was read from the client and belongs to nobody yet, once
// the end is Pinned.
func (m *Machine) Unread() []byte {
	return append(append([]byte(nil), m.req.raw.bytes()...), m.pending.bytes()...)
}

// fault notes that the connection is not to be kept; the first reason stands.
func (m *Machine) fault(f Fault) {
	if m.conn != nil && m.facts.Fault == NoFault {
		m.facts.Fault = f
	}
}

// ClientEnded tells that the client has sent its FIN (io.EOF) or is gone.
func (m *Machine) ClientEnded(err error) {
	m.touched = true
	m.fin = true
	if err == io.EOF && !m.cfg.AbortOnFIN || m.gone != nil {
		return
	}
	m.gone = err
	m.pending.drop()
	m.dropAnswer()
}

// WroteClient tells that n bytes of ToClient are delivered.
func (m *Machine) WroteClient(n int) {
	m.touched = true
	m.Stats.Down += int64(n)
	m.cfg.Budget.add(-n)
	m.toClient.took(n)
}

// dropAnswer forgets what a client that is gone was to get.
func (m *Machine) dropAnswer() {
	m.cfg.Budget.add(-m.toClient.len())
	m.toClient.drop()
}

// Next returns what to do now.
func (m *Machine) Next(now time.Time) Step {
	m.now = now
	if m.touched || m.last.IsZero() {
		m.last, m.touched = now, false
	}
	m.expire()
	m.progress()
	if s, ok := m.ending(); ok {
		return s
	}
	switch {
	case m.conn != nil && m.released():
		return Step{Op: Release}
	case m.req.state == ready && m.conn == nil:
		return Step{Op: Lease}
	}
	return m.wait()
}

// progress does all that can be done without more bytes.
func (m *Machine) progress() {
	for m.end == NotEnded && m.advance() {
	}
}

// released reports whether the lease is over: its replies are read.
func (m *Machine) released() bool {
	if !m.usable() || m.crowded() {
		return !m.waiting() && m.req.state != sending
	}
	return len(m.calls) == 0 && !m.cfg.Session
}

// crowded reports whether so many calls were passed over that there is little room
// for others.
func (m *Machine) crowded() bool {
	passed := 0
	for i := range m.calls {
		if m.calls[i].passed {
			passed++
		}
	}
	return passed > maxCalls/2
}

// usable reports whether a request may go out on the leased connection. Where it
// stays with its client anyway, that does not take it to be clean.
func (m *Machine) usable() bool {
	switch m.facts.Fault {
	case NoFault:
		return !m.spent
	case BadException, OnewayAnswered:
		return !m.spent && m.cfg.Session
	}
	return false
}

// Leased gives the machine the connection that it asked for.
func (m *Machine) Leased(c *Conn) {
	m.touched = true
	m.conn, m.facts, m.spent, m.forgotten, m.unanswered = c, Facts{}, false, 0, false
}

// Refused tells that there is no connection: err for the account, text for the
// client.
func (m *Machine) Refused(err error, text string) {
	m.touched = true
	m.cause = err
	m.answer(frame.CodeInternalError, text)
}

// Released tells that the lease has ended.
func (m *Machine) Released() {
	if m.out.Begun() {
		m.out = m.cfg.Codec.Replies()
	}
	m.torn = m.torn || m.reply.forwarding && m.gone == nil
	m.dropCalls()
	m.toBackend.drop()
	m.dropReply()
	m.conn, m.facts, m.spent = nil, Facts{}, false
	again := m.req.attempts > 0 || m.req.repeated
	m.bereft = m.cfg.Session && (m.bound || !again)
}

// waiting reports whether a reply is to come that the client waits for.
func (m *Machine) waiting() bool {
	for i := range m.calls {
		if m.calls[i].awaited() {
			return true
		}
	}
	return false
}

// wait returns the step of a session that goes on.
func (m *Machine) wait() Step {
	s := Step{ToClient: m.toClient.bytes(), ToBackend: m.toBackend.bytes()}
	if !m.fin && m.gone == nil {
		s.FromClient = m.appetite()
	}
	if m.conn != nil && (len(m.calls) > 0 || m.cfg.Session) {
		s.FromBackend = m.room()
	}
	s.ClientFirst = !m.waiting()
	s.Until = m.deadline()
	return s
}

// appetite returns how many bytes are wanted from the client.
func (m *Machine) appetite() int {
	switch {
	case m.req.state == sending && !m.req.whole:
		if m.toBackend.len() > 0 {
			return 0 // the backend reads slower
		}
		return maxRead
	case m.req.state == sending || m.pending.len() > 0 || len(m.calls) > 0 || m.toClient.len() > 0:
		// To know what comes behind a request, and whether the client goes.
		return max(0, maxPending-m.pending.len())
	}
	return maxRead
}

// room returns how many bytes of replies may be read now.
func (m *Machine) room() int {
	switch {
	case m.toClient.len() == 0 || m.gone != nil:
		return maxRead
	case m.cfg.Budget.exhausted():
		return 0
	}
	return max(0, min(maxRead, m.cfg.ReplyBuffer-m.toClient.len()-m.reply.held.len()))
}
