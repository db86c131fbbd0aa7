package engine

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"forebay/proxy/proxytest"
)

func testDial(t *testing.T, newEngine func(Config) Engine) {
	for _, network := range []string{"tcp", "tcp6", "unix"} {
		t.Run(network+"/connects", func(t *testing.T) {
			b := newBench(t, newEngine)
			ln := proxytest.Listen(t, network)
			c := b.dial(t.Context(), ln.Addr().Network(), ln.Addr().String())
			peer, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { peer.Close() })
			peer.SetDeadline(time.Now().Add(patience))
			if got := c.RemoteAddr().String(); got != ln.Addr().String() {
				t.Errorf("RemoteAddr() = %s, want %s", got, ln.Addr())
			}
			b.expectServes(c, peer.(proxytest.Conn))
		})
	}
	t.Run("a name is resolved", func(t *testing.T) {
		b := newBench(t, newEngine)
		_, port, _ := net.SplitHostPort(proxytest.Listen(t, "tcp").Addr().String())
		b.dial(t.Context(), "tcp", "localhost:"+port)
	})

	closed := proxytest.Listen(t, "tcp")
	closed.Close()
	failures := []struct {
		name, network, addr string
		want                error
	}{
		{"a port where nobody listens", "tcp", closed.Addr().String(), syscall.ECONNREFUSED},
		{"a socket file that is not there", "unix", t.TempDir() + "/none", syscall.ENOENT},
	}
	for _, tt := range failures {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, newEngine)
			c, err := b.engine.Dial(t.Context(), tt.network, tt.addr)
			var op *net.OpError
			if !errors.Is(err, tt.want) || !errors.As(err, &op) || op.Op != "dial" {
				t.Errorf("Dial = %v, %v; want a dial's %v", c, err, tt.want)
			}
		})
	}
	t.Run("a malformed address", func(t *testing.T) {
		b := newBench(t, newEngine)
		if c, err := b.engine.Dial(t.Context(), "tcp", "nonsense"); err == nil {
			t.Errorf("Dial = %v", c)
		}
	})
	t.Run("ends with its context", func(t *testing.T) {
		b := newBench(t, newEngine)
		addr := fullBacklog(t)
		for _, began := range []bool{true, false} {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			if !began {
				cancel()
			}
			c, err := b.engine.Dial(ctx, "tcp", addr)
			cancel()
			var ne net.Error
			if err == nil || began && (!errors.As(err, &ne) || !ne.Timeout()) {
				t.Errorf("Dial = %v, %v; want a timeout", c, err)
			}
		}
	})
}

// fullBacklog returns the address of a listener whose kernel answers no SYN any more.
func fullBacklog(t *testing.T) string {
	ln := proxytest.Listen(t, "tcp")
	raw, err := ln.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { err = listenAgain(int(fd), 0) })
	if err != nil {
		t.Skip("no short backlog here: ", err)
	}
	for range 10 {
		c, err := net.DialTimeout("tcp", ln.Addr().String(), 200*time.Millisecond)
		if err != nil {
			return ln.Addr().String()
		}
		t.Cleanup(func() { c.Close() })
	}
	t.Skip("the backlog does not fill")
	return ""
}

func (b *bench) dial(ctx context.Context, network, addr string) Conn {
	b.Helper()
	c, err := b.engine.Dial(ctx, network, addr)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return c
}

// A Connector tells later what Dial would have returned.
func testConnect(t *testing.T, newEngine func(Config) Engine) {
	ln, closed := proxytest.Listen(t, "tcp"), proxytest.Listen(t, "tcp")
	closed.Close()
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	full := fullBacklog(t)
	tests := []struct {
		name, addr string
		cut        time.Duration // when the context ends
		want       error
	}{
		{name: "an address", addr: ln.Addr().String()},
		{name: "a name", addr: "localhost:" + port},
		{name: "a port where nobody listens", addr: closed.Addr().String(), want: syscall.ECONNREFUSED},
		{name: "no answer in time", addr: full, want: os.ErrDeadlineExceeded},
		{name: "its context ends", addr: full, cut: 10 * time.Millisecond, want: context.Canceled},
		{name: "its context has ended", addr: full, cut: -1, want: context.Canceled},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, newEngine)
			e, ok := b.engine.(Connector)
			if !ok {
				t.Skip("it dials by Dial alone")
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tt.cut < 0 {
				cancel()
			} else if tt.cut > 0 {
				time.AfterFunc(tt.cut, cancel)
			}
			errc := make(chan error)
			e.Connector("tcp", tt.addr, 100*time.Millisecond)(ctx, func(c Conn, err error) {
				if err == nil {
					c.Close()
				}
				go func() { errc <- err }()
			})
			select {
			case err := <-errc:
				var op *net.OpError
				if !errors.Is(err, tt.want) || err != nil && (!errors.As(err, &op) || op.Op != "dial") {
					t.Errorf("Connect = %v; want a dial's %v", err, tt.want)
				}
			case <-time.After(patience):
				t.Error("Connect is not over")
			}
		})
	}
}
