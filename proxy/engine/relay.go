package engine

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Relay moves bytes both ways, each in a goroutine.
func (e *Net) Relay(ctx context.Context, client, backend Conn, cfg RelayConfig, done func(Result)) {
	r := newRelay(client.(*netConn), backend.(*netConn), cfg)
	r.ctx = ctx
	r.client.setUser(r.cutOff)
	e.wg.Go(func() { r.run(done) })
}

func (r *relay) run(done func(Result)) {
	ctx := r.ctx
	release := context.AfterFunc(ctx, func() { r.stop(Cut, context.Cause(ctx)) })
	r.startTimer()
	var wg sync.WaitGroup
	wg.Go(r.up.run)
	r.down.run()
	wg.Wait()
	r.seal()
	release()
	res := r.finish()
	r.client.user.Store(nil)
	done(res)
}

// cutOff ends the relay as the end of its context does.
func (r *relay) cutOff() {
	r.isCutOff.Store(true)
	r.stop(Cut, nil)
}

// isCut reports whether nothing is to be waited for any more.
func (r *relay) isCut() bool { return r.isCutOff.Load() || r.ctx.Err() != nil }

// relay is one run of Relay. The two directions own their own fields; what both
// change is atomic or under mu.
type relay struct {
	ctx             context.Context // ends when the session is cut
	isCutOff        atomic.Bool     // it was by Conn.Cut
	client, backend *netConn
	cfg             RelayConfig
	up, down        direction
	flight          flight

	start    time.Time
	last     atomic.Int64 // when a byte last moved, in nanoseconds after start
	turns    *turns       // nil without KeepQuiet
	half     atomic.Bool  // one direction has ended
	withheld atomic.Bool  // the client's FIN came, and was not relayed
	watchful atomic.Bool  // tick comes often, since a write waits

	mu       sync.Mutex
	timer    *time.Timer
	held     int           // bytes in the kernel's two buffers at the last tick
	stirred  time.Duration // when their number was last seen to change, or a FIN came, after start
	flushEnd time.Time     // when a reset has waited long enough for the bytes before it
	stallFor time.Duration // the next wait of tick while a write waits
	stopped  bool          // both directions have been told to end
	sealed   bool          // both have ended: the deadlines are not touched any more
	end      End           // why, once stopped
	err      error
}

func newRelay(client, backend *netConn, cfg RelayConfig) *relay {
	if len(cfg.Unread) > 0 {
		client.unread = slices.Concat(cfg.Unread, client.unread)
		cfg.Unread = nil // the up direction has it, and lets it go
	}
	r := &relay{client: client, backend: backend, cfg: cfg, start: time.Now(), stallFor: stallTick}
	r.up = direction{relay: r, src: client, dst: backend, isUp: true, sizer: sizer{size: minBuffer}}
	r.down = direction{relay: r, src: backend, dst: client, sizer: sizer{size: minBuffer}}
	r.up.onMoved, r.down.onMoved = r.up.moved, r.down.moved
	r.up.onWait, r.down.onWait = r.waits, r.waits
	if cfg.KeepQuiet > 0 {
		r.turns = new(turns)
	}
	if cfg.Replay {
		r.flight.begin(backend)
	}
	return r
}

// stop has both directions end, for the reason of the first call.
func (r *relay) stop(end End, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopLocked(end, err)
}

func (r *relay) stopLocked(end End, err error) {
	if r.stopped || r.sealed {
		return
	}
	r.stopped, r.end, r.err = true, end, err
	r.client.SetDeadline(aLongTimeAgo)
	r.backend.SetDeadline(aLongTimeAgo)
}

// seal ends the time in which stop may touch the connections.
func (r *relay) seal() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sealed = true
	if r.timer != nil {
		r.timer.Stop()
	}
}

// finish draws the conclusions once both directions have ended.
func (r *relay) finish() Result {
	r.conclude()
	res := Result{Up: r.up.half, Down: r.down.half, End: r.end, Err: r.err,
		LastDown: r.down.half.Moved > 0 && r.turns.settled(), QuietFor: r.quietFor()}
	switch {
	case r.end == Stale:
		r.flight.giveBack(r.client)
		r.client.SetDeadline(time.Time{})
	case r.end == Cut:
		r.client.Abort()
		r.backend.Abort()
	case r.end == BackendReset, r.end == BackendFailed:
		if !r.flush(r.client, r.down.half) && r.isCut() {
			res.End, res.Err = Cut, context.Cause(r.ctx)
		}
		r.client.Abort()
	case r.end == Quiet, res.Untouched():
		res.Unacked = r.backend.unacked()
		r.backend.SetDeadline(time.Time{})
	case r.end == ClientReset, r.end == ClientFailed:
		r.flush(r.backend, r.up.half)
		r.backend.Abort()
	default:
		r.part()
	}
	r.flight.drop()
	return res
}

// part has two connections that finished, or timed out, closed without a false
// word: no FIN
// may pass what a peer got for the whole that the other side did not end. And what
// the backend has not taken is not left to the kernel, which would keep the
// connection open for it when its slot is free already.
func (r *relay) part() {
	if r.end == Finished {
		if !r.flush(r.backend, r.up.half) {
			r.backend.Abort()
		}
		return
	}
	owed := r.end == HalfCloseTimeout // one side has finished and had no end of the other
	if owed && !r.down.half.FIN || r.down.half.Moved < r.down.half.Taken {
		r.client.Abort()
	}
	if owed && !r.up.half.FIN || r.up.half.Moved < r.up.half.Taken || r.backend.unacked() > finOnly {
		r.backend.Abort()
	}
}

// finOnly is how much the kernel holds where only the FIN is not acknowledged.
const finOnly = 1

// conclude finds the end where nothing stopped the directions (each ended by
// itself, with a FIN or because its destination failed), and where the client
// failed while its backend turned out to be stale: nobody is there to serve.
func (r *relay) conclude() {
	switch {
	case r.end == Stale && r.up.readErr != nil:
		r.end, r.err = r.up.failure(r.up.readErr), r.up.readErr
	case r.stopped:
	case r.up.writeErr != nil:
		r.end, r.err = r.down.failure(r.up.writeErr), r.up.writeErr
	case r.down.writeErr != nil:
		r.end, r.err = r.up.failure(r.down.writeErr), r.down.writeErr
	}
}

// flushTime is how long a reset waits for the bytes before it.
const flushTime = time.Second

// flush waits until the peer's kernel has acknowledged what was written to c,
// since a reset discards what has not arrived, and reports whether it has. Where a
// FIN came behind it the peer is owed all of it, however slowly it reads: then the
// wait is as long as a half-closed session may last. A cut ends it.
func (r *relay) flush(c *netConn, written Half) bool {
	if written.Moved == 0 {
		return true
	}
	if written.FIN && r.flushEnd.IsZero() {
		r.flushEnd = time.Now().Add(max(flushTime, r.cfg.HalfCloseTimeout))
	}
	for pause := time.Millisecond; c.unacked() > finOnly && !c.closed(); {
		if r.flushed() || r.isCut() {
			return false
		}
		time.Sleep(pause)
		pause = min(2*pause, 50*time.Millisecond)
	}
	return true
}

// flushed reports whether the time is up that the bytes before a reset have.
func (r *relay) flushed() bool {
	if r.flushEnd.IsZero() {
		r.flushEnd = time.Now().Add(flushTime)
	}
	return !time.Now().Before(r.flushEnd)
}
