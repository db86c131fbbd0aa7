package engine

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Net is the engine over the standard library's connections: two goroutines for
// a session, every platform. It is the reference for how an engine behaves.
type Net struct {
	cfg Config
	wg  sync.WaitGroup // watches
}

// NewNet returns a Net engine.
func NewNet(cfg Config) *Net { return &Net{cfg: cfg} }

// Name returns "net".
func (e *Net) Name() string { return "net" }

// Close waits for the watches to end.
func (e *Net) Close() { e.wg.Wait() }

// Listen opens a listener.
func (e *Net) Listen(ctx context.Context, network, addr string) (Listener, error) {
	ln, err := listen(ctx, network, addr, func(network, _ string, c syscall.RawConn) error {
		return e.cfg.set(network, c)
	})
	if err != nil {
		return nil, err
	}
	return &netListener{Listener: ln, engine: e}, nil
}

type netListener struct {
	net.Listener
	engine *Net
}

func (l *netListener) Accept() (Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.engine.newConn(c), nil
}

// Adopt takes over a dialed connection.
func (e *Net) Adopt(c net.Conn) (Conn, error) {
	if sc, ok := c.(syscall.Conn); ok {
		raw, err := sc.SyscallConn()
		if err == nil {
			err = e.cfg.set(c.RemoteAddr().Network(), raw)
		}
		if err != nil {
			c.Close()
			return nil, err
		}
	}
	return e.newConn(c), nil
}

// netConn is a connection of the Net engine.
type netConn struct {
	net.Conn
	engine *Net
	raw    *rawIO // nil where the platform, or the kind of connection, has none
	unread []byte // bytes of a client that a stale backend did not get

	writing atomic.Bool
	failed  atomic.Pointer[writeError]
}

// writeError is what a write failed with.
type writeError struct{ error }

func (e *Net) newConn(c net.Conn) *netConn { return &netConn{Conn: c, engine: e, raw: newRawIO(c)} }

// Peek tells whether bytes can be read and how the peer has ended the
// connection.
func (c *netConn) Peek() (bytes bool, end error) {
	if c.raw == nil {
		return len(c.unread) > 0, nil
	}
	bytes, end = c.raw.peek()
	return bytes || len(c.unread) > 0, end
}

// Watch calls f when what Peek tells may have changed.
func (c *netConn) Watch(f func(bytes bool, end error) bool) (stop func()) {
	if c.raw == nil {
		return func() {}
	}
	var stopped atomic.Bool
	unread := len(c.unread) > 0
	donec := make(chan struct{})
	c.engine.wg.Go(func() {
		defer close(donec)
		c.raw.wait(func(bytes bool, end error) bool { return !stopped.Load() && f(bytes || unread, end) })
	})
	return func() {
		stopped.Store(true)
		c.SetReadDeadline(aLongTimeAgo)
		<-donec
		c.SetReadDeadline(time.Time{})
	}
}

// aLongTimeAgo is a deadline that ends what a connection is waiting in.
var aLongTimeAgo = time.Unix(1, 0)

// Abort has Close reset the connection.
func (c *netConn) Abort() {
	if t, ok := c.Conn.(interface{ SetLinger(sec int) error }); ok {
		t.SetLinger(0)
	}
}

// closeWrite sends a FIN.
func (c *netConn) closeWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return errors.ErrUnsupported
}

// read reads into a buffer of about size bytes, which the caller gives back. On
// an error there is no buffer. While it waits it holds none. Each attempt is a turn.
func (c *netConn) read(size int, t *turns) (*buffer, int, error) {
	if c.raw != nil {
		return c.raw.read(size, t)
	}
	b := getBuffer(size)
	n, err := c.Conn.Read(b.data)
	t.listen() // nobody knows here when it ceased to wait
	t.heard(n)
	if n > 0 {
		return b, n, nil // the error comes again
	}
	b.put()
	return nil, 0, err
}

// write writes p, calls moved with each part that the kernel took, and waits
// each time that it takes no more for now. Each attempt asks.
func (c *netConn) write(p []byte, moved func(n int), waits func(), t *turns) error {
	c.writing.Store(true)
	defer c.writing.Store(false)
	err := c.writeParts(p, moved, waits, t)
	if err != nil && !isInterrupt(err) {
		c.failed.Store(&writeError{err})
	}
	return err
}

func (c *netConn) writeParts(p []byte, moved func(n int), waits func(), t *turns) error {
	if c.raw != nil {
		return c.raw.write(p, moved, waits, t)
	}
	t.ask()
	n, err := c.Conn.Write(p)
	if n > 0 {
		moved(n)
	}
	return err
}

// writeFailure returns what a write failed with, for a reader who has come to an
// end. On a connection that is closed, the write that is under way fails too, and
// may be the one that took the error from the reader.
func (c *netConn) writeFailure() error {
	for c.writing.Load() && c.closed() {
		time.Sleep(10 * time.Microsecond)
	}
	err := c.failed.Load()
	if err == nil || errors.Is(err.error, syscall.EPIPE) {
		return nil // the peer's FIN had come before: the reader's end is one
	}
	return err.error
}

// closed reports whether a TCP connection is over in both directions.
func (c *netConn) closed() bool {
	if c.raw == nil {
		return false
	}
	closed, _, _ := c.raw.tcpState()
	return closed
}

// unacked returns how many bytes the kernel still holds for the peer.
func (c *netConn) unacked() int {
	if c.raw == nil {
		return 0
	}
	return c.raw.unacked()
}
