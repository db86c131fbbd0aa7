package engine

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Dial connects to addr.
func (e *Loops) Dial(ctx context.Context, network, addr string) (Conn, error) {
	c, err := e.dialNetwork(ctx, network, addr)
	if err != nil {
		return nil, dialError(ctx, network, addr, err)
	}
	return c, nil
}

func dialError(ctx context.Context, network, addr string, err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = os.ErrDeadlineExceeded
	}
	return &net.OpError{Op: "dial", Net: network, Addr: dialAddr{network, addr}, Err: err}
}

// dialAddr is an address as it was asked for.
type dialAddr struct{ network, addr string }

func (a dialAddr) Network() string { return a.network }
func (a dialAddr) String() string  { return a.addr }

func (e *Loops) dialNetwork(ctx context.Context, network, addr string) (*loopConn, error) {
	if network == "unix" {
		return e.connect(ctx, unix.AF_UNIX, &unix.SockaddrUnix{Name: addr}, peerAddr{path: addr})
	}
	at, err := resolve(ctx, addr)
	if err != nil {
		return nil, err
	}
	for i, a := range at {
		var c *loopConn
		some, cancel := share(ctx, len(at)-i)
		c, err = e.connectTCP(some, a)
		cancel()
		if err == nil || ctx.Err() != nil {
			return c, err
		}
	}
	return nil, err
}

// share returns a context with an equal share of the time that is left, for the next of
// n addresses.
func share(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	end, limited := ctx.Deadline()
	if !limited || n == 1 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Until(end)/time.Duration(n))
}

// resolve returns the addresses of host:port. A name is looked up.
func resolve(ctx context.Context, addr string) ([]netip.AddrPort, error) {
	if at, err := netip.ParseAddrPort(addr); err == nil {
		return []netip.AddrPort{at}, nil
	}
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	if host == "" {
		host = "localhost"
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	at := make([]netip.AddrPort, len(ips))
	for i, ip := range ips {
		at[i] = netip.AddrPortFrom(ip.Unmap(), uint16(port))
	}
	return at, err
}

func (e *Loops) connectTCP(ctx context.Context, at netip.AddrPort) (*loopConn, error) {
	peer := peerAt(at)
	if peer.kind == peerTCP4 {
		return e.connect(ctx, unix.AF_INET, &unix.SockaddrInet4{Port: int(peer.port), Addr: [4]byte(peer.ip[:4])}, peer)
	}
	return e.connect(ctx, unix.AF_INET6, &unix.SockaddrInet6{Port: int(peer.port), Addr: peer.ip, ZoneId: peer.zone}, peer)
}

func (e *Loops) connect(ctx context.Context, domain int, sa unix.Sockaddr, peer peerAddr) (*loopConn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if peer.isTCP() {
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	err = unix.Connect(fd, sa)
	if err == unix.EINTR || err == unix.EINPROGRESS {
		// On this machine the handshake is often over when connect returns.
		err = connected(fd)
	}
	c := e.newConn(fd, peer)
	if err == errAgain {
		err = e.awaitConnect(ctx, c)
	}
	if err != nil {
		c.Close()
		var errno unix.Errno
		if errors.As(err, &errno) {
			err = os.NewSyscallError("connect", errno)
		}
		return nil, err
	}
	return c, nil
}

// connected tells how a connect has ended. errAgain: it has not.
func connected(fd int) error {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	n, err := unix.Poll(fds[:], 0)
	if n == 0 || err == unix.EINTR {
		return errAgain
	}
	if err != nil {
		return err
	}
	if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || n != 0 {
		return errors.Join(err, unix.Errno(n))
	}
	return nil
}

// connecting is a connect that a loop waits for.
type connecting struct {
	c     *loopConn
	donec chan error // buffered(1)
	over  bool
	err   error // once over
}

// awaitConnect waits until c is connected, or ctx ends.
func (e *Loops) awaitConnect(ctx context.Context, c *loopConn) error {
	l := e.loopOf(c)
	w := &connecting{c: c, donec: make(chan error, 1)}
	l.post(w)
	select {
	case err := <-w.donec:
		return err
	case <-ctx.Done():
	}
	l.post(taskFunc(func() { w.end(ctx.Err()) }))
	return <-w.donec
}

func (w *connecting) run() {
	l := w.c.loop.Load()
	w.c.user = w
	if err := l.open(w.c); err != nil {
		w.end(err)
		return
	}
	l.kernel.awaitRoom(w.c)
	w.event(w.c)
}

func (w *connecting) event(c *loopConn) {
	if w.over {
		w.end(w.err)
	} else if err := connected(int(c.fd)); err != errAgain {
		w.end(err)
	}
}

// end ends the wait, unless it has ended.
func (w *connecting) end(err error) {
	if !w.over {
		w.over, w.err = true, err
	}
	if w.c.user == w && w.c.loop.Load().kernel.settle(w.c) {
		w.c.user = nil
		w.donec <- w.err
	}
}
