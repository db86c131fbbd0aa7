package pool

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"forebay/proxy/proxytest"
)

func TestDueIsBroughtForwardOnly(t *testing.T) {
	epoch := time.Now()
	d := due{epoch: epoch}
	d.reset(epoch.Add(time.Hour))
	steps := []struct {
		to   time.Duration
		want bool
		at   time.Duration
	}{
		{to: 2 * time.Hour, want: false, at: time.Hour},
		{to: time.Hour, want: false, at: time.Hour},
		{to: time.Minute, want: true, at: time.Minute},
		{to: 2 * time.Minute, want: false, at: time.Minute},
		{to: -time.Second, want: true, at: -time.Second},
	}
	for _, s := range steps {
		if got := d.lower(epoch.Add(s.to)); got != s.want {
			t.Errorf("lower to %v = %v, want %v", s.to, got, s.want)
		}
		if got := d.at().Sub(epoch); got != s.at {
			t.Errorf("after lower to %v it is due at %v, want %v", s.to, got, s.at)
		}
	}
}

func TestOnlyAnEarlierTimeWakesRun(t *testing.T) {
	p := &Pool{nudgec: make(chan struct{}, 1), due: due{epoch: time.Now()}}
	now := time.Now()
	p.due.reset(now.Add(time.Minute))
	p.sweepAt(now.Add(2 * time.Minute))
	if len(p.nudgec) != 0 {
		t.Error("a later time woke Run")
	}
	p.sweepAt(now.Add(time.Second))
	p.sweepAt(now) // must not block
	if len(p.nudgec) != 1 {
		t.Error("an earlier time did not wake Run")
	}
}

func TestEachIsClosedAtItsOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, nil)
		used := r.rests(true)
		time.Sleep(10 * time.Second)
		virgin := r.mustDial() // its time comes before that of the other
		c := virgin.Conn().(*fakeConn)
		r.keep(virgin, false)
		time.Sleep(time.Hour)
		if got := used.lived(); got != 60*time.Second {
			t.Errorf("the used one was closed after %v, want 1m", got)
		}
		if got := c.lived(); got != 30*time.Second {
			t.Errorf("the virgin was closed after %v, want 30s", got)
		}
	})
}

func TestAUsedConnectionsTimeBeginsWithItsRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, nil)
		l := r.mustDial()
		c := l.Conn().(*fakeConn)
		time.Sleep(40 * time.Second)
		r.keep(l, true)
		time.Sleep(time.Hour)
		if got := c.lived(); got != 100*time.Second {
			t.Errorf("it was closed after %v, want 40 s of use and 60 s of rest", got)
		}
	})
}

func TestAShortLifeEndsInTime(t *testing.T) {
	tests := []struct {
		name string
		make func(r *rig)
	}{
		{name: "kept", make: func(r *rig) { r.rests(false) }},
		{name: "kept and used", make: func(r *rig) { r.rests(true) }},
		{name: "dialed ahead", make: func(r *rig) {
			r.slots.reserveAhead()
			r.dialAhead()
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := running(t, lifetime)
				tt.make(r)
				time.Sleep(time.Hour)
				c := r.back.all()[0]
				if got := c.lived(); got < 9*time.Second || got > 11*time.Second {
					t.Errorf("closed after %v, want 9 s to 11 s", got)
				}
				r.wantClosed(map[string]int64{"lifetime": 1})
			})
		})
	}
}

func TestASweepLeavesWhatAClientHasReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, nil)
		c := r.rests(false)
		r.slots.move(idle, leased) // a client has it, and is about to come
		c.says(false, fin)
		synctest.Wait()
		if c.closed() {
			t.Fatal("it was closed under its client")
		}
		if r.tryTake() != nil {
			t.Error("its client leased it, dead")
		}
		r.slots.move(leased, free)
	})
}

func TestAGreetingDoesNotEndTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, nil)
		c := r.rests(false)
		c.says(true, nil)
		time.Sleep(time.Second)
		c.says(false, fin)
		synctest.Wait()
		if !c.closed() {
			t.Error("the FIN behind the greeting was not seen")
		}
	})
}

func TestOneOfTwoIsReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, nil)
		a, b := r.rests(false), r.rests(false)
		r.slots.move(idle, leased)
		a.says(false, fin)
		untilWatched()
		if !a.closed() || b.closed() {
			t.Errorf("closed: %v, %v; want the dead one, whichever the client had in mind", a.closed(), b.closed())
		}
		if l := r.tryTake(); l == nil || l.Conn() != Conn(b) {
			t.Errorf("Take() = %v, want the other", l)
		}
	})
}

// No bubble: the client waits for a lock.
func TestAClientThatComesDuringASweepFindsItsConnection(t *testing.T) {
	r := newRig(t, nil)
	c := r.rests(false)
	var once sync.Once
	leasedc := make(chan *Lease, 1)
	c.looked = func() {
		once.Do(func() { // the sweep has it in hand
			came := make(chan struct{})
			go func() {
				defer close(came)
				leasedc <- r.tryTake()
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			select {
			case <-came:
			case <-ctx.Done():
			}
		})
	}
	r.slots.move(idle, leased)
	r.sweep(time.Now())
	if l := proxytest.Receive(t, leasedc, "the client"); l == nil || l.Conn() != Conn(c) {
		t.Errorf("Take() = %v, want the connection", l)
	}
}

// The authority does not count a connection as idle yet, or no more, when its
// end is seen.
func TestAnEndIsNotForgottenWhereTheSweepComesTooEarly(t *testing.T) {
	tests := []struct {
		name string
		want int64 // ends seen
		make func(r *rig)
	}{
		{name: "dialed ahead, not counted yet", want: 2, make: func(r *rig) {
			older := r.rests(false) // a sweep is due already
			defer older.says(false, fin)
			r.slots.before = func(method string) {
				if method == "AheadDone" {
					r.back.all()[1].says(false, fin)
					time.Sleep(time.Second)
				}
			}
			r.slots.reserveAhead()
			r.create(true, r.dialedAhead)
		}},
		{name: "kept, not counted yet", want: 1, make: func(r *rig) {
			l := r.mustDial()
			c := l.Conn().(*fakeConn)
			r.forget(l)
			l.Keep(false)
			c.says(false, fin)
			time.Sleep(time.Second)
			r.slots.move(leased, idle)
		}},
		{name: "reserved by a client that left", want: 1, make: func(r *rig) {
			c := r.rests(false)
			r.slots.move(idle, leased)
			c.says(false, fin)
			time.Sleep(time.Second)
			r.slots.move(leased, idle)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := running(t, nil)
				tt.make(r)
				time.Sleep(2 * time.Second)
				r.wantIdle(0)
				r.wantClosed(map[string]int64{"backend_closed": tt.want})
			})
		})
	}
}

func TestRunSleepsWhereNothingIsToDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		var asked atomic.Int64
		r.slots.before = func(method string) {
			if method == "Ahead" {
				asked.Add(1)
			}
		}
		r.cfg.MinIdle = 1
		r.slots.refuse(true) // so that each round of Run asks once
		r.run()
		r.rests(true)
		for range 60 {
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if n := asked.Load(); n > 6 {
			t.Errorf("Run asked %d times in a minute", n)
		}
	})
}

// A virgin connection that lies idle is looked at after a time: that is one sweep for
// all that were dialed meanwhile, and one round of Run that has it come.
func TestDialsAheadHaveRunLookOnceInAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const dials = 50
		r := newRig(t, func(cfg *setup) { cfg.Max = dials })
		r.due.reset(time.Now().Add(forever))
		wakes := 0
		for range dials {
			r.slots.reserveAhead()
			r.dialAhead()
			select {
			case <-r.nudgec:
				wakes++
			default:
			}
			time.Sleep(time.Millisecond)
		}
		if wakes != 1 {
			t.Errorf("Run was woken %d times for %d dials, want once", wakes, dials)
		}
		time.Sleep(watchAfter - dials*time.Millisecond)
		r.sweep(time.Now())
		watched := 0
		for _, c := range r.back.all() {
			watched += c.timesWatched()
		}
		if watched != 1 {
			t.Errorf("%d are watched, want the oldest", watched)
		}
		if got := time.Until(r.due.at()); got != time.Millisecond {
			t.Errorf("the next sweep is due in %v, want at the time of the next one", got)
		}
	})
}

func TestAConnectionLeasedSoonIsNeverWatched(t *testing.T) {
	for _, used := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := running(t, nil)
			c := r.rests(used)
			for range 100 {
				time.Sleep(watchAfter / 2)
				r.keep(r.take(), used)
			}
			if n := c.timesWatched(); n != 0 {
				t.Errorf("used %v: watched %d times though it was leased all the time", used, n)
			}
			untilWatched()
			if n := c.timesWatched(); n != 1 {
				t.Errorf("used %v: watched %d times at rest, want once", used, n)
			}
		})
	}
}

// A lowered max leaves more idle than there may be: Trim closes the oldest, and as
// many as are too many.
func TestTrimClosesTheSurplus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, nil)
		var conns []*fakeConn
		var leases []*Lease
		for range 5 {
			l := r.mustDial()
			conns, leases = append(conns, l.Conn().(*fakeConn)), append(leases, l)
			time.Sleep(time.Millisecond)
		}
		for _, l := range leases[1:] {
			r.keep(l, true)
		}
		closed := func() (n int) {
			for _, c := range conns {
				if c.lived() > 0 {
					n++
				}
			}
			return n
		}
		r.Trim()
		synctest.Wait()
		if n := closed(); n != 0 {
			t.Errorf("%d were closed, with as many open as there may be", n)
		}
		r.slots.setMax(3)
		r.Trim()
		synctest.Wait()
		if n := closed(); n != 2 || conns[1].lived() == 0 || conns[2].lived() == 0 {
			t.Errorf("%d were closed, want the two oldest of four idle", n)
		}
		if n := r.Stats().Closed["surplus"]; n != 2 {
			t.Errorf("%d were closed as surplus, want 2", n)
		}
		r.slots.setMax(1)
		r.Trim()
		synctest.Wait()
		if n := closed(); n != 4 || conns[0].lived() > 0 {
			t.Errorf("%d were closed, want all but the leased one", n)
		}
	})
}

// One that ends by itself is one less to be closed.
func TestTrimCountsTheUnfit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		var conns []*fakeConn
		var leases []*Lease
		for range 3 {
			l := r.mustDial()
			conns, leases = append(conns, l.Conn().(*fakeConn)), append(leases, l)
		}
		for _, l := range leases { // puddle gives the newest first
			r.keep(l, true)
		}
		conns[0].says(false, fin)
		conns[1].says(false, fin)
		r.slots.setMax(1)
		r.sweep(time.Now())
		if got := r.Stats().Closed; got["surplus"] != 0 || got["backend_closed"] != 2 {
			t.Errorf("closed %v, want the two that have ended", got)
		}
	})
}
