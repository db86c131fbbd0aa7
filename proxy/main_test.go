package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"forebay/balance"
	"forebay/proxy/engine"
	"forebay/proxy/enginetest"
	"forebay/proxy/proxytest"
)

// childEnv names the program that this test binary is to be, in place of the
// tests: what must run in a process of its own.
const childEnv = "FOREBAY_TEST_CHILD"

var children = map[string]func(){}

func TestMain(m *testing.M) {
	if child := children[os.Getenv(childEnv)]; child != nil {
		child()
		return
	}
	goleak.VerifyTestMain(m)
}

// What serves clients is tested on every engine, by enginetest.Each. Run once are the
// tests of parts that no engine takes part in (the queue and its model, reuse, reasons,
// outages, what New makes of its Config), and those in a synctest bubble, where the loop
// of a kernel's engine could not run; where such a test needs an engine, it is net.

// config returns a Config of which a test changes what it is about.
func config(backends ...Backend) Config {
	return Config{
		Backends:           backends,
		VirginTimeout:      time.Minute,
		IdleTimeout:        time.Minute,
		DialTimeout:        10 * time.Second,
		DialParallel:       4,
		AcquireTimeout:     time.Minute, // a test that waits for it fails
		Queue:              1024,
		SessionIdleTimeout: time.Minute,
		HalfCloseTimeout:   time.Minute,
	}
}

// front is a server under test, and what it logs.
type front struct {
	*Server
	book  *book
	at    net.Addr
	serve chan error
	eng   engine.Engine
	once  sync.Once
}

// start serves cfg on a free port until the test ends.
func start(t testing.TB, cfg Config) *front {
	t.Helper()
	return startOn(t, cfg, "tcp", "127.0.0.1:0")
}

func startOn(t testing.TB, cfg Config, network, addr string) *front {
	t.Helper()
	f := &front{book: &book{}, serve: make(chan error, 1)}
	if cfg.Engine == nil {
		cfg.Engine = enginetest.New(t)
	}
	f.eng = cfg.Engine
	cfg.Log = zerolog.New(f.book)
	srv, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := cfg.Engine.Listen(t.Context(), network, addr)
	if err != nil {
		t.Fatal(err)
	}
	f.Server, f.at = srv, ln.Addr()
	go func() { f.serve <- srv.Serve(ln) }()
	t.Cleanup(func() { f.stop(t) })
	proxytest.Eventually(t, "Serve", func() bool { return srv.Addr() != nil })
	return f
}

// stop shuts the server down, if the test has not, and checks that it has given
// everything back: slots, places, and an account for every session.
func (f *front) stop(t testing.TB) {
	t.Helper()
	f.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		f.Shutdown(ctx) // what is left of the test's sessions is cut
		if err := proxytest.Receive(t, f.serve, "the end of Serve"); err != ErrServerClosed {
			t.Errorf("Serve = %v, want ErrServerClosed", err)
		}
		f.eng.Close()
		f.settled(t)
	})
}

func (f *front) settled(t testing.TB) {
	t.Helper()
	s := f.Stats()
	for _, b := range s.Backends {
		if b.Load.Open() != 0 {
			t.Errorf("slots of %v at the end = %v, want all free", b.Backend, b.Load.Slots)
		}
	}
	if s.Clients != 0 || s.Waiting != 0 || s.Buffered != 0 {
		t.Errorf("at the end %d clients, %d waiting, %d bytes held; want none", s.Clients, s.Waiting, s.Buffered)
	}
	f.accounted(t, s)
	counted := int64(0)
	for _, n := range s.Ended {
		counted += n
	}
	sessions := int64(f.ids.Load())
	if lines := int64(len(f.book.with("session ended"))); counted != sessions || lines != sessions {
		t.Errorf("%d sessions have %d counts and %d log lines, want one each", sessions, counted, lines)
	}
}

// isUp waits until a backend is up.
func (f *front) isUp(t testing.TB, i int) {
	t.Helper()
	proxytest.Eventually(t, "the backend to be up", func() bool { return f.Stats().Backends[i].Status == "up" })
}

// accounted checks that what is counted of each backend adds up.
func (f *front) accounted(t testing.TB, s Stats) {
	t.Helper()
	var up, logged int64
	for _, b := range s.Backends {
		up += b.BytesUp
		results := int64(0)
		for _, n := range b.Results {
			results += n
		}
		if results != b.Requests {
			t.Errorf("%v has %d results %v of %d requests", b.Backend, results, b.Results, b.Requests)
		}
	}
	for _, line := range f.book.with("session ended") {
		logged += int64(line["bytes_up"].(float64))
	}
	if up != logged && len(f.book.with("backend is being removed")) == 0 { // what is gone counts no more
		t.Errorf("%d bytes up are counted of the backends, %d logged of the sessions", up, logged)
	}
}

// dial connects a client.
func (f *front) dial(t testing.TB) proxytest.Conn {
	t.Helper()
	return proxytest.Dial(t, f.at)
}

// ended waits until n sessions have ended for reason.
func (f *front) ended(t testing.TB, reason Reason, n int64) {
	t.Helper()
	proxytest.Eventually(t, reason.String(), func() bool { return f.Stats().Ended[reason.String()] == n })
}

// waiting waits until n clients are in the queue.
func (f *front) waiting(t testing.TB, n int) {
	t.Helper()
	proxytest.Eventually(t, "clients in the queue", func() bool { return f.Stats().Waiting == n })
}

// slots waits until n slots of backend i are in state s.
func (f *front) slots(t testing.TB, i int, s balance.State, n int) {
	t.Helper()
	proxytest.Eventually(t, s.String()+" slots", func() bool { return f.Stats().Backends[i].Load.Slots[s] == n })
}

// book keeps log lines.
type book struct {
	mu    sync.Mutex
	lines []map[string]any
}

func (b *book) Write(p []byte) (int, error) {
	line := map[string]any{}
	if err := json.Unmarshal(p, &line); err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, line)
	return len(p), nil
}

// with returns the lines that have message.
func (b *book) with(message string) (lines []map[string]any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.lines {
		if l["message"] == message {
			lines = append(lines, l)
		}
	}
	return lines
}

// testBackend serves handle on a port of its own.
func testBackend(t testing.TB, max int, handle func(proxytest.Conn)) Backend {
	t.Helper()
	return at(proxytest.Serve(t, "tcp", handle), max)
}

func at(addr net.Addr, max int) Backend {
	return Backend{Network: addr.Network(), Addr: addr.String(), Max: max, Weight: 1}
}

func echo(c proxytest.Conn) { io.Copy(c, c) }

// puppets is a backend whose connections the test plays.
func puppets(t testing.TB, max int) (Backend, <-chan proxytest.Conn) {
	t.Helper()
	conns := make(chan proxytest.Conn, 1000) // more than any test opens
	ended := t.Context().Done()
	return testBackend(t, max, func(c proxytest.Conn) {
		c.SetDeadline(time.Now().Add(20 * time.Second))
		conns <- c
		<-ended
	}), conns
}

// dead returns a backend at an address where nobody listens, and what has
// somebody listen there. No connection of another test can come by the port: they
// start from 127.0.0.1.
func dead(t testing.TB, max int) (Backend, func() net.Listener) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil && runtime.GOOS != "linux" {
		t.Skip("no second loopback address: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr()
	ln.Close()
	return at(addr, max), func() net.Listener {
		ln, err := net.Listen("tcp", addr.String())
		if err != nil {
			t.Error(err)
			return nil
		}
		t.Cleanup(func() { ln.Close() })
		return ln
	}
}

// gated is an engine whose dials end when the gate lets them.
type gated struct {
	engine.Engine
	began chan struct{} // a value for each dial that waits at the gate
	gate  chan error    // what the next dial ends with; closed: nil
}

func newGated(t testing.TB) *gated {
	return &gated{Engine: enginetest.New(t), began: make(chan struct{}, 1000), gate: make(chan error)}
}

func (g *gated) Dial(ctx context.Context, network, addr string) (engine.Conn, error) {
	c, err := g.Engine.Dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	g.began <- struct{}{}
	if err := <-g.gate; err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func write(t testing.TB, c net.Conn, s string) {
	t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		t.Fatal(err)
	}
}

// wantRead reads as many bytes as want has.
func wantRead(t testing.TB, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v; want %q", got[:n], err, want)
	}
}

// wantAll reads to the FIN.
func wantAll(t testing.TB, c net.Conn, want string) {
	t.Helper()
	if got, err := io.ReadAll(c); err != nil || string(got) != want {
		t.Fatalf("read %q, %v to the end; want %q, nil", got, err, want)
	}
}

// ping has an echo backend answer.
func ping(t testing.TB, c net.Conn) {
	t.Helper()
	write(t, c, "ping")
	wantRead(t, c, "ping")
}

// wantClosed reads the end of a client that was refused: a FIN, or a reset where
// it had sent something.
func wantClosed(t testing.TB, c net.Conn) {
	t.Helper()
	n, err := c.Read(make([]byte, 1))
	var timeout net.Error
	if n > 0 || err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		t.Fatalf("read %d bytes, %v; want an end", n, err)
	}
}

// reset closes a TCP connection with a RST.
func reset(t testing.TB, c net.Conn) {
	t.Helper()
	c.(*net.TCPConn).SetLinger(0)
	c.Close()
}

// newTestDispatcher returns a dispatcher over backends of equal weight.
func newTestDispatcher(t testing.TB, parallel, limit int, maxes ...int) *dispatcher {
	t.Helper()
	return newBalancedDispatcher(t, balance.Config{}, parallel, limit, maxes...)
}

// newBalancedDispatcher is newTestDispatcher with a choice of its own.
func newBalancedDispatcher(t testing.TB, cfg balance.Config, parallel, limit int, maxes ...int) *dispatcher {
	t.Helper()
	d := newDispatcher(newBalancer(t, cfg), parallel, limit, noEvents{})
	d.begin()
	for _, m := range maxes {
		addTo(t, d, Backend{Max: m, Weight: 1})
	}
	return d
}

func newBalancer(t testing.TB, cfg balance.Config) *balance.Balancer {
	t.Helper()
	bal, err := balance.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return bal
}

func addTo(t testing.TB, d *dispatcher, b Backend) {
	t.Helper()
	b.Network, b.Addr = "tcp", fmt.Sprint("backend:", len(d.backends))
	if err := d.add(&backend{name: b.String(), dispatched: dispatched{Backend: b}}); err != nil {
		t.Fatal(err)
	}
}

type noEvents struct{}

func (noEvents) backendBegins(*backend)           {}
func (noEvents) backendDown(*backend, error)      {}
func (noEvents) backendStillDown(*backend, error) {}
func (noEvents) backendUp(*backend)               {}
func (noEvents) backendRises(*backend, int)       {}
func (noEvents) backendHasRoom(*backend)          {}
func (noEvents) backupsServe(bool)                {}
func (noEvents) backendHasSurplus(*backend)       {}
