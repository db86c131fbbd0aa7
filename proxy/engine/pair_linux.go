package engine

import (
	"context"
	"errors"
	"io"
	"slices"
	"syscall"
	"time"
)

// pair is one run of Relay on a loop: two connections and the bytes between them. It
// does as relay does (relay.go, direction.go, flight.go), without waiting: where that
// waits, a pair returns to its loop and goes on at an event or when its timer goes off.
type pair struct {
	loop            *loop
	seat            seat
	client, backend *loopConn
	up, down        flow
	cfg             RelayConfig
	done            func(Result)
	ctx             context.Context
	member          member
	timer           timer

	phase   phase
	start   time.Duration
	last    time.Duration // when a byte last moved
	stirred time.Duration // when the number of bytes in the kernel's buffers was last seen to change, or a FIN came
	held    int           // that number

	asked, answered uint64    // the order of the last write to the backend that moved bytes, and of the last bytes from it that moved
	half            bool      // one direction has ended
	finLeft         *loopConn // is to get the last FIN by its close, if done closes it
	withheld        bool      // the client's FIN came, and was not relayed
	stopped         bool      // both directions have been told to end
	queued          bool      // the loop will run it again
	end             End
	err             error

	flight   *heldFlight   // nil where nothing is kept
	ending   *ending       // nil while bytes move
	flushEnd time.Duration // when a reset has waited long enough for the bytes before it
	stallFor time.Duration // the next wait of tick while a write waits
}

type phase uint8

const (
	moving   phase = iota // bytes move
	proving               // the backend has ended; it is being found out whether it was stale
	retiring              // the kernel still works on one of the connections
	flushing              // what was written is to arrive before the end
	ended
)

// flow is one direction of a pair.
type flow struct {
	src, dst *loopConn
	half     Half
	mark     uint64 // dst.written when it was last looked at
	writeErr error  // its destination did
	isUp     bool
	over     bool
	end      error // how its source ended, which counts once all before it has moved; nil: it has not
}

// burst is how many times a direction moves bytes before others have their turn.
const burst = 4

// Relay moves bytes both ways, on the client's loop.
func (e *Loops) Relay(ctx context.Context, client, backend Conn, cfg RelayConfig, done func(Result)) {
	c, b := client.(*loopConn), backend.(*loopConn)
	l := e.loopOf(c)
	r := &pair{loop: l, client: c, backend: b, cfg: cfg, done: done, ctx: ctx}
	r.up, r.down = flow{src: c, dst: b, isUp: true}, flow{src: b, dst: c}
	if len(cfg.Unread) > 0 {
		c.unread = slices.Concat(cfg.Unread, c.unread)
		r.cfg.Unread = nil
	}
	l.post(r)
}

// run begins the relay, and goes on with it where it had moved much.
func (r *pair) run() {
	if r.start == 0 {
		r.begin()
	}
	r.queued = false
	r.move()
}

func (r *pair) begin() {
	l := r.loop
	r.start, r.last = l.now, l.now
	r.up.mark, r.down.mark = r.backend.written, r.client.written
	r.seat = seat{l, r}
	r.client.seat.Store(&r.seat)
	r.backend.seat.Store(&r.seat)
	if r.cfg.Replay {
		r.flight = new(heldFlight)
	}
	err := errors.Join(l.open(r.client), l.open(r.backend))
	l.kernel.stream(r.client)
	l.kernel.stream(r.backend)
	l.join(r.ctx, &r.member, r)
	if err != nil {
		r.stop(BackendFailed, err)
	}
	r.tick()
}

func (r *pair) event(*loopConn) { r.move() }

func (r *pair) timeUp() {
	if r.phase == moving {
		r.tick()
	}
	r.move()
}

func (r *pair) contextEnded() {
	r.stop(Cut, context.Cause(r.ctx))
	r.move()
}

// move does what there is to do.
func (r *pair) move() {
	if r.phase == moving {
		r.pump(&r.up)
		r.pump(&r.down)
		if r.phase == moving && r.up.over && r.down.over {
			r.finish()
			return
		}
		r.awaitStall()
		return
	}
	r.goOn()
}

// awaitStall has tick look after a write that waits: nobody reads what that comes
// from, so that a reset there is not seen otherwise.
func (r *pair) awaitStall() {
	if r.client.owed()+r.backend.owed() == 0 || r.stallFor > 0 || r.phase != moving {
		return
	}
	r.stallFor = stallTick
	r.tickIn(stallTick)
}

// pump moves the bytes of one direction, as far as that goes now.
func (r *pair) pump(f *flow) {
	for range burst {
		if !r.account(f) || f.end != nil || f.dst.owed() > r.loop.kernel.window() {
			return
		}
		ch, err := r.loop.take(f.src, maxBuffer)
		if err == errAgain {
			return
		}
		if err != nil {
			r.sourceEnded(f, err)
			return
		}
		f.half.Taken += int64(len(ch.p))
		r.deliver(f, ch)
	}
	if !r.queued && !f.over {
		r.queued = true
		r.loop.again(r)
	}
}

// deliver gives bytes to the destination.
func (r *pair) deliver(f *flow, ch chunk) {
	k := r.loop.kernel
	if f.isUp {
		r.keep(ch.p)
		k.send(f.dst, ch)
		r.account(f)
		return
	}
	r.dropFlight() // the backend has answered
	r.answered = k.heard(f.src)
	k.send(f.dst, ch)
	r.account(f)
}

// account counts what the destination has taken, and reports whether the direction
// goes on.
func (r *pair) account(f *flow) bool {
	if f.over || r.phase > proving {
		return false
	}
	if n := f.dst.written - f.mark; n > 0 {
		f.mark = f.dst.written
		f.half.Moved += int64(n)
		r.last = r.loop.now
		if f.isUp {
			r.asked = r.loop.kernel.asked()
		}
		if f.isUp && r.flight != nil {
			r.flight.sent += int(n)
		}
		if !f.isUp && r.withheld {
			r.tick() // the time of KeepQuiet begins
		}
	}
	switch {
	case f.dst.sendErr != nil:
		// The other direction goes on: what this peer sent before it failed is still
		// to be read, and the read that follows finds the failure too.
		f.writeErr = f.dst.sendErr
		r.flowOver(f)
	case f.end != nil && f.dst.owed() == 0:
		r.flowEnded(f)
	}
	return !f.over
}

// afterHalf is when tick comes once one direction has ended. It would come at once, but
// most sessions are over before, and it asks the kernel what it holds.
const afterHalf = 20 * time.Millisecond

func (r *pair) flowOver(f *flow) {
	f.over = true
	r.half = true
	r.stirred = r.loop.now
	if r.phase == moving && !(r.up.over && r.down.over) {
		wait := afterHalf
		if limit, _ := r.limit(); limit > 0 {
			wait = min(wait, limit)
		}
		r.tickIn(wait)
	}
}

// sourceEnded is called with the error of a read.
func (r *pair) sourceEnded(f *flow, err error) {
	if !f.isUp && r.flight != nil {
		r.prove(err)
		return
	}
	f.end = err
	r.account(f)
}

func (r *pair) flowEnded(f *flow) {
	err := f.end
	if err == io.EOF && f.src.owed() > 0 && f.src.isClosed() {
		return // the write that is under way fails too, and may be the one that took the error
	}
	// A failed write has taken the error out of the kernel, which then reports an end
	// to the reader: it was no FIN. After EPIPE the peer's FIN had come before.
	if w := f.src.sendErr; err == io.EOF && w != nil && !errors.Is(w, syscall.EPIPE) {
		err = w
	}
	if err == io.EOF {
		r.passFIN(f)
	} else {
		r.stop(f.failure(err), err)
	}
}

// passFIN relays the FIN of the source.
func (r *pair) passFIN(f *flow) {
	f.half.FIN = true
	if f.isUp && r.cfg.KeepQuiet > 0 {
		r.withheld = true
	} else {
		f.half.FINSent = true
		if f.isUp && r.flight != nil {
			r.flight.finished = true
		}
		if r.up.half.FINSent && r.down.half.FINSent {
			r.finLeft = f.dst // a shutdown before the close would send the same FIN
		} else {
			f.dst.closeWrite() // if it fails, the other direction finds out why
		}
	}
	r.flowOver(f)
}

// failure: see direction.failure.
func (f *flow) failure(err error) End { return failure(f.isUp, err) }

// stop has both directions end, for the reason of the first call.
func (r *pair) stop(end End, err error) {
	if r.stopped || r.phase > proving {
		return
	}
	r.stopped, r.end, r.err = true, end, err
	r.up.over, r.down.over = true, true
	r.phase = moving // a proof is not waited for any more
}

// settled: see turns.settled. What came before all of a request was written does not
// answer it.
func (r *pair) settled() bool {
	return r.answered >= r.asked && r.client.owed()+r.backend.owed() == 0
}
