package proxy

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"forebay/balance"
	"forebay/proxy/engine"
	"forebay/proxy/enginetest"
	"forebay/proxy/frame"
	"forebay/proxy/proxytest"
)

// withRegistry is cfg with a registry.
func withRegistry(cfg Config) Config {
	cfg.Registry = true
	return cfg
}

// only returns the one session that there is, once it is in a state.
func (f *front) only(t testing.TB, state SessionState) (info SessionInfo) {
	t.Helper()
	proxytest.Eventually(t, state.String(), func() bool {
		infos := f.Sessions(0)
		if len(infos) != 1 || infos[0].State != state {
			return false
		}
		info = infos[0]
		return true
	})
	return info
}

// wantCut reads the end of a client that was disconnected.
func wantCut(t testing.TB, c net.Conn) {
	t.Helper()
	if n, err := io.Copy(io.Discard, c); n > 0 || err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client read %d bytes to %v; want its end", n, err)
	}
}

// A session is disconnected from whatever it is about, and gives back what it has.
func TestDisconnect(t *testing.T) { enginetest.Each(t, testDisconnect) }

func testDisconnect(t *testing.T) {
	g := func(cfg Config) Config { // dials end when the test does
		cfg.Engine = newGated(t)
		return cfg
	}
	silent := func(t *testing.T, f *front, c proxytest.Conn) {}
	tests := []struct {
		name  string
		cfg   func() Config
		act   func(t *testing.T, f *front, c proxytest.Conn)
		state SessionState
	}{
		{name: "before its first byte", cfg: func() Config {
			cfg := config(testBackend(t, 1, echo))
			cfg.FirstByteWait = time.Hour
			return cfg
		}, act: silent, state: Idle},
		{name: "in the queue", cfg: func() Config { return config(testBackend(t, 1, echo)) },
			act: func(t *testing.T, f *front, c proxytest.Conn) { f.waiting(t, 1) }, state: Waiting},
		{name: "while it dials", cfg: func() Config { return g(config(testBackend(t, 1, echo))) }, act: silent, state: Dialing},
		{name: "in a relay", cfg: func() Config { return config(testBackend(t, 1, echo)) },
			act: func(t *testing.T, f *front, c proxytest.Conn) { ping(t, c) }, state: Leased},
		{name: "in a relay without bytes", cfg: func() Config { return config(testBackend(t, 1, echo)) }, act: silent, state: Leased},
		{name: "before its first request", cfg: func() Config { return requestsConfig(testBackend(t, 1, newEchoServer().serve)) },
			act: silent, state: Idle},
		{name: "between two requests", cfg: func() Config { return requestsConfig(testBackend(t, 1, newEchoServer().serve)) },
			act: func(t *testing.T, f *front, c proxytest.Conn) { echoed(t, c, call(1, "x")) }, state: Idle},
		{name: "in a request", cfg: func() Config {
			be, _ := puppets(t, 1)
			return requestsConfig(be)
		}, act: func(t *testing.T, f *front, c proxytest.Conn) { send(t, c, call(1, "x")) }, state: Leased},
		{name: "in a paused request", cfg: func() Config { return requestsConfig(testBackend(t, 1, newEchoServer().serve)) },
			act: func(t *testing.T, f *front, c proxytest.Conn) {
				must(t, f.Pause())
				send(t, c, call(1, "x"))
			}, state: Waiting},
		{name: "while its request dials", cfg: func() Config { return g(requestsConfig(testBackend(t, 1, newEchoServer().serve))) },
			act: func(t *testing.T, f *front, c proxytest.Conn) { send(t, c, call(1, "x")) }, state: Dialing},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := start(t, withRegistry(tt.cfg()))
			if g, ok := f.eng.(*gated); ok {
				defer close(g.gate)
			}
			if tt.name == "in the queue" {
				f.dispatcher.move(f.dispatcher.at(0), balance.Free, balance.Leased)
				defer f.dispatcher.move(f.dispatcher.at(0), balance.Leased, balance.Free)
			}
			c := f.dial(t)
			tt.act(t, f, c)
			info := f.only(t, tt.state)
			if e := f.registry.find(info.ID); tt.state == Leased && e.waits != nil {
				t.Error("a session that has its lease keeps what it waited for")
			}
			must(t, f.Disconnect(info.ID))
			wantCut(t, c)
			f.ended(t, Disconnected, 1)
			if err := f.Disconnect(info.ID); err == nil || !strings.Contains(err.Error(), "no session 1") {
				t.Errorf("Disconnect of a session that is over = %v", err)
			}
			if n := f.Stats().Errors; n != 0 {
				t.Errorf("%d requests were answered by the proxy", n)
			}
			if infos := f.Sessions(0); infos != nil {
				t.Errorf("it is still listed: %+v", infos)
			}
			f.said(t, "session ended", 1)
			if line := f.book.with("session ended")[0]; line["reason"] != "disconnected" || line["error"] != errDisconnected.Error() {
				t.Errorf("the line is %v", line)
			}
		})
	}
}

// meddler is an engine whose clients are disconnected just before it has them.
type meddler struct {
	engine.Engine
	meddle func()
}

func (m *meddler) Relay(ctx context.Context, client, backend engine.Conn, cfg engine.RelayConfig, done func(engine.Result)) {
	m.meddle()
	m.Engine.Relay(ctx, client, backend, cfg, done)
}

func (m *meddler) Drive(ctx context.Context, client engine.Conn, machine engine.Machine, cfg engine.DriveConfig, done func()) {
	m.meddle()
	m.Engine.Drive(ctx, client, machine, cfg, done)
}

// There is nothing to cut yet when it is told to: the session cuts itself.
func TestDisconnectBeforeTheEngineHasTheClient(t *testing.T) {
	enginetest.Each(t, testDisconnectBeforeTheEngineHasTheClient)
}

func testDisconnectBeforeTheEngineHasTheClient(t *testing.T) {
	for _, cfg := range []Config{config(testBackend(t, 1, echo)), requestsConfig(testBackend(t, 1, newEchoServer().serve))} {
		m := &meddler{Engine: enginetest.New(t)}
		cfg.Engine = m
		started := make(chan *front, 1)
		m.meddle = func() {
			if err := (<-started).Disconnect(1); err != nil {
				t.Error(err)
			}
		}
		f := start(t, withRegistry(cfg))
		started <- f
		if c, err := net.Dial("tcp", f.at.String()); err == nil { // else it ended before the dial had returned
			wantCut(t, c)
			c.Close()
		}
		f.ended(t, Disconnected, 1)
		f.stop(t)
	}
}

// Nor does one ask for a lease who is to go: its slot is another's.
func TestDisconnectBeforeALeaseIsAskedFor(t *testing.T) {
	enginetest.Each(t, testDisconnectBeforeALeaseIsAskedFor)
}

func testDisconnectBeforeALeaseIsAskedFor(t *testing.T) {
	for _, free := range []bool{false, true} {
		f := start(t, withRegistry(config(testBackend(t, 1, echo))))
		if !free {
			f.occupy(t)
		}
		s := f.newSession(idleConn{})
		if err := f.Disconnect(s.id); err != nil {
			t.Fatal(err)
		}
		if l, err := s.await(); err != errDisconnected {
			t.Errorf("acquire = %v, %v; want errDisconnected", l, err)
		}
		f.registry.remove(s.entry)
		f.ids.Add(^uint64(0)) // it is no session that the account knows
		proxytest.Eventually(t, "its slot", func() bool { b := f.Stats().Backends[0]; return b.Load.Slots[balance.Dialing] == 0 })
	}
}

func TestWithoutARegistryThereIsNothingToSee(t *testing.T) {
	enginetest.Each(t, testWithoutARegistryThereIsNothingToSee)
}

func testWithoutARegistryThereIsNothingToSee(t *testing.T) {
	f := start(t, config(testBackend(t, 1, echo)))
	f.occupy(t)
	if infos := f.Sessions(0); infos != nil {
		t.Errorf("sessions %+v", infos)
	}
	if err := f.Disconnect(1); err == nil || !strings.Contains(err.Error(), "Config.Registry is off") {
		t.Errorf("Disconnect = %v", err)
	}
}

func TestSessionsTellsWhatEachIsAbout(t *testing.T) {
	enginetest.Each(t, testSessionsTellsWhatEachIsAbout)
}

func testSessionsTellsWhatEachIsAbout(t *testing.T) {
	f := start(t, withRegistry(requestsConfig(testBackend(t, 1, newEchoServer().serve))))
	c := f.dial(t)
	if info := f.only(t, Idle); info.ID != 1 || info.Client != c.LocalAddr().String() || info.Backend != "" || info.Requests != 0 {
		t.Errorf("a new session is %+v", info)
	}
	m := call(1, "hello")
	echoed(t, c, m)
	echoed(t, c, m)
	info := f.only(t, Idle)
	if size := int64(len(m.bytes())); info.Requests != 2 || info.BytesUp != 2*size || info.BytesDown < size || info.Age <= 0 ||
		info.Backend != f.cfg.Backends[0].String() {
		t.Errorf("after two requests of %d bytes it is %+v", size, info)
	}
	for range 40 {
		f.dial(t)
	}
	proxytest.Eventually(t, "all", func() bool { return len(f.Sessions(0)) == 41 })
	for i, info := range f.Sessions(25) {
		if info.ID != uint64(i+1) {
			t.Errorf("session %d of the oldest is %d", i, info.ID)
		}
	}
	if n := len(f.Sessions(25)); n != 25 {
		t.Errorf("%d sessions, want 25", n)
	}
	f.Remove(info.Backend) // whose name stays with its sessions
	proxytest.Eventually(t, "its end", func() bool { return len(f.Stats().Backends) == 0 })
	if got := f.Sessions(1)[0].Backend; got != info.Backend {
		t.Errorf("its backend is %q, want %q", got, info.Backend)
	}
}

func TestSessionIsIdleAfterARefusedRequest(t *testing.T) {
	enginetest.Each(t, testSessionIsIdleAfterARefusedRequest)
}

func testSessionIsIdleAfterARefusedRequest(t *testing.T) {
	cfg := withRegistry(requestsConfig(testBackend(t, 1, newEchoServer().serve)))
	cfg.AcquireTimeout = 50 * time.Millisecond
	f := start(t, cfg)
	must(t, f.Pause())
	c := f.dial(t)
	send(t, c, call(1, "late"))
	wantException(t, c, call(1, "late"), frame.CodeInternalError, "forebay: waited")
	f.only(t, Idle)
}

// Sessions are disconnected at any moment, while they come, wait, dial, relay and end:
// as many end so as were told to, and nothing is lost.
func TestDisconnectAtAnyMoment(t *testing.T) { enginetest.Each(t, testDisconnectAtAnyMoment) }

func testDisconnectAtAnyMoment(t *testing.T) {
	for _, cfg := range []Config{
		config(testBackend(t, 2, echo), testBackend(t, 1, echo)),
		requestsConfig(testBackend(t, 2, newEchoServer().serve), testBackend(t, 1, newEchoServer().serve)),
	} {
		f := start(t, withRegistry(cfg))
		ctx, stop := context.WithCancel(t.Context())
		var disconnected atomic.Int64
		var clients, operators sync.WaitGroup
		for worker := range 8 {
			rnd := rand.New(rand.NewPCG(uint64(worker), 5))
			clients.Go(func() {
				for range 40 {
					c, err := net.Dial("tcp", f.at.String())
					if err != nil {
						continue // disconnected before the dial had returned
					}
					c.SetDeadline(time.Now().Add(20 * time.Second))
					for i := range uint32(rnd.IntN(4)) {
						if _, err := ask(c, call(i, "x")); err != nil {
							break
						}
					}
					c.Close()
				}
			})
		}
		for range 2 {
			operators.Go(func() {
				for ctx.Err() == nil {
					for _, info := range f.Sessions(0) {
						if rand.IntN(2) == 0 && f.Disconnect(info.ID) == nil {
							disconnected.Add(1)
						}
					}
				}
			})
		}
		clients.Wait()
		stop()
		operators.Wait()
		f.ended(t, Disconnected, disconnected.Load())
		if disconnected.Load() == 0 {
			t.Error("no session was disconnected: the test proves little")
		}
		proxytest.Eventually(t, "the end of all", func() bool { return f.Stats().Clients == 0 })
		f.stop(t)
	}
}

// A session may have ended its lease by the time that it is found.
func TestOnlySessionsThatHaveALeaseAreCut(t *testing.T) {
	srv := &Server{cfg: Config{Registry: true}, epoch: time.Now()}
	b := &backend{}
	ctx, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	var sessions sync.WaitGroup
	for range 4 {
		sessions.Go(func() {
			for ctx.Err() == nil {
				s := srv.newSession(idleConn{})
				s.backend = b
				for cut := error(nil); cut == nil && ctx.Err() == nil; {
					s.shows(Leased)
					runtime.Gosched()
					s.shows(Idle)
					cut = s.waitsFor(nil)
					runtime.Gosched()
					if s.waitsFor(nil) != cut {
						t.Error("a session is cut that has no lease")
					}
				}
				s.leavesRegistry()
			}
		})
	}
	for ctx.Err() == nil && !t.Failed() {
		srv.cutSessions(b)
	}
	stop()
	sessions.Wait()
}

func BenchmarkNewSession(b *testing.B) {
	for name, on := range map[string]bool{"registry=off": false, "registry=on": true} {
		b.Run(name, func(b *testing.B) {
			srv := &Server{cfg: Config{Registry: on}, epoch: time.Now()}
			b.ReportAllocs()
			for b.Loop() {
				s := srv.newSession(nil)
				s.shows(Leased)
				s.begun()
				s.leavesRegistry()
			}
		})
	}
}
