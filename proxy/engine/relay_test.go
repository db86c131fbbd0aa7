package engine

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"forebay/proxy/proxytest"
)

func testBytes(t *testing.T, newEngine func(Config) Engine) {
	const mib = 1 << 20
	tests := []struct {
		name        string
		up, down    int
		chunk       func() int
		upRead, dnR int // the size of the peers' reads
		long        bool
	}{
		{name: "empty both ways"},
		{name: "1 byte up", up: 1},
		{name: "1 byte down", down: 1},
		{name: "1 byte both ways", up: 1, down: 1},
		{name: "64 KiB less 1", up: 64<<10 - 1, down: 64<<10 - 1},
		{name: "64 KiB", up: 64 << 10, down: 64 << 10},
		{name: "64 KiB and 1", up: 64<<10 + 1, down: 64<<10 + 1},
		{name: "a few MiB", up: 3*mib + 1, down: 2*mib - 1},
		{name: "random chunks", up: mib / 2, down: mib / 2, chunk: random(9000)},
		{name: "a slow and a fast direction", up: mib / 4, down: 4 * mib, upRead: 100},
		{name: "a fast and a slow direction", up: 4 * mib, down: mib / 4, dnR: 100},
		{name: "256 MiB", up: 256 * mib, down: 256 * mib, long: true},
	}
	for _, nets := range networks {
		for _, tt := range tests {
			if tt.long && (testing.Short() || nets != networks[0]) {
				continue
			}
			t.Run(nets[0]+" to "+nets[1]+"/"+tt.name, func(t *testing.T) {
				s := newBench(t, newEngine).session(nets[0], nets[1], RelayConfig{Replay: tt.down > 0})
				if tt.chunk == nil {
					tt.chunk = fixed(mib)
				}
				size := func(n int) int {
					if n == 0 {
						return mib
					}
					return n
				}
				if tt.long {
					s.client.SetDeadline(time.Now().Add(10 * patience))
					s.backend.SetDeadline(time.Now().Add(10 * patience))
				}
				up, down := newStream(1), newStream(2)
				sentUp, sentDown := up.sending(s.client, tt.up, tt.chunk), down.sending(s.backend, tt.down, tt.chunk)
				gotUp, gotDown := up.receiving(s.backend, size(tt.upRead)), down.receiving(s.client, size(tt.dnR))
				if got := <-gotUp; got.n != tt.up || got.err != nil {
					t.Errorf("backend got %d bytes, %v; want %d", got.n, got.err, tt.up)
				}
				if got := <-gotDown; got.n != tt.down || got.err != nil {
					t.Errorf("client got %d bytes, %v; want %d", got.n, got.err, tt.down)
				}
				if err := errors.Join(<-sentUp, <-sentDown); err != nil {
					t.Error(err)
				}
				r := s.close()
				expectEnd(t, r, Finished)
				want := func(n int) Half { return Half{Taken: int64(n), Moved: int64(n), FIN: true, FINSent: true} }
				if r.Up != want(tt.up) || r.Down != want(tt.down) || r.Err != nil {
					t.Errorf("result = %+v", r)
				}
			})
		}
	}
}

func testHalfClose(t *testing.T, newEngine func(Config) Engine) {
	for _, nets := range networks {
		t.Run(nets[0]+" to "+nets[1], func(t *testing.T) {
			b := newBench(t, newEngine)
			t.Run("the client's FIN leaves the other direction open", func(t *testing.T) {
				s := (&bench{t, b.engine}).session(nets[0], nets[1], RelayConfig{})
				write(t, s.client, "request")
				s.client.CloseWrite()
				expectEOF(t, s.backend, "request")
				for range 3 {
					write(t, s.backend, "reply")
					expect(t, s.client, "reply")
				}
				s.backend.Close()
				expectEOF(t, s.client, "")
				expectEnd(t, s.close(), Finished)
			})
			t.Run("the backend's FIN leaves the other direction open", func(t *testing.T) {
				s := (&bench{t, b.engine}).session(nets[0], nets[1], RelayConfig{})
				write(t, s.backend, "greeting")
				s.backend.CloseWrite()
				expectEOF(t, s.client, "greeting")
				for range 3 {
					write(t, s.client, "more")
					expect(t, s.backend, "more")
				}
				s.client.Close()
				expectEOF(t, s.backend, "")
				expectEnd(t, s.close(), Finished)
			})
			t.Run("a FIN with nothing either way passes", func(t *testing.T) {
				s := (&bench{t, b.engine}).session(nets[0], nets[1], RelayConfig{Replay: true})
				s.client.CloseWrite()
				expectEOF(t, s.backend, "")
				s.backend.CloseWrite()
				expectEOF(t, s.client, "")
				r := s.close()
				expectEnd(t, r, Finished)
				if r.Untouched() || !r.Up.FINSent || !r.Down.FINSent {
					t.Errorf("result = %+v, want both FINs sent", r)
				}
			})
		})
	}

	for _, nets := range [][2]string{{"tcp", "tcp"}, {"unix", "unix"}, {"tcp", "unix"}} {
		t.Run(nets[0]+" to "+nets[1]+"/a slow reader of one large reply gets it whole", func(t *testing.T) {
			// Nothing is written for longer than the timeouts: the kernel asks
			// for more only when a third of its buffer is free.
			t.Parallel()
			const size, limit = 6 << 20, 300 * time.Millisecond
			s := newBench(t, newEngine).session(nets[0], nets[1], RelayConfig{IdleTimeout: limit, HalfCloseTimeout: limit})
			down := newStream(3)
			s.client.CloseWrite()
			sent := down.sending(s.backend, size, fixed(size))
			slow := &slowReader{r: s.client, pause: 30 * time.Millisecond, every: 128 << 10}
			if n, err := down.receive(slow, 32<<10); n != size || err != nil {
				t.Errorf("client got %d bytes, %v; want %d", n, err, size)
			}
			if err := <-sent; err != nil {
				t.Error(err)
			}
			expectEnd(t, s.close(), Finished)
		})
	}
	t.Run("a reply that trickles in outlasts the timeouts", func(t *testing.T) {
		t.Parallel()
		const limit = 400 * time.Millisecond
		s := newBench(t, newEngine).session("tcp", "tcp", RelayConfig{IdleTimeout: limit, HalfCloseTimeout: limit})
		s.client.CloseWrite()
		expectEOF(t, s.backend, "")
		for start := time.Now(); time.Since(start) < 3*limit; pause(limit / 16) {
			write(t, s.backend, "x")
			expect(t, s.client, "x")
		}
		s.backend.Close()
		expectEOF(t, s.client, "")
		expectEnd(t, s.close(), Finished)
	})
}

// slowReader pauses after every so many bytes.
type slowReader struct {
	r      io.Reader
	pause  time.Duration
	every  int
	unread int
}

func (s *slowReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if s.unread += n; s.unread >= s.every {
		s.unread = 0
		pause(s.pause)
	}
	return n, err
}

func testReset(t *testing.T, newEngine func(Config) Engine) {
	tests := []struct {
		name string
		run  func(t *testing.T, s *session) Result
		want End
	}{
		{"the client's reset reaches the backend", func(t *testing.T, s *session) Result {
			write(t, s.client, "request")
			expect(t, s.backend, "request")
			reset(s.client)
			r := s.close()
			expectReset(t, s.backend, "")
			return r
		}, ClientReset},
		{"the client's reset before any byte leaves the backend alone", func(t *testing.T, s *session) Result {
			reset(s.client)
			r := s.wait()
			if !r.Untouched() {
				t.Errorf("result = %+v, want untouched", r)
			}
			expectOpen(t, s.running.backend)
			return r
		}, ClientReset},
		{"the backend's reset reaches the client", func(t *testing.T, s *session) Result {
			write(t, s.client, "request")
			expect(t, s.backend, "request")
			reset(s.backend)
			r := s.close()
			expectReset(t, s.client, "")
			return r
		}, BackendReset},
		{"the backend's reset before any byte reaches the client", func(t *testing.T, s *session) Result {
			reset(s.backend)
			r := s.close()
			expectReset(t, s.client, "")
			return r
		}, BackendReset},
		{"the client's reset after the backend's FIN reaches the backend", func(t *testing.T, s *session) Result {
			write(t, s.backend, "greeting")
			s.backend.CloseWrite()
			expectEOF(t, s.client, "greeting")
			reset(s.client)
			r := s.close()
			if n, err := s.backend.Write([]byte("x")); err == nil {
				_, err = s.backend.Write([]byte("x"))
				t.Logf("wrote %d, then %v", n, err)
			}
			return r
		}, ClientReset},
		{"the backend's reset after the client's FIN reaches the client", func(t *testing.T, s *session) Result {
			write(t, s.client, "request")
			s.client.CloseWrite()
			expectEOF(t, s.backend, "request")
			reset(s.backend)
			r := s.close()
			expectReset(t, s.client, "")
			return r
		}, BackendReset},
		{"what came before the backend's reset reaches the client first", func(t *testing.T, s *session) Result {
			down := newStream(1)
			const size = 1 << 20
			got := down.receiving(s.client, 1000)
			if err := down.send(s.backend, size, fixed(size)); err != nil {
				t.Fatal(err)
			}
			awaitAcked(t, s.backend)
			reset(s.backend)
			res := s.close()
			if g := <-got; g.n != size || !errors.Is(g.err, syscall.ECONNRESET) {
				t.Errorf("client got %d bytes, %v; want %d and a reset", g.n, g.err, size)
			}
			return res
		}, BackendReset},
		{"what came before the client's reset reaches the backend first", func(t *testing.T, s *session) Result {
			up := newStream(1)
			const size = 1 << 20
			got := up.receiving(s.backend, 1000)
			if err := up.send(s.client, size, fixed(size)); err != nil {
				t.Fatal(err)
			}
			awaitAcked(t, s.client)
			reset(s.client)
			res := s.close()
			if g := <-got; g.n != size || !errors.Is(g.err, syscall.ECONNRESET) {
				t.Errorf("backend got %d bytes, %v; want %d and a reset", g.n, g.err, size)
			}
			return res
		}, ClientReset},
		{"a client that sends and closes without reading is served whole", func(t *testing.T, s *session) Result {
			write(t, s.backend, "greeting that nobody reads")
			proxytest.Eventually(t, "the greeting to come", func() bool { return inQueue(t, s.client) > 0 })
			write(t, s.client, "last words")
			s.client.Close() // the kernel makes it a reset, since bytes are unread
			res := s.close()
			expectReset(t, s.backend, "last words")
			return res
		}, ClientReset},
		{"there is no reset once both have finished", func(t *testing.T, s *session) Result {
			write(t, s.client, "request")
			s.client.CloseWrite()
			expectEOF(t, s.backend, "request")
			write(t, s.backend, "reply")
			s.backend.Close()
			res := s.close()
			expectEOF(t, s.client, "reply")
			return res
		}, Finished},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newBench(t, newEngine).session("tcp", "tcp", RelayConfig{})
			expectEnd(t, tt.run(t, s), tt.want)
		})
	}

	t.Run("an early reply reaches a client that is still sending", func(t *testing.T) {
		for range 20 {
			s := newBench(t, newEngine).session("tcp", "tcp", RelayConfig{})
			up, down := newStream(1), newStream(2)
			const size = 300 << 10
			sent := async(func() error { return up.send(s.client, 64<<20, fixed(64<<10)) })
			expect(t, s.backend, string(up[:10]))
			got := down.receiving(s.client, 1000)
			down.send(s.backend, size, fixed(size))
			awaitAcked(t, s.backend)
			s.backend.Close() // a reset: the rest of the request is unread
			res := s.close()
			if g, err := <-got, <-sent; g.n != size || !seesReset(g.err, err) {
				t.Fatalf("client got %d bytes, %v, and wrote %v; want %d and a reset", g.n, g.err, err, size)
			}
			expectEnd(t, res, BackendReset)
		}
	})

	t.Run("an early reply with a FIN reaches a client that is still sending", func(t *testing.T) {
		for range 20 {
			s := newBench(t, newEngine).session("tcp", "tcp", RelayConfig{})
			up, down := newStream(1), newStream(2)
			write(t, s.client, string(up[:10]))
			expect(t, s.backend, string(up[:10]))
			const size = 300 << 10
			down.send(s.backend, size, fixed(size))
			awaitAcked(t, s.backend)
			s.backend.Close() // everything was read: a FIN, and a reset for what comes now
			go up.send(s.client, 64<<20, fixed(1<<10))
			ended := async(s.close)
			if n, err := down.receive(s.client, 1000); n != size {
				t.Fatalf("client got %d bytes, %v; want %d", n, err, size)
			}
			s.client.Close()
			proxytest.Receive(t, ended, "the relay to end")
		}
	})

	t.Run("a whole reply reaches a slow client that has sent more since", func(t *testing.T) {
		t.Parallel()
		s := newBench(t, newEngine).session("tcp", "tcp", RelayConfig{HalfCloseTimeout: 10 * time.Second})
		up, down := newStream(1), newStream(2)
		write(t, s.client, string(up[:10]))
		expect(t, s.backend, string(up[:10]))
		const size = 2 << 20
		down.send(s.backend, size, fixed(size))
		awaitAcked(t, s.backend)
		s.backend.Close() // everything was read: a FIN
		for range 3 {     // the first is answered with a reset, which fails the next
			write(t, s.client, string(up[10:20]))
			pause(20 * time.Millisecond)
		}
		ended := async(s.close)
		slow := &slowReader{r: s.client, pause: flushTime / 2, every: 256 << 10}
		if n, err := down.receive(slow, 32<<10); n != size {
			t.Errorf("client got %d bytes, %v; want %d", n, err, size)
		}
		s.client.Close()
		proxytest.Receive(t, ended, "the relay to end")
	})

	t.Run("one byte after the backend's FIN does not cost the rest of its reply", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, newEngine)
		const size = 2 << 20 // fits on the way, whatever the kernel gives
		s := b.session("tcp", "tcp", RelayConfig{HalfCloseTimeout: 10 * time.Second})
		up, down := newStream(1), newStream(2)
		write(t, s.client, string(up[:10]))
		expect(t, s.backend, string(up[:10]))
		down.send(s.backend, size, fixed(size))
		awaitAcked(t, s.backend)
		s.backend.Close() // everything was read: a FIN
		pause(50 * time.Millisecond)
		write(t, s.client, "x") // is answered with a reset
		ended := async(s.close)
		pause(2 * flushTime)
		if n, err := down.receive(s.client, 32<<10); n != size {
			t.Errorf("client got %d bytes, %v; want %d", n, err, size)
		}
		s.client.Close()
		proxytest.Receive(t, ended, "the relay to end")
	})

	t.Run("a cut does not wait for a client that does not read", func(t *testing.T) {
		t.Parallel()
		s := newBench(t, newEngine).session("tcp", "tcp", RelayConfig{HalfCloseTimeout: time.Minute})
		up, down := newStream(1), newStream(2)
		write(t, s.client, string(up[:10]))
		expect(t, s.backend, string(up[:10]))
		const size = 512 << 10 // more than the client's kernel takes, less than the relay's
		down.send(s.backend, size, fixed(size))
		s.backend.Close()
		for range 3 {
			write(t, s.client, string(up[10:20]))
			pause(50 * time.Millisecond)
		}
		s.cut(nil)
		s.wait()
	})

	t.Run("a reset is never taken for a FIN", func(t *testing.T) {
		// The relay is writing when the reset comes, so that the write and the
		// read race for the kernel's one error.
		n := 500
		if testing.Short() {
			n = 50
		}
		b := newBench(t, newEngine)
		front, back := b.listen("tcp"), proxytest.Listen(t, "tcp")
		for range n {
			cc, client := b.clientOf(front)
			bc, backend := b.backendOf(back)
			r := b.relay(cc, bc, RelayConfig{})
			wrote := async(func() error {
				for buf := make([]byte, 100); ; {
					if _, err := client.Write(buf); err != nil {
						return err
					}
				}
			})
			io.CopyN(io.Discard, backend, 1000+rand.Int64N(5000))
			reset(backend)
			ended := async(r.close)
			got, err := io.ReadAll(client)
			if werr := <-wrote; !seesReset(err, werr) || len(got) > 0 {
				t.Fatalf("client read %q, %v, and wrote %v; want a reset", got, err, werr)
			}
			res := proxytest.Receive(t, ended, "the relay to end")
			expectEnd(t, res, BackendReset)
			if !errors.Is(res.Err, syscall.ECONNRESET) && !errors.Is(res.Err, syscall.EPIPE) {
				t.Fatalf("Err = %v, want what the system said", res.Err)
			}
			client.Close()
		}
	})

	t.Run("a reset waits a second for a peer that does not read", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, newEngine)
		cc, client := b.client("tcp")
		bc, backend := stalled(b)
		r := b.relay(cc, bc, RelayConfig{})
		write(t, client, strings.Repeat("x", 48<<10)) // more than the backend's kernel takes
		proxytest.Eventually(t, "the relay to have taken all", func() bool { return outQueue(t, client) == 0 })
		pause(50 * time.Millisecond)
		start := time.Now()
		reset(client)
		res := r.close()
		expectEnd(t, res, ClientReset)
		if took := time.Since(start); took < 900*time.Millisecond || took > 4*time.Second {
			t.Errorf("it took %v, want about a second", took)
		}
		if _, err := io.Copy(io.Discard, backend); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("backend read %v, want a reset", err)
		}
	})

	for _, side := range []string{"client", "backend"} {
		t.Run("a reset of the "+side+" is seen while the other side does not read", func(t *testing.T) {
			t.Parallel()
			s := newBench(t, newEngine).session("tcp", "tcp", RelayConfig{})
			source, sink := s.client, s.backend
			if side == "backend" {
				source, sink = sink, source
			}
			fill(t, source)
			start := time.Now()
			reset(source)
			res := s.close()
			if took := time.Since(start); took > 4*time.Second {
				t.Errorf("it took %v, want about a second", took)
			}
			if want := map[string]End{"client": ClientReset, "backend": BackendReset}[side]; res.End != want {
				t.Errorf("ended as %q, want %q", res.End, want)
			}
			if _, err := io.Copy(io.Discard, sink); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the other side read %v, want a reset", err)
			}
		})
		t.Run("likewise one of the "+side+" that sends little at a time", func(t *testing.T) {
			t.Parallel()
			b := newBench(t, newEngine)
			cc, client := b.client("tcp")
			bc, backend := b.backend("tcp")
			source, sink, out := client, backend, bc
			if side == "backend" {
				source, sink, out = backend, client, cc
			}
			sink.(*net.TCPConn).SetReadBuffer(4096)
			setSendBuffer(t, out, 4096)
			r := b.relay(cc, bc, RelayConfig{})
			p := make([]byte, 1000)
			for queued := 0; ; queued = out.Unacked() { // until something does not fit any more
				source.Write(p)
				awaitAcked(t, source)
				if out.Unacked() > 0 {
					pause(60 * time.Millisecond)
				}
				if queued > 0 && out.Unacked() == queued {
					break
				}
			}
			start := time.Now()
			reset(source)
			res := r.close()
			if took := time.Since(start); took > 4*time.Second {
				t.Errorf("it took %v, want about a second", took)
			}
			if want := map[string]End{"client": ClientReset, "backend": BackendReset}[side]; res.End != want {
				t.Errorf("ended as %q (%v), want %q", res.End, res.Err, want)
			}
		})
	}
}

// seesReset tells a reset from a FIN and a reset: of a peer that reads and writes
// at once, only one gets the kernel's error, and the other an end.
func seesReset(read, write error) bool {
	return errors.Is(read, syscall.ECONNRESET) || errors.Is(write, syscall.ECONNRESET)
}

// stalled returns a backend with a small receive buffer, from which nobody reads.
func stalled(b *bench) (Conn, proxytest.Conn) {
	ln := proxytest.Listen(b, "tcp")
	raw, err := ln.(*net.TCPListener).SyscallConn()
	if err != nil {
		b.Fatal(err)
	}
	raw.Control(func(fd uintptr) { syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) })
	return b.backendOf(ln)
}

// fill writes to c until nothing is taken any more, and returns how much was.
func fill(t testing.TB, c net.Conn) (n int) {
	t.Helper()
	buf := make([]byte, 64<<10)
	for {
		c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		m, err := c.Write(buf)
		n += m
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if m == 0 {
				c.SetWriteDeadline(time.Now().Add(patience))
				return n
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func testTimeouts(t *testing.T, newEngine func(Config) Engine) {
	const limit = 200 * time.Millisecond
	hour := time.Hour
	tests := []struct {
		name string
		cfg  RelayConfig
		run  func(t *testing.T, s *session) time.Time // returns when the limit begins
		want End
	}{
		{"a session without a byte ends after the idle timeout", RelayConfig{IdleTimeout: limit}, func(t *testing.T, s *session) time.Time {
			return time.Now().Add(-10 * time.Millisecond) // it had begun
		}, IdleTimeout},
		{"each byte up restarts the idle timeout", RelayConfig{IdleTimeout: limit}, func(t *testing.T, s *session) time.Time {
			var last time.Time
			for range 12 {
				pause(limit / 6)
				last = time.Now()
				write(t, s.client, "x")
				expect(t, s.backend, "x")
			}
			return last
		}, IdleTimeout},
		{"each byte down restarts the idle timeout", RelayConfig{IdleTimeout: limit}, func(t *testing.T, s *session) time.Time {
			var last time.Time
			for range 12 {
				pause(limit / 6)
				last = time.Now()
				write(t, s.backend, "x")
				expect(t, s.client, "x")
			}
			return last
		}, IdleTimeout},
		{"a client's FIN begins the half-close timeout", RelayConfig{IdleTimeout: hour, HalfCloseTimeout: limit}, func(t *testing.T, s *session) time.Time {
			write(t, s.client, "x")
			s.client.CloseWrite()
			expectEOF(t, s.backend, "x")
			return time.Now().Add(-10 * time.Millisecond)
		}, HalfCloseTimeout},
		{"a backend's FIN begins the half-close timeout", RelayConfig{HalfCloseTimeout: limit}, func(t *testing.T, s *session) time.Time {
			write(t, s.backend, "x")
			s.backend.CloseWrite()
			expectEOF(t, s.client, "x")
			return time.Now().Add(-10 * time.Millisecond)
		}, HalfCloseTimeout},
		{"each byte restarts the half-close timeout", RelayConfig{IdleTimeout: hour, HalfCloseTimeout: limit}, func(t *testing.T, s *session) time.Time {
			s.client.CloseWrite()
			expectEOF(t, s.backend, "")
			var last time.Time
			for range 12 {
				pause(limit / 6)
				last = time.Now()
				write(t, s.backend, "x")
				expect(t, s.client, "x")
			}
			return last
		}, HalfCloseTimeout},
		{"without a half-close timeout the idle timeout goes on", RelayConfig{IdleTimeout: limit}, func(t *testing.T, s *session) time.Time {
			s.client.CloseWrite()
			expectEOF(t, s.backend, "")
			return time.Now().Add(-limit / 2)
		}, IdleTimeout},
		{"a reader that has stalled ends in time", RelayConfig{IdleTimeout: limit}, func(t *testing.T, s *session) time.Time {
			fill(t, s.backend)
			return time.Now().Add(-limit * 3)
		}, IdleTimeout},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newBench(t, newEngine).session("tcp", "tcp", tt.cfg)
			from := tt.run(t, s)
			res := s.close()
			took := time.Since(from)
			expectEnd(t, res, tt.want)
			if strings.Contains(tt.name, "stalled") {
				if took > 10*limit {
					t.Errorf("it took %v, want about %v", took, limit)
				}
				return
			}
			if took < limit-20*time.Millisecond && tt.want != IdleTimeout || took > 5*limit {
				t.Errorf("it took %v, want about %v", took, limit)
			}
			if res.QuietFor < limit {
				t.Errorf("it was quiet for %v, want %v", res.QuietFor, limit)
			}
		})
	}

	t.Run("an untouched backend works on after an idle timeout", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, newEngine)
		s := b.session("tcp", "tcp", RelayConfig{IdleTimeout: 20 * time.Millisecond})
		res := s.wait()
		expectEnd(t, res, IdleTimeout)
		if !res.Untouched() {
			t.Fatalf("result = %+v, want untouched", res)
		}
		b.expectServes(s.running.backend, s.backend)
	})
}

// Conn.Cut ends one relay, in whatever it waits for, and no other.
func testCutOfOne(t *testing.T, newEngine func(Config) Engine) {
	quiet := func(*testing.T, *session) {}
	tests := []struct {
		name string
		cfg  RelayConfig
		run  func(t *testing.T, s *session)
		want End
	}{
		{"as it begins", RelayConfig{}, quiet, Cut},
		{"that could be replayed", RelayConfig{Replay: true}, func(t *testing.T, s *session) { pause(10 * time.Millisecond) }, Cut},
		{"after bytes", RelayConfig{}, func(t *testing.T, s *session) {
			write(t, s.client, "x")
			expect(t, s.backend, "x")
		}, Cut},
		{"while a side stalls", RelayConfig{}, func(t *testing.T, s *session) { fill(t, s.client) }, Cut},
		{"while the last bytes are on their way", RelayConfig{HalfCloseTimeout: time.Hour}, func(t *testing.T, s *session) {
			s.client.Write(make([]byte, 2<<20)) // more than a backend's kernel takes
			s.client.CloseWrite()
			s.backend.CloseWrite()
			expectEOF(t, s.client, "")
			pause(100 * time.Millisecond)
		}, Finished},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, newEngine)
			cc, client := b.client("tcp")
			bc, backend := b.backend("tcp")
			cc.Cut() // it is in no relay: nothing happens
			s, other := &session{b.relay(cc, bc, tt.cfg), client, backend}, b.session("tcp", "tcp", tt.cfg)
			proxytest.Receive(t, s.returned, "Relay to return")
			tt.run(t, s)
			start := time.Now()
			cc.Cut()
			res := s.close()
			if took := time.Since(start); took > 500*time.Millisecond {
				t.Errorf("it took %v", took)
			}
			expectEnd(t, res, tt.want)
			cc.Cut() // it is over, and closed
			write(t, other.client, "y")
			expect(t, other.backend, "y")
			other.client.CloseWrite()
			other.backend.CloseWrite()
			expectEnd(t, other.close(), Finished)
		})
	}
}

func testCut(t *testing.T, newEngine func(Config) Engine) {
	cause := errors.New("enough")
	tests := []struct {
		name string
		cfg  RelayConfig
		run  func(t *testing.T, s *session)
	}{
		{"while quiet", RelayConfig{Replay: true}, func(*testing.T, *session) {}},
		{"after bytes", RelayConfig{IdleTimeout: time.Hour}, func(t *testing.T, s *session) {
			write(t, s.client, "x")
			expect(t, s.backend, "x")
			write(t, s.backend, "x")
			expect(t, s.client, "x")
		}},
		{"after the client's FIN", RelayConfig{}, func(t *testing.T, s *session) {
			s.client.CloseWrite()
			expectEOF(t, s.backend, "")
		}},
		{"while both sides stall", RelayConfig{}, func(t *testing.T, s *session) {
			done := async(func() int { return fill(t, s.client) })
			fill(t, s.backend)
			<-done
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newBench(t, newEngine).session("tcp", "tcp", tt.cfg)
			tt.run(t, s)
			start := time.Now()
			s.cut(cause)
			res := s.close()
			if took := time.Since(start); took > 500*time.Millisecond {
				t.Errorf("it took %v", took)
			}
			expectEnd(t, res, Cut)
			if res.Err != cause {
				t.Errorf("Err = %v, want the cause", res.Err)
			}
			for _, c := range []net.Conn{s.client, s.backend} {
				if _, err := io.Copy(io.Discard, c); !errors.Is(err, syscall.ECONNRESET) && tt.name != "after the client's FIN" {
					t.Errorf("read %v, want a reset", err)
				}
			}
		})
	}

	t.Run("at any moment", func(t *testing.T) {
		b := newBench(t, newEngine)
		front, back := b.listen("unix"), proxytest.Listen(t, "unix")
		for i := range 300 {
			cc, client := b.clientOf(front)
			bc, backend := b.backendOf(back)
			r := b.relay(cc, bc, RelayConfig{IdleTimeout: time.Duration(1+i%7) * time.Millisecond, HalfCloseTimeout: time.Millisecond, Replay: i%2 == 0})
			var wg sync.WaitGroup
			wg.Go(func() { client.Write([]byte("x")); client.CloseWrite() })
			wg.Go(func() { backend.Write([]byte("x")); backend.CloseWrite() })
			wg.Go(func() { r.cut(cause) })
			wg.Wait()
			r.close()
			client.Close()
			backend.Close()
		}
	})
}

func testMemory(t *testing.T, newEngine func(Config) Engine) {
	t.Run("a stalled client stops the reading", func(t *testing.T) {
		for _, network := range []string{"tcp", "unix"} {
			b := newBench(t, newEngine)
			s := b.session(network, network, RelayConfig{})
			heap, rss := heapSize(), residentSize(t)
			const size = 256 << 20
			up := newStream(1)
			var n int
			sent := async(func() error {
				var err error
				n, err = up.sendUntil(s.backend, size, 300*time.Millisecond)
				return err
			})
			if err := <-sent; !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("sent %d bytes to a client that does not read, then %v", n, err)
			}
			if grown := int64(heapSize()) - int64(heap); grown > 4<<20 {
				t.Errorf("%s: the heap grew by %d bytes", network, grown)
			}
			if grown := residentSize(t) - rss; grown > 4<<20 && !raceEnabled {
				t.Errorf("%s: the memory of the process grew by %d bytes", network, grown)
			}
			if n > 64<<20 {
				t.Errorf("%s: %d bytes were taken for a client that does not read", network, n)
			}
			s.cut(nil)
			s.close()
		}
	})

	t.Run("a quiet session holds no buffer and two descriptors", func(t *testing.T) {
		const sessions, traffic = 100, 1 << 20
		b := newBench(t, newEngine)
		front, back := b.listen("tcp"), proxytest.Listen(t, "tcp")
		up := newStream(1)
		runtime.GC()
		heap, fds := heapSize(), descriptors(t)
		for range sessions {
			cc, client := b.clientOf(front)
			bc, backend := b.backendOf(back)
			b.relay(cc, bc, RelayConfig{IdleTimeout: time.Hour})
			for _, pair := range [][2]proxytest.Conn{{client, backend}, {backend, client}} {
				sent := async(func() error { return up.send(pair[0], traffic, fixed(256<<10)) })
				if _, err := io.CopyN(io.Discard, pair[1], traffic); err != nil {
					t.Fatal(err)
				}
				if err := <-sent; err != nil {
					t.Fatal(err)
				}
			}
		}
		if grown := descriptors(t) - fds; grown != 4*sessions { // two are the peers'
			t.Errorf("%d sessions have %d descriptors, want 2 each", sessions, grown-2*sessions)
		}
		if grown := int64(heapSize()) - int64(heap); grown > sessions*(8<<10) {
			t.Errorf("%d sessions hold %d bytes each", sessions, grown/sessions)
		}
	})
}

// sendUntil sends n bytes of the stream, until nothing is taken for patience.
func (s stream) sendUntil(c net.Conn, n int, patience time.Duration) (sent int, err error) {
	for sent < n {
		c.SetWriteDeadline(time.Now().Add(patience))
		m, err := c.Write(s[:min(len(s), n-sent)])
		if sent += m; err != nil && m == 0 {
			return sent, err
		}
	}
	return sent, nil
}

func heapSize() uint64 {
	runtime.GC()
	runtime.GC() // the second empties what sync.Pool had kept
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// residentSize is what the process holds: the garbage of other tests, which comes and goes
// as the collector likes, is given back before.
func residentSize(t testing.TB) int64 {
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil && runtime.GOOS == "linux" {
		t.Fatal(err)
	} else if err != nil {
		t.Skip("needs /proc: ", err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

func descriptors(t testing.TB) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil && runtime.GOOS == "linux" {
		t.Fatal(err)
	} else if err != nil {
		t.Skip("needs /proc: ", err)
	}
	return len(entries)
}

func testKeepQuiet(t *testing.T, newEngine func(Config) Engine) {
	const quiet = 60 * time.Millisecond
	cfg := RelayConfig{KeepQuiet: quiet, IdleTimeout: time.Hour, HalfCloseTimeout: time.Hour}
	exchange := func(t *testing.T, s *session) {
		write(t, s.client, "request")
		expect(t, s.backend, "request")
		write(t, s.backend, "reply")
		expect(t, s.client, "reply")
	}
	tests := []struct {
		name string
		run  func(t *testing.T, s *session)
		want Result // without what is measured
	}{
		{"an answered client that ends leaves a clean connection", func(t *testing.T, s *session) {
			exchange(t, s)
			s.client.CloseWrite()
		}, Result{Up: Half{Taken: 7, Moved: 7, FIN: true}, Down: Half{Taken: 5, Moved: 5}, End: Quiet, LastDown: true}},
		{"a client that ends before its reply waits for it", func(t *testing.T, s *session) {
			write(t, s.client, "request")
			s.client.CloseWrite()
			expect(t, s.backend, "request")
			pause(3 * quiet)
			write(t, s.backend, "reply")
			expect(t, s.client, "reply")
		}, Result{Up: Half{Taken: 7, Moved: 7, FIN: true}, Down: Half{Taken: 5, Moved: 5}, End: Quiet, LastDown: true}},
		{"a reply in parts is waited for", func(t *testing.T, s *session) {
			write(t, s.client, "request")
			s.client.CloseWrite()
			expect(t, s.backend, "request")
			for range 10 {
				pause(quiet / 4)
				write(t, s.backend, "reply")
				expect(t, s.client, "reply")
			}
		}, Result{Up: Half{Taken: 7, Moved: 7, FIN: true}, Down: Half{Taken: 50, Moved: 50}, End: Quiet, LastDown: true}},
		{"a client that only ends leaves it untouched", func(t *testing.T, s *session) {
			s.client.CloseWrite()
		}, Result{Up: Half{FIN: true}, End: Quiet}},
		{"a client that only ends after a greeting leaves a used connection", func(t *testing.T, s *session) {
			write(t, s.backend, "hello")
			expect(t, s.client, "hello")
			s.client.CloseWrite()
		}, Result{Up: Half{FIN: true}, Down: Half{Taken: 5, Moved: 5}, End: Quiet, LastDown: true}},
	}
	for _, network := range []string{"tcp", "unix"} {
		for _, tt := range tests {
			t.Run(network+"/"+tt.name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, newEngine)
				s := b.session(network, network, cfg)
				tt.run(t, s)
				last := time.Now()
				res := s.wait()
				took := time.Since(last)
				if res.QuietFor < quiet || took > quiet+2*time.Second {
					t.Errorf("it was quiet for %v and ended after %v, want about %v", res.QuietFor, took, quiet)
				}
				if res.Unacked != 0 {
					t.Errorf("Unacked = %d", res.Unacked)
				}
				res.QuietFor = 0
				if res != tt.want {
					t.Errorf("result = %+v, want %+v", res, tt.want)
				}
				s.running.client.Close()
				expectEOF(t, s.client, "")
				expectOpen(t, s.running.backend)
				b.expectServes(s.running.backend, s.backend)
			})
		}
	}

	t.Run("a reply that is owed is waited for until the half-close timeout", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, newEngine)
		s := b.session("tcp", "tcp", RelayConfig{KeepQuiet: 10 * time.Millisecond, HalfCloseTimeout: 200 * time.Millisecond})
		exchange(t, s)
		write(t, s.client, "another")
		s.client.CloseWrite()
		res := s.close()
		expectEnd(t, res, HalfCloseTimeout)
		if res.LastDown {
			t.Errorf("result = %+v", res)
		}
	})

	t.Run("what came before the end of a request was written does not answer it", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, newEngine)
		cc, client := b.client("tcp")
		bc, backend := stalled(b)
		setSendBuffer(t, bc, 4096)
		r := b.relay(cc, bc, RelayConfig{KeepQuiet: 10 * time.Millisecond, HalfCloseTimeout: 300 * time.Millisecond})
		first, second := strings.Repeat("1", 48<<10), strings.Repeat("2", 60<<10) // more than the backend's kernel takes
		for _, request := range []string{first, second} {
			write(t, client, request)
			proxytest.Eventually(t, "the request to have come", func() bool { return outQueue(t, client) == 0 })
		}
		expect(t, backend, first)
		write(t, backend, "reply")
		expect(t, client, "reply")
		client.CloseWrite()
		expect(t, backend, second)
		res := r.close()
		expectEnd(t, res, HalfCloseTimeout)
		if res.LastDown {
			t.Errorf("result = %+v", res)
		}
	})

	t.Run("a backend's FIN finishes the session", func(t *testing.T) {
		s := newBench(t, newEngine).session("tcp", "tcp", RelayConfig{KeepQuiet: time.Hour})
		exchange(t, s)
		s.client.CloseWrite()
		s.backend.CloseWrite()
		expectEOF(t, s.client, "")
		res := s.close()
		expectEnd(t, res, Finished)
		if res.Up.FINSent || !res.Up.FIN || !res.Down.FIN {
			t.Errorf("result = %+v", res)
		}
	})

	t.Run("a client that ended reads a large reply at its own pace", func(t *testing.T) {
		t.Parallel()
		const size = 8 << 20
		s := newBench(t, newEngine).session("tcp", "tcp", RelayConfig{KeepQuiet: 200 * time.Millisecond, HalfCloseTimeout: 10 * time.Second})
		write(t, s.client, "request")
		s.client.CloseWrite()
		expect(t, s.backend, "request")
		down := newStream(3)
		go down.send(s.backend, size, fixed(size))
		slow := &slowReader{r: io.LimitReader(s.client, size), pause: 400 * time.Millisecond, every: 3 << 20}
		if n, err := down.receive(slow, 32<<10); n != size || err != nil {
			t.Errorf("client got %d bytes, %v; want %d", n, err, size)
		}
		res := s.close()
		expectEnd(t, res, Quiet)
		if res.Down.Moved != size {
			t.Errorf("result = %+v", res)
		}
	})

	t.Run("an untouched backend works on after its client's reset", func(t *testing.T) {
		b := newBench(t, newEngine)
		s := b.session("tcp", "tcp", cfg)
		reset(s.client)
		res := s.wait()
		expectEnd(t, res, ClientReset)
		if !res.Untouched() {
			t.Fatalf("result = %+v, want untouched", res)
		}
		b.expectServes(s.running.backend, s.backend)
	})
}
