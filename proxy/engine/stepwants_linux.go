package engine

import (
	"io"
	"time"
)

// wait does the work of OpWait. It reports whether something happened; if not, there
// will be an event, or the timer.
func (d *steps) wait(s *Step) bool {
	d.leaveOut(s, d.backend != nil)
	if d.beginsBatch(s) {
		d.mark = d.backend.written
	}
	if d.writeErr != nil && !d.backendOver {
		if drained, happened := d.drain(s); drained {
			return happened
		}
	}
	if d.tryAll(s) {
		return d.phase == stepping
	}
	d.askAt(s.Until)
	return false
}

// askAt has the machine asked again at the latest at until, if that is not zero.
func (d *steps) askAt(until time.Time) {
	d.until = 0
	if !until.IsZero() {
		d.until = until.Sub(d.loop.epoch)
	}
	d.setTimer()
}

// setTimer sets the timer, unless it goes off earlier: then it is looked again. So a
// time limit that moves on with each request costs nothing.
func (d *steps) setTimer() {
	if d.until == 0 || d.timer.set() && time.Duration(d.timer.at)*wheelTick <= d.until {
		return
	}
	d.loop.wheel.schedule(&d.timer, d.until, d)
}

// drain does what is left to do with a backend to which a write failed; see
// drive.drain. Where it had something to do, it tells whether the machine is to be
// asked again.
func (d *steps) drain(s *Step) (drained, happened bool) {
	now := d.loop.now
	switch {
	case s.FromBackend > 0:
		if d.drainEnd == 0 {
			d.drainEnd = now + drainTime
			d.backend.set(stateReadable)
		}
		if d.tryRead(d.backend, s.FromBackend) {
			return true, d.phase == stepping
		}
		if now < d.drainEnd {
			d.until = d.drainEnd
			d.setTimer()
			return true, false
		}
		return true, d.backendEnded(d.writeErr)
	case len(s.ToBackend) > 0 && len(s.ToClient) == 0: // it makes no room to read
		return true, d.backendEnded(d.unreadEnd(d.backend))
	default:
		s.ToBackend = nil
		return false, false
	}
}

// tryAll tries what may go at once, and reports whether any of it did.
func (d *steps) tryAll(s *Step) bool {
	if len(s.ToBackend) > 0 {
		// Between two writes it is looked whether the reply has come: where the
		// backend does not want the rest of a request it says so.
		if s.FromBackend > 0 && d.wroteLast && d.tryRead(d.backend, s.FromBackend) {
			return true
		}
		if d.tryWrite(d.backend, s.ToBackend) {
			return true
		}
	}
	return len(s.ToClient) > 0 && d.tryWrite(d.client, s.ToClient) ||
		s.FromBackend > 0 && d.tryRead(d.backend, s.FromBackend) ||
		s.FromClient > 0 && d.tryRead(d.client, s.FromClient)
}

// tryRead reads from c if something is there.
func (d *steps) tryRead(c *loopConn, limit int) bool {
	fromBackend := c == d.backend
	ch, err := d.loop.take(c, min(limit, maxBuffer))
	if fromBackend {
		d.wroteLast = false
	}
	switch {
	case err == errAgain:
		return false
	case err != nil && fromBackend:
		d.backendEnded(err)
	case err != nil:
		d.clientEnded(d.machine, err)
	case fromBackend:
		d.answered = true
		d.machine.ReadBackend(ch.p)
		d.loop.kernel.drop(ch)
	default:
		d.machine.ReadClient(ch.p)
		d.loop.kernel.drop(ch)
	}
	return true
}

// tryWrite writes to c what it takes.
func (d *steps) tryWrite(c *loopConn, p []byte) bool {
	n, err := d.loop.kernel.write(c, p)
	switch err {
	case errAgain:
		return false
	case errPending:
		d.phase, d.to, d.sent = writing, c, c.written
		if c == d.backend && d.wanted.FromBackend > 0 {
			d.loop.kernel.expect(c, min(d.wanted.FromBackend, maxBuffer))
		}
		return true
	}
	d.haveWritten(c, n, err)
	return true
}

// wrote tells the machine what a write has done that was under way, and reports whether
// it was.
func (d *steps) wrote() bool {
	c := d.to
	if d.loop.kernel.writing(c) {
		return false
	}
	d.phase, d.to = stepping, nil
	if n := int(c.written - d.sent); n > 0 || c.sendErr() != nil {
		d.waits = false
		d.haveWritten(c, n, c.sendErr())
	}
	return d.phase == stepping
}

func (d *steps) haveWritten(c *loopConn, n int, err error) {
	switch {
	case n == 0 && c == d.backend:
		d.writeErr = err // drain goes on
	case n == 0:
		d.clientEnded(d.machine, err)
	case c == d.backend:
		d.wroteLast = true
		d.machine.WroteBackend(n)
	default:
		d.machine.WroteClient(n)
	}
}

// backendEnded tells the machine that the backend's connection has ended with err, once
// it is known what its program can have read. It reports whether that is known.
func (d *steps) backendEnded(err error) bool {
	d.phase = judging
	d.end, d.begun, d.pause = trueEnd(err, d.writeErr), d.loop.now, wheelTick
	return d.judge()
}

// judge: see drive.undelivered for the proof. It reports whether it knows.
func (d *steps) judge() bool {
	v := d.verdict()
	if v == unknown && d.loop.now-d.begun < proofTime {
		d.until = d.loop.now + d.pause
		d.setTimer()
		d.pause = min(2*d.pause, 20*time.Millisecond)
		return false
	}
	d.phase = stepping
	d.backendOver, d.waits = true, false
	d.machine.BackendEnded(d.end, v == proved)
	return true
}

func (d *steps) verdict() verdict {
	switch c := d.backend; {
	case c.written == d.mark:
		return proved
	case d.doCut || d.end != io.EOF:
		return refuted
	default:
		return c.unreadSince(d.mark)
	}
}
