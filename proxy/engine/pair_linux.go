package engine

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"
)

// pair is one run of Relay on a loop: two connections and the bytes between them. It
// does as relay does (relay.go, direction.go, flight.go), without waiting: where that
// waits, a pair returns to its loop and goes on at an event or when its timer goes off.
//
// Most pairs are quiet, and there are many: what is needed for a while only lies apart.
type pair struct {
	seat            // as the connections have it
	client, backend *loopConn
	up, down        flow
	limits          *limits
	done            func(Result)
	member          member // has the context
	timer           timer

	start    time.Duration
	last     time.Duration // when a byte last moved
	stirred  time.Duration // when the number of bytes in the kernel's buffers was last seen to change, or a FIN came
	held     int           // that number
	stallFor time.Duration // the next wait of tick while a write waits
	asked    uint64        // the order of the last write to the backend that moved bytes

	phase    phase
	end      End
	asking   bool // no bytes have moved that came from the backend after that write
	half     bool // one direction has ended
	withheld bool // the client's FIN came, and was not relayed
	stopped  bool // both directions have been told to end
	queued   bool // the loop will run it again
	wasCut   bool

	flight *heldFlight // nil where nothing is kept
	ending *ending     // nil before anything has ended
}

// limits are the times of a RelayConfig. They are the same for most relays, which share
// them.
type limits struct{ idle, halfClose, keepQuiet time.Duration }

func (e *Loops) limitsOf(cfg RelayConfig) *limits {
	l := limits{cfg.IdleTimeout, cfg.HalfCloseTimeout, cfg.KeepQuiet}
	if last := e.limits.Load(); last != nil && *last == l {
		return last
	}
	kept := l // only this escapes
	e.limits.Store(&kept)
	return &kept
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
	moved        int64  // see Half, as of fin and finSent
	mark         uint64 // of its destination's written, when it was last looked at
	owing        uint32 // bytes taken that have not moved: of one chunk
	fin, finSent bool
	ended        bool // its source has, as pair.ending tells, which counts once all before it has moved
	over         bool
}

func (f *flow) taken() int64 { return f.moved + int64(f.owing) }

func (f *flow) result() Half { return Half{f.taken(), f.moved, f.fin, f.finSent} }

func (r *pair) isUp(f *flow) bool { return f == &r.up }

func (r *pair) src(f *flow) *loopConn {
	if r.isUp(f) {
		return r.client
	}
	return r.backend
}

func (r *pair) dst(f *flow) *loopConn {
	if r.isUp(f) {
		return r.backend
	}
	return r.client
}

// burst is how many times a direction moves bytes before others have their turn.
const burst = 4

// Relay moves bytes both ways, on the client's loop.
func (e *Loops) Relay(ctx context.Context, client, backend Conn, cfg RelayConfig, done func(Result)) {
	c, b := client.(*loopConn), backend.(*loopConn)
	l := e.loopOf(c)
	r := &pair{seat: seat{loop: l}, client: c, backend: b, limits: e.limitsOf(cfg), done: done}
	if len(cfg.Unread) > 0 {
		c.setUnread(slices.Concat(cfg.Unread, c.unread()))
	}
	l.post(&starting{r, ctx, cfg.Replay})
}

// starting is a relay that its loop has yet to begin.
type starting struct {
	pair   *pair
	ctx    context.Context
	replay bool
}

func (s *starting) run() { s.pair.begin(s.ctx, s.replay) }

// run goes on with a relay that had moved much.
func (r *pair) run() {
	r.queued = false
	r.move()
}

func (r *pair) begin(ctx context.Context, replay bool) {
	l := r.loop
	r.start, r.last = l.now, l.now
	r.up.mark, r.down.mark = r.backend.written, r.client.written
	r.user = r
	r.client.seat.Store(&r.seat)
	r.backend.seat.Store(&r.seat)
	if replay {
		r.flight = new(heldFlight)
	}
	err := errors.Join(l.open(r.client), l.open(r.backend))
	l.kernel.stream(r.client)
	l.kernel.stream(r.backend)
	l.join(ctx, &r.member, r)
	if err != nil {
		r.stop(BackendFailed, err)
	}
	r.tick()
	r.move()
}

func (r *pair) event(*loopConn) { r.move() }

func (r *pair) timeUp() {
	if r.phase == moving {
		r.tick()
	}
	r.move()
}

// cutOff ends the relay as the end of its context does.
func (r *pair) cutOff() {
	if !r.wasCut {
		r.member.leave()
		r.contextEnded()
	}
}

func (r *pair) contextEnded() {
	r.wasCut = true
	r.stop(Cut, context.Cause(r.member.context()))
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

// pump moves the bytes of one direction, as far as that goes now: one chunk after the
// other, since the next may lie in the memory of the one before.
func (r *pair) pump(f *flow) {
	for range burst {
		if !r.account(f) || f.ended || r.dst(f).owed() > 0 {
			return
		}
		ch, err := r.loop.take(r.src(f), loopBuffer)
		if err == errAgain {
			return
		}
		if err != nil {
			r.sourceEnded(f, err)
			return
		}
		f.owing += uint32(len(ch.p))
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
	if r.isUp(f) {
		r.keep(ch.p)
		k.send(r.backend, ch)
		r.account(f)
		return
	}
	r.dropFlight() // the backend has answered
	r.asking = k.heard(r.backend) < r.asked
	k.send(r.client, ch)
	r.account(f)
}

// account counts what the destination has taken, and reports whether the direction
// goes on.
func (r *pair) account(f *flow) bool {
	if f.over || r.phase > proving {
		return false
	}
	dst := r.dst(f)
	if n := dst.written - f.mark; n > 0 {
		f.mark = dst.written
		f.moved += int64(n)
		f.owing -= uint32(n)
		r.last = r.loop.now
		if r.isUp(f) {
			r.asked, r.asking = r.loop.kernel.asked(), true
		}
		if r.isUp(f) && r.flight != nil {
			r.flight.sent += int(n)
		}
		if !r.isUp(f) && r.withheld {
			r.tick() // the time of KeepQuiet begins
		}
	}
	switch {
	case dst.sendErr() != nil:
		// The other direction goes on: what this peer sent before it failed is still
		// to be read, and the read that follows finds the failure too.
		r.endOf(f).writeErr = dst.sendErr()
		r.flowOver(f)
	case f.ended && dst.owed() == 0:
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
	if !r.isUp(f) && r.flight != nil {
		r.prove(err)
		return
	}
	f.ended, r.endOf(f).err = true, err
	r.account(f)
}

func (r *pair) flowEnded(f *flow) {
	err, src := r.endOf(f).err, r.src(f)
	if err == io.EOF && src.owed() > 0 && src.isClosed() {
		return // the write that is under way fails too, and may be the one that took the error
	}
	if err = trueEnd(err, src.sendErr()); err == io.EOF {
		r.passFIN(f)
	} else {
		r.stop(r.failure(f, err), err)
	}
}

// passFIN relays the FIN of the source.
func (r *pair) passFIN(f *flow) {
	f.fin = true
	if r.isUp(f) && r.limits.keepQuiet > 0 {
		r.withheld = true
	} else {
		f.finSent = true
		if r.isUp(f) && r.flight != nil {
			r.flight.finished = true
		}
		if r.up.finSent && r.down.finSent {
			r.late().finLeft = r.dst(f) // a shutdown before the close would send the same FIN
		} else {
			r.dst(f).closeWrite() // if it fails, the other direction finds out why
		}
	}
	r.flowOver(f)
}

// failure: see direction.failure.
func (r *pair) failure(f *flow, err error) End { return failure(r.isUp(f), err) }

// stop has both directions end, for the reason of the first call.
func (r *pair) stop(end End, err error) {
	if r.stopped || r.phase > proving {
		return
	}
	r.stopped, r.end, r.late().err = true, end, err
	r.up.over, r.down.over = true, true
	r.phase = moving // a proof is not waited for any more
}

// settled: see turns.settled. What came before all of a request was written does not
// answer it.
func (r *pair) settled() bool {
	return !r.asking && r.client.owed()+r.backend.owed() == 0
}
