package exchange

import (
	"errors"
	"slices"

	"forebay/proxy/frame"
)

// request is the one that is being read, or that is not out yet as a whole.
type request struct {
	state    requestState
	head     frame.Head
	known    bool  // head is
	raw      queue // its bytes so far; once it is sending, the call has them
	whole    bool  // its end has been read
	attempts int
	repeated bool
	answer   answer // what the client gets once a dropped request is read
	answered bool   // the client has got it already
}

type requestState int

const (
	reading  requestState = iota // or none has begun
	ready                        // a lease is wanted
	sending                      // it is out, in part
	dropping                     // the rest is read and dropped
)

// answer is an exception of our own; the zero value is none.
type answer struct {
	code int32
	text string
}

// ReadClient takes bytes that the client sent.
func (m *Machine) ReadClient(p []byte) {
	if m.end != NotEnded {
		return // it is about to be closed
	}
	if m.pending.len() == 0 {
		n := m.feed(p)
		m.touched = m.touched || n > 0 // what has to wait gains the client no time
		p = p[n:]
	}
	m.pending.append(p)
}

// advance takes the next step that needs no more bytes. It reports whether there
// was one.
func (m *Machine) advance() bool {
	switch {
	case m.gone != nil:
		return false
	case m.req.state == reading && m.large() && !m.waiting():
		m.req.state = ready
		return true
	case m.req.state == ready && m.conn != nil && m.usable():
		m.send()
		return true
	case m.pending.len() == 0:
		return false
	}
	n := m.feed(m.pending.bytes())
	m.pending.took(n)
	return n > 0
}

// feed takes what it may of the client's bytes, and returns how many.
func (m *Machine) feed(p []byte) int {
	switch m.req.state {
	case reading:
		if m.mayTake() {
			return m.read(p)
		}
	case sending:
		if !m.req.whole && m.toBackend.len() == 0 {
			return m.stream(p)
		}
	case dropping:
		return m.skip(p)
	}
	return 0
}

// mayTake reports whether the next request may be taken up: the earlier ones are
// answered, or may be such that nobody answers.
func (m *Machine) mayTake() bool {
	if m.toClient.len() > 0 || m.out.Begun() || m.full() {
		return false
	}
	for i := range m.calls {
		x := &m.calls[i]
		if x.awaited() && !m.cfg.Methods.open(x.head.Name) {
			return false
		}
	}
	return !m.large()
}

// large reports whether so much of a request is read that it is to be streamed.
func (m *Machine) large() bool { return m.req.known && m.req.raw.len() >= maxFlight }

// full reports whether no more calls may be out. Of oneway calls the oldest makes
// room.
func (m *Machine) full() bool {
	return len(m.calls) >= maxCalls && m.oldestOneway() < 0
}

func (m *Machine) oldestOneway() int {
	return slices.IndexFunc(m.calls, func(x call) bool { return x.oneway })
}

// read takes bytes of a request that is not out.
func (m *Machine) read(p []byte) int {
	if m.in.Done() {
		m.in.Next()
	}
	n, err := m.in.Scan(p)
	m.req.raw.append(p[:n])
	if h := m.in.Head(); h != nil && !m.req.known {
		m.req.head, m.req.known = *h, true
	}
	switch {
	case err != nil:
		m.malformed(err)
		return n
	case m.req.known && !m.acceptable():
		return n
	case m.in.Done():
		m.req.whole = true
		m.Stats.Requests++
		m.req.state = ready
		if m.req.head.Name == finagleUpgrade && !m.cfg.Session {
			m.answer(frame.CodeUnknownMethod, "connections are shared here, and cannot be upgraded")
		}
	}
	return n
}

// finagleUpgrade is what a Finagle client calls first. A server that knows it expects
// a header before each later message of that connection; a client that is told that
// the method is unknown does without.
const finagleUpgrade = "__can__finagle__trace__v3__"

// acceptable reports whether a request may be pooled. If not, what becomes of the
// session is settled.
func (m *Machine) acceptable() bool {
	h := &m.req.head
	single := h.Opaque || h.IDBits == 0 && !m.cfg.Trust || h.Binds != "" && m.cfg.Session // wants a connection of its own
	switch {
	case single && (m.waiting() || m.cfg.Session && m.conn != nil):
		m.malformed(&frame.Error{Code: frame.CodeProtocolError,
			Text: "a message that cannot be pooled, after others that are: it must come first"})
	case single:
		m.stop(Pinned, nil)
	case h.Binds != "":
		m.malformed(&frame.Error{Code: frame.CodeProtocolError, Foreign: h.Binds,
			Text: h.Binds + " bind state to the connection, which is shared here"})
	case h.Type != frame.Call && h.Type != frame.Oneway:
		m.malformed(&frame.Error{Code: frame.CodeInvalidMessageType, Text: "a client sent a message of type " + h.Type.String()})
	default:
		return true
	}
	return false
}

// malformed ends a session whose client sent what is no request. Where the
// operator wants sessions pinned, what speaks another protocol is.
func (m *Machine) malformed(err error) {
	var e *frame.Error
	if !errors.As(err, &e) {
		e = &frame.Error{Code: frame.CodeProtocolError, Text: err.Error()}
	}
	if e.Foreign != "" && m.cfg.Session && m.req.state == reading && m.Stats.Requests == 0 {
		m.stop(Pinned, nil)
		return
	}
	if m.waiting() || m.req.state == sending {
		m.fault(UnreadReply)
		m.fail(err, "a request behind it cannot be read")
	}
	if m.end == BrokenReply {
		return
	}
	m.finish = linger
	m.stop(Malformed, err)
	if m.req.known && !m.req.answered && !m.oneway(&m.req.head) {
		m.except(&m.req.head, e.Code, e.Text)
	}
}

// oneway reports whether the request has no reply.
func (m *Machine) oneway(h *frame.Head) bool { return m.vouched(h) || m.learned(h) }

// vouched reports whether the client, or the operator, says so.
func (m *Machine) vouched(h *frame.Head) bool {
	return h.Type == frame.Oneway || h.IDBits > 0 && (m.cfg.Methods.lists(h.Name) || m.cfg.Methods.lists(h.Method()))
}

// learned reports whether that has been found out.
func (m *Machine) learned(h *frame.Head) bool {
	return h.IDBits > 0 && m.cfg.Methods.Oneway(h.Name)
}

// send begins to send the request on the leased connection.
func (m *Machine) send() {
	r := &m.req
	x := call{head: r.head, id: m.conn.newID(r.head.IDBits), attempts: r.attempts, repeated: r.repeated}
	vouched := m.vouched(&r.head)
	x.learned = !vouched && m.learned(&r.head)
	x.oneway = vouched || x.learned
	raw := r.raw.bytes()
	size := r.head.Size
	m.toBackend.set(append(r.head.Rewrite(m.toBackend.grow(), raw[:size], x.id), raw[size:]...))
	if r.whole && r.raw.len() <= maxFlight {
		x.raw = r.raw
	} else {
		r.raw.drop()
	}
	r.raw = queue{}
	r.state = sending
	if x.oneway {
		m.Stats.Oneways++
	}
	if len(m.calls) >= maxCalls {
		m.forget(m.oldestOneway()) // the quarantine of this one lasts longer, or it is answered
	}
	for i := range m.calls {
		m.calls[i].raw.drop() // more than one call is not sent again
	}
	m.calls = append(m.calls, x)
}

// stream takes bytes of a request that is out in part.
func (m *Machine) stream(p []byte) int {
	n, err := m.in.Scan(p)
	m.toBackend.append(p[:n])
	if err != nil {
		m.fault(UnfinishedWrite)
		m.malformed(err)
		return n
	}
	if m.in.Done() {
		m.req.whole = true
		m.Stats.Requests++
	}
	return n
}

// WroteBackend tells that n bytes of ToBackend are delivered.
func (m *Machine) WroteBackend(n int) {
	m.touched = true
	if m.toBackend.len() == 0 {
		return
	}
	m.facts.Used = true
	m.Stats.Up += int64(n)
	m.toBackend.took(n)
	if m.toBackend.len() > 0 || !m.req.whole || m.req.state != sending {
		return
	}
	m.req = request{}
	m.calls[len(m.calls)-1].sent = true
}

// answer ends a request that is not out with an exception, once it is read whole.
func (m *Machine) answer(code int32, text string) {
	if m.oneway(&m.req.head) {
		m.Stats.Errors++
		text = ""
	}
	m.req.answer = answer{code, text}
	m.req.raw.drop()
	m.drop()
}

// drop has the rest of the request read and dropped.
func (m *Machine) drop() {
	m.req.state = dropping
	if m.req.whole {
		m.dropped()
	}
}

// skip takes bytes of a request that is dropped.
func (m *Machine) skip(p []byte) int {
	n, err := m.in.Scan(p)
	switch {
	case err != nil:
		m.malformed(err)
	case m.in.Done():
		m.Stats.Requests++
		m.dropped()
	}
	return n
}

// dropped gives the answer to a request that has been dropped.
func (m *Machine) dropped() {
	r := m.req
	m.req = request{}
	if r.answer.text != "" {
		m.except(&r.head, r.answer.code, r.answer.text)
	}
}

// dropRequest forgets the request that is not out as a whole.
func (m *Machine) dropRequest() {
	m.req.raw.drop()
	m.toBackend.drop()
	m.req = request{}
}

// except answers a request with an exception of our own. A protocol that has none
// leaves only the end of the connection.
func (m *Machine) except(h *frame.Head, code int32, text string) {
	m.Stats.Errors++
	if m.gone != nil {
		return
	}
	before := m.toClient.len()
	m.toClient.set(m.cfg.Codec.AppendException(m.toClient.grow(), h, code, "forebay: "+text))
	grown := m.toClient.len() - before
	m.cfg.Budget.add(grown)
	if grown == 0 {
		m.toClient.took(0)
		m.finish = linger
		m.stop(Unserved, m.cause)
	}
}
