package proxy

import (
	"context"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"forebay/balance"
	"forebay/proxy/engine"
	"forebay/proxy/proxytest"
)

// thread does what it is given, one after the other, as the thread of an event loop
// does for all its sessions. What does not end soon is an error, shown with where it
// waits.
type thread struct {
	t     testing.TB
	mu    sync.Mutex
	more  sync.Cond
	tasks []func()
	ended bool
	wg    sync.WaitGroup
}

// startThread starts a thread. It ends with the test, but after what is cleaned up
// before.
func startThread(t testing.TB) *thread {
	th := &thread{t: t}
	th.more.L = &th.mu
	th.wg.Go(th.run)
	t.Cleanup(func() {
		th.mu.Lock()
		th.ended = true
		th.more.Signal()
		th.mu.Unlock()
		th.wg.Wait()
	})
	return th
}

func (th *thread) run() {
	for {
		th.mu.Lock()
		for len(th.tasks) == 0 && !th.ended {
			th.more.Wait()
		}
		if len(th.tasks) == 0 {
			th.mu.Unlock()
			return
		}
		task := th.tasks[0]
		th.tasks = th.tasks[1:]
		th.mu.Unlock()

		watchdog := time.AfterFunc(10*time.Second, func() {
			stacks := make([]byte, 1<<20)
			th.t.Errorf("the thread of the loop waits:\n%s", stacks[:runtime.Stack(stacks, true)])
		})
		task()
		watchdog.Stop()
	}
}

func (th *thread) post(f func()) {
	th.mu.Lock()
	defer th.mu.Unlock()
	th.tasks = append(th.tasks, f)
	th.more.Signal()
}

// call is post that waits until f is done.
func (th *thread) call(f func()) {
	done := make(chan struct{})
	th.post(func() {
		defer close(done)
		f()
	})
	<-done
}

// looped is an engine that calls everything from one thread.
type looped struct {
	engine.Engine
	thread  *thread
	dial    func(ctx context.Context, addr string) error // before each dial; nil: nothing
	unacked func() int                                   // of backends' connections; nil: what is so
}

func newLooped(t testing.TB) *looped {
	return &looped{Engine: engine.NewNet(engine.Config{}), thread: startThread(t)}
}

func (e *looped) Listen(ctx context.Context, network, addr string) (engine.Listener, error) {
	ln, err := e.Engine.Listen(ctx, network, addr)
	return &loopedListener{ln, e}, err
}

func (e *looped) Dial(ctx context.Context, network, addr string) (engine.Conn, error) {
	if e.dial != nil {
		if err := e.dial(ctx, addr); err != nil {
			return nil, err
		}
	}
	c, err := e.Engine.Dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &loopedConn{c, e, e.unacked}, nil
}

func (e *looped) Relay(ctx context.Context, client, backend engine.Conn, cfg engine.RelayConfig, done func(engine.Result)) {
	e.Engine.Relay(ctx, client.(*loopedConn).Conn, backend.(*loopedConn).Conn, cfg, func(r engine.Result) {
		e.thread.call(func() { done(r) })
	})
}

func (e *looped) Drive(ctx context.Context, client engine.Conn, m engine.Machine, cfg engine.DriveConfig, done func()) {
	e.Engine.Drive(ctx, client.(*loopedConn).Conn, &loopedMachine{m, e.thread}, cfg, func() { e.thread.call(done) })
}

type loopedListener struct {
	engine.Listener
	engine *looped
}

func (l *loopedListener) Serve(h engine.Handler) { l.Listener.Serve(&loopedHandler{h, l.engine}) }

type loopedHandler struct {
	engine.Handler
	engine *looped
}

func (h *loopedHandler) Admit() (ok bool) {
	h.engine.thread.call(func() { ok = h.Handler.Admit() })
	return ok
}

func (h *loopedHandler) Failed(err error) (rest time.Duration) {
	h.engine.thread.call(func() { rest = h.Handler.Failed(err) })
	return rest
}

func (h *loopedHandler) Accepted(c engine.Conn) {
	h.engine.thread.call(func() { h.Handler.Accepted(&loopedConn{Conn: c, engine: h.engine}) })
}

type loopedConn struct {
	engine.Conn
	engine  *looped
	unacked func() int
}

func (c *loopedConn) Unacked() int {
	if c.unacked != nil {
		return c.unacked()
	}
	return c.Conn.Unacked()
}

// Watch calls f on the thread. A watch may be stopped there, too, while a call of f is
// on its way.
func (c *loopedConn) Watch(f func(bytes bool, end error) bool) (stop func()) {
	var mu sync.Mutex
	stopped, stopc := false, make(chan struct{})
	inner := c.Conn.Watch(func(bytes bool, end error) bool {
		morec := make(chan bool, 1)
		c.engine.thread.post(func() {
			mu.Lock()
			defer mu.Unlock()
			morec <- !stopped && f(bytes, end)
		})
		select {
		case more := <-morec:
			return more
		case <-stopc:
			return false
		}
	})
	return func() {
		mu.Lock()
		stopped = true
		mu.Unlock()
		close(stopc)
		inner()
	}
}

// loopedMachine is a machine whose methods are called on the thread.
type loopedMachine struct {
	engine.Machine
	thread *thread
}

func (m *loopedMachine) Next(now time.Time) (s engine.Step) {
	m.thread.call(func() { s = m.Machine.Next(now) })
	return s
}

func (m *loopedMachine) Lease(leased func()) { m.thread.call(func() { m.Machine.Lease(leased) }) }

func (m *loopedMachine) Backend() engine.Conn {
	if c := m.Machine.Backend(); c != nil {
		return c.(*loopedConn).Conn
	}
	return nil
}

func (m *loopedMachine) Release()             { m.thread.call(m.Machine.Release) }
func (m *loopedMachine) ReadClient(p []byte)  { m.thread.call(func() { m.Machine.ReadClient(p) }) }
func (m *loopedMachine) ReadBackend(p []byte) { m.thread.call(func() { m.Machine.ReadBackend(p) }) }
func (m *loopedMachine) WroteClient(n int)    { m.thread.call(func() { m.Machine.WroteClient(n) }) }
func (m *loopedMachine) WroteBackend(n int)   { m.thread.call(func() { m.Machine.WroteBackend(n) }) }
func (m *loopedMachine) ClientEnded(err error) {
	m.thread.call(func() { m.Machine.ClientEnded(err) })
}
func (m *loopedMachine) BackendEnded(err error, undelivered bool) {
	m.thread.call(func() { m.Machine.BackendEnded(err, undelivered) })
}
func (m *loopedMachine) Cut() { m.thread.call(m.Machine.Cut) }

// hole is an address to which dials never end, nor fail.
const hole = "127.0.0.1:9"

func blackHole(began *atomic.Int64) func(ctx context.Context, addr string) error {
	return func(ctx context.Context, addr string) error {
		if addr != hole {
			return nil
		}
		began.Add(1)
		<-ctx.Done()
		return ctx.Err()
	}
}

// TestNobodyWaitsForAnothersLease: on the thread of the one that is served, other
// sessions dial, wait in the queue and for their first byte, and leave.
func TestNobodyWaitsForAnothersLease(t *testing.T) {
	const dialing, waiting = 5, 3
	eng := newLooped(t)
	var dials atomic.Int64
	eng.dial = blackHole(&dials)
	cfg := config(testBackend(t, 1, echo), Backend{Network: "tcp", Addr: hole, Max: dialing, Weight: 1})
	cfg.Engine, cfg.DialTimeout = eng, time.Minute
	f := start(t, cfg)
	served := f.occupy(t)
	var others []proxytest.Conn
	for range dialing + waiting {
		others = append(others, f.dial(t))
	}
	f.waiting(t, waiting)
	proxytest.Eventually(t, "the dials", func() bool { return dials.Load() == dialing })
	ping(t, served)

	for _, c := range others[:dialing] { // whoever came first dials, or is the first that waits
		c.Close()
	}
	f.ended(t, ClientLeft, dialing)
	ping(t, served)
	served.Close()
	proxytest.Eventually(t, "one of those that wait to be served", func() bool { return f.Stats().Backends[0].Sessions == 1 })
	for _, c := range others[dialing:] {
		c.SetDeadline(time.Now().Add(20 * time.Second))
		ping(t, c)
		c.Close()
	}
	f.stop(t)
}

func TestNobodyWaitsForAnothersFirstByte(t *testing.T) {
	for name, wait := range map[string]time.Duration{"long": time.Minute, "short": time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			cfg := config(testBackend(t, 2, echo))
			cfg.Engine, cfg.FirstByteWait = newLooped(t), wait
			f := start(t, cfg)
			silent := []proxytest.Conn{f.dial(t), f.dial(t), f.dial(t)}
			proxytest.Eventually(t, "the silent clients", func() bool { return f.Stats().Clients == len(silent) })
			if wait < time.Minute {
				f.slots(t, 0, balance.Leased, 2)
			} else {
				ping(t, f.dial(t))
			}
			for _, c := range silent {
				c.Close()
			}
			proxytest.Eventually(t, "the silent clients' end", func() bool { return f.Stats().Clients <= 1 })
			f.stop(t)
		})
	}
}

// A session, and all others, go on at once after oneway calls that the backend's kernel
// has not taken yet. The slot stays leased until it has, and shutdown waits for that.
func TestNobodyWaitsForOnewayCallsToArrive(t *testing.T) {
	be, conns := puppets(t, 2)
	eng := newLooped(t)
	arrived := make(chan struct{})
	once := sync.OnceFunc(func() { close(arrived) })
	defer once()
	var asked, oneways atomic.Int64
	eng.unacked = func() int {
		if oneways.Load() == 0 {
			return 0
		}
		if asked.Add(1) == 1 {
			return 1
		}
		<-arrived
		return 0
	}
	cfg := requestsConfig(be)
	cfg.Engine, cfg.Requests.Quarantine = eng, 0
	f := start(t, cfg)
	c := f.dial(t)
	oneways.Add(1)
	send(t, c, oneway(1, "fire"))
	first := proxytest.Receive(t, conns, "a connection")
	wantCall(t, first, oneway(1, "fire"))
	proxytest.Eventually(t, "the wait for the oneway call", func() bool { return asked.Load() >= 2 })
	f.slots(t, 0, balance.Leased, 1)
	second := exchangedAnew(t, c, conns, call(2, "and on"))
	exchanged(t, f.dial(t), second, call(3, "another's"))
	f.slots(t, 0, balance.Leased, 1)
	c.Close()
	f.ended(t, Done, 1)

	done := f.shutdown(t.Context())
	f.ended(t, Drained, 1)
	select {
	case err := <-done:
		t.Errorf("Shutdown returned %v while a slot was leased", err)
	default:
	}
	once()
	if err := proxytest.Receive(t, done, "the end of Shutdown"); err != nil {
		t.Errorf("Shutdown = %v, want nil", err)
	}
	f.stop(t)
}

// Many sessions of one thread share few connections, and none hangs.
func TestManySessionsOnOneThread(t *testing.T) {
	for _, pooling := range []string{"session", "request"} {
		t.Run(pooling, func(t *testing.T) {
			var cfg Config
			serve := func(f *front, i int) { f.exchange(t, "ping") }
			if pooling == "session" {
				cfg = config(testBackend(t, 2, echo), testBackend(t, 1, echo))
			} else {
				e := newEchoServer()
				cfg = requestsConfig(testBackend(t, 2, e.serve), testBackend(t, 1, e.serve))
				cfg.Requests.Quarantine = 0
				serve = func(f *front, i int) {
					c, err := net.Dial("tcp", f.at.String())
					if err != nil {
						t.Error(err)
						return
					}
					defer c.Close()
					c.SetDeadline(time.Now().Add(20 * time.Second))
					if err := fireAndAsk(c, i, 0, 5); err != nil {
						t.Error(err)
					}
				}
				cfg.Requests.Oneway = []string{"fire"}
			}
			cfg.Engine = newLooped(t)
			f := start(t, cfg)
			var clients sync.WaitGroup
			for i := range 100 {
				clients.Go(func() { serve(f, i) })
			}
			clients.Wait()
			f.stop(t)
		})
	}
}
