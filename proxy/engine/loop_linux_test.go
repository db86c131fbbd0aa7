package engine

import (
	"context"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"forebay/proxy/proxytest"
)

// onLoops runs test for each engine of loops.
func onLoops(t *testing.T, workers int, test func(t *testing.T, b *bench)) {
	for _, k := range kernelEngines() {
		t.Run(k.name, func(t *testing.T) {
			k.need(t)
			test(t, newBench(t, func(Config) Engine { return k.of(t)(Config{Workers: workers}) }))
		})
	}
}

// TestDialedConnectionsAreFreeOfNagle: from the second write on nothing is held back
// until the one before has been acknowledged, however large the messages are.
func TestDialedConnectionsAreFreeOfNagle(t *testing.T) {
	for _, size := range []int{100, 300_000} {
		onLoops(t, 1, func(t *testing.T, b *bench) {
			ln := proxytest.Listen(t, "tcp")
			bc := b.dial(t.Context(), "tcp", ln.Addr().String())
			backend, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer backend.Close()
			cc, client := b.client("tcp")
			r := b.relay(cc, bc, RelayConfig{})
			message := newStream(1)[:size]
			for range 5 {
				go client.Write(message)
				if _, err := io.ReadFull(backend, make([]byte, size)); err != nil {
					t.Fatal(err)
				}
			}
			r.cut(nil)
			r.wait()
			if on, err := unix.GetsockoptInt(int(bc.(*loopConn).fd), unix.IPPROTO_TCP, unix.TCP_NODELAY); err != nil || on == 0 {
				t.Errorf("messages of %d bytes: TCP_NODELAY is %d, %v", size, on, err)
			}
		})
	}
}

// loopWith returns the loop of a connection.
func (b *bench) loopWith(c Conn) *loop { return b.engine.(*Loops).loopOf(c.(*loopConn)) }

// hold keeps the loop from going on until release is called.
func (l *loop) hold(t *testing.T) (release func()) {
	held, released := make(chan struct{}), make(chan struct{})
	l.post(taskFunc(func() {
		close(held)
		<-released
	}))
	proxytest.Receive(t, held, "the loop")
	release = sync.OnceFunc(func() { close(released) })
	t.Cleanup(release)
	return release
}

// awaitPosted waits until n tasks wait for the loop.
func (l *loop) awaitPosted(t *testing.T, n int) {
	t.Helper()
	proxytest.Eventually(t, "a task to be posted", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.posted) >= n
	})
}

// A drive that has made many steps has its turn again. If it waits for a lease by
// then, it waits on.
func TestDriveLeasesBetweenTurns(t *testing.T) {
	onLoops(t, 1, func(t *testing.T, b *bench) {
		cc, client := b.client("tcp")
		l := b.loopWith(cc)
		began, leasing, leased := make(chan struct{}), make(chan struct{}), make(chan struct{})
		begin, steps := sync.OnceFunc(func() { close(began) }), 0
		p := &puppet{TB: t, lease: func() Conn {
			close(leasing)
			<-leased
			return nil
		}}
		p.play = func(p *puppet, now time.Time) Step {
			begin()
			switch {
			case len(p.up) == 0:
				return Step{FromClient: 100}
			case steps <= stepTurns:
				steps++
				return Step{Op: OpFinishClient}
			case p.leases == 0:
				return Step{Op: OpLease}
			}
			return Step{Op: OpDone}
		}
		wake, doWake := context.WithCancel(t.Context())
		d := b.drive(cc, p, DriveConfig{Wake: wake})
		proxytest.Receive(t, began, "the drive to begin")
		release := l.hold(t)
		write(t, client, "x")
		doWake() // asks again, when the step that the byte brings has made its turns
		l.awaitPosted(t, 1)
		release()
		proxytest.Receive(t, leasing, "the lease")
		l.hold(t)()
		l.hold(t)()
		close(leased)
		d.wait()
	})
}

// A connection goes from loop to loop, while the one that it leaves may have an event
// of it in hand.
func TestConnectionChangesLoops(t *testing.T) {
	onLoops(t, 3, func(t *testing.T, b *bench) {
		ln := b.listen("tcp")
		bc, backend := b.backend("tcp")
		for range 300 {
			cc, client := b.clientOf(ln)
			stop := bc.Watch(func(bool, error) bool { return true })
			wrote := async(func() error { _, err := backend.Write([]byte("x")); return err })
			stop()
			r := b.relay(cc, bc, RelayConfig{KeepQuiet: time.Nanosecond})
			expect(t, client, "x")
			client.CloseWrite()
			expectEnd(t, r.wait(), Quiet)
			cc.Close()
			expectEOF(t, client, "")
			if err := <-wrote; err != nil {
				t.Fatal(err)
			}
		}
	})
}

// No method of the handler is called when Serve has returned, also where another loop
// has yet to take a client.
func TestServeEndsAfterTheLastClient(t *testing.T) {
	onLoops(t, 2, func(t *testing.T, b *bench) {
		loops := b.engine.(*Loops).loops
		release := loops[1].hold(t)
		p := b.placed("tcp", 2)
		for range 2 {
			proxytest.Dial(t, p.Addr())
		}
		proxytest.Receive(t, p.clients, "the client of the loop that accepts").Close()
		loops[1].awaitPosted(t, 1)
		closed := async(p.Close)
		proxytest.Eventually(t, "the loop to have closed the listener", func() bool {
			_, err := unix.GetsockoptInt(p.Listener.(*loopListener).fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
			return err != nil
		})
		select {
		case <-p.served:
			t.Error("Serve has returned before the last client was taken")
		case <-time.After(20 * time.Millisecond):
		}
		release()
		proxytest.Receive(t, p.clients, "the client of the other loop").Close()
		proxytest.Receive(t, closed, "Close to return")
		proxytest.Receive(t, p.served, "Serve to return")
	})
}

// Close may come as Serve begins.
func TestServeAndCloseAtOnce(t *testing.T) {
	onLoops(t, 1, func(t *testing.T, b *bench) {
		for range 300 {
			ln, err := b.engine.Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var over, late atomic.Bool
			served := async(func() bool {
				ln.Serve(admits(func() { late.CompareAndSwap(false, over.Load()) }))
				over.Store(true)
				return true
			})
			for l := ln.(*loopListener); ; runtime.Gosched() {
				l.mu.Lock()
				begun := l.served != nil
				l.mu.Unlock()
				if begun {
					break
				}
			}
			ln.Close()
			proxytest.Receive(t, served, "Serve to return")
			b.engine.(*Loops).loops[0].hold(t)()
			if late.Load() {
				t.Fatal("Admit was called after Serve had returned")
			}
		}
	})
}

// admits is a handler that is told when it is asked.
type admits func()

func (a admits) Admit() bool              { a(); return false }
func (admits) Accepted(c Conn)            { c.Close() }
func (admits) Failed(error) time.Duration { return time.Second }

// A read ends before an urgent byte, though more has come: that it was short does not
// mean that nothing is left. Descriptors that come along end a read of a Unix socket.
func TestShortReadsThatLeaveBytes(t *testing.T) {
	tests := map[string]func(fd int) error{
		"tcp":  func(fd int) error { return unix.Sendto(fd, []byte("u"), unix.MSG_OOB, nil) },
		"unix": func(fd int) error { return unix.Sendmsg(fd, []byte("d"), unix.UnixRights(fd), nil, 0) },
	}
	for network, odd := range tests {
		t.Run(network, func(t *testing.T) {
			onLoops(t, 1, func(t *testing.T, b *bench) {
				cc, client := b.client(network)
				bc, backend := b.backend("tcp")
				b.relay(cc, bc, RelayConfig{})
				write(t, client, "begin")
				expect(t, backend, "begin")
				release := b.loopWith(cc).hold(t)
				write(t, client, "before")
				raw, _ := client.(syscall.Conn).SyscallConn()
				var err error
				raw.Control(func(fd uintptr) { err = odd(int(fd)) })
				if err != nil {
					t.Skip(err)
				}
				write(t, client, "after")
				release()
				want := map[string]string{"tcp": "beforeafter", "unix": "beforedafter"}[network]
				backend.SetReadDeadline(time.Now().Add(2 * time.Second))
				expect(t, backend, want)
			})
		})
	}
}

// Where nobody listens a dial may find itself: it has found nobody.
func TestDialDoesNotFindItself(t *testing.T) {
	onLoops(t, 1, func(t *testing.T, b *bench) {
		ln := proxytest.Listen(t, "tcp")
		addr := *ln.Addr().(*net.TCPAddr)
		ln.Close()
		addr.Port ^= 1 // of those that the kernel chooses for a connect, which are the even ones
		for range 20000 {
			if c, err := b.engine.Dial(t.Context(), "tcp", addr.String()); err == nil {
				c.Close()
				t.Fatal("connected, and nobody listens")
			}
		}
	})
}

// refusing is a kernel that owns no connection, as where a user watches too much.
type refusing struct{ kernel }

func (refusing) own(*loopConn) error { return os.NewSyscallError("epoll_ctl", unix.ENOSPC) }

func TestConnectorDialsWhereTheLoopCannotOwnYet(t *testing.T) {
	b := newBench(t, func(cfg Config) Engine {
		e, err := newLoops("epoll", cfg, func(l *loop) (kernel, error) {
			k, err := newEpoll(l)
			return refusing{k}, err
		})
		if err != nil {
			t.Fatal(err)
		}
		return e
	})
	dialed := make(chan error, 1)
	b.engine.(*Loops).Connector("tcp", proxytest.Listen(t, "tcp").Addr().String(), patience)(t.Context(), func(c Conn, err error) {
		if err == nil {
			c.Close()
		}
		dialed <- err
	})
	if err := proxytest.Receive(t, dialed, "the dial"); err != nil {
		t.Errorf("%v: it says nothing about the backend", err)
	}
}
