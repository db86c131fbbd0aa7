package engine

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// keepAliveInterval is the time between probes once the first went unanswered;
// three of them end the connection, or the user timeout does.
const (
	keepAliveInterval = 10 * time.Second
	keepAliveCount    = 3
)

// set gives a TCP socket the options of the engine. An accepted socket has
// inherited them from its listener.
func (cfg Config) set(network string, c syscall.RawConn) error {
	if len(network) < 3 || network[:3] != "tcp" {
		return nil
	}
	var err error
	ctlErr := c.Control(func(fd uintptr) { err = setOptions(int(fd), cfg.options()) })
	return errors.Join(ctlErr, err)
}

// options are those of a TCP socket, each a level, a name and a value.
func (cfg Config) options() [][3]int {
	opts := [][3]int{{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0}}
	if cfg.KeepAlive > 0 {
		opts[0][2] = 1
		opts = append(opts,
			[3]int{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, max(1, int(cfg.KeepAlive/time.Second))},
			[3]int{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepAliveInterval / time.Second)},
			[3]int{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAliveCount})
	}
	if cfg.UserTimeout > 0 {
		opts = append(opts, [3]int{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, max(1, int(cfg.UserTimeout/time.Millisecond))})
	}
	return opts
}

func setOptions(fd int, opts [][3]int) error {
	for _, o := range opts {
		if err := unix.SetsockoptInt(fd, o[0], o[1], o[2]); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return nil
}

// rawIO reads and writes a socket by its descriptor, which the runtime's poller
// waits for. Unlike net.Conn it needs no buffer while it waits, it tells of each
// part of a long write, and it can look without taking. One goroutine may read,
// and another write, at a time.
type rawIO struct {
	conn syscall.RawConn

	// What the next read or write takes and gives. It lies here, and the functions
	// are made once, so that none allocates.
	in, out struct {
		buf   *buffer
		size  int
		p     []byte
		moved func(int)
		turns *turns
		waits func()
		n     int
		err   error
	}
	tryRead, tryWrite, tryWriteSome func(fd uintptr) bool
	readNow, writeNow               func(fd uintptr)
}

func newRawIO(c net.Conn) *rawIO {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	r := &rawIO{conn: raw}
	r.tryRead, r.tryWrite, r.tryWriteSome = r.readOnce, r.writeAll, r.writeOnce
	r.readNow = func(fd uintptr) { r.readOnce(fd) }
	r.writeNow = func(fd uintptr) { r.writeOnce(fd) }
	return r
}

// read reads at most size bytes.
func (r *rawIO) read(size int, t *turns) (*buffer, int, error) {
	r.in.size, r.in.turns, r.in.buf, r.in.n, r.in.err = size, t, nil, 0, nil
	err := r.conn.Read(r.tryRead)
	return r.haveRead(err)
}

// readReady reads at most size bytes, and returns nothing when there is nothing. It
// knows no deadline.
func (r *rawIO) readReady(size int) (*buffer, int, error) {
	r.in.size, r.in.turns, r.in.buf, r.in.n, r.in.err = size, nil, nil, 0, nil
	err := r.conn.Control(r.readNow)
	return r.haveRead(err)
}

func (r *rawIO) haveRead(err error) (*buffer, int, error) {
	if err == nil {
		err = r.in.err
	}
	if err != nil {
		return nil, 0, err
	}
	return r.in.buf, r.in.n, nil
}

// readOnce reports whether the read is done; if not, the poller waits.
func (r *rawIO) readOnce(fd uintptr) bool {
	b := getBuffer(r.in.size)
	r.in.turns.listen()
	n, err := ignoringEINTR(func() (int, error) { return unix.Read(int(fd), b.data[:r.in.size]) })
	r.in.turns.heard(n)
	if n > 0 {
		r.in.buf, r.in.n = b, n
		return true
	}
	b.put()
	switch {
	case err == unix.EAGAIN:
		return false
	case err == nil:
		r.in.err = io.EOF
	default:
		r.in.err = os.NewSyscallError("read", err)
	}
	return true
}

func (r *rawIO) write(p []byte, moved func(int), waits func(), t *turns) error {
	r.out.p, r.out.moved, r.out.waits, r.out.turns, r.out.err = p, moved, waits, t, nil
	err := r.conn.Write(r.tryWrite)
	r.out.p, r.out.moved, r.out.waits = nil, nil, nil
	if err == nil {
		err = r.out.err
	}
	return err
}

// writeAll reports whether the write is done; if not, the poller waits.
func (r *rawIO) writeAll(fd uintptr) bool {
	for len(r.out.p) > 0 {
		r.out.turns.ask()
		n, err := ignoringEINTR(func() (int, error) { return unix.Write(int(fd), r.out.p) })
		if err == unix.EAGAIN {
			r.out.waits()
			return false
		}
		if err != nil {
			r.out.err = os.NewSyscallError("write", err)
			return true
		}
		r.out.p = r.out.p[n:]
		r.out.moved(n)
	}
	return true
}

// writeSome waits until the kernel takes some of p.
func (r *rawIO) writeSome(p []byte) (int, error) {
	r.out.p, r.out.n, r.out.err = p, 0, nil
	err := r.conn.Write(r.tryWriteSome)
	return r.haveWritten(err)
}

// writeReady writes what the kernel takes of p now. It knows no deadline.
func (r *rawIO) writeReady(p []byte) (int, error) {
	r.out.p, r.out.n, r.out.err = p, 0, nil
	err := r.conn.Control(r.writeNow)
	return r.haveWritten(err)
}

func (r *rawIO) haveWritten(err error) (int, error) {
	r.out.p = nil
	if err == nil {
		err = r.out.err
	}
	return r.out.n, err
}

// writeOnce reports whether the write is done; if not, the poller waits.
func (r *rawIO) writeOnce(fd uintptr) bool {
	n, err := ignoringEINTR(func() (int, error) { return unix.Write(int(fd), r.out.p) })
	switch {
	case err == unix.EAGAIN:
		return false
	case err != nil:
		r.out.err = os.NewSyscallError("write", err)
	default:
		r.out.n = n
	}
	return true
}

func ignoringEINTR(f func() (int, error)) (int, error) {
	for {
		if n, err := f(); err != unix.EINTR {
			return n, err
		}
	}
}

// wait calls f with the state of the socket, now and at each change, until it
// returns false or the read deadline passes. The runtime's poller is
// edge-triggered: it wakes for a FIN behind bytes that nobody has read.
func (r *rawIO) wait(f func(bytes bool, end error) (more bool)) {
	r.conn.Read(func(fd uintptr) bool {
		bytes, end := peek(int(fd))
		return !f(bytes, end)
	})
}

func (r *rawIO) peek() (bytes bool, end error) {
	err := r.conn.Control(func(fd uintptr) { bytes, end = peek(int(fd)) })
	if err != nil {
		return false, err
	}
	return bytes, end
}

// errFailed stands for a failure whose cause the kernel keeps for the next read
// or write: asking for it (SO_ERROR) would take it away from them.
var errFailed = errors.New("the connection was reset or failed")

// peek asks the kernel for the state of a socket. A read that takes nothing
// (MSG_PEEK) would not see a FIN behind bytes; poll does.
func peek(fd int) (bytes bool, end error) {
	got, err := pollNow(fd, unix.POLLIN|unix.POLLRDHUP)
	switch {
	case err != nil:
		return false, err
	case got&(unix.POLLERR|unix.POLLNVAL) != 0:
		return false, errFailed
	case got&(unix.POLLRDHUP|unix.POLLHUP) != 0:
		n, err := bytesIn(fd, unix.TIOCINQ)
		return err == nil && n > 0, io.EOF
	case got&unix.POLLIN != 0:
		// A FIN that comes as poll looks is counted as a byte before it is told of.
		n, err := bytesIn(fd, unix.TIOCINQ)
		if err == nil && n == 0 {
			return false, io.EOF
		}
		return true, nil
	default:
		return false, nil
	}
}

// failure takes the cause of a failure out of the kernel.
func (r *rawIO) failure() (err error) {
	r.conn.Control(func(fd uintptr) { err = socketFailure(int(fd)) })
	if err == nil {
		return errFailed
	}
	return err
}

func socketFailure(fd int) error {
	if n, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); n != 0 {
		return syscall.Errno(n)
	}
	return errFailed // a write has taken it
}

// unacked returns how many bytes were written that the peer's kernel has not
// acknowledged (of a Unix socket: that the peer has not read).
func (r *rawIO) unacked() (n int) {
	r.conn.Control(func(fd uintptr) { n, _ = bytesIn(int(fd), unix.SIOCOUTQ) })
	return n
}

// tcpState returns whether a TCP connection is closed (a RST has come) and how
// many sequence numbers the peer has acknowledged, the SYN among them. ok is
// false for other sockets.
func (r *rawIO) tcpState() (closed bool, acked uint64, ok bool) {
	r.conn.Control(func(fd uintptr) { closed, acked, ok = tcpState(int(fd)) })
	return closed, acked, ok
}

func tcpState(fd int) (closed bool, acked uint64, ok bool) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return false, 0, false
	}
	return info.State == unix.BPF_TCP_CLOSE, info.Bytes_acked, true
}
