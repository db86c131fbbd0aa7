package exchange

import "forebay/proxy/frame"

// An End tells how a session ended.
type End int

// The ends.
const (
	NotEnded      End = iota
	Finished          // the client sent its FIN, and has got all it asked for
	ClientGone        // the connection to the client failed: Err
	Idle              // for the idle timeout
	Malformed         // the client's bytes are no request: Err, a *frame.Error where it is known what is wrong
	BrokenReply       // the backend ended in the middle of a reply, or the protocol has no exceptions: Fault, Err
	Unserved          // no lease, and the protocol has no exceptions: Err
	BackendClosed     // a session has lost its lease, and what the backend kept of it
	Drained           // told to, between two requests
	Cut               // cut
	Pinned            // the rest, from Unread on, is to be relayed over a connection of its own
)

// phase is how far the closing of the client's connection has come.
type phase int

const (
	open     phase = iota
	linger         // it shall be ended with a FIN, and what the client still sends be dropped
	finished       // the FIN is sent
)

// End tells how the session ended, once Next says Done.
func (m *Machine) End() (End, error) { return m.end, m.err }

// Abrupt reports whether only a reset tells the client what happened: it has part
// of a reply, or may have.
func (m *Machine) Abrupt() bool { return m.end == BrokenReply || m.cut || m.torn }

// Drain ends the session when nothing is out.
func (m *Machine) Drain() { m.draining = true }

// Cut ends the session at once.
func (m *Machine) Cut() {
	m.cut = true
	m.fault(Interrupted)
	m.stop(Cut, nil)
}

// stop ends the session; the first reason stands.
func (m *Machine) stop(end End, err error) {
	if m.end == NotEnded {
		m.end, m.err = end, err
	}
}

// ending returns what is to be done at the end of the session.
func (m *Machine) ending() (Step, bool) {
	if m.end == NotEnded {
		m.end, m.err = m.over()
	}
	switch {
	case m.end == NotEnded:
		return Step{}, false
	case m.conn == nil:
		return m.part(), true
	case m.cut || !m.settling():
		return Step{Op: Release}, true
	case m.end == Finished && m.toClient.len() == 0 && m.finish != finished:
		m.finish = finished // the client need not wait
		return Step{Op: FinishClient}, true
	}
	return Step{ToClient: m.toClient.bytes(), ToBackend: m.toBackend.bytes(), FromBackend: m.room(), Until: m.deadline()}, true
}

// settling reports whether there is something to wait for: a quarantine, the answer to
// a call that was passed over, or a reply to be dropped.
func (m *Machine) settling() bool {
	if m.facts.Fault != NoFault || m.req.state == sending {
		return false
	}
	for i := range m.calls {
		if x := &m.calls[i]; !x.oneway && !x.witness && m.gone == nil {
			return false
		}
	}
	return len(m.calls) > 0
}

// part closes the connection to the client, so that it gets all it is owed.
func (m *Machine) part() Step {
	switch {
	case m.Abrupt():
	case m.toClient.len() > 0 && !m.expired(m.idleEnd()):
		return Step{ToClient: m.toClient.bytes(), Until: m.idleEnd()}
	case m.finish == linger && !m.fin:
		// To close with bytes unread would reset the connection, and the answer
		// with it.
		m.finish, m.lingering = finished, m.now.Add(lingerTime)
		return Step{Op: FinishClient}
	case m.finish == finished && !m.fin && m.now.Before(m.lingering):
		return Step{FromClient: maxRead, Until: m.lingering}
	}
	m.torn = m.torn || m.toClient.len() > 0
	m.dropAnswer()
	return Step{Op: Done}
}

// over tells whether the session has come to its end by itself.
func (m *Machine) over() (End, error) {
	idle := m.req.state == reading && m.req.raw.len() == 0 && m.pending.len() == 0
	quiet := !m.waiting() && m.toClient.len() == 0 && m.toBackend.len() == 0
	switch {
	case m.gone != nil && m.req.state == sending && m.req.whole:
		return NotEnded, nil // the rest of it goes out, so that the connection can be kept
	case m.gone != nil:
		if m.req.state == sending {
			m.fault(UnfinishedWrite)
		}
		return ClientGone, m.gone
	case m.truncated():
		m.malformed(errTruncated)
		return m.end, m.err
	case m.bereft && m.req.state != dropping:
		m.finish = linger
		return BackendClosed, m.cause // what the backend kept of the client is gone
	case m.fin && quiet && idle:
		return Finished, nil
	case m.draining && quiet && idle:
		m.finish = linger // it may have begun the next one
		return Drained, nil
	}
	return NotEnded, nil
}

// truncated reports whether the client has sent its FIN in the middle of a
// request, and all before that is answered.
func (m *Machine) truncated() bool {
	switch {
	case !m.fin || m.pending.len() > 0 || m.toClient.len() > 0:
		return false
	case m.req.state == reading:
		return m.req.raw.len() > 0 && !m.waiting()
	case m.req.state == sending && !m.req.whole && m.toBackend.len() == 0:
		m.fault(UnfinishedWrite)
		return true
	}
	return m.req.state == dropping
}

var errTruncated = &frame.Error{Code: frame.CodeProtocolError, Text: "the client's FIN cut a request short"}
