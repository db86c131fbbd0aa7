package engine

import (
	"io"
	"syscall"
	"time"
)

// limit: see relay.limit.
func (r *pair) limit() (time.Duration, End) {
	switch {
	case r.withheld && r.settled():
		return r.limits.keepQuiet, Quiet
	case r.half && r.limits.halfClose > 0:
		return r.limits.halfClose, HalfCloseTimeout
	default:
		return r.limits.idle, IdleTimeout
	}
}

// tickIn has the timer go off in d, if it does not earlier.
func (r *pair) tickIn(d time.Duration) {
	at := r.loop.now + d
	if r.timer.set() && time.Duration(r.timer.at)*wheelTick <= at {
		return
	}
	r.loop.wheel.schedule(&r.timer, at, r)
}

// lastingAfter is the age at which a session's connections get the options that tell a
// dead peer.
const lastingAfter = time.Second

// tick ends the relay when its time is up, and otherwise comes again; see relay.tick.
// The timer is not moved with each byte: when it goes off it is looked when the last
// byte was.
func (r *pair) tick() {
	if r.stopped || r.phase != moving {
		return
	}
	if f := r.lostSource(); f != nil && r.flushed() {
		err := r.endOf(f).err
		if err == nil {
			err = r.src(f).failure()
		}
		// EPIPE is what a reset behind a FIN leaves: all that came before the FIN
		// is there to be read, and once the error is taken the FIN is too.
		if err != syscall.EPIPE {
			r.stop(r.failure(f, err), err)
			return
		}
	}
	limit, end := r.limit()
	wait := limit - r.idle(end)
	switch {
	case limit == 0:
		wait = noLimit
	case wait <= 0:
		r.stop(end, nil)
		return
	case r.held > 0:
		wait = min(wait, limit/8) // to know when they went
	}
	r.timer.cancel()
	r.tickIn(min(wait, r.otherWaits()))
}

// otherWaits returns how soon tick comes for other reasons than a time limit.
func (r *pair) otherWaits() time.Duration {
	wait := noLimit
	if r.client.owed()+r.backend.owed() > 0 {
		r.stallFor = min(max(2*r.stallFor, stallTick), lastStallTick)
		wait = min(wait, r.stallFor)
	} else {
		r.stallFor = 0
	}
	if r.flightNeeded() {
		wait = min(wait, flightTick)
	}
	if !r.client.is(stateLasting) || !r.backend.is(stateLasting) {
		if age := r.loop.now - r.start; age < lastingAfter {
			return min(wait, lastingAfter-age)
		}
		r.client.lasts()
		r.backend.lasts()
	}
	return wait
}

// idle returns for how long nothing has happened; see relay.idle.
func (r *pair) idle(end End) time.Duration {
	now := r.loop.now
	quiet := now - r.last
	if end == Quiet {
		if bytes, end := r.backend.Peek(); bytes || end != nil {
			return 0 // they are about to be read
		}
		return quiet
	}
	if now > r.last || r.held > 0 { // not with the byte that just moved
		if held := r.client.Unacked() + r.backend.Unacked(); held != r.held {
			r.held, r.stirred = held, now
		}
	}
	return min(quiet, now-r.stirred)
}

// lostSource: see relay.lostSource.
func (r *pair) lostSource() *flow {
	for _, f := range []*flow{&r.up, &r.down} {
		if r.dst(f).owed() == 0 {
			continue
		}
		var end error
		if f.ended {
			end = r.endOf(f).err
		} else {
			_, end = r.src(f).Peek()
		}
		if end != nil && end != io.EOF {
			return f
		}
	}
	return nil
}

// flushed reports whether the time is up that the bytes before a reset have.
func (r *pair) flushed() bool {
	e := r.late()
	if e.flushEnd == 0 {
		e.flushEnd = r.loop.now + flushTime
	}
	return r.loop.now >= e.flushEnd
}
