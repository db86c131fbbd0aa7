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
// a session that is relayed, one for a machine that is driven, every platform. It is
// the reference for how an engine behaves.
type Net struct {
	cfg   Config
	wg    sync.WaitGroup // relays, drives and watches
	pacer pacer
}

// NewNet returns a Net engine.
func NewNet(cfg Config) *Net { return &Net{cfg: cfg} }

// Name returns "net".
func (e *Net) Name() string { return "net" }

// Close waits for the engine's goroutines to end.
func (e *Net) Close() {
	e.wg.Wait()
	e.pacer.close()
}

// Listen opens a listener.
func (e *Net) Listen(ctx context.Context, network, addr string) (Listener, error) {
	ln, err := listen(ctx, network, addr, func(network, _ string, c syscall.RawConn) error {
		return e.cfg.set(network, c)
	})
	if err != nil {
		return nil, err
	}
	return &netListener{Listener: ln, engine: e, resumec: make(chan struct{}, 1), closedc: make(chan struct{})}, nil
}

type netListener struct {
	net.Listener
	engine  *Net
	resumec chan struct{} // buffered(1)
	once    sync.Once
	closedc chan struct{}
}

// Serve accepts clients.
func (l *netListener) Serve(h Handler) {
	for l.admitted(h) {
		c := l.next(h)
		if c == nil {
			return
		}
		h.Accepted(l.engine.newConn(c))
	}
}

// next accepts the client of one place, however often that fails. It returns nil when
// the listener is closed.
func (l *netListener) next(h Handler) net.Conn {
	for {
		c, err := l.Accept()
		if err == nil {
			return c
		}
		if !l.rest(h, err) {
			return nil
		}
	}
}

// admitted waits for a place, and reports false when the listener is closed.
func (l *netListener) admitted(h Handler) bool {
	for !h.Admit() {
		select {
		case <-l.resumec:
		case <-l.closedc:
			return false
		}
	}
	return true
}

// rest pauses after a failed Accept, until the place serves for another. It reports
// false when the listener is closed.
func (l *netListener) rest(h Handler, err error) bool {
	select {
	case <-l.closedc:
		return false
	default:
	}
	t := time.NewTimer(h.Failed(err))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.closedc:
		return false
	}
}

// Resume has admitted look again.
func (l *netListener) Resume() {
	select {
	case l.resumec <- struct{}{}:
	default: // it will
	}
}

// Close stops accepting.
func (l *netListener) Close() error {
	l.once.Do(func() { close(l.closedc) })
	return l.Listener.Close()
}

// Dial connects to addr.
func (e *Net) Dial(ctx context.Context, network, addr string) (Conn, error) {
	c, err := dialer.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return e.Adopt(c)
}

// dialer leaves keep-alive to the engine, and tries one address at a time.
var dialer = net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: false}, KeepAlive: -1, FallbackDelay: -1}

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
	user    atomic.Pointer[func()] // cuts the relay or the drive that it is the client of; nil without

	written         uint64    // bytes that the kernel ever took
	readBy, writeBy time.Time // the deadlines, while it is driven; zero: none
}

// writeError is what a write failed with.
type writeError struct{ error }

// Cut ends the relay or the drive of c.
func (c *netConn) Cut() {
	if cut := c.user.Load(); cut != nil {
		(*cut)()
	}
}

// setUser says what Cut calls.
func (c *netConn) setUser(cut func()) { c.user.Store(&cut) }

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

// Clean reports whether Peek tells of nothing.
func (c *netConn) Clean() bool {
	bytes, end := c.Peek()
	return !bytes && end == nil
}

// PeekBytes copies what can be read.
func (c *netConn) PeekBytes(p []byte) int {
	n := copy(p, c.unread)
	if c.raw == nil {
		return n
	}
	return n + c.raw.peekBytes(p[n:])
}

// Unacked returns how many bytes the kernel still holds for the peer.
func (c *netConn) Unacked() int { return c.unacked() }

// Watch calls f when what Peek tells may have changed.
func (c *netConn) Watch(f func(bytes bool, end error) bool) (stop func()) {
	if c.raw == nil {
		return func() {}
	}
	if !c.readBy.IsZero() {
		c.setDeadline(false, time.Time{}) // a drive's, which leases
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

// deadline returns the deadline of a drive.
func (c *netConn) deadline(write bool) time.Time {
	if write {
		return c.writeBy
	}
	return c.readBy
}

func (c *netConn) setDeadline(write bool, t time.Time) {
	if write {
		c.writeBy = t
		c.SetWriteDeadline(t)
	} else {
		c.readBy = t
		c.SetReadDeadline(t)
	}
}

// endWait ends what a goroutine waits for. The deadline of the drive stays what it
// is known as.
func (c *netConn) endWait(write bool) {
	if write {
		c.SetWriteDeadline(aLongTimeAgo)
	} else {
		c.SetReadDeadline(aLongTimeAgo)
	}
}

func (c *netConn) hasDeadline() bool { return !c.readBy.IsZero() || !c.writeBy.IsZero() }

func (c *netConn) clearDeadlines() {
	c.readBy, c.writeBy = time.Time{}, time.Time{}
	c.SetDeadline(time.Time{})
}

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

// read reads at most size bytes into a buffer, which the caller gives back. On an
// error there is no buffer. While it waits it holds none. Each attempt is a turn.
func (c *netConn) read(size int, t *turns) (*buffer, int, error) {
	if c.raw != nil {
		return c.raw.read(size, t)
	}
	b := getBuffer(size)
	n, err := c.Conn.Read(b.data[:size])
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

// readReady reads what is there, at most size bytes, without waiting. It returns
// nothing where there is nothing, or where the platform cannot do it.
func (c *netConn) readReady(size int) (*buffer, int, error) {
	if c.raw == nil {
		return nil, 0, nil
	}
	return c.raw.readReady(size)
}

// writeReady writes what the kernel takes of p without waiting, likewise.
func (c *netConn) writeReady(p []byte) (int, error) {
	if c.raw == nil {
		return 0, nil
	}
	return c.wrote(c.raw.writeReady(p))
}

// writeSome waits until the kernel takes some of p. Where the platform cannot do that
// it writes all of p, as far as it comes until the deadline.
func (c *netConn) writeSome(p []byte) (int, error) {
	if c.raw == nil {
		return c.wrote(c.Conn.Write(p))
	}
	return c.wrote(c.raw.writeSome(p))
}

func (c *netConn) wrote(n int, err error) (int, error) {
	c.written += uint64(n)
	if n > 0 {
		return n, nil // the error comes again
	}
	return 0, err
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
