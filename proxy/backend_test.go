package proxy

import (
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"forebay/balance"
	"forebay/proxy/enginetest"
	"forebay/proxy/proxytest"
)

func TestDeadBackendAmongThreeCostsClientsNothing(t *testing.T) {
	enginetest.Each(t, testDeadBackendAmongThreeCostsClientsNothing)
}

func testDeadBackendAmongThreeCostsClientsNothing(t *testing.T) {
	for _, minIdle := range []int{0, 2, -1} {
		t.Run(fmt.Sprint("min idle ", minIdle), func(t *testing.T) {
			down, _ := dead(t, 8)
			cfg := config(testBackend(t, 8, echo), down, testBackend(t, 8, echo))
			cfg.MinIdle = minIdle
			f := start(t, cfg)
			var clients sync.WaitGroup
			for range 12 {
				clients.Go(func() {
					for range 15 {
						f.exchange(t, "ping")
					}
				})
			}
			clients.Wait()
			f.ended(t, Done, 12*15)
			// Twelve at once may have begun before the first dial failed, and as many
			// ahead. Then it is down, and its checks are no dials of the pool.
			s := f.Stats().Backends[1]
			if most := int64(12 + 4); s.Pool.Dials > most || s.Sessions != 0 {
				t.Errorf("%d dials of the dead backend, want at most %d", s.Pool.Dials, most)
			}
			if n := len(f.book.with("backend is down")); n != 1 {
				t.Errorf("said %d times that a backend is down, want once", n)
			}
		})
	}
}

// exchange is a client that sends text to an echo backend and has it back.
func (f *front) exchange(t testing.TB, text string) {
	c, err := net.Dial(f.at.Network(), f.at.String())
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	io.WriteString(c, text)
	c.(proxytest.Conn).CloseWrite()
	if got, err := io.ReadAll(c); err != nil || string(got) != text {
		t.Errorf("reply = %q, %v; want %q", got, err, text)
	}
}

func TestClientIsClosedAtOnceWhenAllBackendsAreDead(t *testing.T) {
	enginetest.Each(t, testClientIsClosedAtOnceWhenAllBackendsAreDead)
}

func testClientIsClosedAtOnceWhenAllBackendsAreDead(t *testing.T) {
	one, _ := dead(t, 1)
	two, _ := dead(t, 1)
	f := start(t, config(one, two)) // whose acquire timeout is longer than any test waits
	for i := range int64(20) {
		wantClosed(t, f.dial(t))
		f.ended(t, NoBackend, i+1)
	}
}

func TestQueueIsRefusedWhenTheLastBackendGoesDown(t *testing.T) {
	enginetest.Each(t, testQueueIsRefusedWhenTheLastBackendGoesDown)
}

func testQueueIsRefusedWhenTheLastBackendGoesDown(t *testing.T) {
	down, _ := dead(t, 1)
	cfg := config(down)
	f := start(t, cfg)
	var clients []proxytest.Conn
	for range 30 { // one slot: most of them wait for it
		clients = append(clients, f.dial(t))
	}
	for _, c := range clients {
		wantClosed(t, c)
	}
	f.ended(t, NoBackend, 30)
}

func TestSilentBackendHoldsOnlyItsOwnSlots(t *testing.T) {
	enginetest.Each(t, testSilentBackendHoldsOnlyItsOwnSlots)
}

func testSilentBackendHoldsOnlyItsOwnSlots(t *testing.T) {
	ended := t.Context().Done()
	mute := testBackend(t, 2, func(proxytest.Conn) { <-ended })
	f := start(t, config(mute, testBackend(t, 2, echo)))
	var first []proxytest.Conn
	for range 4 { // which go to the silent one, the other, the other and the silent one
		first = append(first, f.dial(t))
		proxytest.Eventually(t, "its lease", func() bool {
			s := f.Stats()
			return s.Backends[0].Load.Slots[balance.Leased]+s.Backends[1].Load.Slots[balance.Leased] == len(first)
		})
	}
	waiters := make([]proxytest.Conn, 10)
	for i := range waiters {
		waiters[i] = f.dial(t)
		write(t, waiters[i], "x")
		f.waiting(t, i+1)
	}
	// Whoever sits on the backend that answers goes, and the next has its turn.
	for _, c := range []proxytest.Conn{first[1], first[2]} {
		ping(t, c)
		c.Close()
	}
	for _, c := range waiters {
		wantRead(t, c, "x")
		c.Close()
	}
	f.ended(t, Done, 12)
	if l := f.Stats().Backends[0].Load; l.Active() != 2 {
		t.Errorf("the silent backend has %d active, want 2", l.Active())
	}
}

func TestBackendThatComesUpServesAgain(t *testing.T) {
	enginetest.Each(t, testBackendThatComesUpServesAgain)
}

func testBackendThatComesUpServesAgain(t *testing.T) {
	be, open := dead(t, 2)
	cfg := config(be)
	cfg.MinIdle = 1
	f := start(t, cfg)
	proxytest.Eventually(t, "the warning", func() bool { return len(f.book.with("backend is down")) == 1 })
	for range 3 {
		wantClosed(t, f.dial(t))
	}
	ln := open()
	proxytest.ServeOn(t, ln, echo)
	f.slots(t, 0, balance.Idle, 1) // dialed ahead again
	c := f.occupy(t)
	c.Close()
	f.ended(t, Done, 1)
	f.ended(t, NoBackend, 3)
	if down, up := len(f.book.with("backend is down")), len(f.book.with("backend is up again")); down != 1 || up != 1 {
		t.Errorf("said %d times that it is down, %d that it is up; want once each", down, up)
	}
}

// TestBackendThatSpeaksAndClosesIsHeard has a backend answer each
// connection with a word and a FIN: that is its answer, once.
func TestBackendThatSpeaksAndClosesIsHeard(t *testing.T) {
	enginetest.Each(t, testBackendThatSpeaksAndClosesIsHeard)
}

func testBackendThatSpeaksAndClosesIsHeard(t *testing.T) {
	var accepted atomic.Int64
	be := testBackend(t, 4, func(c proxytest.Conn) {
		accepted.Add(1)
		io.WriteString(c, "too busy")
	})
	f := start(t, config(be))
	for range 50 {
		c := f.dial(t)
		wantAll(t, c, "too busy")
		c.Close()
	}
	f.ended(t, Done, 50)
	if n := accepted.Load(); n != 50 {
		t.Errorf("50 clients took %d dials", n)
	}
}

// TestHangingDialDoesNotHoldTheQueue: one backend's dial gets no answer while
// another's slot frees.
func TestHangingDialDoesNotHoldTheQueue(t *testing.T) {
	enginetest.Each(t, testHangingDialDoesNotHoldTheQueue)
}

func testHangingDialDoesNotHoldTheQueue(t *testing.T) {
	hanging := at(hang(t), 1)
	cfg := config(hanging, testBackend(t, 1, echo))
	cfg.DialTimeout = 700 * time.Millisecond
	f := start(t, cfg)
	first := f.dial(t) // the first of equals
	f.slots(t, 0, balance.Dialing, 1)
	holder := f.occupy(t)
	var clients []proxytest.Conn
	for i := range 3 {
		clients = append(clients, f.dial(t))
		f.waiting(t, i+1)
	}
	for i, c := range clients {
		holder.Close()
		ping(t, c)
		holder = c
		if n := f.Stats().Waiting; n != 2-i {
			t.Errorf("%d wait behind the one that is served, want %d", n, 2-i)
		}
	}
	if n := f.Stats().Backends[0].Load.Slots[balance.Dialing]; n != 1 {
		t.Errorf("%d dials hang, want 1: the clients were served meanwhile", n)
	}
	holder.Close()
	ping(t, first) // after its dial has timed out, by the other backend
}

func TestHalfClosedClientIsServedAfterAHangingDial(t *testing.T) {
	enginetest.Each(t, testHalfClosedClientIsServedAfterAHangingDial)
}

func testHalfClosedClientIsServedAfterAHangingDial(t *testing.T) {
	hanging := at(hang(t), 1)
	cfg := config(hanging, testBackend(t, 1, echo))
	cfg.DialTimeout = 300 * time.Millisecond
	f := start(t, cfg)
	c := f.dial(t)
	write(t, c, "last words")
	c.CloseWrite()
	wantAll(t, c, "last words")
}
