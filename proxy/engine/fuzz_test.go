package engine

import (
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"forebay/proxy/proxytest"
)

// script is what two peers do, one step after the other, decoded from bytes.
type script struct {
	clientNet, backendNet string
	cfg                   RelayConfig
	steps                 []step
}

type step struct {
	client bool // or the backend
	act    act
	size   int // of a write
	chunk  int
}

type act int

const (
	actWrite act = iota
	actFIN
	actReset // ends the script
	actWait  // until the other side has all that was sent
)

func (s step) String() string {
	side := "backend"
	if s.client {
		side = "client"
	}
	switch s.act {
	case actWrite:
		return fmt.Sprintf("%s writes %d by %d", side, s.size, s.chunk)
	case actFIN:
		return side + " finishes"
	case actReset:
		return side + " resets"
	default:
		return side + " waits"
	}
}

// decode makes a script of bytes: the first chooses the relay, each pair after it
// is a step.
func decode(b []byte) script {
	s := script{clientNet: "unix", backendNet: "unix"}
	if len(b) == 0 {
		return s
	}
	s.cfg.Replay = b[0]&1 != 0
	if b[0]&6 == 6 { // a quarter of them: ports are few
		s.backendNet = "tcp"
	}
	if b[0]&24 == 24 {
		s.clientNet = "tcp"
	}
	finished := map[bool]bool{}
	total := 0
	for b = b[1:]; len(b) >= 2 && len(s.steps) < 12; b = b[2:] {
		st := step{client: b[0]&1 != 0}
		switch b[0] >> 1 & 7 {
		case 0:
			st.act = actFIN
		case 1:
			st.act = actReset
		case 2:
			st.act = actWait
		default:
			st.size = 1 << (b[0] >> 4) * (1 + int(b[1]>>3)) / 2
			st.chunk = 1 + st.size/(1+int(b[1]&7))
		}
		if finished[st.client] && (st.act == actWrite || st.act == actFIN) {
			continue
		}
		finished[st.client] = finished[st.client] || st.act == actFIN
		if total += st.size; total > 1<<20 {
			break
		}
		s.steps = append(s.steps, st)
		if st.act == actReset {
			break
		}
	}
	return s
}

// side is one peer in a fuzzed relay.
type side struct {
	conn     proxytest.Conn
	out, in  stream
	sent     int
	finished bool
	reset    bool
	got      <-chan transfer
	arrived  *counter
}

func (s *side) tcp() bool { return s.conn.LocalAddr().Network() == "tcp" }

// counter counts what is read through it.
type counter struct {
	net.Conn
	n chan int // its one value
}

func newCounter(c net.Conn) *counter {
	n := make(chan int, 1)
	n <- 0
	return &counter{c, n}
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.n <- <-c.n + n
	return n, err
}

func (c *counter) count() int {
	n := <-c.n
	c.n <- n
	return n
}

func newSide(c proxytest.Conn, out, in stream) *side {
	s := &side{conn: c, out: out, in: in, arrived: newCounter(c)}
	s.got = in.receiving(s.arrived, 64<<10)
	return s
}

// soon waits for ok without the pauses of a timer.
func soon(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func (s *side) do(t testing.TB, st step, other *side, mayLose bool) {
	switch st.act {
	case actWrite:
		for n := st.size; n > 0; {
			at := s.sent % len(s.out)
			m := min(n, st.chunk, len(s.out)-at)
			m, err := s.conn.Write(s.out[at : at+m])
			s.sent, n = s.sent+m, n-m
			if err != nil {
				if !mayLose {
					t.Fatal(err)
				}
				return
			}
		}
	case actFIN:
		s.finished = true
		s.conn.CloseWrite()
	case actReset:
		s.reset = true
		if s.tcp() {
			// A reset drops what has not left; from then on it is the relay's.
			soon(t, "the bytes to leave", func() bool { return outQueue(t, s.conn) == 0 })
			reset(s.conn)
		} else {
			s.conn.Close()
		}
	case actWait:
		if !mayLose {
			soon(t, "the bytes to arrive", func() bool { return other.arrived.count() == s.sent })
		}
	}
}

func FuzzRelay(f *testing.F) {
	pairs := func(first byte, steps ...byte) []byte { return append([]byte{first}, steps...) }
	const c, w, fin, rst, wait = 1, 3 << 1, 0 << 1, 1 << 1, 2 << 1
	for _, first := range []byte{0, 1, 6, 7, 24, 25, 30, 31} {
		f.Add(pairs(first))
		f.Add(pairs(first, c|fin, 0, fin, 0))
		f.Add(pairs(first, fin, 0, c|w|0xf0, 0xff, c|fin, 0))
		f.Add(pairs(first, c|w, 8, c|wait, 0, w|0xe0, 0x7f, wait, 0, fin, 0, c|fin, 0))
		f.Add(pairs(first, c|w|0xb0, 0x7f, c|fin, 0, w|0xf0, 0xff, fin, 0))
		f.Add(pairs(first, c|w, 8, c|rst, 0))
		f.Add(pairs(first, c|rst, 0))
		f.Add(pairs(first, rst, 0))
		f.Add(pairs(first, w|0xf0, 0xf8, rst, 0))
		f.Add(pairs(first, c|w, 8, c|wait, 0, rst, 0))
		f.Add(pairs(first, c|fin, 0, w|0xf0, 0xff, c|rst, 0))
		f.Add(pairs(first, c|w, 0xff, fin, 0, c|w, 0xff, c|rst, 0))
	}

	backs := map[string]net.Listener{}
	for _, network := range []string{"tcp", "unix"} {
		backs[network] = proxytest.Listen(f, network)
	}
	up, down := newStream(1), newStream(2)
	play := func(t *testing.T, e Engine, fronts map[string]*acceptor, data []byte) {
		s := decode(data)
		b := &bench{t, e}
		cc, conn := b.clientOf(fronts[s.clientNet])
		client := newSide(conn, up, down)
		bc, conn := b.backendOf(backs[s.backendNet])
		backend := newSide(conn, down, up)
		r := b.relay(cc, bc, s.cfg)
		type outcome struct {
			res    Result
			second *side // the backend that a stale one's client went to
		}
		ended := async(func() outcome {
			res := r.wait()
			bc.Close()
			if res.End != Stale {
				return outcome{res, nil}
			}
			bc, conn := b.backendOf(backs["unix"])
			second := newSide(conn, down, up)
			r := b.relay(cc, bc, RelayConfig{})
			second.conn.CloseWrite()
			r.wait()
			bc.Close()
			return outcome{res, second}
		})
		for _, st := range s.steps {
			// With Replay a backend that ends before the first byte gets nothing.
			mayLose := s.cfg.Replay && (backend.finished || backend.reset) || client.reset || backend.reset
			if st.client {
				client.do(t, st, backend, mayLose)
			} else {
				backend.do(t, st, client, mayLose)
			}
		}
		for _, side := range []*side{client, backend} {
			if !side.finished && !side.reset {
				side.conn.CloseWrite()
			}
		}
		o := proxytest.Receive(t, ended, "the relay to end")
		cc.Close()
		res, second := o.res, o.second
		verify(t, s, res, client, backend, second)
		for _, side := range []*side{client, backend, second} {
			if side == nil {
				continue
			}
			if side.tcp() {
				reset(side.conn) // leaves no port in TIME_WAIT
			} else {
				side.conn.Close()
			}
		}
	}
	engines, fronts := []Engine{}, []map[string]*acceptor{}
	for _, k := range working(f) {
		b := newBench(f, k.of(f))
		engines = append(engines, b.engine)
		fronts = append(fronts, map[string]*acceptor{"tcp": b.listen("tcp"), "unix": b.listen("unix")})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		i := int(crc32.ChecksumIEEE(data) % uint32(len(engines))) // each has its share of the inputs
		t.Log("engine", engines[i].Name())
		play(t, engines[i], fronts[i], data)
	})
}

// verify compares what happened with what had to.
func verify(t *testing.T, s script, res Result, client, backend, second *side) {
	t.Helper()
	var problems []string
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	atClient, atBackend := <-client.got, <-backend.got
	switch {
	case res.End == Stale:
		check(s.cfg.Replay && backend.sent == 0, "it must not be stale")
		check(atBackend.n == 0, "the stale backend got %d bytes", atBackend.n)
		at := <-second.got
		check(at.n == client.sent && (at.err == nil || client.reset), "the second backend got %d bytes of %d, %v", at.n, client.sent, at.err)
		check(atClient.n == 0, "the client got %d bytes", atClient.n)
	case client.reset:
		soft := res.Untouched() // its connection is left alone
		checkSurvivor(check, "backend", client, backend, atBackend, res.End, ClientReset, soft)
	case backend.reset:
		checkSurvivor(check, "client", backend, client, atClient, res.End, BackendReset, false)
	default:
		check(res.End == Finished, "it must have finished")
		check(atClient.n == backend.sent && atClient.err == nil, "the client got %d bytes of %d, %v", atClient.n, backend.sent, atClient.err)
		check(atBackend.n == client.sent && atBackend.err == nil, "the backend got %d bytes of %d, %v", atBackend.n, client.sent, atBackend.err)
		check(res.Up == Half{int64(client.sent), int64(client.sent), true, true}, "up: %+v", res.Up)
		check(res.Down == Half{int64(backend.sent), int64(backend.sent), true, true}, "down: %+v", res.Down)
	}
	if len(problems) > 0 {
		t.Fatalf("%s\n%+v\n%v", strings.Join(problems, "\n"), res, s)
	}
}

// checkSurvivor checks what the other side of one that reset must see: all its
// bytes, and then a reset. Where the end was a FIN already, or a Unix socket's,
// which knows no reset, it may be a FIN too.
func checkSurvivor(check func(bool, string, ...any), name string, gone, other *side, at transfer, got, want End, soft bool) {
	check(at.n == gone.sent, "the %s got %d bytes of %d, %v", name, at.n, gone.sent, at.err)
	soft = soft || gone.finished || !gone.tcp()
	check(got == want || soft && got == Finished, "it must be a %s", want)
	check(at.err != nil || soft || !other.tcp(), "the %s must see a reset", name)
}

// whim is a machine that forwards all bytes both ways, and wants now this, now that.
type whim struct {
	puppet
	rnd             *rand.Rand
	limit           int
	sizeUp          int // after so many bytes the request is complete
	sentUp, sentOut int
	leases          int // that it may begin yet
}

func (w *whim) next(now time.Time) Step {
	w.up, w.sentUp, w.wroteUp = w.up[w.wroteUp:], w.sentUp+w.wroteUp, 0
	w.down, w.sentOut, w.wroteDown = w.down[w.wroteDown:], w.sentOut+w.wroteDown, 0
	switch {
	case w.conn == nil:
		return Step{Op: OpLease}
	case w.backendEnd != nil && len(w.down) == 0 && w.sentUp == w.sizeUp:
		return Step{Op: OpDone}
	case w.leases > 0 && w.rnd.IntN(8) == 0:
		w.leases--
		return Step{Op: OpRelease}
	}
	s := Step{
		FromClient: max(0, w.limit-len(w.up)), FromBackend: max(0, w.limit-len(w.down)),
		ToBackend: w.up, ToClient: w.down, ClientFirst: w.rnd.IntN(2) == 0,
	}
	switch w.rnd.IntN(4) { // not all of it, but not for ever
	case 0:
		s.Until = now.Add(time.Duration(w.rnd.IntN(1500)) * time.Microsecond)
		for _, drop := range []func(){
			func() { s.FromClient = 0 }, func() { s.FromBackend = 0 },
			func() { s.ToClient = nil }, func() { s.ToBackend = nil },
		} {
			if w.rnd.IntN(2) == 0 {
				drop()
			}
		}
	case 1:
		s.FromClient, s.FromBackend = min(s.FromClient, 1+w.rnd.IntN(100)), min(s.FromBackend, 1+w.rnd.IntN(100))
	}
	return s
}

// FuzzDrive drives machines with whims between peers that have theirs: every byte
// arrives, in order, whatever the machine wants when.
func FuzzDrive(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed, uint32(seed*seed*seed*50), uint32(seed*1000), uint16(10*seed))
	}
	play := func(t *testing.T, newEngine func(Config) Engine, seed uint64, up, down uint32, limit uint16) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		sizeUp, sizeDown := int(up%(1<<18)), int(down%(1<<18))
		networks := []string{"unix", "tcp"}
		b := newBench(t, newEngine)
		cc, client := b.client(networks[rnd.IntN(2)])
		bc, backend := b.backend(networks[rnd.IntN(2)])
		w := &whim{puppet: puppet{TB: t, lease: func() Conn { return bc }}, rnd: rand.New(rand.NewPCG(seed, 1)), sizeUp: sizeUp, leases: rnd.IntN(4)}
		w.limit = 1 + int(limit) + (sizeUp+sizeDown)/20 // so that it ends in time
		w.play = func(_ *puppet, now time.Time) Step { return w.next(now) }
		wake, doWake := context.WithCancel(context.Background())
		defer doWake()
		d := b.drive(cc, w, DriveConfig{Wake: wake})

		upward, downward := newStream(1), newStream(2)
		gotUp := upward.receiving(io.LimitReader(backend, int64(sizeUp)), 1+rnd.IntN(1<<16))
		gotDown := downward.receiving(client, 1+rnd.IntN(1<<16))
		sentUp := upward.sending(client, sizeUp, fixed(1+rnd.IntN(1+sizeUp)/8+sizeUp/100))
		chunk := 1 + rnd.IntN(1+sizeDown)/8 + sizeDown/100
		sentDown := async(func() error { return downward.send(backend, sizeDown, fixed(chunk)) })
		doWake()
		if err := proxytest.Receive(t, sentUp, "the client to send"); err != nil {
			t.Fatal(err)
		}
		if err := proxytest.Receive(t, sentDown, "the backend to send"); err != nil {
			t.Fatal(err)
		}
		if got := proxytest.Receive(t, gotUp, "the backend to receive"); got.err != nil || got.n != sizeUp {
			t.Fatalf("the backend got %d of %d bytes, %v", got.n, sizeUp, got.err)
		}
		backend.CloseWrite()
		d.wait()
		cc.Close()
		if got := proxytest.Receive(t, gotDown, "the client to receive"); got.err != nil || got.n != sizeDown {
			t.Fatalf("the client got %d of %d bytes, %v", got.n, sizeDown, got.err)
		}
		if len(w.clientEnds) > 1 || w.backendEnd != io.EOF {
			t.Errorf("ended with %v, %v", w.clientEnds, w.backendEnd)
		}
	}
	var engines []Engine
	for _, k := range working(f) {
		engines = append(engines, newBench(f, k.of(f)).engine)
	}
	f.Fuzz(func(t *testing.T, seed uint64, up, down uint32, limit uint16) {
		e := engines[(uint32(seed)^up^down)%uint32(len(engines))]
		t.Log("engine", e.Name())
		play(t, func(Config) Engine { return shared{e} }, seed, up, down, limit)
	})
}

// shared is an engine for many inputs: to make one costs more than to play most.
type shared struct{ Engine }

func (shared) Close() {}
