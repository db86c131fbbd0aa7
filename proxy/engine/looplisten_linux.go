package engine

import (
	"context"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// loopListener is a listener of a loop engine: one loop accepts, and hands the clients
// to all in turn. All but what is under mu is the loop's.
type loopListener struct {
	engine *Loops
	loop   *loop
	fd     int
	addr   net.Addr
	path   string // of the socket file, to be removed at the end

	handler   Handler
	placed    bool // a place is reserved for the next client
	resting   bool // after an error, until the timer goes off
	listening bool // the kernel tells of clients
	timer     timer
	handing   sync.WaitGroup // clients that are on their way to other loops

	// Of the kernel that asks for each client (uring_linux.go).
	request  uint64
	name     ipName
	nameSize uint32

	mu     sync.Mutex
	served chan struct{} // closed when Serve may return; nil before Serve
	closed bool
}

// Listen opens a listener.
func (e *Loops) Listen(ctx context.Context, network, addr string) (Listener, error) {
	ln, err := listen(ctx, network, addr, func(network, _ string, c syscall.RawConn) error {
		return e.cfg.set(network, c)
	})
	if err != nil {
		return nil, err
	}
	defer ln.Close() // the runtime's poller is not to be woken by each client
	l := &loopListener{engine: e, loop: e.loops[0], addr: ln.Addr()}
	if u, ok := ln.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
		if !strings.HasPrefix(addr, "@") {
			l.path = addr
		}
	}
	raw, err := ln.(syscall.Conn).SyscallConn()
	if err != nil {
		return nil, err
	}
	ctlErr := raw.Control(func(fd uintptr) {
		// Nagle's algorithm is off on what a listener accepts where it is off there.
		unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		l.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	})
	if ctlErr != nil {
		err = ctlErr
	}
	return l, err
}

// Addr returns the address on which clients are accepted.
func (l *loopListener) Addr() net.Addr { return l.addr }

// Serve accepts clients.
func (l *loopListener) Serve(h Handler) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return
	}
	served := make(chan struct{})
	l.served = served
	l.loop.post(taskFunc(func() { // under the lock: before what Close posts
		l.handler = h
		l.admit()
	}))
	l.mu.Unlock()
	<-served
}

// Resume has the loop ask for a place again.
func (l *loopListener) Resume() { l.loop.post(taskFunc(l.admit)) }

// Close stops accepting. It must not be called by the Handler.
func (l *loopListener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return net.ErrClosed
	}
	l.closed = true
	served := l.served
	l.mu.Unlock()
	if served == nil {
		return l.end()
	}
	errc := make(chan error, 1)
	l.loop.post(taskFunc(func() {
		l.timer.cancel()
		l.pause()
		l.handler = nil
		errc <- l.end()
	}))
	err := <-errc
	l.handing.Wait()
	close(served)
	return err
}

func (l *loopListener) end() error {
	if l.path != "" {
		os.Remove(l.path)
	}
	return os.NewSyscallError("close", unix.Close(l.fd))
}

// admit begins to accept if there is a place, and stops if not.
func (l *loopListener) admit() {
	if l.handler == nil || l.resting {
		return
	}
	if l.placed = l.placed || l.handler.Admit(); !l.placed {
		l.pause()
	} else if !l.listening {
		l.listening = true
		l.loop.kernel.listen(l)
	}
}

func (l *loopListener) pause() {
	if l.listening {
		l.listening = false
		l.loop.kernel.pause(l)
	}
}

// timeUp ends the rest after an error.
func (l *loopListener) timeUp() {
	l.resting = false
	l.admit()
}

// accepted takes a client, or the error in its place, for the place that is reserved.
func (l *loopListener) accepted(fd int, peer peerAddr, err error) {
	if err != nil {
		l.resting = true
		l.pause()
		l.loop.wheel.schedule(&l.timer, l.loop.now+l.handler.Failed(err), l)
		return
	}
	l.placed = false
	c := l.engine.newConn(fd, peer)
	c.set(stateLasting) // it has the listener's options
	h, to := l.handler, l.engine.next()
	c.loop.Store(to)
	if to == l.loop {
		h.Accepted(c)
	} else {
		l.handing.Add(1)
		to.post(taskFunc(func() {
			defer l.handing.Done()
			h.Accepted(c)
		}))
	}
}

// failure is the error of an Accept.
func (l *loopListener) failure(errno error) error {
	return &net.OpError{Op: "accept", Net: l.addr.Network(), Addr: l.addr, Err: os.NewSyscallError("accept4", errno)}
}
