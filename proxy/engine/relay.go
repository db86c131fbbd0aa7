package engine

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Relay moves bytes both ways: up in a goroutine of its own, down in the
// caller's.
func (e *Net) Relay(ctx context.Context, client, backend Conn, cfg RelayConfig, done func(Result)) {
	r := newRelay(client.(*netConn), backend.(*netConn), cfg)
	release := context.AfterFunc(ctx, func() { r.stop(Cut, context.Cause(ctx)) })
	r.startTimer()
	var wg sync.WaitGroup
	wg.Go(r.up.run)
	r.down.run()
	wg.Wait()
	r.seal()
	release()
	done(r.finish())
}

// relay is one run of Relay. The two directions own their own fields; what both
// change is atomic or under mu.
type relay struct {
	client, backend *netConn
	cfg             RelayConfig
	up, down        direction
	flight          flight

	start    time.Time
	last     atomic.Int64 // when a byte last moved, in nanoseconds after start
	turns    turns
	answered atomic.Int64 // turns.asked before the last byte that moved down was read
	half     atomic.Bool  // one direction has ended
	withheld atomic.Bool  // the client's FIN came, and was not relayed
	watchful atomic.Bool  // tick comes often, since a write waits

	mu       sync.Mutex
	timer    *time.Timer
	held     int           // bytes in the kernel's two buffers at the last tick
	stirred  time.Duration // when their number was last seen to change, or a FIN came, after start
	flushEnd time.Time     // when a reset has waited long enough for the bytes before it
	stopped  bool          // both directions have been told to end
	sealed   bool          // both have ended: the deadlines are not touched any more
	end      End           // why, once stopped
	err      error
}

// turns orders the reads from the backend and the writes to it. Without it, a
// byte of an earlier reply that is on its way through here when a request
// overtakes it would pass for the answer.
type turns struct {
	mu    sync.Mutex // never held while waiting
	asked int64      // writes that have begun
	seen  int64      // asked before the last read; the down direction's
	taken bool       // bytes were read, and are being delivered
}

// ask begins a write.
func (t *turns) ask() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked++
}

// now returns how many writes have begun, and whether bytes are being delivered.
func (t *turns) now() (asked int64, taken bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.asked, t.taken
}

// delivered ends what a read began that took bytes.
func (t *turns) delivered() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken = false
}

// listen begins an attempt to read, which heard ends. Up has no turns.
func (t *turns) listen() {
	if t != nil {
		t.mu.Lock()
		t.seen = t.asked
	}
}

func (t *turns) heard(n int) {
	if t != nil {
		t.taken = n > 0
		t.mu.Unlock()
	}
}

func newRelay(client, backend *netConn, cfg RelayConfig) *relay {
	r := &relay{client: client, backend: backend, cfg: cfg, start: time.Now()}
	r.up = direction{relay: r, src: client, dst: backend, isUp: true, sizer: sizer{size: minBuffer}}
	r.down = direction{relay: r, src: backend, dst: client, sizer: sizer{size: minBuffer}}
	r.up.onMoved, r.down.onMoved = r.up.moved, r.down.moved
	r.up.onWait, r.down.onWait = r.waits, r.waits
	r.down.turns = &r.turns
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

// limit returns the longest time without a byte that is allowed now (0: any),
// and what the relay ends as after it.
func (r *relay) limit() (time.Duration, End) {
	asked, taken := r.turns.now()
	switch {
	case r.withheld.Load() && !taken && r.answered.Load() == asked:
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

// stallTick is how often tick looks while a write waits: nobody reads what that
// comes from, so that a reset there is not seen otherwise.
const stallTick = 200 * time.Millisecond

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
		err := d.src.raw.failure()
		r.stopLocked(d.failure(err), err)
		return
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
		wait = min(wait, stallTick)
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
	if r.watchful.CompareAndSwap(false, true) {
		r.look()
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

// flushed reports whether the time is up that the bytes before a reset have.
func (r *relay) flushed() bool {
	if r.flushEnd.IsZero() {
		r.flushEnd = time.Now().Add(flushTime)
	}
	return !time.Now().Before(r.flushEnd)
}

// direction moves the bytes of one direction.
type direction struct {
	relay    *relay
	src, dst *netConn
	isUp     bool
	sizer    sizer
	half     Half
	onMoved  func(int) // moved, bound once
	onWait   func()    // likewise relay.waits
	turns    *turns    // the relay's, of the down direction
	readErr  error     // its source failed
	writeErr error     // its destination did

	delivering atomic.Bool // bytes that were taken are being written
}

func (d *direction) run() {
	if d.isUp && len(d.src.unread) > 0 {
		p := d.src.unread // what a stale backend did not get
		d.src.unread = nil
		d.half.Taken += int64(len(p))
		if !d.deliver(p) {
			return
		}
	}
	for {
		b, n, err := d.src.read(d.sizer.size, d.turns)
		if err != nil {
			d.sourceEnded(err)
			return
		}
		d.half.Taken += int64(n)
		ok := d.deliver(b.data[:n])
		b.put()
		d.sizer.next(n)
		if !ok {
			return
		}
	}
}

// deliver writes p to the destination, and reports whether the direction goes
// on.
func (d *direction) deliver(p []byte) bool {
	d.delivering.Store(true)
	ok := d.ended(d.send(p))
	d.delivering.Store(false)
	if !d.isUp {
		d.turns.delivered()
		if d.relay.withheld.Load() {
			d.relay.look() // the time of KeepQuiet begins
		}
	}
	return ok
}

func (d *direction) send(p []byte) error {
	flight := &d.relay.flight
	if flight.open.Load() {
		if d.isUp {
			return flight.send(d, p)
		}
		flight.drop() // the backend has answered
	}
	return d.write(p)
}

func (d *direction) write(p []byte) error {
	if d.isUp {
		d.relay.turns.ask()
	}
	return d.dst.write(p, d.onMoved, d.onWait)
}

// moved accounts for n bytes that the destination's kernel took.
func (d *direction) moved(n int) {
	d.half.Moved += int64(n)
	d.relay.last.Store(int64(time.Since(d.relay.start)))
	if !d.isUp {
		d.relay.answered.Store(d.turns.seen)
	}
}

// ended notes the end of the destination, if err is one. The other direction
// goes on: what this peer sent before it failed is still to be read, and the
// read that follows finds the failure too.
func (d *direction) ended(err error) bool {
	if err == nil {
		return true
	}
	if !isInterrupt(err) {
		d.writeErr = err
		d.relay.halfClosed()
	}
	return false
}

// sourceEnded is called with the error of a read.
func (d *direction) sourceEnded(err error) {
	r := d.relay
	switch {
	case isInterrupt(err):
	case !d.isUp && r.flight.undelivered(err):
		r.stop(Stale, err)
	case err == io.EOF && d.src.writeFailure() == nil:
		d.half.FIN = true
		d.passFIN()
	default:
		if err == io.EOF {
			// The failed write has taken the error out of the kernel, which
			// then reports an end to the reader: it was no FIN.
			err = d.src.writeFailure()
		}
		d.readErr = err
		r.stop(d.failure(err), err)
	}
}

// passFIN relays the FIN of the source.
func (d *direction) passFIN() {
	r := d.relay
	if d.isUp && r.cfg.KeepQuiet > 0 {
		r.withheld.Store(true)
	} else {
		d.half.FINSent = true
		if d.isUp {
			r.flight.finish()
		}
		d.dst.closeWrite() // if it fails, the other direction finds out why
	}
	r.halfClosed()
}

// failure tells what the session ends as, since the source failed with err.
func (d *direction) failure(err error) End {
	gone := errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	switch {
	case d.isUp && gone:
		return ClientReset
	case d.isUp:
		return ClientFailed
	case gone:
		return BackendReset
	default:
		return BackendFailed
	}
}

// finish draws the conclusions once both directions have ended.
func (r *relay) finish() Result {
	r.conclude()
	res := Result{Up: r.up.half, Down: r.down.half, End: r.end, Err: r.err,
		LastDown: r.down.half.Moved > 0 && r.answered.Load() == r.turns.asked, QuietFor: r.quietFor()}
	switch {
	case r.end == Stale:
		r.flight.giveBack(r.client)
		r.client.SetDeadline(time.Time{})
	case r.end == Cut:
		r.client.Abort()
		r.backend.Abort()
	case r.end == BackendReset, r.end == BackendFailed:
		r.flush(r.client, r.down.half.Moved)
		r.client.Abort()
	case r.end == Quiet, res.Untouched():
		res.Unacked = r.backend.unacked()
		r.backend.SetDeadline(time.Time{})
	case r.end == ClientReset, r.end == ClientFailed:
		r.flush(r.backend, r.up.half.Moved)
		r.backend.Abort()
	}
	r.flight.drop()
	return res
}

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
// since a reset discards what has not arrived.
func (r *relay) flush(c *netConn, written int64) {
	if written == 0 {
		return
	}
	for pause := time.Millisecond; c.unacked() > 0 && !c.closed() && !r.flushed(); pause = min(2*pause, 50*time.Millisecond) {
		time.Sleep(pause)
	}
}

// isInterrupt reports whether err comes from stop, not from the connection.
func isInterrupt(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) || err == errStale
}
