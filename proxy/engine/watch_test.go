package engine

import (
	"io"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"forebay/proxy/proxytest"
)

// seen is what a watch or a peek tells.
type seen struct {
	bytes bool
	end   error
}

// kind sorts the ends: what a failure is called is the engine's business.
func (s seen) kind() string {
	var b strings.Builder
	if s.bytes {
		b.WriteString("bytes ")
	}
	switch s.end {
	case nil:
	case io.EOF:
		b.WriteString("FIN")
	default:
		return "failure"
	}
	return strings.TrimSpace(b.String())
}

// watching watches c, and sends what is seen until it is wanted.
func watching(c Conn, want string) (seenc chan seen, stop func()) {
	seenc = make(chan seen, 1000)
	stop = c.Watch(func(bytes bool, end error) bool {
		s := seen{bytes, end}
		seenc <- s
		return s.kind() != want
	})
	return seenc, stop
}

func testWatch(t *testing.T, newEngine func(Config) Engine) {
	tests := []struct {
		name string
		act  func(t *testing.T, peer proxytest.Conn)
		want string
		left string // what a relay still finds
	}{
		{"nothing", func(*testing.T, proxytest.Conn) {}, "", ""},
		{"bytes", func(t *testing.T, peer proxytest.Conn) { write(t, peer, "hello") }, "bytes", "hello"},
		{"a FIN", func(t *testing.T, peer proxytest.Conn) { peer.CloseWrite() }, "FIN", ""},
		{"a FIN behind bytes", func(t *testing.T, peer proxytest.Conn) {
			write(t, peer, "hello")
			peer.CloseWrite()
		}, "bytes FIN", "hello"},
		{"a close", func(t *testing.T, peer proxytest.Conn) { peer.Close() }, "FIN", ""},
		{"a close behind bytes", func(t *testing.T, peer proxytest.Conn) {
			write(t, peer, "hello")
			peer.Close()
		}, "bytes FIN", "hello"},
		{"a reset", func(t *testing.T, peer proxytest.Conn) { reset(peer) }, "failure", ""},
	}
	for _, network := range []string{"tcp", "unix"} {
		for _, tt := range tests {
			if network == "unix" && tt.want == "failure" {
				continue
			}
			t.Run(network+"/tells of "+tt.name, func(t *testing.T) {
				b := newBench(t, newEngine)
				for _, when := range []string{"before the watch", "during the watch"} {
					c, peer := b.client(network)
					if when == "before the watch" {
						tt.act(t, peer)
						proxytest.Eventually(t, tt.name, func() bool { return peeked(c).kind() == tt.want })
					}
					seenc, stop := watching(c, tt.want)
					if when == "during the watch" {
						first := proxytest.Receive(t, seenc, "the first call")
						if first.kind() != "" {
							t.Fatalf("saw %q first", first.kind())
						}
						tt.act(t, peer)
					}
					if when == "before the watch" || tt.want != "" {
						for proxytest.Receive(t, seenc, tt.name).kind() != tt.want {
						}
					}
					stop()
					if got := peeked(c).kind(); got != tt.want {
						t.Errorf("%s: Peek tells of %q, want %q", when, got, tt.want)
					}
					if tt.want == "failure" {
						continue
					}
					bc, backend := b.backend(network)
					r := b.relay(c, bc, RelayConfig{})
					if tt.name == "a close" || tt.name == "a close behind bytes" || strings.Contains(tt.want, "FIN") {
						expectEOF(t, backend, tt.left)
					} else {
						write(t, peer, " and more")
						expect(t, backend, tt.left+" and more")
						write(t, backend, "reply")
						expect(t, peer, "reply")
						peer.CloseWrite()
						expectEOF(t, backend, "")
					}
					backend.CloseWrite()
					r.close()
				}
			})
		}
	}

	t.Run("tells of a FIN behind bytes that it has told of", func(t *testing.T) {
		for _, network := range []string{"tcp", "unix"} {
			c, peer := newBench(t, newEngine).client(network)
			seenc, stop := watching(c, "bytes FIN")
			for _, want := range []string{"", "bytes", "bytes FIN"} {
				switch want {
				case "bytes":
					write(t, peer, "x")
				case "bytes FIN":
					peer.CloseWrite()
				}
				for proxytest.Receive(t, seenc, want).kind() != want {
				}
			}
			stop()
		}
	})

	t.Run("does not spin", func(t *testing.T) {
		c, peer := newBench(t, newEngine).client("tcp")
		var calls atomic.Int32
		write(t, peer, "x")
		stop := c.Watch(func(bool, error) bool { calls.Add(1); return true })
		pause(100 * time.Millisecond)
		stop()
		if n := calls.Load(); n < 1 || n > 3 {
			t.Errorf("%d calls without a change", n)
		}
	})

	t.Run("ends when it is told to by its function", func(t *testing.T) {
		c, peer := newBench(t, newEngine).client("tcp")
		var calls atomic.Int32
		called := make(chan bool, 10)
		stop := c.Watch(func(bool, error) bool { calls.Add(1); called <- true; return false })
		proxytest.Receive(t, called, "the first call")
		write(t, peer, "x")
		proxytest.Eventually(t, "the byte", func() bool { return peeked(c).bytes })
		stop()
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls, want 1", n)
		}
	})

	t.Run("stop is quick", func(t *testing.T) {
		c, _ := newBench(t, newEngine).client("tcp")
		start := time.Now()
		for range 100 {
			c.Watch(func(bool, error) bool { return true })()
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("100 watches took %v", took)
		}
	})

	t.Run("nothing is called or taken after stop, whatever races with it", func(t *testing.T) {
		for network, n := range map[string]int{"tcp": 2000, "unix": 200} { // a Unix socket holds few writes
			b := newBench(t, newEngine)
			c, peer := b.client(network)
			var sent strings.Builder
			for i := range n {
				var stopped, late atomic.Bool
				wrote := make(chan struct{})
				stop := c.Watch(func(bool, error) bool {
					if stopped.Load() {
						late.Store(true)
					}
					return i%3 > 0
				})
				go func() {
					defer close(wrote)
					peer.Write([]byte{byte('a' + i%26)})
				}()
				sent.WriteByte(byte('a' + i%26))
				for range i % 5 {
					runtime.Gosched()
				}
				stop()
				stopped.Store(true)
				proxytest.Receive(t, wrote, "the write")
				if late.Load() {
					t.Fatal("called after stop")
				}
			}
			bc, backend := b.backend(network)
			r := b.relay(c, bc, RelayConfig{})
			expect(t, backend, sent.String())
			peer.CloseWrite()
			expectEOF(t, backend, "")
			backend.CloseWrite()
			expectEnd(t, r.close(), Finished)
		}
	})

	t.Run("relays after watches keep no deadline", func(t *testing.T) {
		b := newBench(t, newEngine)
		c, peer := b.backend("tcp")
		c.Watch(func(bool, error) bool { return true })()
		b.expectServes(c, peer)
	})
}

func peeked(c Conn) seen {
	bytes, end := c.Peek()
	return seen{bytes, end}
}
