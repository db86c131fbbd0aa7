package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"forebay/proxy/proxytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEngine(t *testing.T) { onEngines(t, testEngine) }

// testEngine is what every engine has to pass.
func testEngine(t *testing.T, newEngine func(Config) Engine) {
	tests := []struct {
		name string
		run  func(t *testing.T, newEngine func(Config) Engine)
	}{
		{"bytes", testBytes},
		{"half-close", testHalfClose},
		{"reset", testReset},
		{"timeouts", testTimeouts},
		{"cut", testCut},
		{"cut of one", testCutOfOne},
		{"memory", testMemory},
		{"keep quiet", testKeepQuiet},
		{"watch", testWatch},
		{"stale", testStale},
		{"never stale", testNeverStale},
		{"drive", testDrive},
		{"dial", testDial},
		{"connect", testConnect},
		{"listen", testListen},
		{"options", testOptions},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, newEngine) })
	}
}

// patience bounds what a test waits for.
const patience = 20 * time.Second

// bench is an engine under test, with what it takes to give it connections.
type bench struct {
	testing.TB
	engine Engine
}

func newBench(t testing.TB, newEngine func(Config) Engine) *bench {
	e := newEngine(Config{})
	t.Cleanup(e.Close)
	return &bench{t, e}
}

// acceptor has a listener hand over its clients one by one.
type acceptor struct {
	Listener
	clients chan Conn
	served  chan struct{} // closed when Serve has ended
}

func accepting(ln Listener) *acceptor {
	a := &acceptor{ln, make(chan Conn, 10000), make(chan struct{})}
	go func() { defer close(a.served); ln.Serve(a) }()
	return a
}

func (a *acceptor) Admit() bool                { return true }
func (a *acceptor) Accepted(c Conn)            { a.clients <- c }
func (a *acceptor) Failed(error) time.Duration { return 10 * time.Millisecond }

// Accept waits for a client. After Close it returns net.ErrClosed.
func (a *acceptor) Accept() (Conn, error) {
	select {
	case c := <-a.clients:
		return c, nil
	case <-a.served:
		return nil, net.ErrClosed
	case <-time.After(patience):
		return nil, os.ErrDeadlineExceeded
	}
}

// listen returns a listener of the engine's.
func (b *bench) listen(network string) *acceptor {
	b.Helper()
	kind, addr := network, map[string]string{"tcp": "127.0.0.1:0", "tcp6": "[::1]:0"}[network]
	switch network {
	case "tcp6":
		kind = "tcp"
	case "unix":
		addr = filepath.Join(b.TempDir(), "s")
	}
	ln, err := b.engine.Listen(b.Context(), kind, addr)
	if err != nil {
		b.Fatal(err)
	}
	a := accepting(ln)
	b.Cleanup(func() { a.Close(); <-a.served })
	return a
}

// client returns a connection that the engine has accepted, and the client's end
// of it.
func (b *bench) client(network string) (Conn, proxytest.Conn) {
	b.Helper()
	return b.clientOf(b.listen(network))
}

func (b *bench) clientOf(ln *acceptor) (Conn, proxytest.Conn) {
	b.Helper()
	peer := proxytest.Dial(b, ln.Addr())
	c, err := ln.Accept()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return c, peer
}

// backend returns a connection that the engine has adopted, and the backend's
// end of it.
func (b *bench) backend(network string) (Conn, proxytest.Conn) {
	b.Helper()
	return b.backendOf(proxytest.Listen(b, network))
}

func (b *bench) backendOf(ln net.Listener) (Conn, proxytest.Conn) {
	b.Helper()
	c := b.adopt(ln.Addr())
	peer, err := ln.Accept()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { peer.Close() })
	peer.SetDeadline(time.Now().Add(patience))
	return c, peer.(proxytest.Conn)
}

// adopt dials addr and has the engine adopt the connection.
func (b *bench) adopt(addr net.Addr) Conn {
	b.Helper()
	dialed, err := net.Dial(addr.Network(), addr.String())
	if err != nil {
		b.Fatal(err)
	}
	c, err := b.engine.Adopt(dialed)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return c
}

// running is a relay under way.
type running struct {
	t               testing.TB
	client, backend Conn
	cut             context.CancelCauseFunc
	donec           chan Result
	calls           atomic.Int32  // of done
	returned        chan struct{} // closed when Relay has
}

// relay begins to relay between client and backend. The test fails where done is
// not called exactly once by its end.
func (b *bench) relay(client, backend Conn, cfg RelayConfig) *running {
	ctx, cancel := context.WithCancelCause(context.Background())
	r := &running{t: b.TB, client: client, backend: backend, cut: cancel, donec: make(chan Result, 1), returned: make(chan struct{})}
	go func() {
		defer close(r.returned)
		b.engine.Relay(ctx, client, backend, cfg, func(res Result) {
			if r.calls.Add(1) == 1 {
				r.donec <- res
			}
		})
	}()
	b.Cleanup(func() {
		cancel(nil)
		proxytest.Receive(b, r.returned, "Relay to return")
		proxytest.Eventually(b, "done to be called", func() bool { return r.calls.Load() > 0 })
		if n := r.calls.Load(); n != 1 {
			b.Errorf("done was called %d times", n)
		}
	})
	return r
}

// wait returns the result of the relay.
func (r *running) wait() Result {
	r.t.Helper()
	return proxytest.Receive(r.t, r.donec, "the relay to end")
}

// close waits for the end of the relay, and closes both connections as their
// holder does.
func (r *running) close() Result {
	r.t.Helper()
	res := r.wait()
	r.client.Close()
	r.backend.Close()
	return res
}

// session is a relay between two peers.
type session struct {
	*running
	client, backend proxytest.Conn // the peers' ends
}

func (b *bench) session(clientNet, backendNet string, cfg RelayConfig) *session {
	b.Helper()
	cc, client := b.client(clientNet)
	bc, backend := b.backend(backendNet)
	return &session{b.relay(cc, bc, cfg), client, backend}
}

// stream is a block of random bytes, repeated for ever. Its length is prime, so
// that a displaced byte shows.
type stream []byte

func newStream(seed byte) stream {
	s := make(stream, 1048583)
	rand.NewChaCha8([32]byte{seed}).Read(s)
	return s
}

// send writes the first n bytes of the stream, in chunks as chunk says.
func (s stream) send(w io.Writer, n int, chunk func() int) error {
	for off := 0; off < n; {
		at := off % len(s)
		p := s[at:min(len(s), at+chunk(), at+n-off)]
		if _, err := w.Write(p); err != nil {
			return fmt.Errorf("write after %d bytes: %w", off, err)
		}
		off += len(p)
	}
	return nil
}

// receive reads until the end, with reads of at most size bytes, and returns how
// many bytes of the stream came. It fails where they are not the stream's.
func (s stream) receive(r io.Reader, size int) (n int, err error) {
	buf := make([]byte, size)
	for {
		m, err := r.Read(buf)
		for p := buf[:m]; len(p) > 0; {
			want := s[n%len(s):]
			want = want[:min(len(want), len(p))]
			if !bytes.Equal(p[:len(want)], want) {
				return n, fmt.Errorf("wrong bytes within %d of %d", len(want), n)
			}
			p, n = p[len(want):], n+len(want)
		}
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

func fixed(n int) func() int { return func() int { return n } }

// random returns chunk sizes of every magnitude up to limit.
func random(limit int) func() int {
	return func() int { return 1 + rand.IntN(1+rand.IntN(limit)) }
}

// transfer is n bytes of a stream under way on a connection.
type transfer struct {
	n   int
	err error
}

// async runs f in a goroutine and returns where its result will come.
func async[T any](f func() T) <-chan T {
	c := make(chan T, 1)
	go func() { c <- f() }()
	return c
}

// receiving receives from c until its end.
func (s stream) receiving(c io.Reader, size int) <-chan transfer {
	return async(func() transfer {
		n, err := s.receive(c, size)
		return transfer{n, err}
	})
}

// sending sends n bytes on c, and its FIN after them.
func (s stream) sending(c proxytest.Conn, n int, chunk func() int) <-chan error {
	return async(func() error {
		err := s.send(c, n, chunk)
		return errors.Join(err, c.CloseWrite())
	})
}

// pause waits for d to pass, where the passing of time is what is tested.
func pause(d time.Duration) { <-time.After(d) }

// write writes s whole.
func write(t testing.TB, c io.Writer, s string) {
	t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		t.Fatal(err)
	}
}

// expect reads want from c, and nothing else.
func expect(t testing.TB, c io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v; want %q", got[:n], err, want)
	}
}

// expectEOF reads want from c, and then a FIN.
func expectEOF(t testing.TB, c io.Reader, want string) {
	t.Helper()
	got, err := io.ReadAll(c)
	if err != nil || string(got) != want {
		t.Fatalf("read %q, %v; want %q and a FIN", got, err, want)
	}
}

// expectReset reads want from c, and then a reset.
func expectReset(t testing.TB, c io.Reader, want string) {
	t.Helper()
	got, err := io.ReadAll(c)
	if !errors.Is(err, syscall.ECONNRESET) || string(got) != want {
		t.Fatalf("read %q, %v; want %q and a reset", got, err, want)
	}
}

func expectEnd(t testing.TB, r Result, want End) {
	t.Helper()
	if r.End != want {
		t.Fatalf("ended as %q (%v), want %q; %+v", r.End, r.Err, want, r)
	}
}

// reset closes a TCP connection with a RST.
func reset(c net.Conn) {
	c.(*net.TCPConn).SetLinger(0)
	c.Close()
}

// expectOpen fails the test where anything has come on c.
func expectOpen(t testing.TB, c Conn) {
	t.Helper()
	if bytes, end := c.Peek(); bytes || end != nil {
		t.Fatalf("Peek() = %v, %v; want nothing", bytes, end)
	}
}

// expectServes proves that an adopted connection works in a relay for another
// client, whose deadlines, bytes and FIN nothing disturbs.
func (b *bench) expectServes(backend Conn, peer proxytest.Conn) {
	b.Helper()
	cc, client := b.client("tcp")
	r := b.relay(cc, backend, RelayConfig{})
	write(b, client, "next request")
	expect(b, peer, "next request")
	write(b, peer, "next reply")
	expect(b, client, "next reply")
	client.CloseWrite()
	expectEOF(b, peer, "")
	peer.CloseWrite()
	expectEOF(b, client, "")
	expectEnd(b, r.close(), Finished)
}

var networks = [][2]string{{"tcp", "tcp"}, {"tcp6", "tcp6"}, {"unix", "unix"}, {"tcp", "unix"}, {"unix", "tcp"}, {"tcp", "tcp6"}}
