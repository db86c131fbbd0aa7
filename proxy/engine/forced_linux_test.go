package engine

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"forebay/proxy/proxytest"
)

// The tests of the files forced*_linux_test.go force what a kernel does rarely. Each
// session has bytes of its own, so that a lost, displaced, doubled or foreign byte shows.

// patterns are the bytes of sessions: parts of one stream, as long as a prime.
var patterns = newStream(99)

func pattern(i int) stream {
	const size, apart = 65537, 1009
	at := i * apart % (len(patterns) - size)
	return patterns[at : at+size]
}

// sizes makes the rings of the test's engines tiny.
func sizes(t testing.TB, ring ringConfig, buffers int) {
	was := uringSizes
	t.Cleanup(func() { uringSizes = was })
	uringSizes.ring = ring
	uringSizes.buffers, uringSizes.atFirst = buffers, buffers
}

// newUringBench returns a bench for the engine uring, and what its ring meets.
func newUringBench(t *testing.T, cfg Config) (*bench, *spy) {
	t.Helper()
	if err := probeRing(); err != nil {
		t.Skip(err)
	}
	s := new(spy)
	hookRing(t, s.watch)
	e, err := NewUring(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	s.ring.Store(inspect(e, func(k *uring) *ring { return k.ring }))
	return &bench{t, e}, s
}

// inspect runs f on the first loop of an engine.
func inspect[K kernel, T any](e Engine, f func(k K) T) T {
	c := make(chan T, 1)
	l := e.(*Loops).loops[0]
	l.post(taskFunc(func() { c <- f(l.kernel.(K)) }))
	return <-c
}

// spy counts what is rare. It looks after each enter, on the thread of the ring.
type spy struct {
	ring      atomic.Pointer[ring]
	seen      uint32 // completions up to here are counted
	overflows atomic.Int64
	noBuffers atomic.Int64
	fullSQ    atomic.Int64
}

func (s *spy) watch(c *ringCalls) {
	enter := c.enter
	c.enter = func(fd, submit, least, flags uint32, arg *waitArgument, raw bool) (int, syscall.Errno) {
		n, errno := enter(fd, submit, least, flags, arg, raw)
		if r := s.ring.Load(); r != nil && fd == r.enterFD {
			s.look(r, submit)
		}
		return n, errno
	}
}

func (s *spy) look(r *ring, submitted uint32) {
	if r.sqFlags.Load()&sqOverflow != 0 {
		s.overflows.Add(1)
	}
	if int(submitted) == len(r.sqes) {
		s.fullSQ.Add(1)
	}
	if int32(s.seen-r.head) < 0 {
		s.seen = r.head
	}
	for tail := r.cqTail.Load(); s.seen != tail; s.seen++ {
		if r.cqes[s.seen&uint32(len(r.cqes)-1)].res == -int32(unix.ENOBUFS) {
			s.noBuffers.Add(1)
		}
	}
}

// crowd begins n sessions over network, whose bytes begin with pattern(2*first).
func (b *bench) crowd(network string, n int, cfg RelayConfig) []*session {
	b.Helper()
	front, back := b.listen(network), proxytest.Listen(b, network)
	all := make([]*session, n)
	for i := range all {
		cc, client := b.clientOf(front)
		bc, backend := b.backendOf(back)
		all[i] = &session{b.relay(cc, bc, cfg), client, backend}
	}
	return all
}

// talk is the bytes of one session under way, n each way.
type talk struct {
	*session
	n            int
	up, down     stream
	sent         atomic.Int64
	upErr, dnErr <-chan error
}

func (s *session) talk(i, n int, chunk func() int) *talk {
	k := &talk{session: s, n: n, up: pattern(2 * i), down: pattern(2*i + 1)}
	k.upErr = k.up.sending(counted{s.client, &k.sent}, n, chunk)
	k.dnErr = k.down.sending(counted{s.backend, &k.sent}, n, chunk)
	return k
}

// counted counts what was written.
type counted struct {
	proxytest.Conn
	n *atomic.Int64
}

func (c counted) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil { // in parts, so that progress shows
		var m int
		m, err = c.Conn.Write(p[n:min(len(p), n+16<<10)])
		c.n.Add(int64(m))
		n += m
	}
	return n, err
}

// hear reads what is under way, by reads of at most size bytes, and closes the session.
func (k *talk) hear(client, backend io.Reader, size int) error {
	gotUp, gotDown := k.up.receiving(backend, size), k.down.receiving(client, size)
	var errs []error
	for _, got := range []transfer{<-gotUp, <-gotDown} {
		if got.err == nil && got.n != k.n {
			got.err = io.ErrUnexpectedEOF
		}
		errs = append(errs, got.err)
	}
	errs = append(errs, <-k.upErr, <-k.dnErr)
	res := k.close()
	whole := Half{Taken: int64(k.n), Moved: int64(k.n), FIN: true, FINSent: true}
	if res.End != Finished || res.Up != whole || res.Down != whole {
		errs = append(errs, errors.New("the relay ended as "+res.End.String()))
	}
	return errors.Join(errs...)
}

// hearAll has all sessions heard at once.
func hearAll(t testing.TB, talks []*talk) {
	t.Helper()
	errs := make([]<-chan error, len(talks))
	for i, k := range talks {
		errs[i] = async(func() error { return k.hear(k.session.client, k.session.backend, 100+i*137%20000) })
	}
	bad := 0
	for i, c := range errs {
		if err := proxytest.Receive(t, c, "a session"); err != nil {
			if bad++; bad < 5 {
				t.Errorf("session %d: %v", i, err)
			}
		}
	}
	if bad > 0 {
		t.Errorf("%d of %d sessions were not served", bad, len(talks))
	}
}

// awaitStall waits until nothing of the talks has moved for a while: that nothing
// happens is what is waited for.
func awaitStall(t testing.TB, talks []*talk) {
	t.Helper()
	last, since := int64(-1), time.Now()
	proxytest.Eventually(t, "the buffers to be full", func() bool {
		now := int64(0)
		for _, k := range talks {
			now += k.sent.Load()
		}
		if now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > 100*time.Millisecond
	})
	for i, k := range talks {
		if k.sent.Load() == 2*int64(k.n) {
			t.Fatalf("talk %d did not fill the buffers: send more", i)
		}
	}
}

// tinyBuffers makes the kernel's buffers of a session small, on all four ends.
func tinyBuffers(s *session, size int) {
	for _, c := range []Conn{s.running.client, s.running.backend} {
		if c, ok := c.(*loopConn); ok {
			unix.SetsockoptInt(int(c.fd), unix.SOL_SOCKET, unix.SO_SNDBUF, size)
			unix.SetsockoptInt(int(c.fd), unix.SOL_SOCKET, unix.SO_RCVBUF, size)
		}
	}
	for _, c := range []net.Conn{s.client, s.backend} {
		c := c.(interface {
			SetReadBuffer(int) error
			SetWriteBuffer(int) error
		})
		c.SetReadBuffer(size)
		c.SetWriteBuffer(size)
	}
}

func TestFullBuffersBothWays(t *testing.T) { onEngines(t, testFullBuffersBothWays) }

func testFullBuffersBothWays(t *testing.T, newEngine func(Config) Engine) {
	tests := []struct {
		network     string
		buffer, n   int
		clientEvery int // bytes after which the client pauses
	}{
		{"unix", 4 << 10, 4 << 20, 512 << 10},
		{"tcp", 64 << 10, 24 << 20, 4 << 20}, // smaller ones wait for the kernel's window probes
		{"tcp6", 128 << 10, 24 << 20, 4 << 20},
	}
	for _, tt := range tests {
		t.Run(tt.network+"/readers that stop go on", func(t *testing.T) {
			t.Parallel()
			s := newBench(t, newEngine).session(tt.network, tt.network, RelayConfig{Replay: true})
			tinyBuffers(s, tt.buffer)
			k := s.talk(1, tt.n, random(100<<10))
			awaitStall(t, []*talk{k})
			slow := &slowReader{r: s.client, pause: 5 * time.Millisecond, every: tt.clientEvery}
			slower := &slowReader{r: s.backend, pause: 10 * time.Millisecond, every: tt.clientEvery / 2}
			if err := k.hear(slow, slower, 32<<10); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestUringWithoutBuffersLosesNothing(t *testing.T) {
	tests := []struct {
		name    string
		buffers int
	}{
		{"one buffer", 1},
		{"two buffers", 2},
		{"few buffers", 8},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sizes(t, ringConfig{entries: 256, completions: 4096}, tt.buffers)
			b, s := newUringBench(t, Config{})
			var talks []*talk
			for i, ses := range b.crowd("unix", 200, RelayConfig{Replay: true}) {
				talks = append(talks, ses.talk(i, 1+i*1009%200000, random(100000)))
			}
			hearAll(t, talks)
			if s.noBuffers.Load() == 0 {
				t.Error("the buffers never ran out")
			}
		})
	}
}

// What a slow reader does not take may not hold the buffers that others need.
func TestSlowReadersStarveNobody(t *testing.T) {
	tests := []struct {
		name          string
		buffers       int
		chunk         func() int
		stalled, busy int
	}{
		{"with two buffers", 2, random(100000), 20, 30},
		{"with 64 buffers, in small messages", 64, fixed(1000), 80, 30},
		{"with 64 buffers, in large messages", 64, fixed(200000), 80, 30},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sizes(t, ringConfig{entries: 256, completions: 4096}, tt.buffers)
			b, _ := newUringBench(t, Config{})
			var stalled, busy []*talk
			for i, ses := range b.crowd("unix", tt.stalled, RelayConfig{}) {
				tinyBuffers(ses, 4<<10)
				stalled = append(stalled, ses.talk(i, 1<<20, tt.chunk))
			}
			awaitStall(t, stalled)
			for i, ses := range b.crowd("unix", tt.busy, RelayConfig{}) {
				busy = append(busy, ses.talk(tt.stalled+i, 256<<10, random(100000)))
			}
			hearAll(t, busy)
			hearAll(t, stalled)
		})
	}
}

func TestUringWithFullQueuesLosesNothing(t *testing.T) {
	tests := []struct {
		name     string
		ring     ringConfig
		overflow bool // else the submissions fill
	}{
		{"8 completions", ringConfig{entries: 8, completions: 8}, true},
		{"16 completions and 2 submissions", ringConfig{entries: 2, completions: 16}, true},
		{"2 submissions", ringConfig{entries: 2, completions: 4096}, false},
		{"4 submissions", ringConfig{entries: 4, completions: 4096}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sizes(t, tt.ring, 64)
			b, s := newUringBench(t, Config{})
			var talks []*talk
			for i, ses := range b.crowd("unix", 300, RelayConfig{Replay: true, IdleTimeout: patience}) {
				talks = append(talks, ses.talk(i, 1+i*1009%100000, random(20000)))
			}
			hearAll(t, talks)
			if n := s.overflows.Load(); tt.overflow && n == 0 {
				t.Error("the completions never overflowed")
			}
			if n := s.fullSQ.Load(); !tt.overflow && n == 0 {
				t.Error("the submissions never filled")
			}
		})
	}
}
