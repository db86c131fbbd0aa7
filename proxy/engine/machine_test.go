package engine

import (
	"bytes"
	"context"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"forebay/proxy/proxytest"
)

// puppet is a machine that a test plays. It checks that the engine keeps to what
// Machine says. Its fields are the driving goroutine's until the drive has ended.
type puppet struct {
	testing.TB
	play  func(p *puppet, now time.Time) Step
	lease func() Conn

	inside atomic.Bool // a method runs
	given  Step        // the step that the engine works on

	conn                Conn
	up, down            []byte // what was read
	wroteUp, wroteDown  int
	clientEnds          []error
	backendEnd          error
	undelivered         bool
	asked, cuts, leases int
}

// enter begins a method. The bytes of the last step are not valid any more.
func (p *puppet) enter() (leave func()) {
	if p.inside.Swap(true) {
		p.Error("two methods were called at once")
	}
	for _, b := range [][]byte{p.given.ToClient, p.given.ToBackend} {
		for i := range b {
			b[i] = '!'
		}
	}
	return func() { p.inside.Store(false) }
}

// most is how many bytes a step has.
const most = 64 << 10

func (p *puppet) Next(now time.Time) Step {
	defer p.enter()()
	p.asked++
	s := p.play(p, now)
	s.ToClient = bytes.Clone(s.ToClient[:min(len(s.ToClient), most)])
	s.ToBackend = bytes.Clone(s.ToBackend[:min(len(s.ToBackend), most)])
	p.given = s
	return s
}

// Lease has lease wait in a goroutine of its own.
func (p *puppet) Lease(leased func()) {
	leave := p.enter()
	p.leases++
	go func() {
		p.conn, p.backendEnd, p.undelivered = p.lease(), nil, false
		leave()
		leased()
	}()
}

func (p *puppet) Backend() Conn { return p.conn }

func (p *puppet) Release() {
	defer p.enter()()
	p.conn = nil
}

func (p *puppet) ReadClient(b []byte) {
	defer p.enter()()
	if len(b) == 0 || len(b) > p.given.FromClient {
		p.Errorf("%d bytes of the client, want 1 to %d", len(b), p.given.FromClient)
	}
	p.given.FromClient -= len(b)
	p.up = append(p.up, b...)
}

func (p *puppet) ReadBackend(b []byte) {
	defer p.enter()()
	if len(b) == 0 || len(b) > p.given.FromBackend {
		p.Errorf("%d bytes of the backend, want 1 to %d", len(b), p.given.FromBackend)
	}
	p.given.FromBackend -= len(b)
	p.down = append(p.down, b...)
}

func (p *puppet) WroteClient(n int) {
	defer p.enter()()
	if n <= 0 || n > len(p.given.ToClient) {
		p.Errorf("wrote %d of %d bytes", n, len(p.given.ToClient))
	}
	p.given.ToClient = p.given.ToClient[n:]
	p.wroteDown += n
}

func (p *puppet) WroteBackend(n int) {
	defer p.enter()()
	if n <= 0 || n > len(p.given.ToBackend) {
		p.Errorf("wrote %d of %d bytes", n, len(p.given.ToBackend))
	}
	p.given.ToBackend = p.given.ToBackend[n:]
	p.wroteUp += n
}

func (p *puppet) ClientEnded(err error) {
	defer p.enter()()
	if n := len(p.clientEnds); err == nil || n > 0 && (p.clientEnds[n-1] != io.EOF || err == io.EOF) {
		p.Errorf("the client ended with %v after %v", err, p.clientEnds)
	}
	p.clientEnds = append(p.clientEnds, err)
}

func (p *puppet) BackendEnded(err error, undelivered bool) {
	defer p.enter()()
	if err == nil || p.backendEnd != nil || p.conn == nil {
		p.Errorf("the backend ended with %v after %v", err, p.backendEnd)
	}
	p.backendEnd, p.undelivered = err, undelivered
}

func (p *puppet) Cut() {
	defer p.enter()()
	if p.cuts++; p.cuts > 1 {
		p.Error("cut twice")
	}
}

// driving is a drive under way.
type driving struct {
	testing.TB
	cut   context.CancelFunc
	donec chan struct{}
	calls atomic.Int32 // of done
}

// drive begins to drive m. The test fails where done is not called exactly once by
// its end.
func (b *bench) drive(client Conn, m Machine, cfg DriveConfig) *driving {
	ctx, cancel := context.WithCancel(context.Background())
	d := &driving{TB: b.TB, cut: cancel, donec: make(chan struct{})}
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		b.engine.Drive(ctx, client, m, cfg, func() {
			if d.calls.Add(1) == 1 {
				close(d.donec)
			}
		})
	}()
	b.Cleanup(func() {
		cancel()
		proxytest.Receive(b, returned, "Drive to return")
		proxytest.Eventually(b, "done to be called", func() bool { return d.calls.Load() > 0 })
		if n := d.calls.Load(); n != 1 {
			b.Errorf("done was called %d times", n)
		}
	})
	return d
}

func (d *driving) wait() {
	d.Helper()
	proxytest.Receive(d, d.donec, "the drive to end")
}

// liner is a machine whose requests and replies are lines. A backend is leased for
// one request, or, where it is a batch, for all that are there.
type liner struct {
	puppet
	batch  bool
	stream bool // a request is forwarded before it is complete
	tidy   bool // it keeps no buffer while it waits
	limit  int  // of each buffer
	begun  bool // of a stream: the beginning of a request was forwarded
	sent   int  // replies that are due
	req    []byte
	out    []byte
	closed bool // the client was sent a FIN
	pool   *linePool
}

// linePool are the connections to one backend that are idle.
type linePool struct {
	idle []Conn
	dial func() Conn
}

func newLiner(t testing.TB, pool *linePool) *liner {
	l := &liner{puppet: puppet{TB: t}, limit: 256 << 10, pool: pool}
	l.puppet.play = func(_ *puppet, now time.Time) Step { return l.next(now) }
	l.puppet.lease = func() Conn {
		if n := len(pool.idle); n > 0 {
			c := pool.idle[n-1]
			pool.idle = pool.idle[:n-1]
			return c
		}
		return pool.dial()
	}
	return l
}

func (l *liner) Release() {
	if l.sent == 0 && l.backendEnd == nil {
		l.pool.idle = append(l.pool.idle, l.conn)
	} else {
		l.conn.Close()
		l.sent = 0
	}
	l.req, l.begun = nil, false
	l.puppet.Release()
}

func (l *liner) gone() bool {
	n := len(l.clientEnds)
	return l.cuts > 0 || n > 0 && l.clientEnds[n-1] != io.EOF
}

// account moves the machine on by what was read and written since.
func (l *liner) account() {
	l.req, l.wroteUp = l.req[l.wroteUp:], 0
	l.out, l.wroteDown = l.out[l.wroteDown:], 0
	if l.conn != nil {
		l.sent -= bytes.Count(l.down, []byte("\n"))
	}
	l.out = append(l.out, l.down...)
	l.down = l.down[:0]
	if l.tidy && l.conn == nil && len(l.out)+len(l.up) == 0 {
		l.up, l.down, l.out, l.given = nil, nil, nil, Step{}
	}
}

// forward takes from what the client sent what goes to the backend now.
func (l *liner) forward() {
	for len(l.req) == 0 && len(l.up) > 0 && (l.batch || l.sent == 0) {
		n := bytes.IndexByte(l.up, '\n') + 1
		if n == 0 && !l.stream {
			return
		}
		l.begun = n == 0
		if n == 0 {
			n = len(l.up)
		} else {
			l.sent++
		}
		l.req = append(l.req, l.up[:n]...)
		l.up = append(l.up[:0], l.up[n:]...)
	}
}

func (l *liner) next(time.Time) Step {
	l.account()
	finished := len(l.clientEnds) > 0
	due := bytes.IndexByte(l.up, '\n') >= 0 || l.stream && len(l.up) > 0
	switch {
	case l.conn != nil && (l.gone() || l.backendEnd != nil && len(l.down) == 0):
		if l.backendEnd != nil && !l.gone() {
			l.out = append(l.out, "failed\n"...)
		}
		return Step{Op: OpRelease}
	case l.gone():
		return Step{Op: OpDone}
	case l.conn == nil && due:
		return Step{Op: OpLease}
	}
	if l.conn != nil {
		l.forward()
		if l.sent == 0 && len(l.req) == 0 && !l.begun {
			return Step{Op: OpRelease}
		}
	}
	if finished && l.conn == nil && len(l.out) == 0 {
		if l.closed {
			return Step{Op: OpDone}
		}
		l.closed = true
		return Step{Op: OpFinishClient}
	}
	s := Step{ToBackend: l.req, ToClient: l.out, ClientFirst: l.begun}
	if !finished {
		s.FromClient = max(0, l.limit-len(l.up))
	}
	if l.conn != nil {
		s.FromBackend = max(0, l.limit-len(l.out))
	}
	return s
}
