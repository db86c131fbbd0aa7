package proxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"forebay/balance"
	"forebay/proxy/enginetest"
	"forebay/proxy/proxytest"
)

// tag is what every message in these tests is: which connection of the backend
// it came on, and which client's request it answers.
type tag struct{ Conn, Request uint32 }

const tagSize = 8

func (g tag) bytes() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, g.Conn), g.Request)
}

func tagOf(b []byte) tag {
	return tag{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])}
}

// after waits for d, in a backend or a client that is slow.
func after(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	<-t.C
}

// TestNoByteOfOneClientsConnectionReachesAnother has backends that greet late,
// answer late, answer twice and go on after their clients have stopped, and
// clients that stop at every point. All that a client sees must come from one
// connection, answer its own request, and be seen by nobody else.
func TestNoByteOfOneClientsConnectionReachesAnother(t *testing.T) {
	enginetest.Each(t, testNoByteOfOneClientsConnectionReachesAnother)
}

func testNoByteOfOneClientsConnectionReachesAnother(t *testing.T) {
	tests := []struct {
		name  string
		w     *wayward
		quiet time.Duration
	}{
		{name: "greets late, answers late and twice", w: &wayward{greets: true}},
		{name: "answers late and twice", w: &wayward{}},
		{name: "answers once, reused when quiet", w: &wayward{faithful: true}, quiet: 5 * time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config(testBackend(t, 3, tt.w.serve), testBackend(t, 5, tt.w.serve))
			cfg.MinIdle = 2
			cfg.ReuseQuiet = tt.quiet
			f := start(t, cfg)
			seen := &sightings{by: map[uint32]uint32{}, reused: tt.quiet > 0}
			var clients sync.WaitGroup
			var requests atomic.Uint32
			for worker := range 24 {
				rnd := rand.New(rand.NewPCG(uint64(worker), 1))
				clients.Go(func() {
					for range 25 {
						seen.client(t, f, requests.Add(1), rnd)
					}
				})
			}
			clients.Wait()
			dialed := tt.w.conns.Load()
			if tt.quiet == 0 && len(seen.by) < 200 {
				t.Errorf("bytes of only %d connections were seen", len(seen.by))
			}
			if tt.quiet > 0 && dialed > 400 {
				t.Errorf("%d connections for 600 clients: none was reused", dialed)
			}
		})
	}
}

// wayward is a backend that does what raw bytes cannot tell from an answer.
type wayward struct {
	conns    atomic.Uint32
	greets   bool
	faithful bool // answers each request once, and in time
}

func (w *wayward) serve(c proxytest.Conn) {
	id := w.conns.Add(1)
	rnd := rand.New(rand.NewPCG(uint64(id), 2))
	if w.greets {
		if !w.faithful {
			after(time.Duration(rnd.IntN(4)) * time.Millisecond)
		}
		c.Write(tag{id, 0}.bytes())
	}
	b := make([]byte, tagSize)
	for {
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		answer := tag{id, tagOf(b).Request}.bytes()
		if w.faithful {
			c.Write(answer)
			continue
		}
		if rnd.IntN(2) == 0 {
			after(time.Duration(rnd.IntN(6)) * time.Millisecond)
		}
		c.Write(answer)
		if rnd.IntN(2) == 0 {
			after(time.Duration(rnd.IntN(3)) * time.Millisecond)
			c.Write(answer)
		}
	}
}

// sightings tells which client has seen bytes of which connection.
type sightings struct {
	mu     sync.Mutex
	by     map[uint32]uint32 // connection → the client's request
	reused bool              // with --reuse quiet a connection has several clients
}

func (s *sightings) saw(t *testing.T, request uint32, g tag) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if other, ok := s.by[g.Conn]; ok && other != request && !s.reused {
		t.Errorf("requests %d and %d have both seen bytes of connection %d", other, request, g.Conn)
	}
	if g.Request != 0 && g.Request != request {
		t.Errorf("request %d has seen the answer to %d", request, g.Request)
	}
	s.by[g.Conn] = request
}

// client is one session that ends at a random point.
func (s *sightings) client(t *testing.T, f *front, request uint32, rnd *rand.Rand) {
	c, err := net.Dial("tcp", f.at.String())
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	stop := rnd.IntN(6)
	if stop == 0 {
		return // before a byte
	}
	c.Write(tag{0, request}.bytes())
	switch stop {
	case 1:
		c.(*net.TCPConn).SetLinger(0)
		return
	case 2:
		return // without its answer
	case 3:
		c.(proxytest.Conn).CloseWrite()
	}
	var first tag
	b := make([]byte, tagSize)
	for n := 0; ; n++ {
		if _, err := io.ReadFull(c, b); err != nil {
			if stop != 3 {
				t.Errorf("request %d: %v before its answer", request, err)
			}
			return // stop 3 reads to the end
		}
		g := tagOf(b)
		s.saw(t, request, g)
		if n == 0 {
			first = g
		}
		if g.Conn != first.Conn {
			t.Errorf("request %d has seen bytes of the connections %d and %d", request, first.Conn, g.Conn)
		}
		if g.Request != 0 && stop > 3 {
			return
		}
	}
}

// hasty is a backend that closes a connection on which nothing came for a time,
// as servers do. It answers each request, and counts them.
type hasty struct {
	idle func() time.Duration

	mu   sync.Mutex
	ran  map[tag]int
	lost map[tag]bool // came before the FIN left, and were not read: nobody can tell
}

func (h *hasty) serve(c proxytest.Conn) {
	b := make([]byte, tagSize)
	c.SetReadDeadline(time.Now().Add(h.idle()))
	_, err := io.ReadFull(c, b)
	if err == nil {
		h.note(func() { h.ran[tagOf(b)]++ })
		c.Write(b)
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		io.Copy(io.Discard, c)
		return
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return
	}
	served := shutdownUnlessReadable(c)
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadFull(c, b); err != nil {
		return
	}
	if served {
		h.note(func() { h.ran[tagOf(b)]++ })
		c.Write(b)
		io.Copy(io.Discard, c)
		return
	}
	h.note(func() { h.lost[tagOf(b)] = true })
}

func (h *hasty) note(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

// TestConnectionThatItsBackendClosedCostsNoClientAnything: a thousand sessions in
// front of a backend that closes idle connections.
func TestConnectionThatItsBackendClosedCostsNoClientAnything(t *testing.T) {
	enginetest.Each(t, testConnectionThatItsBackendClosedCostsNoClientAnything)
}

func testConnectionThatItsBackendClosedCostsNoClientAnything(t *testing.T) {
	tests := []struct {
		name  string
		idle  func() time.Duration
		pause time.Duration // at most, before a client's request
	}{
		{name: "after 50 ms", idle: func() time.Duration { return 50 * time.Millisecond }, pause: 60 * time.Millisecond},
		{name: "after 1 to 20 ms", idle: func() time.Duration { return time.Millisecond + rand.N(19*time.Millisecond) },
			pause: 20 * time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := &hasty{idle: tt.idle, ran: map[tag]int{}, lost: map[tag]bool{}}
			cfg := config(testBackend(t, 64, h.serve))
			cfg.MinIdle = 4
			f := start(t, cfg)
			var clients sync.WaitGroup
			var failed sync.Map
			for worker := range uint32(25) {
				rnd := rand.New(rand.NewPCG(uint64(worker), 3))
				clients.Go(func() {
					for i := range uint32(40) {
						request := tag{0, 1 + worker*40 + i}
						after(rand.N(tt.pause))
						if client, err := hastyRequest(f, request, rnd); err != nil {
							failed.Store(request, hastyFailure{client, err})
						}
					}
				})
			}
			clients.Wait()
			f.stop(t)
			h.check(t, f, &failed)
		})
	}
}

// TestStaleConnectionIsReplacedUnseen: the backend ends a connection that lay
// ready after it was leased, before its client has sent anything.
func TestStaleConnectionIsReplacedUnseen(t *testing.T) {
	enginetest.Each(t, testStaleConnectionIsReplacedUnseen)
}

func testStaleConnectionIsReplacedUnseen(t *testing.T) {
	be, conns := puppets(t, 2)
	cfg := config(be)
	cfg.MinIdle = 1
	f := start(t, cfg)
	stale := proxytest.Receive(t, conns, "a connection")
	f.slots(t, 0, balance.Idle, 1)
	c := f.dial(t)
	f.slots(t, 0, balance.Leased, 1)
	next := proxytest.Receive(t, conns, "the one dialed ahead in its place")
	f.slots(t, 0, balance.Idle, 1)
	stale.Close()
	write(t, c, "request")
	wantRead(t, next, "request")
	write(t, next, "reply")
	wantRead(t, c, "reply")
	c.Close()
	next.Close()
	f.ended(t, Done, 1)
	f.stop(t)
	s := f.Stats()
	if s.Stale != 1 || s.Backends[0].Sessions != 1 || s.Backends[0].Pool.Closed["backend_closed"] != 1 {
		t.Errorf("%d stale, %d sessions, closed %v; want one of each", s.Stale, s.Backends[0].Sessions, s.Backends[0].Pool.Closed)
	}
	if line := f.book.with("session ended")[0]; line["ready"] != true || line["bytes_up"] != 7.0 {
		t.Errorf("log line %v, want ready and 7 bytes up", line)
	}
}

type hastyFailure struct {
	client string
	err    error
}

// hastyRequest sends one request, at once or a moment after it has connected.
func hastyRequest(f *front, request tag, rnd *rand.Rand) (client string, err error) {
	c, err := net.Dial("tcp", f.at.String())
	if err != nil {
		return "", err
	}
	defer c.Close()
	client = c.LocalAddr().String()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if rnd.IntN(2) == 0 {
		after(time.Duration(rnd.IntN(5)) * time.Millisecond)
	}
	c.Write(request.bytes())
	b := make([]byte, tagSize)
	if _, err := io.ReadFull(c, b); err != nil {
		return client, err
	}
	if !bytes.Equal(b, request.bytes()) {
		return client, fmt.Errorf("answer % x, want % x", b, request.bytes())
	}
	return client, nil
}

// check compares what the backend ran with what its clients saw. Two kinds of
// failure are the backend's own answer: it had the request before it closed, and
// did not read it; or it closed a connection that was dialed for this client, who
// was slow to send.
func (h *hasty) check(t *testing.T, f *front, failed *sync.Map) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	slow := 0
	for request := range uint32(1000) {
		g := tag{0, 1 + request}
		v, bad := failed.Load(g)
		if bad && !h.lost[g] {
			fail := v.(hastyFailure)
			if !f.book.waited(fail.client) {
				t.Errorf("request %d: %v", g.Request, fail.err)
			}
			slow++
		}
		if n := h.ran[g]; n > 1 || n == 0 && !bad {
			t.Errorf("request %d ran %d times", g.Request, n)
		}
	}
	t.Logf("%d connections were stale; %d requests were lost beyond proof, %d came too late", f.Stats().Stale, len(h.lost), slow)
}

// waited reports whether a session of the client at addr that had no answer had
// no ready connection either. Ports come again, within a thousand sessions.
func (b *book) waited(addr string) bool {
	for _, l := range b.with("session ended") {
		if l["client"] == addr && l["bytes_down"] == 0.0 && l["ready"] == false {
			return true
		}
	}
	return false
}

func TestReuseQuietReusesAConnection(t *testing.T) {
	enginetest.Each(t, testReuseQuietReusesAConnection)
}

func testReuseQuietReusesAConnection(t *testing.T) {
	be, conns := puppets(t, 1)
	cfg := config(be)
	cfg.ReuseQuiet = 20 * time.Millisecond
	f := start(t, cfg)
	play := func(server proxytest.Conn, word string) proxytest.Conn {
		c := f.dial(t)
		write(t, c, word)
		if server == nil {
			server = proxytest.Receive(t, conns, "a connection")
		}
		wantRead(t, server, word)
		write(t, server, "answer to "+word)
		wantRead(t, c, "answer to "+word)
		c.CloseWrite()
		wantAll(t, c, "")
		return server
	}
	server := play(nil, "one")
	f.slots(t, 0, balance.Idle, 1)
	play(server, "two")
	play(server, "three")
	f.slots(t, 0, balance.Idle, 1)
	f.ended(t, Done, 3)
	if s := f.Stats().Backends[0].Pool; s.Dials != 1 || s.Ready != 2 {
		t.Errorf("%d dials, %d leases of a ready connection; want 1 and 2", s.Dials, s.Ready)
	}

	write(t, server, "stray") // and no FIN has come by it: the read that follows would end
	proxytest.Eventually(t, "a close for stray bytes", func() bool { return f.Stats().Backends[0].Pool.Closed["stray_bytes"] == 1 })
	if n, err := server.Read(make([]byte, 1)); n != 0 || err != io.EOF && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the backend read %d bytes, %v; want the end of its connection", n, err)
	}
	if again := play(nil, "four"); again == server {
		t.Error("the connection of the stray bytes serves on")
	}
}

// TestReuseQuietClosesWhatIsNotClean: what a client leaves behind without a FIN,
// or without its answer, serves nobody.
func TestReuseQuietClosesWhatIsNotClean(t *testing.T) {
	enginetest.Each(t, testReuseQuietClosesWhatIsNotClean)
}

func testReuseQuietClosesWhatIsNotClean(t *testing.T) {
	tests := []struct {
		name string
		end  func(t *testing.T, client, server proxytest.Conn)
	}{
		{name: "its client reset", end: func(t *testing.T, c, s proxytest.Conn) { write(t, s, "b"); wantRead(t, c, "b"); reset(t, c) }},
		{name: "no answer came", end: func(t *testing.T, c, s proxytest.Conn) { c.CloseWrite() }},
		{name: "its backend half-closed", end: func(t *testing.T, c, s proxytest.Conn) {
			write(t, s, "b")
			s.CloseWrite()
			wantAll(t, c, "b")
			c.Close()
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			be, conns := puppets(t, 1)
			cfg := config(be)
			cfg.ReuseQuiet = 20 * time.Millisecond
			cfg.HalfCloseTimeout = 100 * time.Millisecond
			f := start(t, cfg)
			c := f.dial(t)
			write(t, c, "a")
			server := proxytest.Receive(t, conns, "a connection")
			wantRead(t, server, "a")
			tt.end(t, c, server)
			proxytest.Eventually(t, "the end of the session", func() bool { return f.Stats().Clients == 0 })
			if l := f.Stats().Backends[0].Load; l.Open() != 0 {
				t.Errorf("slots are %v, want none in use", l.Slots)
			}
			if n, err := server.Read(make([]byte, 1)); n != 0 || err == nil {
				t.Errorf("the backend read %d bytes, %v; want the end", n, err)
			}
		})
	}
}

func TestUntouchedConnectionServesTheNextClient(t *testing.T) {
	enginetest.Each(t, testUntouchedConnectionServesTheNextClient)
}

func testUntouchedConnectionServesTheNextClient(t *testing.T) {
	be, conns := puppets(t, 1)
	cfg := config(be)
	cfg.MinIdle = 1
	f := start(t, cfg)
	f.slots(t, 0, balance.Idle, 1)
	silent := f.dial(t)
	f.slots(t, 0, balance.Leased, 1)
	reset(t, silent)
	f.ended(t, ClientReset, 1)
	f.slots(t, 0, balance.Idle, 1)
	c := f.dial(t)
	write(t, c, "mine")
	wantRead(t, proxytest.Receive(t, conns, "a connection"), "mine")
	if n := f.Stats().Backends[0].Pool.Dials; n != 1 {
		t.Errorf("%d dials, want 1", n)
	}
}

func TestSlotThatFreesIsDialedAheadInto(t *testing.T) {
	enginetest.Each(t, testSlotThatFreesIsDialedAheadInto)
}

func testSlotThatFreesIsDialedAheadInto(t *testing.T) {
	cfg := config(testBackend(t, 1, echo))
	cfg.MinIdle = 1
	f := start(t, cfg)
	for i := range int64(3) {
		f.slots(t, 0, balance.Idle, 1)
		c := f.occupy(t)
		c.Close()
		f.ended(t, Done, i+1)
	}
	if n := f.Stats().Backends[0].Pool.Ready; n != 3 {
		t.Errorf("%d clients found their connection ready, want 3", n)
	}
}

// TestGreetingWaitsForItsClient: what a server says to a connection dialed ahead
// is there for the first client, and not for a second one.
func TestGreetingWaitsForItsClient(t *testing.T) {
	enginetest.Each(t, testGreetingWaitsForItsClient)
}

func testGreetingWaitsForItsClient(t *testing.T) {
	var n atomic.Int64
	be := testBackend(t, 2, func(c proxytest.Conn) {
		fmt.Fprintf(c, "hello %d", n.Add(1))
		io.Copy(io.Discard, c)
	})
	cfg := config(be)
	cfg.MinIdle = 1
	f := start(t, cfg)
	seen := map[string]bool{}
	for range 20 {
		c := f.dial(t)
		b := make([]byte, 8)
		k, err := io.ReadAtLeast(c, b, 7)
		c.CloseWrite()
		rest, _ := io.ReadAll(c)
		greeting := string(b[:k]) + string(rest)
		if err != nil || seen[greeting] {
			t.Errorf("greeted with %q, %v; want one of its own", greeting, err)
		}
		seen[greeting] = true
	}
}
