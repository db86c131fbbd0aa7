package exchange

import (
	"errors"
	"time"
)

// Times.
const (
	drainTime  = time.Second // for the reply to a client that has gone
	proofTime  = time.Second // for the answer to a call that was passed over
	lingerTime = time.Second // for a client to take the last answer before its connection is closed
)

// deadline returns when something is to be done if nothing happens.
func (m *Machine) deadline() time.Time {
	until := m.leaving
	for i := range m.calls {
		if m.calls[i].witness || m.doubtful(i) {
			until = earlier(until, m.calls[i].proof)
		}
		if !m.arriving(i) {
			until = earlier(until, m.calls[i].deadline)
		}
	}
	if m.transferring() {
		until = earlier(until, m.stallEnd())
	}
	if m.end == NotEnded && m.idling() {
		until = earlier(until, m.idleEnd())
	}
	return until
}

// arriving reports whether the reply to a call has begun, or that to one before it:
// it is in time.
func (m *Machine) arriving(call int) bool {
	r := &m.reply
	return r.known && !r.skip && (r.call == call || r.call < call && m.calls[call].awaited())
}

// transferring reports whether the next byte is the backend's to take or to send.
func (m *Machine) transferring() bool {
	return m.toBackend.len() > 0 || m.reply.known && (m.reply.skip || m.toClient.len() == 0)
}

// idling reports whether the next byte is the client's to take or to send.
func (m *Machine) idling() bool {
	streaming := m.req.state == sending && !m.req.whole && m.toBackend.len() == 0
	return !m.waiting() || m.toClient.len() > 0 || streaming
}

// stallEnd is when a transfer is given up of which nothing has moved.
func (m *Machine) stallEnd() time.Time {
	if m.cfg.ReplyTimeout <= 0 {
		return time.Time{}
	}
	return m.last.Add(m.cfg.ReplyTimeout)
}

// expire does what the time has come for.
func (m *Machine) expire() {
	if m.gone != nil && m.leaving.IsZero() {
		m.leaving = m.now.Add(drainTime)
	}
	m.expireCalls()
	m.refuseStray()
	switch {
	case m.expired(m.leaving) && (len(m.calls) > 0 || m.req.state == sending):
		m.fault(UnreadReply)
		m.dropCalls()
		m.dropRequest()
	case m.transferring() && m.expired(m.stallEnd()):
		m.fault(ReplyTimeout)
		m.fail(errStalled, "nothing moved for "+m.cfg.ReplyTimeout.String())
	case m.end == NotEnded && m.idling() && m.expired(m.idleEnd()):
		m.stop(Idle, nil)
	}
}

// expireCalls begins and ends the times of the calls that are out.
func (m *Machine) expireCalls() {
	for i := range m.calls {
		m.testify(&m.calls[i])
		if m.doubtful(i) && m.reconsider(&m.calls[i]) {
			m.fail(errSpoiled, "no reply came in "+proofTime.String()+", and its connection cannot take the next request")
			return
		}
	}
	late := false
	for i := 0; i < len(m.calls); {
		x := &m.calls[i]
		if x.sent && x.deadline.IsZero() {
			x.deadline = m.due(x)
		}
		switch {
		case x.passed && m.cfg.Methods.Oneway(x.head.Name):
		case !m.expired(x.deadline) || m.arriving(i):
			i++
			continue
		case x.oneway:
		case x.passed:
			m.fault(ReplyTimeout)
		default:
			late = true
			i++
			continue
		}
		m.forget(i)
	}
	if late {
		m.fault(ReplyTimeout)
		m.fail(errReplyTimeout, "no reply within "+m.cfg.ReplyTimeout.String())
	}
}

// testify counts a call that was passed over, and is not answered soon after, for a
// proof that its method is oneway.
func (m *Machine) testify(x *call) {
	switch {
	case !x.witness:
	case x.proof.IsZero():
		x.proof = m.now.Add(proofTime)
	case m.expired(x.proof):
		x.witness, x.proof = false, time.Time{}
		m.cfg.Methods.passedOver(x.head.Name)
	}
}

// doubtful reports whether a call is waited for, and may be one without a reply.
func (m *Machine) doubtful(i int) bool {
	x := &m.calls[i]
	return x.sent && x.awaited() && !x.known && !m.arriving(i)
}

// reconsider looks at a call that is waited for although nobody has seen an answer to
// its method. It may be oneway: by now that may be known, and where the client has gone
// on, and its next request cannot go out behind it, it is given up.
func (m *Machine) reconsider(x *call) (giveUp bool) {
	blocked := m.req.state == ready && !m.usable()
	switch {
	case !x.proof.IsZero() && !m.expired(x.proof):
	case m.learned(&x.head):
		x.oneway, x.learned = true, true
		x.deadline, x.proof = m.due(x), time.Time{}
		m.Stats.Oneways++
	case !m.cfg.Methods.open(x.head.Name):
		x.known = true // and no lock is taken for it again
	case x.proof.IsZero():
		x.proof = m.now.Add(proofTime)
	case m.expired(x.proof) && blocked:
		return true
	case m.expired(x.proof):
		x.proof = m.now.Add(proofTime)
	}
	return false
}

// due returns when a call that is sent is over.
func (m *Machine) due(x *call) time.Time {
	switch {
	case x.oneway:
		return m.now.Add(m.cfg.Quarantine)
	case m.cfg.ReplyTimeout > 0:
		return m.now.Add(m.cfg.ReplyTimeout)
	}
	return time.Time{}
}

var (
	errReplyTimeout = errors.New("no reply in time")
	errStalled      = errors.New("nothing moved in time")
	errSpoiled      = errors.New("no reply on a connection that is not to be kept")
)

func (m *Machine) idleEnd() time.Time {
	if m.cfg.IdleTimeout <= 0 {
		return time.Time{}
	}
	return m.last.Add(m.cfg.IdleTimeout)
}

// earlier returns the earlier of two times, of which zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// expired reports whether a time, of which zero is none, has come.
func (m *Machine) expired(t time.Time) bool { return !t.IsZero() && !m.now.Before(t) }
