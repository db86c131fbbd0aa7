package loadtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// A client makes requests, one after the other, over one connection at a time.
// Only cut may be called by another goroutine than its own.
type client struct {
	run     *run
	id      uint64
	seq     uint64        // number of the latest request, over all connections
	made    int64         // requests done on conn
	backoff time.Duration // the wait after the next failed connect
	failed  bool          // the latest connect did
	calls   *caller       // nil: raw requests
	want    []byte        // the latest raw request, and so its reply
	got     []byte        // one byte longer, to see one too many
	lat     batch

	mu       sync.Mutex
	conn     net.Conn  // nil: none. Written by the own goroutine, under mu
	deadline time.Time // of the step under way
	cutAt    time.Time // zero: not cancelled
}

func newClient(r *run, id uint64) *client {
	c := &client{
		run:     r,
		id:      id,
		backoff: dialBackoff,
		got:     make([]byte, r.cfg.Size+1),
		lat:     batch{to: r.latencies},
	}
	if r.cfg.Thrift {
		c.calls = newCaller(c, &r.cfg)
	} else {
		c.want = make([]byte, r.cfg.Size)
	}
	return c
}

// work makes requests of the plan until that ends or stop is closed, then
// closes the connection cleanly. The end of ctx cuts a dial short; cut does the
// same for all else.
func (c *client) work(ctx context.Context, stop <-chan struct{}) {
	defer c.lat.flush()
	defer c.finish()
	for !isDone(stop) {
		due, ok := c.run.plan.next()
		if !ok {
			return
		}
		from, ok := c.run.plan.wait(due, stop)
		if !ok {
			return
		}
		c.request(ctx, from)
		if c.failed && !c.rest(stop) || !c.think(stop) {
			return
		}
	}
}

func isDone(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// rest waits after a failed connect, longer each time, so that a dead server
// does not keep a processor busy. It reports false if stop was closed.
func (c *client) rest(stop <-chan struct{}) bool {
	d := c.backoff
	c.backoff = min(2*d, maxBackoff)
	return pause(d, stop)
}

// think lets the time between two requests pass. It reports false if stop was
// closed.
func (c *client) think(stop <-chan struct{}) bool {
	return c.run.cfg.Think == 0 || pause(c.run.cfg.Think, stop)
}

// request makes one request and counts what came of it. Its latency counts from
// the given time; zero means from the write.
func (c *client) request(ctx context.Context, from time.Time) {
	if f := c.connect(ctx); f != nil {
		c.run.tally.requestFault(f)
		return
	}
	now := time.Now()
	if from.IsZero() {
		from = now
	}
	answered, f := c.exchange(now)
	switch {
	case f != nil && !f.usable:
		c.drop()
		c.run.tally.requestFault(f)
		return
	case f != nil:
		c.run.tally.requestFault(f)
	case answered:
		c.lat.add(time.Since(from))
		c.run.tally.reply()
	default:
		c.run.tally.oneway()
	}
	c.made++
	if c.made == c.run.cfg.RequestsPerClient {
		c.finish()
	}
}

// connect makes sure that there is a connection, and that its greeting has
// been read.
func (c *client) connect(ctx context.Context) *fault {
	if c.conn != nil {
		return nil
	}
	c.failed = true
	conn, err := c.run.dial(ctx)
	if err != nil {
		f := c.fault(stageDial, err)
		f.abandoned = ctx.Err() != nil
		return f
	}
	c.hold(conn)
	if f := c.skipGreeting(); f != nil {
		c.drop()
		return f
	}
	if c.calls != nil {
		c.calls.connected(c.conn)
	}
	c.run.tally.sessions.Add(1)
	c.failed = false
	c.backoff = dialBackoff
	return nil
}

func (c *client) skipGreeting() *fault {
	if c.run.cfg.Skip == 0 {
		return nil
	}
	c.arm(time.Now())
	for left := c.run.cfg.Skip; left > 0; {
		n, err := c.conn.Read(c.got[:min(left, len(c.got))])
		left -= n
		if err != nil && left > 0 {
			return c.fault(stageGreeting, fmt.Errorf("%d bytes short: %w", left, err))
		}
	}
	return nil
}

// finish closes the connection, if there is one, the clean way: half-close,
// then read to the end. A byte before the end is one too many.
func (c *client) finish() {
	if c.conn == nil {
		return
	}
	defer c.drop()
	if f := c.readEnd(); f != nil {
		c.run.tally.fault(f)
	}
}

func (c *client) readEnd() *fault {
	c.arm(time.Now())
	if err := closeWrite(c.conn); err != nil {
		return c.fault(stageClose, err)
	}
	n, err := c.conn.Read(c.got)
	switch {
	case n > 0 && c.calls != nil:
		return c.calls.extra(c.got[:n])
	case n > 0:
		return c.mismatch(extraBytes, fmt.Sprintf("%d bytes after the last reply", n))
	case errors.Is(err, io.EOF):
		return nil
	default:
		return c.fault(stageClose, err)
	}
}

func closeWrite(conn net.Conn) error {
	half, ok := conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

func (c *client) hold(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn, c.made = conn, 0
	c.run.tally.open.Add(1)
}

// drop closes the connection, if there is one.
func (c *client) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return
	}
	c.conn.Close()
	c.conn = nil
	c.run.tally.open.Add(-1)
}

// arm gives the next step until Timeout after now, or less after a cut. It
// cannot fail in a way that the step itself would not.
func (c *client) arm(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = now.Add(c.run.cfg.Timeout)
	if !c.cutAt.IsZero() && c.cutAt.Before(c.deadline) {
		c.conn.SetDeadline(c.cutAt)
		return
	}
	c.conn.SetDeadline(c.deadline)
}

// cut leaves the step under way, and all later ones, until at.
func (c *client) cut(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cutAt = at
	if c.conn != nil && at.Before(c.deadline) {
		c.conn.SetDeadline(at)
	}
}

// wasCut tells an end of patience that came from cut from the step's own.
func (c *client) wasCut(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Is(err, os.ErrDeadlineExceeded) && !c.cutAt.IsZero() && c.cutAt.Before(c.deadline)
}

// fault makes an error of a stage one to count.
func (c *client) fault(stage string, err error) *fault {
	return &fault{
		kind:      stage + "_" + causeOf(err),
		text:      fmt.Sprintf("%s: %s: %v", c, stage, err),
		abandoned: stage != stageDial && c.wasCut(err),
	}
}

func (c *client) mismatch(kind, text string) *fault {
	return &fault{kind: kind, text: fmt.Sprintf("%s: %s", c, text), mismatch: true}
}

// String names the client and its latest request, by the numbers that a dump
// of the traffic shows.
func (c *client) String() string {
	return fmt.Sprintf("client %#x request %d", c.id, c.seq)
}
