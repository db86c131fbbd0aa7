package proxy

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"forebay/balance"
	"forebay/balance/health"
	"forebay/pool"
	"forebay/proxy/engine"
	"forebay/proxy/enginetest"
	"forebay/proxy/proxytest"
)

// checkOften has a configuration's backends checked by an echo, so often that a test need
// not wait.
func checkOften(cfg Config) Config {
	cfg.Health = Health{Interval: 20 * time.Millisecond, Timeout: 50 * time.Millisecond, Fall: 3, Rise: 2,
		Talk: health.SendExpect{Send: []byte("check"), Expect: []byte("check")}.Talk}
	return cfg
}

// stoppable is an echo that can be stopped: its kernel goes on accepting.
type stoppable struct {
	stopped atomic.Bool
	peak    atomic.Int64
	open    atomic.Int64
}

func (s *stoppable) serve(c proxytest.Conn) {
	n := s.open.Add(1)
	defer s.open.Add(-1)
	for most := s.peak.Load(); n > most && !s.peak.CompareAndSwap(most, n); most = s.peak.Load() {
	}
	buf := make([]byte, 1024)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		if s.stopped.Load() {
			io.Copy(io.Discard, c)
			return
		}
		c.Write(buf[:n])
	}
}

func (f *front) isDown(t testing.TB, i int) {
	t.Helper()
	proxytest.Eventually(t, "the backend to be down", func() bool { return f.Stats().Backends[i].Status == "down" })
}

func TestStoppedBackendIsAvoidedAndComesBack(t *testing.T) {
	enginetest.Each(t, testStoppedBackendIsAvoidedAndComesBack)
}

func testStoppedBackendIsAvoidedAndComesBack(t *testing.T) {
	a, b := &stoppable{}, &stoppable{}
	f := start(t, checkOften(config(testBackend(t, 8, a.serve), testBackend(t, 8, b.serve))))
	running := f.dial(t)
	ping(t, running)
	on := int(f.Stats().Backends[1].Load.Active())
	other := []*stoppable{a, b}[1-on]
	other.stopped.Store(true)
	f.isDown(t, 1-on)
	for range 8 - 1 {
		ping(t, f.dial(t)) // each at the one that is up, though it is fuller
	}
	ping(t, running)
	other.stopped.Store(false)
	f.isUp(t, 1-on)
	ping(t, f.dial(t))
	if lines := f.book.with("backend is down"); len(lines) != 1 {
		t.Errorf("%d lines say that it is down, want 1", len(lines))
	}
}

func TestCheckIsOneOfTheConnectionsThatABackendMayHave(t *testing.T) {
	enginetest.Each(t, testCheckIsOneOfTheConnectionsThatABackendMayHave)
}

func testCheckIsOneOfTheConnectionsThatABackendMayHave(t *testing.T) {
	s := &stoppable{}
	cfg := checkOften(config(testBackend(t, 2, s.serve)))
	cfg.MinIdle = 2 // all slots are taken, idle or not
	f := start(t, cfg)
	checked := func() int64 { return f.Stats().Backends[0].Health.Checks }
	proxytest.Eventually(t, "checks beside what lies idle", func() bool { return checked() > 3 })
	c := f.dial(t)
	ping(t, c)
	for range 200 {
		short := f.dial(t)
		ping(t, short)
		short.Close()
		proxytest.Eventually(t, "its end", func() bool { return f.Stats().Clients == 1 })
	}
	ping(t, c)
	if st := f.Stats().Backends[0]; st.Health.FailedChecks > 0 || st.Status != "up" {
		t.Errorf("%d checks failed of a backend that answers; it is %s", st.Health.FailedChecks, st.Status)
	}
}

// checkedDispatcher returns the dispatcher of a backend of one slot that is checked.
func checkedDispatcher(t *testing.T) (*dispatcher, *backend) {
	t.Helper()
	d := newTestDispatcher(t, 4, 10, 1)
	d.checks = true
	b := d.at(0)
	m, err := health.New(health.Config{Addr: "backend:1", Owner: owner{}, Interval: time.Second, Reserve: d.slots(0).check})
	if err != nil {
		t.Fatal(err)
	}
	b.monitor = m
	return d, b
}

func TestCheckGetsTheNextFreeSlotBeforeAllClients(t *testing.T) {
	d, b := checkedDispatcher(t)
	if _, err := d.pick(claim{ticket: 1}); err != nil {
		t.Fatal(err)
	}
	d.move(b, balance.Dialing, balance.Leased)
	w, granted := newWaiter(claim{ticket: 2}, longWait)
	if waits, _, err := d.join(w); !waits {
		t.Fatal(err)
	}
	check := d.slots(0).check
	if _, ok := check(); ok {
		t.Fatal("a check beside as many leases as there may be")
	}
	d.move(b, balance.Leased, balance.Free)
	if len(granted) > 0 {
		t.Fatal("a client went before the check")
	}
	release, ok := check()
	if !ok {
		t.Fatal("no slot for the check, though one was freed for it")
	}
	if got := d.bal.Load(0).Slots[balance.Checking]; got != 1 || len(granted) > 0 {
		t.Errorf("%d slots are checking, and %d clients were served; want 1 and 0", got, len(granted))
	}
	release()
	if g := <-granted; g.err != nil || g.choice.backend != b {
		t.Errorf("after the check the client got %+v", g)
	}
}

func TestCheckThatWaitsHasTheFirstSlotOfAHigherMax(t *testing.T) {
	d, b := checkedDispatcher(t)
	if _, err := d.pick(claim{ticket: 1}); err != nil {
		t.Fatal(err)
	}
	w, granted := newWaiter(claim{ticket: 2}, longWait)
	if waits, _, err := d.join(w); !waits {
		t.Fatal(err)
	}
	check := d.slots(0).check
	check()
	must(t, (&Server{dispatcher: d}).change(b.name, func(d *dispatcher, b *backend) { d.bal.SetMax(b.index, 2) }))
	if _, ok := check(); !ok || len(granted) > 0 {
		t.Errorf("the check has a slot: %v, and %d clients were served before it", ok, len(granted))
	}
}

func TestCheckThatWaitsIsForgottenInMaintenance(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before bool // the slot becomes free first
	}{{"before its slot is free", false}, {"once its slot is free", true}} {
		t.Run(tt.name, func(t *testing.T) {
			d, b := checkedDispatcher(t)
			d.pick(claim{ticket: 1})
			d.move(b, balance.Dialing, balance.Leased)
			d.slots(0).check()
			if tt.before {
				d.move(b, balance.Leased, balance.Free)
			}
			d.mu.Lock()
			d.setState(b, Maintain)
			d.changed(b)
			d.unlock()
			if !tt.before {
				d.move(b, balance.Leased, balance.Free)
			}
			if l := d.bal.Load(0); l.Slots[balance.Free] != 1 || b.checkWaits.Load() {
				t.Errorf("the slots are %v, and a check waits: %v", l.Slots, b.checkWaits.Load())
			}
			if _, ok := d.slots(0).check(); ok {
				t.Error("a check in maintenance")
			}
		})
	}
}

func TestKeptConnectionIsClosedForACheckThatWaits(t *testing.T) {
	enginetest.Each(t, testKeptConnectionIsClosedForACheckThatWaits)
}

func testKeptConnectionIsClosedForACheckThatWaits(t *testing.T) {
	be := testBackend(t, 1, newEchoServer().serve)
	cfg := requestsConfig(be)
	cfg.Health = Health{Interval: 20 * time.Millisecond, Timeout: time.Second, Fall: 3, Rise: 2}
	f := start(t, cfg)
	for range 3 { // all the time each wants the one connection that there may be
		c := f.dial(t)
		go func() {
			for n := uint32(0); ; n++ {
				if _, err := c.Write(call(n, "busy").bytes()); err != nil {
					return
				}
			}
		}()
		go io.Copy(io.Discard, c)
	}
	proxytest.Eventually(t, "checks of a busy backend", func() bool { return f.Stats().Backends[0].Health.Checks > 3 })
	if n := f.Stats().Backends[0].Pool.Closed["surplus"]; n == 0 {
		t.Error("none was closed for a check")
	}
}

// closesSlowly is an engine whose connections take a second to be closed.
type closesSlowly struct{ engine.Engine }

func (closesSlowly) Dial(context.Context, string, string) (engine.Conn, error) {
	return slowToClose{}, nil
}

type slowToClose struct{ idleConn }

func (slowToClose) Close() error {
	time.Sleep(time.Second)
	return nil
}

func TestOneConnectionIsClosedForACheckThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config(Backend{Network: "tcp", Addr: "backend:1", Max: 4, Weight: 1})
		cfg.Engine = closesSlowly{}
		cfg.Health.Interval = time.Hour // the test checks
		srv, err := New(cfg)
		must(t, err)
		b := srv.dispatcher.at(0)
		srv.pools.Go(func() { b.pool.Run(srv.poolCtx) })
		var leases []*lease
		for range b.Max {
			l, err := (&session{srv: srv, client: idleConn{}}).await()
			must(t, err)
			leases = append(leases, l)
		}
		check := slots{srv.dispatcher, b}.check
		if _, ok := check(); ok {
			t.Fatal("a check beside as many leases as there may be")
		}
		var ends sync.WaitGroup
		for _, l := range leases {
			ends.Go(func() { srv.keep(l, false) })
		}
		ends.Wait()
		synctest.Wait()
		release, ok := check()
		if n := b.pool.Stats().Closed["surplus"]; !ok || n != 1 {
			t.Errorf("the check has a slot: %v, for which %d connections were closed; want 1", ok, n)
		}
		if ok {
			release()
		}
		srv.dispatcher.cut()
		srv.endPools()
		srv.pools.Wait()
	})
}

func TestSlowStartRaisesWhatABackendMayHave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &Server{cfg: Config{Health: Health{SlowStart: 10 * time.Second}}}
		srv.dispatcher = newDispatcher(newBalancer(t, balance.Config{}), 4, 0, riser{srv: srv})
		addTo(t, srv.dispatcher, Backend{Max: 100, Weight: 1})
		b := srv.dispatcher.at(0)
		b.life = t.Context()
		limit := func() int {
			srv.dispatcher.mu.Lock()
			defer srv.dispatcher.mu.Unlock()
			return srv.dispatcher.bal.Load(0).Limit
		}
		srv.dispatcher.down(b, errors.New("down"))
		srv.dispatcher.up(b)
		if got := limit(); got != 5 {
			t.Errorf("at first it may have %d, want 5 of 100", got)
		}
		for i := range 9 {
			time.Sleep(time.Second)
			synctest.Wait()
			if got, want := limit(), 5+10*(i+1); got != want && got != want+5 {
				t.Errorf("after %d s it may have %d, want %d", i+1, got, want)
			}
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := limit(); got != 0 {
			t.Errorf("at the end it may have %d, want all", got)
		}
		srv.dispatcher.down(b, errors.New("again"))
		srv.dispatcher.up(b)
		time.Sleep(3 * time.Second)
		srv.dispatcher.down(b, errors.New("in the middle"))
		srv.dispatcher.up(b)
		if got := limit(); got != 5 {
			t.Errorf("a second slow start begins with %d, want 5", got)
		}
		time.Sleep(time.Minute)
		srv.pools.Wait() // each has ended
	})
}

// riser tells of a rise alone.
type riser struct {
	noEvents
	srv *Server
}

func (r riser) backendRises(b *backend, ups int) { r.srv.backendRises(b, ups) }

func TestAllDownIsTriedWhereThatIsWanted(t *testing.T) {
	for _, try := range []bool{false, true} {
		d := newBalancedDispatcher(t, balance.Config{TryDown: try}, 4, 10, 2, 2, 2)
		for i := range 3 {
			d.down(d.at(i), errors.New("down"))
		}
		d.setState(d.at(2), Drain)
		for i := range 2 {
			c, err := d.pick(claim{ticket: uint64(i)})
			if try && (err != nil || c.backend == d.at(2)) || !try && !errors.Is(err, balance.ErrNone) {
				t.Errorf("try %v: picked %+v, %v", try, c, err)
			}
		}
		d.up(d.at(1))
		if c, err := d.pick(claim{ticket: 9}); err != nil || c.backend != d.at(1) {
			t.Errorf("try %v: with one up picked %+v, %v", try, c, err)
		}
	}
}

// A backend that goes down again before it is well is tried without the bounds of its
// recovery: while it is down nothing would lift them.
func TestDownBackendIsTriedWithoutTheBoundsOfARecovery(t *testing.T) {
	for _, tt := range []struct {
		name  string
		limit int // of a slow start
		up    string
	}{{"few dials at once", 0, "a a - -"}, {"a slow start", 1, "a - - -"}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newBalancedDispatcher(t, balance.Config{TryDown: true}, 2, 10, 8)
				d.down(d.at(0), errors.New("down"))
				d.up(d.at(0))
				d.bal.SetLimit(0, tt.limit)
				places := []*place{wait(d, 1), wait(d, 2), wait(d, 3), wait(d, 4)}
				wantPlaces(t, "up again", tt.up, places...)
				d.down(d.at(0), errors.New("down"))
				wantPlaces(t, "down again", "a a a a", places...)
				d.close()
			})
		})
	}
}

// teller does something while it is told that a backend goes down.
type teller struct {
	noEvents
	meanwhile func()
}

func (e teller) backendDown(*backend, error) { e.meanwhile() }

func TestNoNewcomerOvertakesAsTheLastBackendGoesDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newBalancedDispatcher(t, balance.Config{TryDown: true}, 4, 10, 1, 1)
		d.down(d.at(1), errors.New("down"))
		fill(t, d)
		old := wait(d, 1)
		d.events = teller{meanwhile: func() {
			if c, err := d.pick(claim{ticket: 2}); !errors.Is(err, balance.ErrFull) {
				t.Errorf("a newcomer has %v, %v; want ErrFull", c, err)
			}
		}}
		d.down(d.at(0), errors.New("down"))
		wantPlaces(t, "the oldest", "b", old)
		d.close()
	})
}

// disturbed is a client whose watch is ended, as it gets its lease, by something else that
// happens.
type disturbed struct {
	idleConn
	by func()
}

func (d disturbed) Watch(func(bool, error) bool) func() { return d.by }

// It has its connection, and cannot be seen at that backend yet.
func TestSessionThatIsAboutToHaveItsLeaseIsCutToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config(Backend{Network: "tcp", Addr: "backend:1", Max: 1, Weight: 1})
		cfg.Health.CutOnDown = true
		cfg.Engine = slowEngine{dial: func(context.Context, string) error { return nil }}
		srv, err := New(cfg)
		must(t, err)
		b := srv.dispatcher.at(0)
		s := srv.newSession(disturbed{by: func() { owner{srv, b}.Down(errors.New("down")) }})
		l, err := s.await()
		must(t, err)
		s.hold(l)
		if err := s.leavesRegistry(); err != errBackendDown {
			t.Errorf("the session was ended by %v, want %v", err, errBackendDown)
		}
		srv.discard(l, pool.Used)
		srv.dispatcher.cut()
		srv.endPools()
	})
}

func TestGarbageClientsTakeNoBackendDown(t *testing.T) {
	enginetest.Each(t, testGarbageClientsTakeNoBackendDown)
}

// The backend resets whoever sends garbage, as many do.
func testGarbageClientsTakeNoBackendDown(t *testing.T) {
	be := testBackend(t, 8, proxytest.ResetGarbage)
	for _, checks := range []string{"by connecting", "by an answer"} {
		t.Run(checks, func(t *testing.T) {
			cfg := checkOften(config(be))
			if checks == "by connecting" {
				cfg.Health.Talk = nil
			}
			f := start(t, cfg)
			for range 30 {
				for _, addr := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.4"} {
					proxytest.SendGarbage(t, addr, f.at.String())
				}
			}
			b := f.Stats().Backends[0]
			if b.Status != "up" || len(b.Health.History) > 0 || b.Health.ClientFaults == 0 {
				t.Errorf("it is %s, with %d faults of clients and the history %v", b.Status, b.Health.ClientFaults, b.Health.History)
			}
			ping(t, f.dial(t))
		})
	}
}

func TestRequestsThatGetNoReplyAreToldToTheMonitor(t *testing.T) {
	enginetest.Each(t, testRequestsThatGetNoReplyAreToldToTheMonitor)
}

func testRequestsThatGetNoReplyAreToldToTheMonitor(t *testing.T) {
	good := testBackend(t, 4, newEchoServer().serve)
	silent := testBackend(t, 4, func(c proxytest.Conn) { io.Copy(io.Discard, c) })
	for _, tt := range []struct {
		name string
		be   Backend
		want int64
	}{{"one that is served", good, 0}, {"one without a reply", silent, 1}} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := requestsConfig(tt.be)
			cfg.Requests.ReplyTimeout = 50 * time.Millisecond
			f := start(t, cfg)
			c := f.dial(t)
			send(t, c, call(1, "question"))
			c.Read(make([]byte, 1)) // the reply, or the exception in its place
			proxytest.Eventually(t, "the lease to end", func() bool { return f.Stats().Backends[0].Load.Active() == 0 })
			if got := f.Stats().Backends[0].Health.ClientFaults; got != tt.want {
				t.Errorf("%d faults of clients, want %d", got, tt.want)
			}
		})
	}
}

func TestSessionsOfABackendThatGoesDownAreCutWhereThatIsWanted(t *testing.T) {
	enginetest.Each(t, testSessionsOfABackendThatGoesDownAreCutWhereThatIsWanted)
}

func testSessionsOfABackendThatGoesDownAreCutWhereThatIsWanted(t *testing.T) {
	a, b := &stoppable{}, &stoppable{}
	cfg := checkOften(config(testBackend(t, 8, a.serve), testBackend(t, 8, b.serve)))
	cfg.Health.CutOnDown = true
	f := start(t, cfg)
	var on [2]proxytest.Conn // a session at each
	for i := range on {
		on[i] = f.dial(t)
		ping(t, on[i])
	}
	a.stopped.Store(true)
	f.isDown(t, 0)
	f.ended(t, BackendDown, 1)
	proxytest.Eventually(t, "the other session to be left", func() bool { return f.Stats().Clients == 1 })
	served := 0
	for _, c := range on {
		io.WriteString(c, "ping")
		if n, _ := c.Read(make([]byte, 4)); n == 4 {
			served++
		}
	}
	if served != 1 {
		t.Errorf("%d of 2 sessions are served still, want 1", served)
	}
}
