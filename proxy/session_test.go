package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"forebay/balance"
	"forebay/proxy/engine"
	"forebay/proxy/enginetest"
	"forebay/proxy/proxytest"
)

func TestBytesGoBothWaysOverEveryNetwork(t *testing.T) {
	enginetest.Each(t, testBytesGoBothWaysOverEveryNetwork)
}

func testBytesGoBothWaysOverEveryNetwork(t *testing.T) {
	for _, backendNetwork := range []string{"tcp", "tcp6", "unix"} {
		for _, network := range []string{"tcp", "unix"} {
			t.Run(network+" to "+backendNetwork, func(t *testing.T) {
				addr := map[string]string{"tcp": "127.0.0.1:0", "unix": filepath.Join(t.TempDir(), "front")}[network]
				be := at(proxytest.Serve(t, backendNetwork, echo), 2)
				f := startOn(t, config(be), network, addr)
				c := f.dial(t)
				text := strings.Repeat("to and fro, ", 10000)
				go func() {
					io.WriteString(c, text)
					c.CloseWrite()
				}()
				wantAll(t, c, text)
				f.stop(t)
				if b := f.Stats().Backends[0]; b.BytesUp != int64(len(text)) || b.BytesDown != int64(len(text)) {
					t.Errorf("%d bytes up and %d down are counted, want %d", b.BytesUp, b.BytesDown, len(text))
				}
				line := f.book.with("session ended")[0]
				n := float64(len(text))
				if line["bytes_up"] != n || line["bytes_down"] != n || line["backend"] != be.String() {
					t.Errorf("log line %v, want %v bytes up and down and backend %v", line, n, be)
				}
			})
		}
	}
}

// occupy has a client lease a connection of an echo backend.
func (f *front) occupy(t *testing.T) proxytest.Conn {
	t.Helper()
	c := f.dial(t)
	ping(t, c)
	return c
}

func TestHalfClosedClientKeepsItsPlaceInTheQueue(t *testing.T) {
	enginetest.Each(t, testHalfClosedClientKeepsItsPlaceInTheQueue)
}

func testHalfClosedClientKeepsItsPlaceInTheQueue(t *testing.T) {
	f := start(t, config(testBackend(t, 1, echo)))
	first := f.occupy(t)
	second := f.dial(t)
	write(t, second, "last words")
	second.CloseWrite()
	f.waiting(t, 1)
	third := f.dial(t)
	f.waiting(t, 2)
	first.Close()
	wantAll(t, second, "last words")
	ping(t, third)
	third.Close()
	f.ended(t, Done, 3)
}

func TestHalfClosedClientIsServedAfterItsDial(t *testing.T) {
	enginetest.Each(t, testHalfClosedClientIsServedAfterItsDial)
}

func testHalfClosedClientIsServedAfterItsDial(t *testing.T) {
	cfg := config(testBackend(t, 1, echo))
	g := newGated(t)
	cfg.Engine = g
	f := start(t, cfg)
	c := f.dial(t)
	write(t, c, "last words")
	c.CloseWrite()
	proxytest.Receive(t, g.began, "a dial")
	f.slots(t, 0, balance.Dialing, 1)
	close(g.gate)
	wantAll(t, c, "last words")
	f.ended(t, Done, 1)
}

// ways in which clients leave.
var departures = []struct {
	name       string
	abortOnFIN bool
	sends      bool // something first
	leave      func(t testing.TB, c proxytest.Conn)
}{
	{name: "reset", leave: func(t testing.TB, c proxytest.Conn) { reset(t, c) }},
	{name: "reset after bytes", sends: true, leave: func(t testing.TB, c proxytest.Conn) { write(t, c, "x"); reset(t, c) }},
	{name: "FIN before any byte", leave: func(_ testing.TB, c proxytest.Conn) { c.Close() }},
	{name: "FIN after bytes with abort on FIN", abortOnFIN: true, sends: true,
		leave: func(t testing.TB, c proxytest.Conn) { write(t, c, "x"); c.CloseWrite() }},
}

func TestClientThatLeavesTheQueueMakesRoomForTheNext(t *testing.T) {
	enginetest.Each(t, testClientThatLeavesTheQueueMakesRoomForTheNext)
}

func testClientThatLeavesTheQueueMakesRoomForTheNext(t *testing.T) {
	for _, tt := range departures {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config(testBackend(t, 1, echo))
			cfg.AbortOnFIN = tt.abortOnFIN
			f := start(t, cfg)
			first := f.occupy(t)
			second := f.dial(t)
			f.waiting(t, 1)
			third := f.dial(t)
			write(t, third, "ping")
			f.waiting(t, 2)
			tt.leave(t, second)
			f.ended(t, ClientLeft, 1)
			f.waiting(t, 1)
			first.Close()
			wantRead(t, third, "ping")
		})
	}
}

func TestClientThatLeavesDuringItsDialLeavesTheConnectionToTheNext(t *testing.T) {
	enginetest.Each(t, testClientThatLeavesDuringItsDialLeavesTheConnectionToTheNext)
}

func testClientThatLeavesDuringItsDialLeavesTheConnectionToTheNext(t *testing.T) {
	for _, tt := range departures {
		t.Run(tt.name, func(t *testing.T) {
			be, conns := puppets(t, 1)
			cfg := config(be)
			cfg.AbortOnFIN = tt.abortOnFIN
			g := newGated(t)
			cfg.Engine = g
			f := start(t, cfg)
			first := f.dial(t)
			proxytest.Receive(t, g.began, "a dial")
			tt.leave(t, first)
			f.ended(t, ClientLeft, 1)
			f.slots(t, 0, balance.DialingAhead, 1)
			second := f.dial(t)
			write(t, second, "mine")
			f.waiting(t, 1)
			close(g.gate)
			wantRead(t, proxytest.Receive(t, conns, "a connection"), "mine")
			if s := f.Stats().Backends[0].Pool; s.Dials != 1 || s.Ready != 1 {
				t.Errorf("%d dials, %d leases of a ready connection; want 1 and 1", s.Dials, s.Ready)
			}
		})
	}
}

func TestFirstByteWaitHoldsNoLease(t *testing.T) {
	enginetest.Each(t, testFirstByteWaitHoldsNoLease)
}

func testFirstByteWaitHoldsNoLease(t *testing.T) {
	for _, tt := range departures {
		if tt.sends {
			continue // and is served as soon as it has
		}
		t.Run(tt.name, func(t *testing.T) {
			cfg := config(testBackend(t, 1, echo))
			cfg.FirstByteWait = time.Minute
			f := start(t, cfg)
			silent := f.dial(t)
			proxytest.Eventually(t, "a client", func() bool { return f.Stats().Clients == 1 })
			for i := range int64(3) {
				c := f.occupy(t) // the one slot is free
				c.Close()
				f.ended(t, Done, i+1)
			}
			if s := f.Stats(); s.Queued != 0 || s.Backends[0].Pool.Dials != 3 {
				t.Errorf("%d queued, %d dials; want 0 and 3", s.Queued, s.Backends[0].Pool.Dials)
			}
			tt.leave(t, silent)
			f.ended(t, ClientLeft, 1)
			if n := f.Stats().Backends[0].Pool.Dials; n != 3 {
				t.Errorf("%d dials, want 3: none for a client that left", n)
			}
		})
	}
}

func TestFirstByteWaitEndsWithItsTimeForServersThatSpeakFirst(t *testing.T) {
	enginetest.Each(t, testFirstByteWaitEndsWithItsTimeForServersThatSpeakFirst)
}

func testFirstByteWaitEndsWithItsTimeForServersThatSpeakFirst(t *testing.T) {
	be := testBackend(t, 1, func(c proxytest.Conn) { io.WriteString(c, "hello") })
	cfg := config(be)
	cfg.FirstByteWait = 10 * time.Millisecond
	f := start(t, cfg)
	wantAll(t, f.dial(t), "hello")
}

// TestClientThatLeavesAsItsTurnComesGivesItsConnectionBack has the client's end
// be seen at the last possible moment: its dial has succeeded.
func TestClientThatLeavesAsItsTurnComesGivesItsConnectionBack(t *testing.T) {
	enginetest.Each(t, testClientThatLeavesAsItsTurnComesGivesItsConnectionBack)
}

func testClientThatLeavesAsItsTurnComesGivesItsConnectionBack(t *testing.T) {
	be, conns := puppets(t, 1)
	f := start(t, config(be))
	s := &session{srv: f.Server, id: 1, client: leavingConn{}}
	if l, err := s.await(); l != nil || err != errClientLeft {
		t.Errorf("acquire = %v, %v; want errClientLeft", l, err)
	}
	f.slots(t, 0, balance.Idle, 1)
	c := f.dial(t)
	write(t, c, "mine")
	wantRead(t, proxytest.Receive(t, conns, "a connection"), "mine")
	if s := f.Stats().Backends[0].Pool; s.Dials != 1 || s.Ready != 1 {
		t.Errorf("%d dials, %d leases of a ready connection; want 1 and 1", s.Dials, s.Ready)
	}
}

// leavingConn is a client whose end is seen as its watch is stopped.
type leavingConn struct{ engine.Conn }

func (leavingConn) Watch(f func(bool, error) bool) (stop func()) {
	return func() { f(false, io.EOF) }
}

func TestResetIsRelayedBothWays(t *testing.T) {
	enginetest.Each(t, testResetIsRelayedBothWays)
}

func testResetIsRelayedBothWays(t *testing.T) {
	be, conns := puppets(t, 1)
	f := start(t, config(be))

	client := f.dial(t)
	write(t, client, "hi")
	server := proxytest.Receive(t, conns, "a connection")
	wantRead(t, server, "hi")
	write(t, server, "ho")
	wantRead(t, client, "ho")
	reset(t, client)
	if _, err := server.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the backend read %v, want a reset", err)
	}
	f.ended(t, ClientReset, 1)

	client = f.dial(t)
	write(t, client, "hi")
	server = proxytest.Receive(t, conns, "another connection")
	wantRead(t, server, "hi")
	reset(t, server)
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client read %v, want a reset", err)
	}
	f.ended(t, BackendReset, 1)
}

// TestLogLineOfEachEnd plays a session to each of its ends.
func TestLogLineOfEachEnd(t *testing.T) {
	enginetest.Each(t, testLogLineOfEachEnd)
}

func testLogLineOfEachEnd(t *testing.T) {
	tests := []struct {
		reason     Reason
		level      string
		change     func(cfg *Config)
		play       func(t *testing.T, f *front, c proxytest.Conn) // c is the only client, or the second of two
		occupied   bool                                           // by the first
		up, down   float64
		ready, err bool
		noBackend  bool
	}{
		{reason: Done, level: "debug", up: 4, down: 4, play: func(t *testing.T, f *front, c proxytest.Conn) {
			ping(t, c)
			c.CloseWrite()
			wantAll(t, c, "")
		}},
		{reason: Done, level: "debug", up: 4, down: 4, ready: true, change: func(cfg *Config) { cfg.MinIdle = 1 },
			play: func(t *testing.T, f *front, c proxytest.Conn) { ping(t, c); c.CloseWrite() }},
		{reason: ClientReset, level: "debug", up: 4, down: 4, err: true,
			play: func(t *testing.T, f *front, c proxytest.Conn) { ping(t, c); reset(t, c) }},
		{reason: ClientLeft, level: "debug", occupied: true, err: true, noBackend: true,
			play: func(t *testing.T, f *front, c proxytest.Conn) { f.waiting(t, 1); reset(t, c) }},
		{reason: IdleTimeout, level: "info", up: 4, down: 4, change: func(cfg *Config) { cfg.SessionIdleTimeout = 50 * time.Millisecond },
			play: func(t *testing.T, f *front, c proxytest.Conn) { ping(t, c); wantClosed(t, c) }},
		{reason: HalfCloseTimeout, level: "info", up: 6, change: func(cfg *Config) { cfg.HalfCloseTimeout = 50 * time.Millisecond },
			play: func(t *testing.T, f *front, c proxytest.Conn) {
				write(t, c, "silent")
				c.CloseWrite()
				wantClosed(t, c)
			}},
		{reason: BackendReset, level: "info", up: 5, err: true,
			play: func(t *testing.T, f *front, c proxytest.Conn) { write(t, c, "reset"); wantClosed(t, c) }},
		{reason: QueueFull, level: "info", occupied: true, err: true, noBackend: true, change: func(cfg *Config) { cfg.Queue = 0 },
			play: func(t *testing.T, f *front, c proxytest.Conn) { wantClosed(t, c) }},
		{reason: AcquireTimeout, level: "info", occupied: true, err: true, noBackend: true,
			change: func(cfg *Config) { cfg.AcquireTimeout = 50 * time.Millisecond },
			play:   func(t *testing.T, f *front, c proxytest.Conn) { wantClosed(t, c) }},
		{reason: NoBackend, level: "info", err: true, noBackend: true,
			change: func(cfg *Config) { cfg.Backends[0].Network, cfg.Backends[0].Addr = "unix", "/nobody/there" },
			play:   func(t *testing.T, f *front, c proxytest.Conn) { wantClosed(t, c) }},
		{reason: LocalFault, level: "info", err: true, noBackend: true,
			change: func(cfg *Config) {
				cfg.AcquireTimeout = 50 * time.Millisecond
				cfg.Engine = poorEngine{enginetest.New(t)}
			},
			play: func(t *testing.T, f *front, c proxytest.Conn) {
				wantClosed(t, c)
				if f.Stats().Backends[0].Load.Out == balance.Down {
					t.Error("the backend is down for a fault of this machine")
				}
			}},
		{reason: Refused, level: "info", occupied: true, err: true, noBackend: true,
			play: func(t *testing.T, f *front, c proxytest.Conn) { f.waiting(t, 1); f.stop(t) }},
		{reason: Cut, level: "info", up: 4, down: 4, err: true,
			play: func(t *testing.T, f *front, c proxytest.Conn) { ping(t, c); f.stop(t); wantClosed(t, c) }},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%v ready %v", tt.reason, tt.ready), func(t *testing.T) {
			be := testBackend(t, 1, fickle(t))
			cfg := config(be)
			if tt.change != nil {
				tt.change(&cfg)
			}
			f := start(t, cfg)
			f.slots(t, 0, balance.Idle, cfg.MinIdle)
			if tt.occupied {
				f.occupy(t)
			}
			c := f.dial(t)
			local := c.LocalAddr().String()
			tt.play(t, f, c)
			f.ended(t, tt.reason, 1)
			f.stop(t)
			checkLine(t, f.lineOf(t, local), map[string]any{
				"level": tt.level, "message": "session ended", "client": local, "reason": tt.reason.String(),
				"backend":  map[bool]string{true: "", false: be.String()}[tt.noBackend],
				"session":  map[bool]float64{true: 2, false: 1}[tt.occupied],
				"bytes_up": tt.up, "bytes_down": tt.down, "ready": tt.ready,
			}, tt.err)
		})
	}
}

// fickle returns a server that echoes, but for the words "silent" and "reset".
func fickle(t *testing.T) func(c proxytest.Conn) {
	ended := t.Context().Done()
	return func(c proxytest.Conn) {
		b := make([]byte, 100)
		for {
			n, err := c.Read(b)
			switch {
			case err != nil:
				return
			case string(b[:n]) == "silent":
				<-ended
				return
			case string(b[:n]) == "reset":
				c.(*net.TCPConn).SetLinger(0)
				return
			}
			c.Write(b[:n])
		}
	}
}

// poorEngine has no descriptor left for a connection to a backend.
type poorEngine struct{ engine.Engine }

func (poorEngine) Dial(context.Context, string, string) (engine.Conn, error) {
	return nil, syscall.EMFILE
}

// lineOf returns the one line of the session of the client at addr.
func (f *front) lineOf(t *testing.T, addr string) (line map[string]any) {
	t.Helper()
	for _, l := range f.book.with("session ended") {
		if l["client"] == addr {
			if line != nil {
				t.Errorf("two lines of one session: %v, %v", line, l)
			}
			line = l
		}
	}
	return line
}

// checkLine compares a line with the fields it must have; the times only have to
// make sense.
func checkLine(t *testing.T, line, want map[string]any, err bool) {
	t.Helper()
	wait, ok1 := line["wait_ms"].(float64)
	total, ok2 := line["total_ms"].(float64)
	if !ok1 || !ok2 || wait < 0 || total < wait || total > 60000 {
		t.Errorf("wait_ms %v and total_ms %v make no sense", line["wait_ms"], line["total_ms"])
	}
	if _, has := line["error"]; has != err {
		t.Errorf("error %v in the line: %v, want %v", line["error"], has, err)
	}
	got := maps.Clone(line)
	for _, k := range []string{"wait_ms", "total_ms", "error"} {
		delete(got, k)
	}
	if !maps.Equal(got, want) {
		t.Errorf("log line\n%v, want\n%v", got, want)
	}
}

func TestWaitIsInTheLogAndInTheStats(t *testing.T) {
	enginetest.Each(t, testWaitIsInTheLogAndInTheStats)
}

func testWaitIsInTheLogAndInTheStats(t *testing.T) {
	f := start(t, config(testBackend(t, 1, echo)))
	first := f.occupy(t)
	second := f.dial(t)
	write(t, second, "ping")
	f.waiting(t, 1)
	begin := time.Now()
	for range 5 {
		ping(t, first) // takes some time, which is not slept away
	}
	waited := time.Since(begin)
	first.Close()
	wantRead(t, second, "ping")
	second.Close()
	f.ended(t, Done, 2)
	s := f.Stats()
	if s.Queued != 1 || s.QueueSum < waited || s.QueueMax != s.QueueSum {
		t.Errorf("%d queued for %v in all, %v at most; want 1 for at least %v", s.Queued, s.QueueSum, s.QueueMax, waited)
	}
	f.stop(t)
	line := f.lineOf(t, second.LocalAddr().String())
	if got := line["wait_ms"].(float64); got < float64(waited.Microseconds())/1000 {
		t.Errorf("wait_ms = %v, want at least %v", got, waited)
	}
}

// TestAcquireTimeoutRacesWithGrants has the time of many sessions pass as slots
// are granted to them. What is lost shows at the end: see settled.
func TestAcquireTimeoutRacesWithGrants(t *testing.T) {
	enginetest.Each(t, testAcquireTimeoutRacesWithGrants)
}

func testAcquireTimeoutRacesWithGrants(t *testing.T) {
	for _, timeout := range []time.Duration{time.Millisecond, 5 * time.Millisecond} {
		cfg := config(testBackend(t, 1, echo), testBackend(t, 2, echo))
		cfg.AcquireTimeout = timeout
		cfg.MinIdle = 1
		f := start(t, cfg)
		var clients sync.WaitGroup
		for range 16 {
			clients.Go(func() {
				for range 25 {
					served(f.at.String())
				}
			})
		}
		clients.Wait()
		f.stop(t)
		e := f.Stats().Ended
		if sum := e["done"] + e["acquire_timeout"] + e["client_reset"]; sum != 16*25 {
			t.Errorf("%d sessions ended as expected, want %d: %v", sum, 16*25, e)
		}
		t.Log(e)
	}
}

// served is one client that has its answer, or is refused.
func served(addr string) bool {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return false
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	io.WriteString(c, "ping")
	b := make([]byte, 4)
	_, err = io.ReadFull(c, b)
	return err == nil && string(b) == "ping"
}

func TestRefusedClientHasNotWaited(t *testing.T) {
	enginetest.Each(t, testRefusedClientHasNotWaited)
}

func testRefusedClientHasNotWaited(t *testing.T) {
	cfg := config(testBackend(t, 1, echo))
	cfg.Queue = 0
	f := start(t, cfg)
	f.occupy(t)
	wantClosed(t, f.dial(t))
	f.ended(t, QueueFull, 1)
	if s := f.Stats(); s.Queued != 0 {
		t.Errorf("%d clients have waited, want none", s.Queued)
	}
}

func TestMaxClientsLeavesTheRestInTheBacklog(t *testing.T) {
	enginetest.Each(t, testMaxClientsLeavesTheRestInTheBacklog)
}

func testMaxClientsLeavesTheRestInTheBacklog(t *testing.T) {
	cfg := config(testBackend(t, 10, echo))
	cfg.MaxClients = 2
	f := start(t, cfg)
	first, second := f.occupy(t), f.occupy(t)
	third, fourth := f.dial(t), f.dial(t) // the kernel has taken them
	write(t, third, "three")
	write(t, fourth, "four")
	for range 20 {
		ping(t, first)
	}
	if n := f.ids.Load(); n != 2 {
		t.Errorf("%d clients accepted, want 2", n)
	}
	second.Close()
	wantRead(t, third, "three")
	if s := f.Stats(); f.ids.Load() != 3 || s.Clients != 2 {
		t.Errorf("%d accepted, %d at once; want 3 and 2", f.ids.Load(), s.Clients)
	}
	first.Close()
	wantRead(t, fourth, "four")
}

func TestStatsCountTheClientsThatAreThere(t *testing.T) {
	enginetest.Each(t, testStatsCountTheClientsThatAreThere)
}

func testStatsCountTheClientsThatAreThere(t *testing.T) {
	f := start(t, config(testBackend(t, 10, echo)))
	if n := f.Stats().Clients; n != 0 {
		t.Errorf("%d clients, want 0", n)
	}
	f.occupy(t)
	c := f.occupy(t)
	if n := f.Stats().Clients; n != 2 {
		t.Errorf("%d clients, want 2", n)
	}
	c.Close()
	proxytest.Eventually(t, "one client fewer", func() bool { return f.Stats().Clients == 1 })
	if s := f.Stats(); s.Backends[0].Sessions != 1 || s.Backends[0].Load.PeakLeased != 2 {
		t.Errorf("backend served %d, at most %d at once; want 1 and 2", s.Backends[0].Sessions, s.Backends[0].Load.PeakLeased)
	}
}

func TestSteadySessionsSitInProportionToMax(t *testing.T) {
	enginetest.Each(t, testSteadySessionsSitInProportionToMax)
}

func testSteadySessionsSitInProportionToMax(t *testing.T) {
	f := start(t, config(testBackend(t, 2, echo), testBackend(t, 8, echo)))
	for range 10 {
		f.occupy(t)
	}
	s := f.Stats()
	if a, b := s.Backends[0].Load.Active(), s.Backends[1].Load.Active(); a != 2 || b != 8 {
		t.Errorf("sessions sit %d and %d, want 2 and 8", a, b)
	}
}

// The queue is in the order of asking: a client that was held for its first byte
// asks when that has come.
func TestClientThatSaysNothingHoldsNoPlaceInTheQueue(t *testing.T) {
	enginetest.Each(t, testClientThatSaysNothingHoldsNoPlaceInTheQueue)
}

func testClientThatSaysNothingHoldsNoPlaceInTheQueue(t *testing.T) {
	be, conns := puppets(t, 1)
	cfg := config(be)
	cfg.FirstByteWait = time.Minute
	f := start(t, cfg)
	early := f.dial(t)
	proxytest.Eventually(t, "the early client", func() bool { return f.Stats().Clients == 1 })
	holder := f.dial(t)
	write(t, holder, "holder")
	first := proxytest.Receive(t, conns, "the holder's connection")
	late := f.dial(t)
	write(t, late, "late")
	f.waiting(t, 1)
	write(t, early, "early")
	f.waiting(t, 2)
	reset(t, holder)
	first.Close()
	wantRead(t, proxytest.Receive(t, conns, "the next connection"), "late")
}
