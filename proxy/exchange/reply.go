package exchange

import (
	"slices"
	"time"

	"forebay/proxy/frame"
)

// reply is the one that is being read.
type reply struct {
	head       frame.Head
	known      bool  // head is, and whose it is
	call       int   // the call that it answers
	skip       bool  // it is nobody's
	held       queue // its bytes, until it is forwarded
	forwarding bool  // the client has been given the first part of it
}

// ReadBackend takes bytes that the backend sent.
func (m *Machine) ReadBackend(p []byte) {
	m.touched = true
	for len(p) > 0 && m.conn != nil && !m.spent {
		n, err := m.out.Scan(p)
		m.hear(p[:n])
		switch {
		case m.spent:
			return
		case err != nil:
			m.odd(p[:n], p[n:])
			m.refute(MalformedReply, err)
		case m.out.Done():
			m.heard()
			m.out.Next()
		}
		p = p[n:]
	}
}

// refuseStray gives up on a connection that sent what nobody asked for, whatever it
// is the beginning of.
func (m *Machine) refuseStray() {
	if m.conn != nil && !m.spent && len(m.calls) == 0 && m.out.Begun() && !m.reply.known {
		m.odd(nil, nil)
		m.refute(StrayBytes, nil)
	}
}

// hear takes bytes of one reply.
func (m *Machine) hear(p []byte) {
	r := &m.reply
	switch {
	case r.skip:
		return
	case r.forwarding:
		m.forward(p)
		return
	}
	r.held.append(p)
	if h := m.out.Head(); h != nil && !r.known {
		r.head = *h
		m.attribute()
	}
	if r.known && !r.skip && r.held.len() > maxHold {
		m.give()
	}
}

// attribute finds the call that the reply answers.
func (m *Machine) attribute() {
	r := &m.reply
	h := &r.head
	r.call = slices.IndexFunc(m.calls, func(x call) bool { return x.answeredBy(h, m.cfg.Trust) })
	if r.call >= 0 {
		m.accept(&m.calls[r.call])
		return
	}
	if call := m.conn.ghost(h); call != nil {
		m.disown(call)
		return
	}
	m.odd(nil, nil)
	m.refute(WrongReply, nil)
}

// accept takes the reply for the answer to x.
func (m *Machine) accept(x *call) {
	if x.learned {
		x.oneway, x.learned = false, false // what was learned is wrong, and the client waits
		m.Stats.Oneways--
	}
	if x.oneway {
		m.disown(&x.head)
		return
	}
	m.reply.known = true
	if !x.sent {
		m.fault(EarlyReply)
	}
}

// disown has the reply to a oneway call dropped.
func (m *Machine) disown(call *frame.Head) {
	m.fault(OnewayAnswered)
	m.cfg.disown(call, &m.reply.head)
	m.reply.known, m.reply.skip = true, true
	m.reply.held.drop()
}

// odd notes the first bytes of what was no reply: what is held, or else a and b.
func (m *Machine) odd(a, b []byte) {
	if held := m.reply.held.bytes(); len(held) > len(a) {
		a = held
	}
	m.oddLen = copy(m.oddity[:], a)
	m.oddLen += copy(m.oddity[m.oddLen:], b)
}

// refute gives up on a connection whose bytes are not what they should be.
func (m *Machine) refute(f Fault, err error) {
	if len(m.calls) == 0 {
		f = StrayBytes
	}
	m.fault(f)
	m.fail(err, "the backend's reply did not match the request")
}

// give forwards the reply as far as it is read, with the client's own id.
func (m *Machine) give() {
	r := &m.reply
	r.forwarding = true
	x := &m.calls[r.call]
	x.raw.drop()
	held := r.held.bytes()
	if m.gone == nil {
		before := m.toClient.len()
		m.toClient.set(append(r.head.Rewrite(m.toClient.grow(), held[:r.head.Size], x.head.ID), held[r.head.Size:]...))
		m.cfg.Budget.add(m.toClient.len() - before)
	}
	r.held.drop()
}

func (m *Machine) forward(p []byte) {
	if m.gone == nil {
		m.toClient.append(p)
		m.cfg.Budget.add(len(p))
	}
}

// heard ends a reply that is whole.
func (m *Machine) heard() {
	r := &m.reply
	if r.skip {
		m.dropReply()
		return
	}
	m.judgeException()
	if !r.forwarding {
		m.give()
	}
	at := r.call
	x := m.calls[at]
	if r.head.Type == frame.Reply { // any method has exceptions: of bad arguments, say
		m.cfg.Methods.answered(x.head.Name)
	}
	m.dropReply()
	m.conn.Reused, m.bound = true, true
	m.unanswered = false
	if x.passed {
		m.cfg.Methods.outOfOrder()
	}
	m.removeCall(at)
	m.restart(at)
	m.passOver(at)
	if !x.sent {
		m.toBackend.drop()
		m.req.answered = true
		m.drop()
	}
}

// restart gives the calls from at on their time anew: a server that answers in
// order could not get to them.
func (m *Machine) restart(at int) {
	for i := at; i < len(m.calls); i++ {
		if m.calls[i].awaited() {
			m.calls[i].deadline = time.Time{}
		}
	}
}

// judgeException notes an exception that may leave its server out of step: of any
// code but those of a method that is not known, or failed (Finagle's rule).
func (m *Machine) judgeException() {
	r := &m.reply
	switch {
	case r.head.Type != frame.Exception:
	case r.forwarding:
		m.fault(BadException) // too long to be looked into
	default:
		code, ok := m.cfg.Codec.ExceptionCode(&r.head, r.held.bytes()[r.head.Size:])
		if !ok || code != frame.CodeUnknownMethod && code != frame.CodeInternalError {
			m.fault(BadException)
		}
	}
}

// passOver draws conclusions about the n calls before one that is answered. Of
// several calls of a method one is the witness: it is one event.
func (m *Machine) passOver(n int) {
	name := "" // names do not take turns: clients repeat the one
	for i := range n {
		x := &m.calls[i]
		if !x.awaited() {
			continue
		}
		x.passed = true
		x.witness, x.proof = x.head.Name != name, time.Time{}
		name = x.head.Name
	}
	// A server that answers in order would have answered the oneway calls before.
	for i := n - 1; i >= 0; i-- {
		if x := &m.calls[i]; x.oneway || x.passed && m.cfg.Methods.Oneway(x.head.Name) {
			m.forget(i)
		}
	}
}

// BackendEnded tells that the leased connection has ended (io.EOF: a FIN) or
// failed; undelivered, that no program can have read what was written to it since
// the last reply, or since the lease.
func (m *Machine) BackendEnded(err error, undelivered bool) {
	m.touched = true
	if m.conn == nil {
		return
	}
	m.spent = true
	if m.again(undelivered) {
		return
	}
	m.fault(BackendEnded)
	if len(m.calls) == 0 && m.cfg.Session {
		m.finish = linger
		m.stop(BackendClosed, err)
	}
	m.fail(err, "the backend closed its connection before it replied")
}

// again has the request sent once more, on another connection, where that is safe
// and possible. It reports whether it will be.
func (m *Machine) again(undelivered bool) bool {
	if len(m.calls) != 1 || m.reply.known || m.out.Begun() || m.gone != nil || m.end != NotEnded && m.end != Finished {
		return false
	}
	x := &m.calls[0]
	own := m.req.state == sending // the request of this very call
	switch {
	case x.raw.chunk == nil, own && !m.req.whole, !own && (m.req.state != reading || m.req.raw.len() > 0), m.cfg.Session && m.bound:
		return false
	case undelivered && x.attempts < maxAttempts:
		m.fault(Stale)
		m.Stats.Stale++
		x.attempts++
	case m.conn.Reused && !x.repeated && !x.oneway && (m.cfg.Idempotent[x.head.Name] || m.cfg.Idempotent[x.head.Method()]):
		m.fault(BackendEnded)
		m.Stats.Repeats++
		x.repeated = true
	default:
		return false
	}
	if x.oneway {
		m.Stats.Oneways--
	}
	m.req = request{state: ready, head: x.head, known: true, raw: x.raw, whole: true, attempts: x.attempts, repeated: x.repeated}
	m.calls = m.calls[:0]
	m.toBackend.drop()
	m.end = NotEnded // a client that has sent its FIN is owed this one
	return true
}

// fail ends every call that is out, since nothing more will come.
func (m *Machine) fail(err error, text string) {
	if m.reply.forwarding {
		m.stop(BrokenReply, err)
	}
	m.last = m.now // what the client is told now, it has time to take
	m.spent = true
	m.cause = err
	m.failWaiting(text)
	if m.req.state == sending {
		m.drop()
	}
}

// failWaiting answers the calls that are out with an exception.
func (m *Machine) failWaiting(text string) {
	for i := range m.calls {
		x := &m.calls[i]
		switch {
		case x.oneway && x.sent, x.passed:
		case x.oneway:
			m.Stats.Errors++
		case !x.sent && !m.req.whole:
			m.req.answer = answer{frame.CodeInternalError, text} // once the rest is read
		case m.end != BrokenReply:
			m.except(&x.head, frame.CodeInternalError, text)
		}
	}
	m.dropCalls()
	m.dropReply()
	m.toBackend.drop()
}

func (m *Machine) dropReply() {
	m.reply.held.drop()
	m.reply = reply{}
}

// forget ends a call that is not waited for; an answer is nobody's from now on.
func (m *Machine) forget(i int) {
	m.conn.haunt(&m.calls[i])
	m.removeCall(i)
	m.unanswered = true
	if m.forgotten++; m.forgotten > maxGhosts {
		m.facts.Crowded = true
	}
}

// removeCall ends one call.
func (m *Machine) removeCall(i int) {
	m.calls[i].raw.drop()
	m.calls = slices.Delete(m.calls, i, i+1)
	if m.reply.known && m.reply.call > i {
		m.reply.call--
	}
}

func (m *Machine) dropCalls() {
	for i := range m.calls {
		m.calls[i].raw.drop()
	}
	clear(m.calls)
	m.calls = m.calls[:0] // most sessions have one at a time, and another soon
}
