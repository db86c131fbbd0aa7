package pool

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"time"
)

// fakeBackend is what a pool dials.
type fakeBackend struct {
	t     testing.TB
	slots *referee

	mu    sync.Mutex
	dial  func(ctx context.Context) error // nil: succeeds at once
	greet func(c *fakeConn)               // called with each new connection; may be nil
	conns []*fakeConn                     // all that ever were
	dials []time.Time                     // when each dial began
	going int                             // dials under way
	most  int                             // of those at once
}

func (b *fakeBackend) Dial(ctx context.Context) (Conn, error) {
	b.slots.opened()
	b.mu.Lock()
	dial, greet := b.dial, b.greet
	b.dials = append(b.dials, time.Now())
	b.going++
	b.most = max(b.most, b.going)
	b.mu.Unlock()
	err := ctx.Err()
	if dial != nil && err == nil {
		err = dial(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.going--
	if err != nil {
		b.slots.closed()
		return nil, err
	}
	c := &fakeConn{b: b, born: time.Now(), changed: make(chan struct{})}
	b.conns = append(b.conns, c)
	if greet != nil {
		greet(c)
	}
	return c, nil
}

// whenDialed sets what a dial does from now on.
func (b *fakeBackend) whenDialed(dial func(ctx context.Context) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dial = dial
}

func (b *fakeBackend) dialTimes() []time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.dials)
}

// mostAtOnce returns how many dials were under way at most since it was called.
func (b *fakeBackend) mostAtOnce() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	most := b.most
	b.most = b.going
	return most
}

// all returns the connections that ever were.
func (b *fakeBackend) all() []*fakeConn {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.conns)
}

func fails(err error) func(context.Context) error {
	return func(context.Context) error { return err }
}

// takes has dials succeed after d.
func takes(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error { return pause(ctx, d) }
}

func hangs(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// pause waits for d, in fake time or real.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fakeConn is one end of a connection of which the test plays the other. It fails
// the test where it is used after Close, or closed while it is watched.
type fakeConn struct {
	b      *fakeBackend
	born   time.Time
	looked func() // called by Peek, without the lock; may be nil

	mu        sync.Mutex
	bytes     bool
	end       error
	endedAt   time.Time     // when bytes or end was said
	changed   chan struct{} // closed at a change, and replaced
	watched   bool
	watches   int
	isClosed  bool
	closedAt  time.Time
	timers    []*time.Timer
	leased    bool // by a client of the tests
	used      bool
	idleSince time.Time
}

func (c *fakeConn) Peek() (bytes bool, end error) {
	if c.looked != nil {
		c.looked()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		c.b.t.Error("a look at a closed connection")
	}
	return c.bytes, c.end
}

func (c *fakeConn) Clean() bool {
	bytes, end := c.Peek()
	return !bytes && end == nil
}

func (c *fakeConn) Watch(f func(bytes bool, end error) bool) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed || c.watched {
		c.b.t.Errorf("watch of a connection that is watched (%v) or closed (%v)", c.watched, c.isClosed)
	}
	c.watched = true
	c.watches++
	stopc, donec := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(donec)
		for {
			c.mu.Lock()
			bytes, end, changed := c.bytes, c.end, c.changed
			c.mu.Unlock()
			select {
			case <-stopc:
				return
			default:
			}
			if !f(bytes, end) {
				return
			}
			select {
			case <-changed:
			case <-stopc:
				return
			}
		}
	}()
	return func() {
		close(stopc) // panics when called twice
		<-donec
		c.mu.Lock()
		defer c.mu.Unlock()
		c.watched = false
	}
}

func (c *fakeConn) Close() error {
	c.mu.Lock()
	if c.isClosed || c.watched {
		c.b.t.Errorf("close of a connection that is watched (%v) or closed (%v)", c.watched, c.isClosed)
	}
	c.isClosed = true
	c.closedAt = time.Now()
	timers := c.timers
	c.mu.Unlock()
	for _, t := range timers {
		t.Stop()
	}
	c.b.slots.closed()
	return errors.New("nobody reads this")
}

// says has the backend send bytes, end the connection, or both.
func (c *fakeConn) says(bytes bool, end error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes = c.bytes || bytes
	if c.end == nil {
		c.end = end
	}
	c.endedAt = time.Now()
	close(c.changed)
	c.changed = make(chan struct{})
}

// saysAfter is says, d from now, unless the connection is closed by then. It is
// called before the connection is used.
func (c *fakeConn) saysAfter(d time.Duration, bytes bool, end error) {
	c.timers = append(c.timers, time.AfterFunc(d, func() { c.says(bytes, end) }))
}

func (c *fakeConn) closed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.isClosed
}

func (c *fakeConn) timesWatched() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.watches
}

// lived returns how long the connection was open; 0 while it is.
func (c *fakeConn) lived() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isClosed {
		return 0
	}
	return c.closedAt.Sub(c.born)
}

// fin is what a connection says when its peer has ended it.
var fin = io.EOF
