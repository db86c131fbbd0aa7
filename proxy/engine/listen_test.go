package engine

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"forebay/proxy/proxytest"
)

func testListen(t *testing.T, newEngine func(Config) Engine) {
	tests := []struct {
		name    string
		prepare func(t *testing.T, path string)
		want    string // in the error; empty: it listens
		left    bool   // the file is still there
	}{
		{"a new file", func(*testing.T, string) {}, "", false},
		{"a stale socket file is replaced", func(t *testing.T, path string) {
			ln, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			ln.(*net.UnixListener).SetUnlinkOnClose(false)
			ln.Close()
		}, "", false},
		{"a live one is refused", func(t *testing.T, path string) {
			ln, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ln.Close() })
		}, "another process listens there", true},
		{"a file is refused and kept", func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "not a socket", true},
		{"a directory is refused and kept", func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, "not a socket", true},
		{"a link to a socket is refused and kept", func(t *testing.T, path string) {
			ln, err := net.Listen("unix", path+".real")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ln.Close() })
			if err := os.Symlink(path+".real", path); err != nil {
				t.Fatal(err)
			}
		}, "not a socket", true},
	}
	for _, tt := range tests {
		t.Run("unix/"+tt.name, func(t *testing.T) {
			b := newBench(t, newEngine)
			path := filepath.Join(t.TempDir(), "sock")
			tt.prepare(t, path)
			ln, err := b.engine.Listen(t.Context(), "unix", path)
			switch {
			case tt.want == "" && err != nil:
				t.Fatal(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path)):
				t.Fatalf("Listen: %v; want %q and the path", err, tt.want)
			case err == nil:
				b.expectAccepts(accepting(ln))
				ln.Close()
			}
			if _, err := os.Lstat(path); (err == nil) != tt.left {
				t.Errorf("the file afterwards: %v", err)
			}
		})
	}

	t.Run("unix/abstract", func(t *testing.T) {
		b := newBench(t, newEngine)
		name := fmt.Sprintf("@forebay-test-%d", os.Getpid())
		ln, err := b.engine.Listen(t.Context(), "unix", name)
		if err != nil && runtime.GOOS != "linux" {
			t.Skip("only Linux has abstract sockets: ", err)
		} else if err != nil {
			t.Fatal(err)
		}
		b.expectAccepts(accepting(ln))
		if _, err := b.engine.Listen(t.Context(), "unix", name); err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("a second listener: %v", err)
		}
		ln.Close()
	})

	t.Run("tcp/an address in use", func(t *testing.T) {
		b := newBench(t, newEngine)
		addr := b.listen("tcp").Addr().String()
		if _, err := b.engine.Listen(t.Context(), "tcp", addr); err == nil || !strings.Contains(err.Error(), addr) {
			t.Errorf("a second listener: %v", err)
		}
	})

	for _, network := range []string{"tcp", "unix"} {
		t.Run(network+"/Serve ends at Close", func(t *testing.T) {
			ln := newBench(t, newEngine).listen(network)
			ln.Close()
			proxytest.Receive(t, ln.served, "Serve to end")
			again := async(func() bool { ln.Listener.Serve(ln); return true })
			proxytest.Receive(t, again, "Serve to end after Close")
		})
		t.Run(network+"/Serve that has no place ends at Close", func(t *testing.T) {
			b := newBench(t, newEngine)
			p := b.placed(network, 0)
			p.asked(t, 1)
			p.Close()
			proxytest.Receive(t, p.served, "Serve to end")
		})
		t.Run(network+"/no client is accepted without a place", func(t *testing.T) {
			b := newBench(t, newEngine)
			p := b.placed(network, 2)
			for range 5 {
				proxytest.Dial(t, p.Addr())
			}
			for range 2 {
				proxytest.Receive(t, p.clients, "a client that has a place").Close()
			}
			p.asked(t, 3)
			if n := len(p.clients); n > 0 {
				t.Fatalf("%d clients more than places", n)
			}
			p.places.Add(3)
			p.Resume()
			for range 3 {
				proxytest.Receive(t, p.clients, "a client that waited for a place").Close()
			}
			p.Resume()
			p.Resume()
		})
	}
}

// placed is a listener with a number of places.
type placed struct {
	Listener
	places, asks atomic.Int64
	clients      chan Conn
	served       chan struct{}
}

func (b *bench) placed(network string, places int64) *placed {
	b.Helper()
	addr := "127.0.0.1:0"
	if network == "unix" {
		addr = filepath.Join(b.TempDir(), "s")
	}
	ln, err := b.engine.Listen(b.Context(), network, addr)
	if err != nil {
		b.Fatal(err)
	}
	p := &placed{Listener: ln, clients: make(chan Conn, 100), served: make(chan struct{})}
	p.places.Store(places)
	go func() { defer close(p.served); ln.Serve(p) }()
	b.Cleanup(func() { p.Close(); <-p.served })
	return p
}

func (p *placed) Admit() bool {
	p.asks.Add(1)
	if p.places.Load() == 0 {
		return false
	}
	p.places.Add(-1)
	return true
}
func (p *placed) Accepted(c Conn)            { p.clients <- c }
func (p *placed) Failed(error) time.Duration { return time.Millisecond }

func (p *placed) asked(t *testing.T, n int64) {
	t.Helper()
	proxytest.Eventually(t, "Admit", func() bool { return p.asks.Load() >= n })
}

func (b *bench) expectAccepts(ln *acceptor) {
	b.Helper()
	cc, client := b.clientOf(ln)
	bc, backend := b.backend("unix")
	r := b.relay(cc, bc, RelayConfig{})
	write(b, client, "x")
	client.CloseWrite()
	expectEOF(b, backend, "x")
	backend.Close()
	r.close()
}
