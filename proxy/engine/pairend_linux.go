package engine

import (
	"context"
	"time"
)

// ending is what is known of a pair whose bytes have ceased to move.
type ending struct {
	res   Result
	conn  *loopConn // to which what was written is to arrive; nil: to none
	half  Half      // what that was
	pause time.Duration
}

// finish draws the conclusions once both directions have ended; see relay.finish.
func (r *pair) finish() {
	r.timer.cancel()
	r.conclude()
	r.ending = &ending{res: Result{Up: r.up.half, Down: r.down.half, End: r.end, Err: r.err,
		LastDown: r.down.half.Moved > 0 && r.settled(), QuietFor: r.loop.now - r.last}}
	r.phase = retiring
	r.goOn()
}

// conclude finds the end where nothing stopped the directions: each ended by itself,
// with a FIN or because its destination failed.
func (r *pair) conclude() {
	switch {
	case r.stopped:
	case r.up.writeErr != nil:
		r.end, r.err = r.down.failure(r.up.writeErr), r.up.writeErr
	case r.down.writeErr != nil:
		r.end, r.err = r.up.failure(r.down.writeErr), r.down.writeErr
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
		e.conn, e.half = r.client, r.down.half
	case end == Quiet, e.res.Untouched():
		e.res.Unacked = r.backend.Unacked()
	case end == ClientReset, end == ClientFailed, end == Finished:
		e.conn, e.half = r.backend, r.up.half
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
	up, down := r.up.half, r.down.half
	if owed && !down.FIN || down.Moved < down.Taken {
		r.client.Abort()
	}
	if owed && !up.FIN || up.Moved < up.Taken || r.backend.Unacked() > finOnly {
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
	if e.half.FIN && r.flushEnd == 0 { // the peer is owed all of it, however slowly it reads
		r.flushEnd = r.loop.now + max(flushTime, r.cfg.HalfCloseTimeout)
	}
	if r.flushed() || r.ctx.Err() != nil {
		r.depart(false)
		return
	}
	if r.finLeft != nil { // it does not wait for the close
		r.finLeft.closeWrite()
		r.finLeft = nil
	}
	e.pause = min(max(2*e.pause, wheelTick), 50*time.Millisecond)
	r.tickIn(e.pause)
}

// depart ends the pair. arrived tells that all has arrived that was waited for.
func (r *pair) depart(arrived bool) {
	res := &r.ending.res
	switch {
	case r.ending.conn == nil:
	case r.end == Finished:
		if !arrived {
			r.backend.Abort()
		}
	default:
		if !arrived && r.ctx.Err() != nil && r.ending.conn == r.client {
			res.End, res.Err = Cut, context.Cause(r.ctx)
		}
		r.ending.conn.Abort()
	}
	r.timer.cancel()
	r.member.leave()
	r.client.seat.Store(nil)
	r.backend.seat.Store(nil)
	r.phase = ended
	r.done(*res)
	if c := r.finLeft; c != nil {
		c.engine.table.whileOpen(c, c.closeWrite)
	}
}

func (c *loopConn) isClosed() bool {
	closed, _, _ := c.tcpState()
	return closed
}
