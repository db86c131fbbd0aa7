package engine

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// direction moves the bytes of one direction.
type direction struct {
	relay    *relay
	src, dst *netConn
	isUp     bool
	sizer    sizer
	half     Half
	onMoved  func(int) // moved, bound once
	onWait   func()    // likewise relay.waits
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
	var reads *turns // up reads without
	if !d.isUp {
		reads = d.relay.turns
	}
	for {
		b, n, err := d.src.read(d.sizer.size, reads)
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
		d.relay.turns.delivered()
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
	var asks *turns // down asks nothing
	if d.isUp {
		asks = d.relay.turns
	}
	return d.dst.write(p, d.onMoved, d.onWait, asks)
}

// moved accounts for n bytes that the destination's kernel took.
func (d *direction) moved(n int) {
	d.half.Moved += int64(n)
	d.dst.written += uint64(n)
	d.relay.last.Store(int64(time.Since(d.relay.start)))
	if !d.isUp {
		d.relay.turns.answer()
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
func (d *direction) failure(err error) End { return failure(d.isUp, err) }

// failure tells what a session ends as whose client (isUp), or else backend, failed
// with err.
func failure(isUp bool, err error) End {
	gone := errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	switch {
	case isUp && gone:
		return ClientReset
	case isUp:
		return ClientFailed
	case gone:
		return BackendReset
	default:
		return BackendFailed
	}
}

// isInterrupt reports whether err comes from stop, not from the connection.
func isInterrupt(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) || err == errStale
}
