package proxy

import (
	"context"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"forebay/balance"
	"forebay/proxy/engine"
	"forebay/proxy/enginetest"
	"forebay/proxy/frame"
	"forebay/proxy/proxytest"
)

func TestPausedClientsWaitAndAreServedInOrder(t *testing.T) {
	enginetest.Each(t, testPausedClientsWaitAndAreServedInOrder)
}

func testPausedClientsWaitAndAreServedInOrder(t *testing.T) {
	served := make(chan string, 100)
	be := testBackend(t, 10, func(c proxytest.Conn) {
		for b := make([]byte, 1); ; {
			if _, err := c.Read(b); err != nil {
				return
			}
			served <- string(b)
		}
	})
	cfg := config(be)
	cfg.MinIdle, cfg.Queue = 1, 3
	f := start(t, cfg)
	wantServed := func(want string) {
		t.Helper()
		if got := proxytest.Receive(t, served, "a client to be served"); got != want {
			t.Errorf("%s is served, want %s", got, want)
		}
	}
	old := f.dial(t)
	write(t, old, "o")
	wantServed("o")
	f.slots(t, 0, balance.Idle, 1)

	must(t, f.Pause())
	must(t, f.Pause()) // which changes nothing
	if since := f.Stats().Paused; since.IsZero() || time.Since(since) > time.Minute {
		t.Errorf("paused since %v", since)
	}
	f.slots(t, 0, balance.Idle, 0) // nothing is kept for later, or dialed
	var waiting []proxytest.Conn
	for i := range 3 {
		c := f.dial(t)
		write(t, c, string(rune('1'+i)))
		f.waiting(t, i+1)
		waiting = append(waiting, c)
	}
	wantClosed(t, f.dial(t))
	f.ended(t, QueueFull, 1)
	write(t, old, "O")
	wantServed("O")
	must(t, f.SetMax(be.String(), 2)) // one at a time, beside the old one
	f.Resume()
	f.Resume()
	if !f.Stats().Paused.IsZero() {
		t.Error("still paused")
	}
	for i, c := range waiting {
		wantServed(string(rune('1' + i)))
		f.waiting(t, 2-i)
		c.Close()
	}
	if len(f.book.with("paused")) != 1 || len(f.book.with("resumed")) != 1 {
		t.Error("the pause and its end are not said once each")
	}
}

// With request pooling a session pauses between two requests, and the request that is
// out is answered.
func TestPauseHoldsSessionsBetweenRequests(t *testing.T) {
	enginetest.Each(t, testPauseHoldsSessionsBetweenRequests)
}

func testPauseHoldsSessionsBetweenRequests(t *testing.T) {
	be, conns := puppets(t, 1)
	f := start(t, requestsConfig(be))
	c := f.dial(t)
	send(t, c, call(1, "out"))
	server := proxytest.Receive(t, conns, "a connection")
	got := wantCall(t, server, call(1, "out"))
	must(t, f.Pause())
	send(t, c, call(2, "next"))
	send(t, server, got.reply("out"))
	wantReply(t, c, call(1, "out"), "out")
	f.waiting(t, 1)
	f.slots(t, 0, balance.Free, 1) // nothing is left of the backend
	wantAll(t, server, "")
	f.Resume()
	server = proxytest.Receive(t, conns, "another connection")
	send(t, server, wantCall(t, server, call(2, "next")).reply("next"))
	wantReply(t, c, call(2, "next"), "next")
	c.Close()
	f.ended(t, Done, 1)
}

// While everything is paused no client is refused because backends are down, drained or
// gone: that is what a pause is for.
func TestBackendsMayBeReplacedBehindAPause(t *testing.T) {
	enginetest.Each(t, testBackendsMayBeReplacedBehindAPause)
}

func testBackendsMayBeReplacedBehindAPause(t *testing.T) {
	f := start(t, config(named(t, "a", 4)))
	a := f.cfg.Backends[0].String()
	old := f.from(t, "a")
	must(t, f.Pause())
	c := f.dial(t)
	f.waiting(t, 1)
	must(t, f.SetState(a, Drain))
	must(t, f.Remove(a))
	old.Close()
	proxytest.Eventually(t, "its end", func() bool { return len(f.Stats().Backends) == 0 })
	must(t, f.Add(named(t, "b", 4)))
	if n := f.Stats().Waiting; n != 1 {
		t.Errorf("%d wait, want the one", n)
	}
	f.Resume()
	wantRead(t, c, "b")
}

func TestShutdownEndsAPause(t *testing.T) { enginetest.Each(t, testShutdownEndsAPause) }

func testShutdownEndsAPause(t *testing.T) {
	f := start(t, config(testBackend(t, 1, echo)))
	must(t, f.Pause())
	c := f.dial(t)
	f.waiting(t, 1)
	f.stop(t)
	wantClosed(t, c)
	f.ended(t, Refused, 1)
	if !f.Stats().Paused.IsZero() {
		t.Error("still paused")
	}
}

func TestTimeStandsStillWhilePaused(t *testing.T) {
	const s = time.Second
	type pause struct{ at, lasts time.Duration }
	tests := []struct {
		name    string
		comes   time.Duration // with 3 s to wait
		stands  time.Duration
		pauses  []pause
		expires time.Duration
	}{
		{name: "without a pause", stands: 10 * s, expires: 3 * s},
		{name: "through a pause", stands: 10 * s, pauses: []pause{{1 * s, 5 * s}}, expires: 8 * s},
		{name: "who comes during one", comes: 2 * s, stands: 10 * s, pauses: []pause{{1 * s, 5 * s}}, expires: 9 * s},
		{name: "who comes after one", comes: 7 * s, stands: 10 * s, pauses: []pause{{1 * s, 5 * s}}, expires: 10 * s},
		{name: "at most for so long", stands: 4 * s, pauses: []pause{{1 * s, 20 * s}}, expires: 7 * s},
		{name: "in all", stands: 4 * s, pauses: []pause{{1 * s, 3 * s}, {5 * s, 20 * s}}, expires: 7 * s},
		{name: "two pauses", stands: 10 * s, pauses: []pause{{1 * s, 3 * s}, {5 * s, 4 * s}}, expires: 10 * s},
		{name: "not at all", stands: 0, pauses: []pause{{1 * s, 5 * s}}, expires: 3 * s},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newTestDispatcher(t, 4, 10, 1)
				fill(t, d)
				begin := time.Now()
				for _, p := range tt.pauses {
					time.AfterFunc(p.at, func() { d.pause() })
					time.AfterFunc(p.at+p.lasts, func() { d.resume() })
				}
				time.Sleep(tt.comes)
				synctest.Wait()
				w, grantc := newWaiter(claim{ticket: 1}, 3*s)
				w.standing.left = tt.stands
				d.join(w)
				if g := <-grantc; g.err != errAcquireTimeout {
					t.Errorf("the wait ended with %+v", g)
				}
				if got := time.Since(begin); got != tt.expires {
					t.Errorf("its time was up after %v, want %v", got, tt.expires)
				}
				time.Sleep(time.Minute)
				d.cut()
			})
		})
	}
}

// slowEngine dials as a test says.
type slowEngine struct {
	engine.Engine
	dial func(ctx context.Context, addr string) error
}

func (e slowEngine) Dial(ctx context.Context, _, addr string) (engine.Conn, error) {
	return idleConn{}, e.dial(ctx, addr)
}

// idleConn is a connection on which nothing happens.
type idleConn struct{ engine.Conn }

func (idleConn) Cut()                                {}
func (idleConn) Peek() (bool, error)                 { return false, nil }
func (idleConn) Clean() bool                         { return true }
func (idleConn) Watch(func(bool, error) bool) func() { return func() {} }
func (idleConn) Close() error                        { return nil }
func (idleConn) RemoteAddr() net.Addr                { return &net.TCPAddr{} }

// A session that has dialed before it waits through a pause has the rest of its time
// for the next dial.
func TestTimeThatStoodStillIsLeftForADial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config(Backend{Network: "tcp", Addr: "a:1", Max: 1, Weight: 1}, Backend{Network: "tcp", Addr: "b:1", Max: 1, Weight: 1})
		cfg.AcquireTimeout, cfg.PauseTimeout = 3*time.Second, time.Minute
		cfg.Engine = slowEngine{dial: func(ctx context.Context, addr string) error {
			if addr == "a:1" {
				time.Sleep(time.Second)
				return syscall.ECONNREFUSED
			}
			time.Sleep(1500 * time.Millisecond)
			return nil
		}}
		srv, err := New(cfg)
		must(t, err)
		srv.dispatcher.begin()
		time.AfterFunc(500*time.Millisecond, func() { must(t, srv.Pause()) })
		time.AfterFunc(10*time.Second, srv.Resume)
		l, err := (&session{srv: srv, client: idleConn{}}).await()
		if err != nil || l.backend.name != "b:1" {
			t.Fatalf("acquire = %v, %v; want a connection to b", l, err)
		}
		srv.discard(l, 1)
		srv.dispatcher.cut()
		srv.endPools()
		srv.pools.Wait()
	})
}

// What is told to a client whose time is up in a pause is what it always is.
func TestRequestTimesOutInAPause(t *testing.T) { enginetest.Each(t, testRequestTimesOutInAPause) }

func testRequestTimesOutInAPause(t *testing.T) {
	cfg := requestsConfig(testBackend(t, 1, newEchoServer().serve))
	cfg.AcquireTimeout, cfg.PauseTimeout = 50*time.Millisecond, 50*time.Millisecond
	f := start(t, cfg)
	must(t, f.Pause())
	c := f.dial(t)
	send(t, c, call(1, "late"))
	wantException(t, c, call(1, "late"), frame.CodeInternalError, "forebay: waited")
	f.Resume()
	echoed(t, c, call(2, "served"))
}
