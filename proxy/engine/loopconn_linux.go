package engine

import (
	"net"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// loopConn is a connection of a loop engine. Its descriptor is not known to the
// runtime's poller: a socket that both poll is woken twice.
//
// It has one user at a time, a relay or a drive, which runs on the loop that has the
// connection; without a user it is its holder's. What the kernel has told of it is
// kept in state, since an edge is told of once.
type loopConn struct {
	engine *Loops
	fd     int32
	gen    uint32 // tells it from an earlier connection that had its descriptor
	loop   atomic.Pointer[loop]
	watch  atomic.Pointer[watch]
	seat   atomic.Pointer[seat]
	state  atomic.Uint32
	peer   peerName

	out     []byte  // what the kernel did not take yet of what was sent
	written uint64  // bytes that the kernel ever took
	ahead   *ahead  // what a kernel does and reads ahead (uring_linux.go); nil without
	seldom  *seldom // nil: the zero value
}

// seldom is what few connections have: most are quiet, and there are many.
type seldom struct {
	unread  []byte  // bytes of a client that a stale backend did not get
	outBuf  *buffer // that out lies in, where it is kept
	sendErr error   // what a send failed with
	zone    uint32  // see peerAddr
	path    string
}

// rarely returns what c has of it, to be changed.
func (c *loopConn) rarely() *seldom {
	if c.seldom == nil {
		c.seldom = new(seldom)
	}
	return c.seldom
}

func (c *loopConn) unread() []byte {
	if c.seldom == nil {
		return nil
	}
	return c.seldom.unread
}

func (c *loopConn) setUnread(p []byte) {
	if c.seldom != nil || len(p) > 0 {
		c.rarely().unread = p
	}
}

func (c *loopConn) sendErr() error {
	if c.seldom == nil {
		return nil
	}
	return c.seldom.sendErr
}

// keeps reports whether out is a copy that waits for room.
func (c *loopConn) keeps() bool { return c.seldom != nil && c.seldom.outBuf != nil }

// user is who works with a connection.
type user interface {
	// event tells that what can be read from c, or written to it, may have changed.
	event(c *loopConn)
}

// Cut ends the relay or the drive of c. What was begun before is posted before.
func (c *loopConn) Cut() {
	if l := c.loop.Load(); l != nil {
		l.post(taskFunc(func() {
			if u, ok := c.userOn(l).(interface{ cutOff() }); ok {
				u.cutOff()
			}
		}))
	}
}

// seat is a user and its loop. An event that comes late to a loop which had the
// connection before is not for the user that it has on another.
type seat struct {
	loop *loop
	user user
}

// userOn returns the user of c, where that runs on l; otherwise nil.
func (c *loopConn) userOn(l *loop) user {
	if s := c.seat.Load(); s != nil && s.loop == l {
		return s.user
	}
	return nil
}

// The bits of loopConn.state.
const (
	stateReadable   = 1 << iota // there may be something to read: bytes, an end or a failure
	stateWritable               // there may be room to write
	stateEnded                  // the peer has sent a FIN, or the connection has failed
	stateUrgent                 // an urgent byte has come: a short read does not mean that nothing is left
	stateRegistered             // the loop's kernel tells of it
	stateRoom                   // the kernel tells of room to write
	stateKeeps                  // what does not fit of out is kept, for a relay
	stateWatched                // it is in the epoll set of those that nobody uses (uring_linux.go)
	stateLasting                // it has the options of a connection that lasts
	stateNagle                  // it has been dialed, and has Nagle's algorithm still
	stateClosed                 // Close has been called
)

func (c *loopConn) is(bit uint32) bool { return c.state.Load()&bit != 0 }
func (c *loopConn) set(bits uint32)    { c.state.Or(bits) }
func (c *loopConn) clear(bits uint32)  { c.state.And(^bits) }

// RemoteAddr returns the address of the peer.
func (c *loopConn) RemoteAddr() net.Addr {
	a := peerAddr{peerName: c.peer}
	if a.isLong {
		a.zone, a.path = c.seldom.zone, c.seldom.path
	}
	return a.addr()
}

// Peek tells whether bytes can be read and how the peer has ended the connection.
func (c *loopConn) Peek() (bytes bool, end error) {
	has := len(c.unread()) > 0
	if a := c.ahead; a != nil {
		if has = has || len(a.arrived) > 0; a.end != nil {
			return has, a.end
		}
	}
	bytes, end = peek(int(c.fd))
	return bytes || has, end
}

// Clean reports whether nothing has come, as far as the kernel of its loop knows.
func (c *loopConn) Clean() bool {
	if l := c.loop.Load(); l != nil && len(c.unread()) == 0 && l.kernel.knowsClean(c) {
		return true
	}
	// A peek that finds nothing costs half of what poll does. An error it would take
	// away; whoever has not a clean connection closes it.
	n, err := peekFD(int(c.fd))
	return n < 0 && err == unix.EAGAIN && len(c.unread()) == 0
}

// PeekBytes copies what can be read.
func (c *loopConn) PeekBytes(p []byte) int {
	n := copy(p, c.unread())
	m, _, _ := unix.Recvfrom(int(c.fd), p[n:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return n + max(m, 0)
}

// Unacked returns how many bytes the kernel still holds for the peer.
func (c *loopConn) Unacked() int {
	n, _ := bytesIn(int(c.fd), unix.SIOCOUTQ)
	return n
}

// Abort has Close reset the connection.
func (c *loopConn) Abort() {
	unix.SetsockoptLinger(int(c.fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}

// Close closes the connection. The kernel takes a closed descriptor out of an epoll
// set by itself.
func (c *loopConn) Close() error {
	if c.state.Or(stateClosed)&stateClosed != 0 {
		return net.ErrClosed
	}
	defer c.engine.conns.Done()
	c.engine.table.remove(c)
	return closeFD(int(c.fd))
}

// owed is how much of what was sent the kernel has not taken yet.
func (c *loopConn) owed() int { return len(c.out) }

// hold keeps p until there is room to write.
func (c *loopConn) hold(p []byte) {
	buf := getBuffer(min(len(p), maxBuffer))
	c.rarely().outBuf = buf
	c.out = append(buf.data[:0], p...)
}

// letGo gives up what was kept.
func (c *loopConn) letGo() {
	if c.keeps() {
		c.seldom.outBuf.put()
		c.seldom.outBuf = nil
	}
	c.out = nil
}

// closeWrite sends a FIN.
func (c *loopConn) closeWrite() { shutdownFD(int(c.fd)) }

// tcpState: see rawIO.tcpState.
func (c *loopConn) tcpState() (closed bool, acked uint64, ok bool) { return tcpState(int(c.fd)) }

// lasts gives the connection, once, the options that tell a dead peer. They matter
// after seconds; most short sessions end without them, and each costs a system call.
func (c *loopConn) lasts() {
	if c.is(stateLasting) {
		return
	}
	c.set(stateLasting)
	if c.peer.isTCP() {
		setOptions(int(c.fd), c.engine.options)
	}
}

// beforeWrite turns Nagle's algorithm off where there has been a write before. It
// matters from then on: it holds back a small segment behind one that is not acknowledged
// (tcp_nagle_check), and many a short session writes once.
func (c *loopConn) beforeWrite() {
	if c.written > 0 && c.is(stateNagle) {
		c.clear(stateNagle)
		unix.SetsockoptInt(int(c.fd), unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
}

// writeNow writes what the kernel takes now. errAgain: nothing.
func (c *loopConn) writeNow(p []byte) (int, error) {
	c.beforeWrite()
	n, err := writeFD(int(c.fd), p)
	c.written += uint64(n)
	switch {
	case err == unix.EAGAIN:
		return 0, errAgain
	case err != nil:
		return 0, os.NewSyscallError("write", err)
	}
	return n, nil
}

// watch is one call of Watch.
type watch struct {
	c *loopConn
	f func(bytes bool, end error) (more bool)

	mu    sync.Mutex
	over  bool
	told  bool // f has been called
	bytes bool // with what
	end   error
}

// Watch calls f when what Peek tells may have changed.
func (c *loopConn) Watch(f func(bytes bool, end error) bool) (stop func()) {
	w := &watch{c: c, f: f}
	c.watch.Store(w)
	l := c.loop.Load()
	if l == nil {
		l = c.engine.next()
		c.loop.Store(l)
	}
	l.post(w)
	return w.stop
}

// run begins the watch, on the loop of the connection.
func (w *watch) run() {
	w.unlessOver(func() {
		l := w.c.loop.Load()
		l.open(w.c)
		l.kernel.watch(w.c)
		w.c.lasts()
	})
	w.look()
}

// unlessOver calls f while the watch is not stopped. Otherwise another loop may have the
// connection by now, and nobody ends what f begins.
func (w *watch) unlessOver(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over {
		f()
	}
}

// look calls f where the state of the connection has changed.
func (w *watch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	bytes, end := w.c.loop.Load().kernel.glance(w.c)
	if w.told && bytes == w.bytes && end == w.end {
		return
	}
	w.told, w.bytes, w.end = true, bytes, end
	if !w.f(bytes, end) {
		w.over = true
	}
}

func (w *watch) stop() {
	w.mu.Lock()
	w.over = true
	if l := w.c.loop.Load(); l != nil {
		l.kernel.unwatch(w.c)
	}
	w.mu.Unlock()
	w.c.watch.CompareAndSwap(w, nil)
}

// failure takes the cause of a failure out of the kernel, unless a recv has.
func (c *loopConn) failure() error {
	if a := c.ahead; a != nil && a.end != nil {
		return a.end
	}
	return socketFailure(int(c.fd))
}
