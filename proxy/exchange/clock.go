package exchange

import (
	"errors"
	"time"
)

// Times.
const (
	drainTime  = time.Second // for the reply to a client that has gone
	lingerTime = time.Second // for a client to take the last answer before its connection is closed
)

// deadline returns when something is to be done if nothing happens.
func (m *Machine) deadline() time.Time {
	until := m.leaving
	for i := range m.calls {
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
	late := false
	for i := 0; i < len(m.calls); {
		x := &m.calls[i]
		if x.sent && x.deadline.IsZero() {
			x.deadline = m.due(x)
		}
		switch {
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
