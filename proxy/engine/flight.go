package engine

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// maxFlight is how much of a request is kept for another backend.
const maxFlight = 64 << 10

// proofTime is how long the proof is waited for that a backend had gone; it
// takes a round trip.
const proofTime = time.Second

// errStale tells the up direction that its backend had gone before.
var errStale = errors.New("the backend had ended the connection before")

// flight is the first flight of a session: what its client has sent until the
// backend's first byte. It is kept so that it can go to another backend where it
// is proved that this one's program cannot have read any of it:
//
//   - No byte was given to the kernel for the backend; or
//   - the backend ended the connection with a FIN, has never acknowledged anything
//     on it, and has answered with a reset since. A FIN carries the
//     acknowledgement of all that came before it, so the program had closed (or
//     half-closed) before the request came; the reset says that no program holds
//     the connection any more to read it.
//
// A reset alone proves nothing: a program that reads and resets at once may leave
// the count of acknowledged bytes unchanged (delayed acknowledgement). Nor does a
// reset after a FIN on a connection that has been in use: a program that
// half-closed may have read the request and closed then. What comes first on a
// connection is acknowledged at once, before the program sees it (by Linux). TCP_INFO
// has the count and the state on Linux; elsewhere, and on Unix sockets, only the
// first half of the proof exists. It does not hold where the program half-closes, reads
// and resets, and that acknowledgement is lost, on a network that drops it, or where the
// kernel has no room for the ends of connections (TCPTimeWaitOverflow); or where the
// reset overtakes it, which another processor may handle.
//
// The up direction sends; the down direction drops the flight at the backend's
// first byte, or asks at its end whether it was undelivered.
type flight struct {
	backend *netConn
	open    atomic.Bool // the flight is being kept

	mu       sync.Mutex // never held while writing
	buf      []byte
	sent     int  // bytes of it that the kernel took
	writing  bool // a write is under way
	finished bool // the client's FIN follows it
	writeErr error
	stale    bool // it was undelivered: nothing more is sent
}

func (f *flight) begin(backend *netConn) {
	f.backend = backend
	f.open.Store(true)
}

// send writes p, the next part of the flight.
func (f *flight) send(d *direction, p []byte) error {
	first := d.half.Taken == int64(len(p))
	if !f.keep(p) {
		return errStale
	}
	if first {
		d.relay.keeps()
	}
	before := d.half.Moved
	err := d.write(p)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writing, f.writeErr = false, err
	f.sent += int(d.half.Moved - before)
	return err
}

// keep adds p to the flight. It reports false where the flight is stale: then p
// is the client's to keep.
func (f *flight) keep(p []byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stale {
		f.buf = append(f.buf, p...)
		return false
	}
	if len(f.buf)+len(p) > maxFlight {
		f.close()
	} else if f.open.Load() {
		f.buf = append(f.buf, p...)
	}
	f.writing = true
	return true
}

// finish notes that the client's FIN is relayed.
func (f *flight) finish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.finished = true
}

// drop ends the keeping, since the backend has the request.
func (f *flight) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.stale {
		f.close()
	}
}

// needed reports whether the flight must still be kept: the backend's kernel has
// not acknowledged it. Where that is not known it is kept until the backend
// answers.
func (f *flight) needed() bool {
	f.mu.Lock()
	kept := len(f.buf)
	f.mu.Unlock()
	if kept == 0 || !f.open.Load() {
		return false
	}
	if f.backend.raw != nil {
		if _, acked, ok := f.backend.raw.tcpState(); ok && acked > 1 {
			f.drop()
			return false
		}
	}
	return true
}

// close is called with the lock held.
func (f *flight) close() {
	f.open.Store(false)
	f.buf = nil
}

// undelivered reports whether the flight is proved undelivered, now that reading
// from the backend ended with end. From then on the client's bytes are kept.
func (f *flight) undelivered(end error) bool {
	if !f.open.Load() {
		return false
	}
	if settle(func() verdict { return f.judge(end) }) == proved {
		return true
	}
	f.drop()
	return false
}

type verdict int

const (
	unknown verdict = iota // it may show in a moment
	proved
	refuted
)

// settle asks judge until it knows, for proofTime at the most.
func settle(judge func() verdict) verdict {
	limit := time.Now().Add(proofTime)
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		if v := judge(); v != unknown || time.Now().After(limit) {
			return v
		}
		time.Sleep(pause)
	}
}

func (f *flight) judge(end error) verdict {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.verdict(end)
	f.stale = v == proved
	return v
}

func (f *flight) verdict(end error) verdict {
	switch {
	case !f.open.Load():
		return refuted // it grew too large
	case f.writing:
		return unknown
	case f.sent == 0 && !(f.finished && len(f.buf) == 0):
		return proved
	case errors.Is(f.writeErr, syscall.ECONNRESET):
		return refuted
	case f.sent == 0:
		return refuted // an empty session: the FIN answers the client's
	default:
		return f.backend.unreadSince(0, end)
	}
}

// unreadSince tells whether the program behind a connection that ended with end has
// read nothing of what came after the first before bytes that were written to it
// (see flight). A moment later the reset may have come that proves it.
func (c *netConn) unreadSince(before uint64, end error) verdict {
	if end != io.EOF || c.raw == nil {
		return refuted // a reset, or no way to tell
	}
	closed, acked, ok := c.raw.tcpState()
	switch {
	case !ok || acked > 1+before: // 1 is the SYN
		return refuted
	case closed:
		return proved
	default:
		return unknown
	}
}

// giveBack gives the client back what the backend did not get.
func (f *flight) giveBack(client *netConn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	client.unread = f.buf
	f.buf = nil
}
