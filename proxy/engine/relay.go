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
	lastDown atomic.Bool  // it moved down
	half     atomic.Bool  // one direction has ended
	withheld atomic.Bool  // the client's FIN came, and was not relayed

	mu      sync.Mutex
	timer   *time.Timer
	stopped bool // both directions have been told to end
	sealed  bool // both have ended: the deadlines are not touched any more
	end     End  // why, once stopped
	err     error
}

func newRelay(client, backend *netConn, cfg RelayConfig) *relay {
	r := &relay{client: client, backend: backend, cfg: cfg, start: time.Now()}
	r.up = direction{relay: r, src: client, dst: backend, isUp: true, sizer: sizer{size: minBuffer}}
	r.down = direction{relay: r, src: backend, dst: client, sizer: sizer{size: minBuffer}}
	r.up.onMoved, r.down.onMoved = r.up.moved, r.down.moved
	if cfg.Replay {
		r.flight.begin(backend)
	}
	return r
}

// stop has both directions end, for the reason of the first call.
func (r *relay) stop(end End, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
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
	answered := r.lastDown.Load() || r.last.Load() == 0
	switch {
	case r.withheld.Load() && answered:
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
		d = time.Hour // a half-close brings it forward
	}
	r.timer = time.AfterFunc(d, r.tick)
}

func (r *relay) tick() {
	d, end := r.limit()
	wait := d - r.quietFor()
	switch {
	case d == 0:
		wait = time.Hour
	case wait <= 0:
		r.stop(end, nil)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.sealed {
		r.timer.Reset(wait)
	}
}

// halfClosed has the timer look again, since another limit holds now.
func (r *relay) halfClosed() {
	r.half.Store(true)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.sealed {
		r.timer.Reset(0)
	}
}

// direction moves the bytes of one direction.
type direction struct {
	relay    *relay
	src, dst *netConn
	isUp     bool
	sizer    sizer
	half     Half
	onMoved  func(int) // moved, bound once
	readErr  error     // its source failed
	writeErr error     // its destination did
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
		b, n, err := d.src.read(d.sizer.size)
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
	flight := &d.relay.flight
	if flight.open.Load() {
		if d.isUp {
			return d.ended(flight.send(d, p))
		}
		flight.drop() // the backend has answered
	}
	return d.ended(d.dst.write(p, d.onMoved))
}

// moved accounts for n bytes that the destination's kernel took.
func (d *direction) moved(n int) {
	d.half.Moved += int64(n)
	d.relay.last.Store(int64(time.Since(d.relay.start)))
	d.relay.lastDown.Store(!d.isUp)
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
	case err == io.EOF && !d.src.failed.Load():
		d.half.FIN = true
		d.passFIN()
	default:
		// A failed write may have taken the error out of the kernel, which then
		// reports an end to the reader: it was no FIN.
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
	gone := errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF)
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
		LastDown: r.lastDown.Load(), QuietFor: r.quietFor()}
	switch {
	case r.end == Stale:
		r.flight.giveBack(r.client)
		r.client.SetDeadline(time.Time{})
	case r.end == Cut:
		r.client.Abort()
		r.backend.Abort()
	case r.end == Quiet, res.Untouched():
		if r.backend.raw != nil {
			res.Unacked = r.backend.raw.unacked()
		}
		r.backend.SetDeadline(time.Time{})
	case r.end == ClientReset, r.end == ClientFailed:
		flush(r.backend, r.up.half.Moved)
		r.backend.Abort()
	case r.end == BackendReset, r.end == BackendFailed:
		flush(r.client, r.down.half.Moved)
		r.client.Abort()
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
func flush(c *netConn, written int64) {
	if c.raw == nil || written == 0 {
		return
	}
	end := time.Now().Add(flushTime)
	for pause := time.Millisecond; c.raw.unacked() > 0 && time.Now().Before(end); pause = min(2*pause, 50*time.Millisecond) {
		time.Sleep(pause)
	}
}

// isInterrupt reports whether err comes from stop, not from the connection.
func isInterrupt(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) || err == errStale
}
