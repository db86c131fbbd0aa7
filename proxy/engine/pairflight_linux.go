package engine

import (
	"errors"
	"io"
	"slices"
	"syscall"
	"time"
)

// heldFlight is the first flight of a pair; see flight for what it is, and for the
// proof. Its bytes are the loop's alone.
type heldFlight struct {
	buf      []byte
	sent     int   // bytes of it that the kernel took
	finished bool  // the client's FIN follows it
	end      error // how reading from the backend ended
	begun    time.Duration
	pause    time.Duration
}

// keep adds p to the flight.
func (r *pair) keep(p []byte) {
	f := r.flight
	switch {
	case f == nil:
	case len(f.buf)+len(p) > maxFlight:
		r.flight = nil
	default:
		first := len(f.buf) == 0
		f.buf = append(f.buf, p...)
		if first {
			r.tickIn(flightTick)
		}
	}
}

func (r *pair) dropFlight() { r.flight = nil }

// flightNeeded reports whether the flight must still be kept: see flight.needed.
func (r *pair) flightNeeded() bool {
	if r.flight == nil || len(r.flight.buf) == 0 {
		return false
	}
	if _, acked, ok := r.backend.tcpState(); ok && acked > 1 {
		r.flight = nil
		return false
	}
	return true
}

// prove finds out whether the flight was undelivered, now that reading from the backend
// ended with end.
func (r *pair) prove(end error) {
	r.phase = proving
	r.flight.end, r.flight.begun, r.flight.pause = end, r.loop.now, wheelTick
	r.judge()
}

// judge asks again until it knows, for proofTime at the most. The client is not read
// meanwhile.
func (r *pair) judge() {
	f := r.flight
	v := r.verdict()
	if v == unknown && r.loop.now-f.begun < proofTime {
		r.tickIn(f.pause)
		f.pause = min(2*f.pause, 20*time.Millisecond)
		return
	}
	r.phase = moving
	if v == proved {
		r.stop(Stale, f.end)
	} else {
		r.dropFlight()
		r.sourceEnded(&r.down, f.end)
	}
}

func (r *pair) verdict() verdict {
	f := r.flight
	r.account(&r.up)
	switch {
	case r.loop.kernel.writing(r.backend):
		return unknown
	case f.sent == 0 && !(f.finished && len(f.buf) == 0):
		return proved
	case errors.Is(r.backend.sendErr(), syscall.ECONNRESET):
		return refuted
	case f.sent == 0:
		return refuted // an empty session: the FIN answers the client's
	case f.end != io.EOF:
		return refuted
	}
	return r.backend.unreadSince(0)
}

// unreadSince: see netConn.unreadSince.
func (c *loopConn) unreadSince(before uint64) verdict {
	closed, acked, ok := c.tcpState()
	switch {
	case !ok || acked > 1+before: // 1 is the SYN
		return refuted
	case closed:
		return proved
	default:
		return unknown
	}
}

// giveBack gives the client back what the backend did not get.
func (r *pair) giveBack() {
	r.client.setUnread(slices.Concat(r.flight.buf, r.client.unread()))
	r.flight = nil
}
