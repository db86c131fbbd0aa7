package engine

import (
	"context"
	"time"
)

// ending is what is known of a pair that ends: first of a direction, at last of both.
type ending struct {
	up, down flowEnd
	err      error         // of pair.end
	flushEnd time.Duration // when a reset has waited long enough for the bytes before it

	res   Result
	conn  *loopConn // to which what was written is to arrive; nil: to none
	half  Half      // what that was
	pause time.Duration

	finLeft *loopConn // is to get the last FIN by its close, if done closes it
}

// flowEnd is how a direction ended.
type flowEnd struct {
	err      error // of its source
	writeErr error // of its destination
}

func (r *pair) late() *ending {
	if r.ending == nil {
		r.ending = new(ending)
	}
	return r.ending
}

func (r *pair) endOf(f *flow) *flowEnd {
	if r.isUp(f) {
		return &r.late().up
	}
	return &r.late().down
}

// finish draws the conclusions once both directions have ended; see relay.finish.
func (r *pair) finish() {
	r.timer.cancel()
	r.conclude()
	e := r.late()
	e.res = Result{Up: r.up.result(), Down: r.down.result(), End: r.end, Err: e.err,
		LastDown: r.down.moved > 0 && r.settled(), QuietFor: r.loop.now - r.last}
	r.phase = retiring
	r.goOn()
}

// conclude finds the end where nothing stopped the directions: each ended by itself,
// with a FIN or because its destination failed.
func (r *pair) conclude() {
	switch e := r.late(); {
	case r.stopped:
	case e.up.writeErr != nil:
		r.end, e.err = r.failure(&r.down, e.up.writeErr), e.up.writeErr
	case e.down.writeErr != nil:
		r.end, e.err = r.failure(&r.up, e.down.writeErr), e.down.writeErr
	}
}

// goOn goes on with what the pair waits for besides bytes.
func (r *pair) goOn() {
	switch r.phase {
	case proving:
		r.judge()
		if r.phase == moving {
			r.move()
		}
	case retiring:
		k := r.loop.kernel
		client, backend := k.settle(r.client), k.settle(r.backend)
		if client && backend {
			r.part()
		}
	case flushing:
		r.flush()
	}
}

// part begins the last step: what is still to arrive before a reset or a close.
func (r *pair) part() {
	e := r.ending
	switch end := r.end; {
	case end == Stale:
		r.giveBack()
	case end == Cut:
		r.client.Abort()
		r.backend.Abort()
	case end == BackendReset, end == BackendFailed:
		e.conn, e.half = r.client, r.down.result()
	case end == Quiet, e.res.Untouched():
		e.res.Unacked = r.backend.Unacked()
	case end == ClientReset, end == ClientFailed, end == Finished:
		e.conn, e.half = r.backend, r.up.result()
	default:
		r.partUnfinished()
	}
	r.phase = flushing
	r.flush()
}

// partUnfinished sees to it that no FIN passes what a peer got for the whole where a
// time limit ended the session; see relay.part.
func (r *pair) partUnfinished() {
	owed := r.end == HalfCloseTimeout // one side has finished and had no end of the other
	up, down := &r.up, &r.down
	if owed && !down.fin || down.owing > 0 {
		r.client.Abort()
	}
	if owed && !up.fin || up.owing > 0 || r.backend.Unacked() > finOnly {
		r.backend.Abort()
	}
}

// flush waits until the peer's kernel has acknowledged what was written, since a reset
// discards what has not arrived; see relay.flush.
func (r *pair) flush() {
	e := r.ending
	if e.conn == nil || e.half.Moved == 0 || e.conn.Unacked() <= finOnly || e.conn.isClosed() {
		r.depart(true)
		return
	}
	if e.half.FIN && e.flushEnd == 0 { // the peer is owed all of it, however slowly it reads
		e.flushEnd = r.loop.now + max(flushTime, r.limits.halfClose)
	}
	if r.flushed() || r.isCut() {
		r.depart(false)
		return
	}
	if e.finLeft != nil { // it does not wait for the close
		e.finLeft.closeWrite()
		e.finLeft = nil
	}
	e.pause = min(max(2*e.pause, wheelTick), 50*time.Millisecond)
	r.tickIn(e.pause)
}

// isCut reports whether nothing is to be waited for any more.
func (r *pair) isCut() bool { return r.wasCut || r.member.context().Err() != nil }

// depart ends the pair. arrived tells that all has arrived that was waited for.
func (r *pair) depart(arrived bool) {
	e := r.ending
	res := &e.res
	switch {
	case e.conn == nil:
	case r.end == Finished:
		if !arrived {
			r.backend.Abort()
		}
	default:
		if !arrived && r.isCut() && e.conn == r.client {
			res.End, res.Err = Cut, context.Cause(r.member.context())
		}
		e.conn.Abort()
	}
	r.timer.cancel()
	r.member.leave()
	r.client.seat.Store(nil)
	r.backend.seat.Store(nil)
	r.phase = ended
	r.done(*res)
	if c := e.finLeft; c != nil {
		c.engine.table.whileOpen(c, c.closeWrite)
	}
}

func (c *loopConn) isClosed() bool {
	closed, _, _ := c.tcpState()
	return closed
}
