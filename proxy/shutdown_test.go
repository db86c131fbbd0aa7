package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"forebay/balance"
	"forebay/proxy/enginetest"
	"forebay/proxy/proxytest"
)

// shutdown calls Shutdown, and gives its error when it returns.
func (f *front) shutdown(ctx context.Context) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f.Shutdown(ctx) }()
	return done
}

func TestShutdownLetsSessionsEnd(t *testing.T) {
	enginetest.Each(t, testShutdownLetsSessionsEnd)
}

func testShutdownLetsSessionsEnd(t *testing.T) {
	f := start(t, config(testBackend(t, 1, echo)))
	running := f.occupy(t)
	queued := f.dial(t)
	f.waiting(t, 1)

	done := f.shutdown(t.Context())
	wantClosed(t, queued)
	f.ended(t, Refused, 1)
	proxytest.Eventually(t, "the listener's end", func() bool {
		c, err := net.Dial("tcp", f.at.String())
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	for range 10 {
		ping(t, running)
	}
	select {
	case err := <-done:
		t.Fatalf("Shutdown returned %v while a session ran", err)
	default:
	}
	running.CloseWrite()
	wantAll(t, running, "")
	if err := proxytest.Receive(t, done, "the end of Shutdown"); err != nil {
		t.Errorf("Shutdown = %v, want nil", err)
	}
	f.stop(t)
	if e := f.Stats().Ended; e["done"] != 1 || e["shutdown"] < 1 || e["cut"] != 0 {
		t.Errorf("sessions ended %v, want one done, the others refused", e)
	}
}

func TestShutdownCutsWhatIsLeft(t *testing.T) {
	enginetest.Each(t, testShutdownCutsWhatIsLeft)
}

func testShutdownCutsWhatIsLeft(t *testing.T) {
	be, conns := puppets(t, 2)
	f := start(t, config(be))
	clients := []proxytest.Conn{f.dial(t), f.dial(t)}
	for range clients {
		proxytest.Receive(t, conns, "a connection")
	}
	f.slots(t, 0, balance.Leased, 2)
	write(t, clients[0], "x")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := proxytest.Receive(t, f.shutdown(ctx), "the end of Shutdown"); err != context.DeadlineExceeded {
		t.Errorf("Shutdown = %v, want DeadlineExceeded", err)
	}
	for _, c := range clients {
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the client read %v, want a reset", err)
		}
	}
	f.stop(t)
	f.ended(t, Cut, 2)
}

func TestSecondShutdownCuts(t *testing.T) {
	enginetest.Each(t, testSecondShutdownCuts)
}

func testSecondShutdownCuts(t *testing.T) {
	be, conns := puppets(t, 1)
	f := start(t, config(be))
	c := f.dial(t)
	proxytest.Receive(t, conns, "a connection")
	f.slots(t, 0, balance.Leased, 1)
	first := f.shutdown(t.Context())
	now, cancel := context.WithCancel(t.Context())
	cancel()
	if err := proxytest.Receive(t, f.shutdown(now), "the end of the second"); err != context.Canceled {
		t.Errorf("the second Shutdown = %v, want Canceled", err)
	}
	if err := proxytest.Receive(t, first, "the end of the first"); err != nil {
		t.Errorf("the first Shutdown = %v, want nil", err)
	}
	wantClosed(t, c)
	f.ended(t, Cut, 1)
}

func TestShutdownRefusesWhoeverHasNoLease(t *testing.T) {
	enginetest.Each(t, testShutdownRefusesWhoeverHasNoLease)
}

func testShutdownRefusesWhoeverHasNoLease(t *testing.T) {
	tests := []struct {
		name  string
		ready func(t *testing.T, f *front, g *gated)
		first time.Duration // FirstByteWait
	}{
		{name: "a client whose dial is under way", ready: func(t *testing.T, f *front, g *gated) { proxytest.Receive(t, g.began, "a dial") }},
		{name: "a client that has sent nothing", first: time.Minute,
			ready: func(t *testing.T, f *front, g *gated) {
				proxytest.Eventually(t, "a client", func() bool { return f.Stats().Clients == 1 })
			}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config(testBackend(t, 1, echo))
			cfg.FirstByteWait = tt.first
			g := newGated(t)
			cfg.Engine = g
			f := start(t, cfg)
			c := f.dial(t)
			tt.ready(t, f, g)
			done := f.shutdown(t.Context())
			wantClosed(t, c)
			f.ended(t, Refused, 1)
			close(g.gate)
			if err := proxytest.Receive(t, done, "the end of Shutdown"); err != nil {
				t.Errorf("Shutdown = %v, want nil", err)
			}
		})
	}
}

func TestShutdownEndsADialThatHangs(t *testing.T) {
	enginetest.Each(t, testShutdownEndsADialThatHangs)
}

func testShutdownEndsADialThatHangs(t *testing.T) {
	cfg := config(at(hang(t), 1))
	cfg.DialTimeout = time.Minute
	f := start(t, cfg)
	c := f.dial(t)
	f.slots(t, 0, balance.Dialing, 1)
	if err := proxytest.Receive(t, f.shutdown(t.Context()), "the end of Shutdown"); err != nil {
		t.Errorf("Shutdown = %v, want nil", err)
	}
	wantClosed(t, c)
}

func TestShutdownBeforeServe(t *testing.T) {
	enginetest.Each(t, testShutdownBeforeServe)
}

func testShutdownBeforeServe(t *testing.T) {
	eng := enginetest.New(t)
	defer eng.Close()
	cfg := config(testBackend(t, 1, echo))
	cfg.Engine, cfg.MinIdle, cfg.Log = eng, 1, zerolog.Nop()
	srv, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown = %v, want nil", err)
	}
	if srv.Addr() != nil {
		t.Errorf("Addr = %v before Serve, want nil", srv.Addr())
	}
	ln, err := eng.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.Serve(ln); err != ErrServerClosed {
		t.Errorf("Serve = %v, want ErrServerClosed", err)
	}
	if c, err := net.Dial("tcp", ln.Addr().String()); err == nil {
		c.Close()
		t.Error("the listener is not closed")
	}
	if s := srv.Stats(); s.Backends[0].Pool.Dials != 0 {
		t.Errorf("%d dials, want none", s.Backends[0].Pool.Dials)
	}
}

// TestShutdownRacesWithEverything has clients come, be served, queue and dial as
// the proxy shuts down.
func TestShutdownRacesWithEverything(t *testing.T) {
	enginetest.Each(t, testShutdownRacesWithEverything)
}

func testShutdownRacesWithEverything(t *testing.T) {
	for i := range 30 {
		down, _ := dead(t, 2)
		cfg := config(testBackend(t, 1, echo), testBackend(t, 2, echo), down)
		cfg.MinIdle = i%3 - 1
		f := start(t, cfg)
		var clients sync.WaitGroup
		stopc := make(chan struct{})
		for range 8 {
			clients.Go(func() {
				for {
					select {
					case <-stopc:
						return
					default:
					}
					c, err := net.Dial("tcp", f.at.String())
					if err != nil {
						return
					}
					c.SetDeadline(time.Now().Add(20 * time.Second))
					c.Write([]byte("x"))
					c.(proxytest.Conn).CloseWrite()
					if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
						t.Error("a client hangs")
					}
					c.Close()
				}
			})
		}
		for range i % 5 {
			f.exchange(t, "ping")
		}
		if err := proxytest.Receive(t, f.shutdown(t.Context()), "the end of Shutdown"); err != nil {
			t.Errorf("Shutdown = %v, want nil", err)
		}
		close(stopc)
		clients.Wait()
		f.stop(t)
	}
}

func TestListenerOnAUnixSocketIsRemovedAtTheEnd(t *testing.T) {
	enginetest.Each(t, testListenerOnAUnixSocketIsRemovedAtTheEnd)
}

func testListenerOnAUnixSocketIsRemovedAtTheEnd(t *testing.T) {
	path := t.TempDir() + "/front"
	f := startOn(t, config(testBackend(t, 1, echo)), "unix", path)
	if got := f.Addr().String(); got != path {
		t.Errorf("Addr = %s, want %s", got, path)
	}
	f.exchange(t, "ping")
	f.stop(t)
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket file is still there: %v", err)
	}
}

// A session that has its lease when shutdown begins goes on, though its backend
// had ended that connection.
func TestSessionThatMeetsAStaleConnectionWhileDrainingGoesOn(t *testing.T) {
	enginetest.Each(t, testSessionThatMeetsAStaleConnectionWhileDrainingGoesOn)
}

func testSessionThatMeetsAStaleConnectionWhileDrainingGoesOn(t *testing.T) {
	be, conns := puppets(t, 2)
	cfg := config(be)
	cfg.MinIdle = 1
	f := start(t, cfg)
	stale := proxytest.Receive(t, conns, "a connection")
	f.slots(t, 0, balance.Idle, 1)
	c := f.dial(t)
	f.slots(t, 0, balance.Leased, 1)
	done := f.shutdown(t.Context())
	proxytest.Eventually(t, "shutdown", func() bool { return f.drainCtx.Err() != nil })
	stale.Close()
	write(t, c, "request")
	for {
		next := proxytest.Receive(t, conns, "a connection that lasts")
		got := make([]byte, 7)
		if n, _ := io.ReadFull(next, got); n == 0 {
			continue // it was dialed ahead and closed
		}
		write(t, next, string(got))
		next.Close()
		break
	}
	wantAll(t, c, "request")
	c.Close()
	if err := proxytest.Receive(t, done, "the end of Shutdown"); err != nil {
		t.Errorf("Shutdown = %v, want nil", err)
	}
	f.stop(t)
	if e := f.Stats().Ended; e["done"] != 1 {
		t.Errorf("sessions ended %v, want one done", e)
	}
}
