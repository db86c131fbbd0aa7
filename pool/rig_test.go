package pool

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// rig is a pool with its referee and backend, and what clients do with them.
type rig struct {
	*Pool
	t     *testing.T
	slots *referee
	back  *fakeBackend
	stop  func() // ends Run, or closes a pool that is not run

	mu     sync.Mutex
	leases map[*Lease]bool
	dialed int // calls of Dial
	empty  int // calls of Take that gave nothing
	ended  int // leases that ended with a close
}

// setup is what a test changes of its rig.
type setup struct {
	Config
	Max int // slots
}

// newRig returns a rig whose pool is not run, so that nothing is swept or dialed
// ahead unless the test says so. When the test ends it closes what is left, and
// checks that nothing is.
func newRig(t *testing.T, edit func(*setup)) *rig {
	t.Helper()
	cfg := setup{Max: 10, Config: Config{
		VirginTimeout: 30 * time.Second,
		IdleTimeout:   60 * time.Second,
		DialTimeout:   5 * time.Second,
	}}
	if edit != nil {
		edit(&cfg)
	}
	r := &rig{t: t, slots: newReferee(t, cfg.Max), leases: map[*Lease]bool{}}
	r.back = &fakeBackend{t: t, slots: r.slots}
	cfg.Dial, cfg.Slots = r.back.Dial, r.slots
	p, err := New(cfg.Config)
	if err != nil {
		t.Fatal(err)
	}
	r.Pool = p
	r.slots.flush = p.Flush
	r.stop = sync.OnceFunc(p.close)
	t.Cleanup(r.finish)
	return r
}

// running is newRig with Run under way.
func running(t *testing.T, edit func(*setup)) *rig {
	t.Helper()
	r := newRig(t, edit)
	r.run()
	return r
}

func (r *rig) run() {
	ctx, cancel := context.WithCancel(context.Background())
	donec := make(chan struct{})
	go func() {
		defer close(donec)
		r.Run(ctx)
	}()
	r.stop = sync.OnceFunc(func() {
		cancel()
		<-donec
	})
}

func (r *rig) finish() {
	for l := range r.leases {
		r.close(l, Used)
	}
	r.stop()
	r.empties()
}

// empties checks that nothing is left, and that the statistics add up.
func (r *rig) empties() {
	r.t.Helper()
	want := [numStates]int{free: r.slots.max}
	if got := r.slots.counts; got != want {
		r.t.Errorf("at the end the slots are %v, want all free", got)
	}
	if r.slots.open != 0 {
		r.t.Errorf("at the end %d connections are open", r.slots.open)
	}
	stats := r.Stats()
	var closed int64
	for _, n := range stats.Closed {
		closed += n
	}
	if made := int64(len(r.back.conns)); closed != made {
		r.t.Errorf("closed %v, want a reason for each of %d connections", stats.Closed, made)
	}
	// Each connection that was closed was so for one of these; a Take that found
	// nothing in puddle would be one too many.
	again := int(stats.Dials) - r.slots.granted - r.dialed // dials of those who dialed more than once
	if n := r.ended + r.empty + r.slots.expired + again; int64(n) != closed {
		r.t.Errorf("%d closed, want %d after leases, %d by Take, %d by sweeps and %d by Dial",
			closed, r.ended, r.empty, r.slots.expired, again)
	}
}

// take leases an idle connection. Where there is none after all it frees the
// slot and returns nil.
func (r *rig) take() *Lease {
	r.t.Helper()
	r.slots.move(idle, leased)
	l := r.tryTake()
	if l == nil {
		r.slots.move(leased, free)
	}
	return l
}

// tryTake is Take, in a slot that is leased already.
func (r *rig) tryTake() *Lease {
	l := r.Take()
	r.mu.Lock()
	defer r.mu.Unlock()
	if l == nil {
		r.empty++
		return nil
	}
	r.holds(l)
	return l
}

func (r *rig) holds(l *Lease) {
	r.leases[l] = true
	c := l.Conn().(*fakeConn)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leased || c.watched || c.isClosed {
		r.t.Errorf("leased a connection that is leased (%v), watched (%v) or closed (%v)", c.leased, c.watched, c.isClosed)
	}
	c.leased = true
}

// dial leases a dialed connection.
func (r *rig) dial(ctx context.Context) (*Lease, error) {
	r.t.Helper()
	r.slots.move(free, dialing)
	return r.dialIn(ctx)
}

// dialIn is dial, in a slot that is dialing already.
func (r *rig) dialIn(ctx context.Context) (*Lease, error) {
	r.mu.Lock()
	r.dialed++
	r.mu.Unlock()
	l, err := r.Dial(ctx)
	switch {
	case err == nil:
		r.slots.move(dialing, leased)
		r.mu.Lock()
		r.holds(l)
		r.mu.Unlock()
	case !errors.Is(err, ErrOrphaned):
		r.slots.move(dialing, free)
	}
	return l, err
}

// breaks has the backend refuse from now on, and a client notice it.
func (r *rig) breaks() {
	r.back.whenDialed(fails(syscall.ECONNREFUSED))
	if _, err := r.dial(r.t.Context()); err == nil {
		r.t.Error("a dial of a broken backend succeeded")
	}
}

// mends ends that, and has the authority know it.
func (r *rig) mends() {
	r.back.whenDialed(nil)
	r.slots.comesUp()
	r.TopUp()
}

// created is create, and waits for it.
func (r *rig) created(ahead bool) (c *pooled, err error) {
	donec := make(chan struct{})
	r.create(ahead, func(made *pooled, e error) {
		c, err = made, e
		close(donec)
	})
	<-donec
	return c, err
}

// dialAhead dials in a slot that is reserved for that.
func (r *rig) dialAhead() {
	c, err := r.created(true)
	r.dialedAhead(c, err)
}

// mustDial is dial where it must succeed.
func (r *rig) mustDial() *Lease {
	r.t.Helper()
	l, err := r.dial(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return l
}

// rests makes a connection and has it lie idle.
func (r *rig) rests(used bool) *fakeConn {
	r.t.Helper()
	l := r.mustDial()
	c := l.Conn().(*fakeConn)
	if !r.keep(l, used) {
		r.t.Fatal("a new connection is not kept")
	}
	return c
}

func (r *rig) forget(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.leases, l)
}

func (r *rig) keep(l *Lease, used bool) bool {
	r.forget(l)
	c := l.Conn().(*fakeConn)
	c.mu.Lock()
	c.leased, c.used, c.idleSince = false, c.used || used, time.Now()
	c.mu.Unlock()
	if l.Keep(used) {
		r.slots.move(leased, idle)
		return true
	}
	r.mu.Lock()
	r.ended++
	r.mu.Unlock()
	r.slots.move(leased, free)
	r.TopUp()
	return false
}

func (r *rig) close(l *Lease, reason Reason) {
	r.forget(l)
	r.slots.move(leased, closing)
	l.Close(reason)
	r.mu.Lock()
	r.ended++
	r.mu.Unlock()
	r.slots.move(closing, free)
	r.TopUp()
}

// untilWatched waits until what lies idle is watched, and what its watch has set off
// is over.
func untilWatched() {
	time.Sleep(watchAfter)
	synctest.Wait()
}
