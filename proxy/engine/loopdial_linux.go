package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"sync"
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
		to, err := unixTarget(addr)
		if err != nil {
			return nil, err
		}
		return e.connectWait(ctx, to)
	}
	at, err := resolve(ctx, addr)
	if err != nil {
		return nil, err
	}
	for i, a := range at {
		var c *loopConn
		some, cancel := share(ctx, len(at)-i)
		c, err = e.connectWait(some, tcpTarget(a))
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

// target is what a socket is connected to.
type target struct {
	domain int
	name   *sockaddr
	peer   peerAddr
}

func tcpTarget(at netip.AddrPort) target {
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	t := target{domain: unix.AF_INET, name: inetSockaddr(at), peer: peerAt(at)}
	if !at.Addr().Is4() {
		t.domain = unix.AF_INET6
	}
	return t
}

func unixTarget(path string) (target, error) {
	name, err := unixSockaddr(path)
	return target{domain: unix.AF_UNIX, name: name, peer: peerAddr{path: path}}, err
}

// connectWait connects to a target, and waits for that.
func (e *Loops) connectWait(ctx context.Context, to target) (*loopConn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c, err := e.connect(to)
	if err == errAgain {
		err = e.awaitConnect(ctx, c, to)
	}
	return connectEnd(c, err)
}

// connectEnd closes c, which may be nil, where the connect has failed.
func connectEnd(c *loopConn, err error) (*loopConn, error) {
	if err == nil && isSelf(c) {
		err = unix.ECONNREFUSED
	}
	if err == nil {
		return c, nil
	}
	if c != nil {
		c.Close()
	}
	var errno unix.Errno
	if errors.As(err, &errno) && c != nil {
		err = os.NewSyscallError("connect", errno)
	}
	return nil, err
}

// isSelf reports whether a socket is connected to itself, which happens where nobody
// listens on a port that the kernel chooses for it: then there are two SYNs, and no
// listener.
func isSelf(c *loopConn) bool {
	if low, high := ownPorts(); !c.peer.isTCP() || c.peer.port < low || c.peer.port > high {
		return false
	}
	local, err := unix.Getsockname(int(c.fd))
	if err != nil {
		return false
	}
	switch l := local.(type) {
	case *unix.SockaddrInet4:
		return l.Port == int(c.peer.port) && l.Addr == [4]byte(c.peer.ip[:4])
	case *unix.SockaddrInet6:
		return l.Port == int(c.peer.port) && l.Addr == c.peer.ip
	}
	return false
}

// ownPorts returns the range of the ports that the kernel chooses from.
var ownPorts = sync.OnceValues(func() (low, high uint16) {
	low, high = 1, math.MaxUint16
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		fmt.Sscan(string(text), &low, &high)
	}
	return low, high
})

// connect begins to connect. errAgain: it goes on.
func (e *Loops) connect(to target) (*loopConn, error) {
	fd, err := socketFD(to.domain)
	if err != nil {
		return nil, err
	}
	c := e.newConn(fd, to.peer)
	if to.peer.isTCP() {
		c.set(stateNagle)
	}
	if err := connectFD(fd, to.name); err != errAgain {
		return c, err
	}
	// On this machine the handshake is over as connect returns: what answers the SYN
	// comes before the socket is unlocked, and is looked at when it is.
	return c, connectFD(fd, to.name)
}

// connecting is a connect that a loop waits for.
type connecting struct {
	c    *loopConn
	seat seat
	to   target
	done func(error)
	over bool
	err  error // once over
}

// awaitConnect waits until c is connected, or ctx ends.
func (e *Loops) awaitConnect(ctx context.Context, c *loopConn, to target) error {
	l := e.loopOf(c)
	donec := make(chan error, 1)
	w := &connecting{c: c, to: to, done: func(err error) { donec <- err }}
	l.post(w)
	select {
	case err := <-donec:
		return err
	case <-ctx.Done():
	}
	l.post(taskFunc(func() { w.end(ctx.Err()) }))
	return <-donec
}

func (w *connecting) run() {
	l := w.c.loop.Load()
	w.seat = seat{l, w}
	w.c.seat.Store(&w.seat)
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
	} else if err := connectFD(int(c.fd), w.to.name); err != errAgain {
		w.end(err)
	}
}

// end ends the wait, unless it has ended.
func (w *connecting) end(err error) {
	if !w.over {
		w.over, w.err = true, err
	}
	if w.c.seat.Load() == &w.seat && w.c.loop.Load().kernel.settle(w.c) {
		w.c.seat.Store(nil)
		w.done(w.err)
	}
}

// connector dials one address on the loops.
type connector struct {
	engine        *Loops
	network, addr string
	to            target // of the address
	timeout       time.Duration
}

// connectLater is one dial of a connector.
type connectLater struct {
	*connector
	loop *loop
	ctx  context.Context
	done func(Conn, error)

	// While the connect goes on.
	wait   *connecting
	member member
	timer  timer
}

// Connector returns what dials addr on a loop. An address is read once.
func (e *Loops) Connector(network, addr string, timeout time.Duration) func(context.Context, func(Conn, error)) {
	to, ok := literal(network, addr)
	if !ok { // it may have to be looked up, which waits
		return func(ctx context.Context, done func(Conn, error)) {
			go func() {
				ctx, cancel := context.WithTimeout(ctx, timeout)
				defer cancel()
				done(e.Dial(ctx, network, addr))
			}()
		}
	}
	c := &connector{e, network, addr, to, timeout}
	return c.dial
}

func (c *connector) dial(ctx context.Context, done func(Conn, error)) {
	l := c.engine.loops[int(c.engine.dials.Add(1))%len(c.engine.loops)]
	l.post(&connectLater{connector: c, loop: l, ctx: ctx, done: done})
}

// literal returns the target of an address that is no name.
func literal(network, addr string) (to target, ok bool) {
	if network == "unix" {
		to, err := unixTarget(addr)
		return to, err == nil
	}
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return target{}, false
	}
	return tcpTarget(at), true
}

func (d *connectLater) run() {
	if err := d.ctx.Err(); err != nil {
		d.finish(nil, err)
		return
	}
	c, err := d.loop.engine.connect(d.to)
	if err == nil && len(d.loop.engine.loops) == 1 { // else most go to another loop, which would own it anew
		// The loop knows what comes from now on: whoever leases it need not look. That this
		// fails says nothing about the backend; whoever uses it tries again.
		d.loop.open(c)
	}
	if err != errAgain {
		d.finish(c, err)
		return
	}
	d.wait = &connecting{c: c, to: d.to, done: func(err error) { d.finish(c, err) }}
	c.loop.Store(d.loop)
	d.loop.join(d.ctx, &d.member, d)
	d.loop.wheel.schedule(&d.timer, d.loop.now+d.timeout, d)
	d.wait.run()
}

func (d *connectLater) contextEnded() { d.wait.end(d.ctx.Err()) }
func (d *connectLater) timeUp()       { d.wait.end(context.DeadlineExceeded) }

func (d *connectLater) finish(c *loopConn, err error) {
	d.timer.cancel()
	d.member.leave()
	if c, err = connectEnd(c, err); err != nil {
		d.done(nil, dialError(d.ctx, d.network, d.addr, err))
		return
	}
	d.done(c, nil)
}
