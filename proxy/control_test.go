package proxy

import (
	"context"
	"errors"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"forebay/balance"
	"forebay/proxy/enginetest"
	"forebay/proxy/proxytest"
)

// named returns a backend that says its name and echoes then.
func named(t testing.TB, name string, max int) Backend {
	t.Helper()
	return testBackend(t, max, namer(name))
}

func namer(name string) func(proxytest.Conn) {
	return func(c proxytest.Conn) {
		io.WriteString(c, name)
		echo(c)
	}
}

// from has a client come, and reads which of the named backends it got.
func (f *front) from(t testing.TB, want string) proxytest.Conn {
	t.Helper()
	c := f.dial(t)
	wantRead(t, c, want)
	return c
}

// of returns the statistics of a backend; ok is false when it is gone.
func (f *front) of(name string) (s BackendStats, ok bool) {
	for _, b := range f.Stats().Backends {
		if b.String() == name {
			return b, true
		}
	}
	return s, false
}

// said waits until n lines have been logged that say message.
func (f *front) said(t testing.TB, message string, n int) {
	t.Helper()
	proxytest.Eventually(t, message, func() bool { return len(f.book.with(message)) == n })
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantStatus(t testing.TB, f *front, name, status string) {
	t.Helper()
	if b, ok := f.of(name); !ok || b.Status != status {
		t.Errorf("backend %s is %q (there: %v), want %q", name, b.Status, ok, status)
	}
}

func TestControlTellsWhatIsWrong(t *testing.T) {
	enginetest.Each(t, testControlTellsWhatIsWrong)
}

func testControlTellsWhatIsWrong(t *testing.T) {
	f := start(t, config(testBackend(t, 2, echo), testBackend(t, 2, echo)))
	a, b := f.cfg.Backends[0], f.cfg.Backends[1]
	f.occupy(t)
	must(t, f.Remove(a.String()))
	like := func(change func(*Backend)) error {
		be := Backend{Network: "tcp", Addr: "127.0.0.1:1", Max: 1, Weight: 1}
		change(&be)
		return f.Add(be)
	}
	tests := []struct {
		name string
		err  error
		want string
	}{
		{name: "add one that is there", err: f.Add(b), want: "there is a backend " + b.String() + " already"},
		{name: "a network", err: like(func(b *Backend) { b.Network = "udp" }), want: `tcp or unix, not "udp"`},
		{name: "no address", err: like(func(b *Backend) { b.Addr = "" }), want: "host:port, or the path of a socket"},
		{name: "no port", err: like(func(b *Backend) { b.Addr = "host" }), want: `"host" is no host:port`},
		{name: "max too low", err: like(func(b *Backend) { b.Max = 0 }), want: "max is a number from 1 to 65535, not 0"},
		{name: "max too high", err: like(func(b *Backend) { b.Max = 65536 }), want: "from 1 to 65535, not 65536"},
		{name: "weight", err: like(func(b *Backend) { b.Weight = -1 }), want: "weight is a number from 1 to 1000000, not -1"},
		{name: "remove a stranger", err: f.Remove("nobody:1"), want: `no backend "nobody:1"; there is ` + a.String() + ", " + b.String()},
		{name: "remove twice", err: f.Remove(a.String()), want: "is being removed, when its 1 open connections have ended; add it again to keep it"},
		{name: "drain a stranger", err: f.SetState("x", Drain), want: `no backend "x"`},
		{name: "no state", err: f.SetState(b.String(), 7), want: "ready, drain or maintain, not state 7"},
		{name: "weight of a stranger", err: f.SetWeight("x", 1), want: `no backend "x"`},
		{name: "no weight", err: f.SetWeight(b.String(), 0), want: "from 1 to 1000000, not 0"},
		{name: "max of a stranger", err: f.SetMax("x", 1), want: `no backend "x"`},
		{name: "no max", err: f.SetMax(b.String(), 0), want: "from 1 to 65535, not 0"},
		{name: "change one that is removed", err: f.SetMax(a.String(), 1), want: "is being removed"},
	}
	for _, tt := range tests {
		if tt.err == nil || !strings.Contains(tt.err.Error(), tt.want) {
			t.Errorf("%s: %v, want an error with %q in it", tt.name, tt.err, tt.want)
		}
	}
	f.stop(t)
	if err := f.Add(Backend{Network: "tcp", Addr: "127.0.0.1:1", Max: 1, Weight: 1}); err != ErrServerClosed {
		t.Errorf("Add to a server that is closed = %v, want ErrServerClosed", err)
	}
	if err := f.Pause(); err != ErrServerClosed {
		t.Errorf("Pause of a server that is closed = %v, want ErrServerClosed", err)
	}
}

func TestStatesHaveNames(t *testing.T) {
	for s, want := range map[State]string{Ready: "ready", Drain: "drain", Maintain: "maintain", 7: "state 7"} {
		if got := s.String(); got != want {
			t.Errorf("a state is called %q, want %q", got, want)
		}
	}
}

// Both states take a backend out of the choice, and leave its sessions alone.
func TestDrainedBackendGetsNoLeases(t *testing.T) { enginetest.Each(t, testDrainedBackendGetsNoLeases) }

func testDrainedBackendGetsNoLeases(t *testing.T) {
	for _, state := range []State{Drain, Maintain} {
		t.Run(state.String(), func(t *testing.T) {
			cfg := config(named(t, "a", 4), named(t, "b", 4))
			cfg.MinIdle = 2
			f := start(t, cfg)
			a := cfg.Backends[0].String()
			old := f.from(t, "a")
			f.slots(t, 0, balance.Idle, 2)
			must(t, f.SetState(a, state))
			wantStatus(t, f, a, state.String())
			f.slots(t, 0, balance.Idle, 0)
			for range 4 {
				defer f.from(t, "b").Close()
			}
			waits := f.dial(t)
			f.waiting(t, 1) // a has room, and gets nobody
			ping(t, old)
			if n := f.Stats().Backends[0].Pool.Closed["surplus"]; n != 2 {
				t.Errorf("%d connections were closed as surplus, want 2", n)
			}
			must(t, f.SetState(a, Ready))
			wantRead(t, waits, "a")
			wantStatus(t, f, a, "up")
			f.slots(t, 0, balance.Idle, 2)
		})
	}
}

// A connection that is released while its backend is drained is not kept either.
func TestDrainClosesWhatIsReleased(t *testing.T) { enginetest.Each(t, testDrainClosesWhatIsReleased) }

func testDrainClosesWhatIsReleased(t *testing.T) {
	f := start(t, config(testBackend(t, 4, echo)))
	c := f.dial(t) // untouched: its connection could serve another
	f.slots(t, 0, balance.Leased, 1)
	must(t, f.SetState(f.cfg.Backends[0].String(), Drain))
	c.Close()
	f.slots(t, 0, balance.Free, 4)
	wantClosed(t, f.dial(t))
	f.ended(t, NoBackend, 1)
	f.said(t, "session ended", 2)
	if last := f.book.with("session ended")[1]; !strings.Contains(last["error"].(string), "drained by the operator") {
		t.Errorf("the client was refused with %v", last["error"])
	}
}

func TestRequestsGoElsewhereFromADrainedBackend(t *testing.T) {
	enginetest.Each(t, testRequestsGoElsewhereFromADrainedBackend)
}

func testRequestsGoElsewhereFromADrainedBackend(t *testing.T) {
	one, conns := puppets(t, 1)
	two := testBackend(t, 1, newEchoServer().serve)
	f := start(t, requestsConfig(one, two))
	must(t, f.SetState(two.String(), Drain))
	c := f.dial(t)
	server := exchangedAnew(t, c, conns, call(1, "here"))
	send(t, c, call(2, "under way"))
	got := wantCall(t, server, call(2, "under way"))
	must(t, f.SetState(two.String(), Ready))
	must(t, f.SetState(one.String(), Drain))
	send(t, server, got.reply("under way"))
	wantReply(t, c, call(2, "under way"), "under way")
	echoed(t, c, call(3, "elsewhere"))
	f.slots(t, 0, balance.Free, 1)
	c.Close()
	f.ended(t, Done, 1)
}

// With nothing left but drained backends a client is refused, also one that waits.
func TestDrainRefusesThoseWhoHaveNoOtherHope(t *testing.T) {
	enginetest.Each(t, testDrainRefusesThoseWhoHaveNoOtherHope)
}

func testDrainRefusesThoseWhoHaveNoOtherHope(t *testing.T) {
	f := start(t, config(testBackend(t, 1, echo)))
	f.occupy(t)
	c := f.dial(t)
	f.waiting(t, 1)
	must(t, f.SetState(f.cfg.Backends[0].String(), Drain))
	wantClosed(t, c)
	f.ended(t, NoBackend, 1)
}

func TestNothingLooksForABackendInMaintenance(t *testing.T) {
	enginetest.Each(t, testNothingLooksForABackendInMaintenance)
}

func testNothingLooksForABackendInMaintenance(t *testing.T) {
	be, open := dead(t, 1)
	f := start(t, config(be))
	wantClosed(t, f.dial(t))
	wantStatus(t, f, be.String(), "down")
	b, _ := f.of(be.String())
	if b.Health.Why == "" || b.Health.LastError == "" || b.Health.LastFailure.IsZero() {
		t.Errorf("a backend that is down has %+v", b)
	}
	must(t, f.SetState(be.String(), Maintain))
	wantStatus(t, f, be.String(), "maintain")
	if _, ok := (slots{f.dispatcher, f.dispatcher.at(0)}).check(); ok {
		t.Error("a slot for a check, in maintenance")
	}
	proxytest.ServeOn(t, open(), echo)
	must(t, f.SetState(be.String(), Ready))
	proxytest.Eventually(t, "a check", func() bool { b, _ := f.of(be.String()); return b.Status == "up" })
	if b, _ := f.of(be.String()); b.Health.Why != "" || b.Health.LastError == "" {
		t.Errorf("up again it is down for %q, and last failed with %q", b.Health.Why, b.Health.LastError)
	}
	f.occupy(t)
}

func TestRemovedBackendIsGoneWithItsLastLease(t *testing.T) {
	enginetest.Each(t, testRemovedBackendIsGoneWithItsLastLease)
}

func testRemovedBackendIsGoneWithItsLastLease(t *testing.T) {
	cfg := config(named(t, "a", 4), named(t, "b", 4))
	cfg.MinIdle = 1
	f := start(t, cfg)
	a := cfg.Backends[0]
	old := f.from(t, "a")
	must(t, f.Remove(a.String()))
	for range 3 {
		defer f.from(t, "b").Close()
	}
	wantStatus(t, f, a.String(), "removed")
	ping(t, old)
	old.Close()
	proxytest.Eventually(t, "its end", func() bool { _, ok := f.of(a.String()); return !ok })
	f.said(t, "backend is gone", 1)
	f.said(t, "session ended", 1)
	if line := f.book.with("session ended")[0]; line["backend"] != a.String() {
		t.Errorf("the session's line names %q, want %s", line["backend"], a)
	}
	must(t, f.Add(Backend{Network: a.Network, Addr: a.Addr, Max: 3, Weight: 7}))
	c := f.from(t, "a")
	defer c.Close()
	if b, ok := f.of(a.String()); !ok || b.Max != 3 || b.Weight != 7 || b.Status != "up" {
		t.Errorf("it came back as %+v", b)
	}
}

func TestBackendThatIsKeptDialsAheadAgain(t *testing.T) {
	enginetest.Each(t, testBackendThatIsKeptDialsAheadAgain)
}

func testBackendThatIsKeptDialsAheadAgain(t *testing.T) {
	cfg := config(testBackend(t, 4, echo))
	cfg.MinIdle = 2
	f := start(t, cfg)
	f.occupy(t)
	f.slots(t, 0, balance.Idle, 2)
	must(t, f.Remove(cfg.Backends[0].String()))
	f.slots(t, 0, balance.Expiring, 0)
	f.slots(t, 0, balance.Idle, 0)
	must(t, f.Add(cfg.Backends[0]))
	f.slots(t, 0, balance.Idle, 2)
}

// askedFor is an observer that counts how often it is asked for each backend.
type askedFor struct {
	mu    sync.Mutex
	times map[string]int
}

func (*askedFor) QueueWaited(time.Duration) {}

func (a *askedFor) Requests(backend string) func(time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.times[backend]++
	return func(time.Duration) {}
}

// Whoever is asked forgets the times of before, which must not happen to a backend that
// was never gone.
func TestObserverIsAskedOnceForEachNewBackend(t *testing.T) {
	enginetest.Each(t, testObserverIsAskedOnceForEachNewBackend)
}

func testObserverIsAskedOnceForEachNewBackend(t *testing.T) {
	be := testBackend(t, 4, newEchoServer().serve)
	name := be.String()
	cfg := requestsConfig(be)
	asked := &askedFor{times: map[string]int{}}
	cfg.Observer = asked
	f := start(t, cfg)
	want := func(when string, n int) {
		t.Helper()
		asked.mu.Lock()
		defer asked.mu.Unlock()
		if got := asked.times[name]; got != n {
			t.Errorf("%s it was asked %d times, want %d", when, got, n)
		}
	}
	if err := f.Add(be); !errors.Is(err, ErrExists) {
		t.Errorf("Add = %v, want ErrExists", err)
	}
	want("for a backend that is there", 1)
	d := f.dispatcher
	b := d.at(0)
	d.move(b, balance.Free, balance.Leased)
	must(t, f.Remove(name))
	must(t, f.Add(be))
	want("for a backend that is kept", 1)
	d.move(b, balance.Leased, balance.Free)
	must(t, f.Remove(name))
	f.said(t, "backend is gone", 1)
	must(t, f.Add(be))
	want("for a backend that is new again", 2)
}

// What is added again before it is gone stays, and what it has open counts.
func TestAddKeepsABackendThatIsBeingRemoved(t *testing.T) {
	enginetest.Each(t, testAddKeepsABackendThatIsBeingRemoved)
}

func testAddKeepsABackendThatIsBeingRemoved(t *testing.T) {
	f := start(t, config(named(t, "a", 4)))
	a := f.cfg.Backends[0]
	old := f.from(t, "a")
	must(t, f.Remove(a.String()))
	wantClosed(t, f.dial(t))
	a.Max = 2
	must(t, f.Add(a))
	second := f.from(t, "a")
	third := f.dial(t)
	f.waiting(t, 1)
	old.Close()
	wantRead(t, third, "a")
	if b, _ := f.of(a.String()); b.Max != 2 || b.Load.Active() != 2 || b.Status != "up" {
		t.Errorf("it stays as %+v", b)
	}
	second.Close()
}

// The last may be removed, and another take its place.
func TestBackendsMayBeReplacedAltogether(t *testing.T) {
	enginetest.Each(t, testBackendsMayBeReplacedAltogether)
}

func testBackendsMayBeReplacedAltogether(t *testing.T) {
	f := start(t, config(named(t, "a", 4)))
	must(t, f.Remove(f.cfg.Backends[0].String()))
	proxytest.Eventually(t, "none", func() bool { return len(f.Stats().Backends) == 0 })
	wantClosed(t, f.dial(t))
	f.ended(t, NoBackend, 1)
	must(t, f.Add(named(t, "b", 4)))
	f.from(t, "b").Close()
}

func TestBackendsMayBeChangedBeforeServe(t *testing.T) {
	enginetest.Each(t, testBackendsMayBeChangedBeforeServe)
}

func testBackendsMayBeChangedBeforeServe(t *testing.T) {
	one, two := named(t, "a", 4), named(t, "b", 4)
	cfg := config(one)
	cfg.MinIdle, cfg.Engine = 1, enginetest.New(t)
	defer cfg.Engine.Close()
	srv, err := New(cfg)
	must(t, err)
	must(t, srv.Add(two))
	must(t, srv.SetMax(two.String(), 2))
	must(t, srv.SetState(two.String(), Drain))
	must(t, srv.SetState(two.String(), Ready))
	must(t, srv.Remove(one.String()))
	s := srv.Stats().Backends
	if len(s) != 1 || s[0].String() != two.String() || s[0].Max != 2 || s[0].Pool.Dials != 0 {
		t.Errorf("the backends are %+v", s)
	}
	ln, err := cfg.Engine.Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	wantRead(t, proxytest.Dial(t, ln.Addr()), "b")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	srv.Shutdown(ctx)
	if err := proxytest.Receive(t, done, "the end of Serve"); err != ErrServerClosed {
		t.Errorf("Serve = %v", err)
	}
}

func TestMaxRaisedServesAtOnceAndLoweredClosesWhatLiesIdle(t *testing.T) {
	enginetest.Each(t, testMaxRaisedServesAtOnceAndLoweredClosesWhatLiesIdle)
}

func testMaxRaisedServesAtOnceAndLoweredClosesWhatLiesIdle(t *testing.T) {
	f := start(t, config(named(t, "a", 1)))
	a := f.cfg.Backends[0].String()
	clients := []proxytest.Conn{f.from(t, "a")}
	for i := range 4 {
		clients = append(clients, f.dial(t))
		f.waiting(t, i+1)
	}
	must(t, f.SetMax(a, 4))
	for _, c := range clients[1:4] {
		wantRead(t, c, "a")
	}
	f.waiting(t, 1)
	must(t, f.SetMax(a, 2))
	for _, c := range clients[:3] { // two of these are above it
		if f.Stats().Waiting != 1 {
			t.Error("served above max")
		}
		c.Close()
		if c != clients[2] {
			proxytest.Eventually(t, "its end", func() bool { return f.Stats().Ended["done"] == int64(slices.Index(clients, c)+1) })
		}
	}
	wantRead(t, clients[4], "a")
	f.slots(t, 0, balance.Leased, 2)
	for _, c := range clients[3:] {
		c.Close()
	}
	f.slots(t, 0, balance.Free, 2)

	quiet := []proxytest.Conn{f.dial(t), f.dial(t)} // whose connections are kept, if they are not above max
	f.slots(t, 0, balance.Leased, 2)
	for _, c := range quiet {
		wantRead(t, c, "a")
	}
	must(t, f.SetMax(a, 1))
	for _, c := range quiet {
		c.Close()
	}
	proxytest.Eventually(t, "the surplus to be closed", func() bool { b, _ := f.of(a); return b.Load.Open() <= 1 })
}

func TestLoweredMaxClosesTheIdle(t *testing.T) {
	enginetest.Each(t, testLoweredMaxClosesTheIdle)
}

func testLoweredMaxClosesTheIdle(t *testing.T) {
	cfg := config(testBackend(t, 5, echo))
	cfg.MinIdle = 5
	f := start(t, cfg)
	a := cfg.Backends[0].String()
	f.slots(t, 0, balance.Idle, 5)
	after(200 * time.Millisecond) // all are watched, and nothing else has the pool look at them soon
	must(t, f.SetMax(a, 2))
	f.slots(t, 0, balance.Idle, 2)
	must(t, f.SetMax(a, 3))
	f.slots(t, 0, balance.Idle, 3) // dialed ahead again
}

func TestWeightCountsFromNow(t *testing.T) {
	enginetest.Each(t, testWeightCountsFromNow)
}

func testWeightCountsFromNow(t *testing.T) {
	f := start(t, config(named(t, "a", 100), named(t, "b", 100)))
	must(t, f.SetWeight(f.cfg.Backends[1].String(), 3))
	got := map[string]int{}
	for range 20 {
		c := f.dial(t)
		name := make([]byte, 1)
		if _, err := io.ReadFull(c, name); err != nil {
			t.Fatal(err)
		}
		got[string(name)]++
		c.Close()
		proxytest.Eventually(t, "its end", func() bool { return f.Stats().Clients == 0 })
	}
	if got["b"] != 15 {
		t.Errorf("of 20 that were all ties b got %d, want 15", got["b"])
	}
	if b, _ := f.of(f.cfg.Backends[1].String()); b.Weight != 3 {
		t.Errorf("weight is said to be %d", b.Weight)
	}
}

// The pools take descriptors: with more of them there are fewer clients.
func TestMaxChangesHowManyClientsThereMayBe(t *testing.T) {
	enginetest.Each(t, testMaxChangesHowManyClientsThereMayBe)
}

func testMaxChangesHowManyClientsThereMayBe(t *testing.T) {
	limit, known := descriptorLimit()
	if !known || limit > 60000 {
		t.Skip("no limit that max reaches")
	}
	f := start(t, config(testBackend(t, 1, echo)))
	before := f.MaxClients()
	must(t, f.SetMax(f.cfg.Backends[0].String(), 101))
	if n := f.MaxClients(); n != before-100 {
		t.Errorf("%d clients may come, want 100 less than %d", n, before)
	}
	f.places.refused.Store(true) // as if all had come
	must(t, f.SetMax(f.cfg.Backends[0].String(), 1))
	if n := f.MaxClients(); n != before {
		t.Errorf("%d clients may come, want %d as before", n, before)
	}
	if f.places.refused.Load() {
		t.Error("the listener has not heard that there are places")
	}
}

func TestAddsAndRemovesLeaveNothing(t *testing.T) {
	enginetest.Each(t, testAddsAndRemovesLeaveNothing)
}

func testAddsAndRemovesLeaveNothing(t *testing.T) {
	f := start(t, config(testBackend(t, 2, echo)))
	f.occupy(t)
	// A hundred at a time: what goroutines there were at once the runtime keeps for new ones.
	goroutines := runtime.NumGoroutine()
	change := func(hundreds int) {
		for range hundreds {
			for range 100 {
				be := Backend{Network: "tcp", Addr: "127.0.0.1:9", Max: 5, Weight: 1}
				must(t, f.Add(be))
				must(t, f.Remove(be.String()))
			}
			proxytest.Eventually(t, "the pools to end", func() bool { return runtime.NumGoroutine() <= goroutines })
		}
		f.book.mu.Lock()
		f.book.lines = nil
		f.book.mu.Unlock()
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	change(1)
	before := heap()
	change(100)
	if after := heap(); after > before+1<<20 {
		t.Errorf("10,000 adds and removes hold %d KiB", (after-before)>>10)
	}
	if n := len(f.dispatcher.backends); n != 2 {
		t.Errorf("room for %d backends, want 2", n)
	}
}

func TestBytesOfABackendAreCounted(t *testing.T) { enginetest.Each(t, testBytesOfABackendAreCounted) }

func testBytesOfABackendAreCounted(t *testing.T) {
	raw := start(t, config(named(t, "name", 2)))
	c := raw.from(t, "name")
	ping(t, c)
	c.Close()
	raw.ended(t, Done, 1)
	if b := raw.Stats().Backends[0]; b.BytesUp != 4 || b.BytesDown != 8 {
		t.Errorf("raw: %d bytes up and %d down, want 4 and 8", b.BytesUp, b.BytesDown)
	}
	f := start(t, requestsConfig(testBackend(t, 2, newEchoServer().serve)))
	c = f.dial(t)
	m := call(1, "counted")
	echoed(t, c, m)
	c.Close()
	f.ended(t, Done, 1)
	if b := f.Stats().Backends[0]; b.BytesUp != int64(len(m.bytes())) || b.BytesDown != int64(len(m.reply("counted").bytes())) {
		t.Errorf("requests: %d bytes up and %d down, want %d each", b.BytesUp, b.BytesDown, len(m.bytes()))
	}
}
