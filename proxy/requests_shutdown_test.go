package proxy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"forebay/balance"
	"forebay/proxy/enginetest"
	"forebay/proxy/frame"
	"forebay/proxy/proxytest"
)

// draining begins a shutdown without a limit, and waits until it is under way.
func (f *front) draining(t *testing.T) <-chan error {
	t.Helper()
	done := f.shutdown(t.Context())
	proxytest.Eventually(t, "shutdown", func() bool { return f.drainCtx.Err() != nil })
	return done
}

func wantDrained(t *testing.T, f *front, done <-chan error, sessions int64) {
	t.Helper()
	if err := proxytest.Receive(t, done, "the end of Shutdown"); err != nil {
		t.Errorf("Shutdown = %v, want nil", err)
	}
	if e := f.Stats().Ended; e["drained"] != sessions {
		t.Errorf("sessions ended %v, want %d drained", e, sessions)
	}
}

func TestDrainEndsSessionsBetweenTwoRequests(t *testing.T) {
	enginetest.Each(t, testDrainEndsSessionsBetweenTwoRequests)
}

func testDrainEndsSessionsBetweenTwoRequests(t *testing.T) {
	for _, session := range []bool{false, true} {
		t.Run(fmt.Sprint("session ", session), func(t *testing.T) {
			e := newEchoServer()
			cfg := requestsConfig(testBackend(t, 4, e.serve))
			cfg.Requests.Session = session
			f := start(t, cfg)
			silent, served := f.dial(t), f.dial(t)
			echoed(t, served, call(1, "served"))
			proxytest.Eventually(t, "two clients", func() bool { return f.Stats().Clients == 2 })
			done := f.draining(t)
			wantAll(t, silent, "")
			wantAll(t, served, "")
			wantDrained(t, f, done, 2)
		})
	}
}

func TestDrainDeliversTheReplyThatIsOut(t *testing.T) {
	enginetest.Each(t, testDrainDeliversTheReplyThatIsOut)
}

func testDrainDeliversTheReplyThatIsOut(t *testing.T) {
	be, conns := puppets(t, 1)
	f := start(t, requestsConfig(be))
	c, m := f.dial(t), call(1, "out")
	send(t, c, m)
	server := proxytest.Receive(t, conns, "a connection")
	got := wantCall(t, server, m)
	done := f.draining(t)
	send(t, server, got.reply(large))
	wantReply(t, c, m, large)
	wantAll(t, c, "")
	wantDrained(t, f, done, 1)
	wantGone(t, server)
}

// A request that has arrived in part is read, and refused as one that comes now.
func TestDrainRefusesWhatHasNoConnection(t *testing.T) {
	enginetest.Each(t, testDrainRefusesWhatHasNoConnection)
}

func testDrainRefusesWhatHasNoConnection(t *testing.T) {
	be, conns := puppets(t, 1)
	f := start(t, requestsConfig(be))
	holder, queued := f.dial(t), f.dial(t)
	send(t, holder, call(1, "out"))
	server := proxytest.Receive(t, conns, "a connection")
	got := wantCall(t, server, call(1, "out"))
	send(t, queued, call(2, "waits"))
	f.waiting(t, 1)
	done := f.draining(t)
	wantException(t, queued, call(2, "waits"), frame.CodeInternalError, "forebay: the proxy is shutting down")
	wantAll(t, queued, "")
	send(t, server, got.reply("out"))
	wantReply(t, holder, call(1, "out"), "out")
	wantAll(t, holder, "")
	wantDrained(t, f, done, 2)
}

// The quarantine of a oneway call is waited for, not its connection thrown away
// with a request that has just been written.
func TestDrainLetsAOnewayCallArrive(t *testing.T) {
	enginetest.Each(t, testDrainLetsAOnewayCallArrive)
}

func testDrainLetsAOnewayCallArrive(t *testing.T) {
	be, conns := puppets(t, 1)
	cfg := requestsConfig(be)
	cfg.Requests.Quarantine = 50 * time.Millisecond
	f := start(t, cfg)
	c := f.dial(t)
	send(t, c, oneway(1, "last"))
	server := proxytest.Receive(t, conns, "a connection")
	proxytest.Eventually(t, "the lease", func() bool { return f.Stats().Backends[0].Load.Slots[balance.Leased] == 1 })
	done := f.draining(t)
	wantCall(t, server, oneway(1, "last"))
	wantDrained(t, f, done, 1)
}

func TestDrainTimeoutCutsWhatIsOut(t *testing.T) {
	enginetest.Each(t, testDrainTimeoutCutsWhatIsOut)
}

func testDrainTimeoutCutsWhatIsOut(t *testing.T) {
	be, conns := puppets(t, 1)
	cfg := requestsConfig(be)
	f := start(t, cfg)
	c := f.dial(t)
	send(t, c, call(1, "out"))
	server := proxytest.Receive(t, conns, "a connection")
	wantCall(t, server, call(1, "out"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := proxytest.Receive(t, f.shutdown(ctx), "the end of Shutdown"); err != context.DeadlineExceeded {
		t.Errorf("Shutdown = %v, want DeadlineExceeded", err)
	}
	wantReset(t, c)
	wantGone(t, server)
	f.stop(t)
	f.ended(t, Cut, 1)
	f.wantFault(t, map[string]int64{"cut": 1})
}

// A slow reader of a reply that is held for it has the drain wait, and is cut.
func TestDrainTimeoutCutsASlowReader(t *testing.T) {
	enginetest.Each(t, testDrainTimeoutCutsASlowReader)
}

func testDrainTimeoutCutsASlowReader(t *testing.T) {
	be, conns := puppets(t, 1)
	cfg := requestsConfig(be)
	cfg.Requests.ReplyBuffer = 16 << 20
	f := start(t, cfg)
	c, m := f.dial(t), call(1, "much")
	send(t, c, m)
	server := proxytest.Receive(t, conns, "a connection")
	send(t, server, wantCall(t, server, m).reply(strings.Repeat("much", 3<<20)))
	f.idle(t, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := proxytest.Receive(t, f.shutdown(ctx), "the end of Shutdown"); err != context.DeadlineExceeded {
		t.Errorf("Shutdown = %v, want DeadlineExceeded", err)
	}
	f.ended(t, Cut, 1)
}

// TestShutdownRacesWithRequests: clients call, pipeline, fire and leave as the proxy
// shuts down. Each answer is its client's own; what is lost shows at the end (see
// settled).
func TestShutdownRacesWithRequests(t *testing.T) {
	enginetest.Each(t, testShutdownRacesWithRequests)
}

func testShutdownRacesWithRequests(t *testing.T) {
	for i := range 20 {
		down, _ := dead(t, 2)
		cfg := requestsConfig(testBackend(t, 1, newEchoServer().serve), testBackend(t, 2, newEchoServer().serve), down)
		cfg.MinIdle = i%3 - 1
		cfg.Requests.Session = i%4 == 3
		cfg.Requests.Quarantine = time.Duration(i%2) * time.Millisecond
		f := start(t, cfg)
		var clients sync.WaitGroup
		for client := range 8 {
			c := f.dial(t)
			rnd := rand.New(rand.NewPCG(uint64(i), uint64(client)))
			clients.Go(func() {
				defer c.Close()
				for n := uint32(0); ; n++ {
					m := call(n, fmt.Sprintf("client %d, call %d", client, n))
					var b []byte
					if rnd.IntN(4) == 0 {
						b = oneway(n, "fire").bytes()
					}
					if _, err := c.Write(append(b, m.bytes()...)); err != nil {
						return
					}
					if rnd.IntN(50) == 0 {
						c.(*net.TCPConn).SetLinger(0)
						return
					}
					got, err := readMessage(c)
					switch {
					case err == nil && got == m.reply(m.text), err == nil && got.typ == frame.Exception && got.id == n:
					case err != nil && !timedOut(err):
						return
					default:
						t.Errorf("%v is answered with %v, %v", m, got, err)
						return
					}
				}
			})
		}
		proxytest.Eventually(t, "leases", func() bool {
			s := f.Stats()
			return s.Backends[0].Requests+s.Backends[1].Requests > int64(i%3)
		})
		if err := proxytest.Receive(t, f.shutdown(t.Context()), "the end of Shutdown"); err != nil {
			t.Errorf("Shutdown = %v, want nil", err)
		}
		clients.Wait()
		f.stop(t)
	}
}
