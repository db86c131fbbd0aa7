package engine

import (
	"io"
	"syscall"
	"time"
)

// limit returns the longest time without a byte that is allowed now (0: any),
// and what the relay ends as after it.
func (r *relay) limit() (time.Duration, End) {
	switch {
	case r.withheld.Load() && r.turns.settled():
		return r.cfg.KeepQuiet, Quiet
	case r.half.Load() && r.cfg.HalfCloseTimeout > 0:
		return r.cfg.HalfCloseTimeout, HalfCloseTimeout
	default:
		return r.cfg.IdleTimeout, IdleTimeout
	}
}

func (r *relay) quietFor() time.Duration {
	return time.Since(r.start) - time.Duration(r.last.Load())
}

// startTimer starts the one timer of the relay. It is not moved with each byte:
// when it fires it looks when the last byte was.
func (r *relay) startTimer() {
	r.mu.Lock()
	defer r.mu.Unlock()
	d, _ := r.limit()
	if d == 0 {
		d = noLimit
	}
	r.timer = time.AfterFunc(d, r.tick)
}

// noLimit is when to look again where no time is limited: what changes that has
// tick look at once.
const noLimit = time.Hour

// flightTick is how often tick looks whether a flight need still be kept.
const flightTick = time.Second

// stallTick is how soon tick looks while a write waits: nobody reads what that
// comes from, so that a reset there is not seen otherwise. While the write waits
// on, the looks become rarer.
const (
	stallTick     = 200 * time.Millisecond
	lastStallTick = 5 * time.Second
)

// tick ends the relay when its time is up, and otherwise comes again. All it goes
// by is looked at under the lock: who changes any of it and then calls look is
// not missed.
func (r *relay) tick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped || r.sealed {
		return
	}
	if d := r.lostSource(); d != nil && r.flushed() {
		// EPIPE is what a reset behind a FIN leaves: all that came before the FIN
		// is there to be read, and once the error is taken the FIN is too.
		if err := d.src.raw.failure(); err != syscall.EPIPE {
			r.stopLocked(d.failure(err), err)
			return
		}
	}
	limit, end := r.limit()
	wait := limit - r.idle(end)
	switch {
	case limit == 0:
		wait = noLimit
	case wait <= 0:
		r.stopLocked(end, nil)
		return
	case r.held > 0:
		wait = min(wait, limit/8) // to know when they went
	}
	if r.stalled() {
		wait = min(wait, r.stallFor)
		r.stallFor = min(2*r.stallFor, lastStallTick)
	}
	if r.flight.needed() {
		wait = min(wait, flightTick)
	}
	r.timer.Reset(wait)
}

// look has tick come now, since something has changed.
func (r *relay) look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lookLocked()
}

func (r *relay) lookLocked() {
	if !r.sealed {
		r.timer.Reset(0)
	}
}

// halfClosed begins the half-close timeout.
func (r *relay) halfClosed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.half.Store(true)
	r.stirred = time.Since(r.start)
	r.lookLocked()
}

// waits is called when a write has to wait.
func (r *relay) waits() {
	if !r.watchful.CompareAndSwap(false, true) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stallFor = stallTick
	r.lookLocked()
}

// keeps is called when the first bytes of a flight are kept: tick looks in a while
// whether they need still be.
func (r *relay) keeps() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d, _ := r.limit(); r.timer != nil && !r.sealed && (d == 0 || d > flightTick) {
		r.timer.Reset(flightTick)
	}
}

// stalled reports whether a write may be waiting.
func (r *relay) stalled() bool {
	r.watchful.Store(false) // before the look, so that a write that begins to wait now calls again
	stalled := r.up.delivering.Load() || r.down.delivering.Load()
	if stalled {
		r.watchful.Store(true)
	}
	return stalled
}

// idle returns for how long nothing has happened. A slow reader takes bytes out
// of the kernel's buffer for long before the kernel asks for more: that counts,
// unless the relay would end as Quiet, when the rest is the kernel's to deliver.
func (r *relay) idle(end End) time.Duration {
	quiet := r.quietFor()
	if end == Quiet {
		if bytes, end := r.backend.Peek(); bytes || end != nil {
			return 0 // they are about to be read
		}
		return quiet
	}
	now := time.Since(r.start)
	if held := r.client.unacked() + r.backend.unacked(); held != r.held {
		r.held, r.stirred = held, now
	}
	return min(quiet, now-r.stirred)
}

// lostSource returns a direction whose write waits while its source has failed.
func (r *relay) lostSource() *direction {
	for _, d := range []*direction{&r.up, &r.down} {
		if !d.delivering.Load() {
			continue
		}
		if _, end := d.src.Peek(); end != nil && end != io.EOF {
			return d
		}
	}
	return nil
}
