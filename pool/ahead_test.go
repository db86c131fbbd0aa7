package pool

import (
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestAFixedNumberIsKeptIdle(t *testing.T) {
	tests := []struct {
		name    string
		happens func(r *rig)
	}{
		{name: "from the start", happens: func(*rig) {}},
		{name: "after a lease", happens: func(r *rig) { r.take() }},
		{name: "after a dial", happens: func(r *rig) { r.mustDial() }},
		{name: "after a death", happens: func(r *rig) { r.back.all()[1].says(false, fin) }},
		{name: "after all have died", happens: func(r *rig) {
			time.Sleep(earlyEnd)
			for _, c := range r.back.all() {
				c.says(false, fin)
			}
		}},
		{name: "after their time", happens: func(*rig) { time.Sleep(30 * time.Second) }},
		{name: "after ten times their time", happens: func(*rig) { time.Sleep(300 * time.Second) }},
		{name: "after Take found a dead one", happens: func(r *rig) {
			r.back.all()[2].says(false, fin)
			r.tryTakeOrFree()
		}},
		{name: "after an outage", happens: func(r *rig) {
			r.back.whenDialed(fails(syscall.ECONNREFUSED))
			r.dial(r.t.Context())
			time.Sleep(10 * time.Second)
			r.wantIdle(0)
			r.mends()
		}},
		{name: "after a fault of this machine", happens: func(r *rig) {
			r.back.whenDialed(fails(syscall.EMFILE))
			r.back.all()[0].says(false, fin)
			time.Sleep(10 * time.Second)
			r.wantIdle(2)
			r.back.whenDialed(nil)
			time.Sleep(time.Second)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := running(t, func(cfg *setup) { cfg.MinIdle = 3 })
				synctest.Wait()
				r.wantIdle(3)
				tt.happens(r)
				synctest.Wait()
				r.wantIdle(3)
				if most := r.slots.mostIdle(); most > 3 {
					t.Errorf("up to %d lay idle", most)
				}
			})
		})
	}
}

// tryTakeOrFree is take where a sweep may have come first.
func (r *rig) tryTakeOrFree() {
	if ready, ok := r.slots.pick(); ready {
		if r.tryTake() == nil {
			r.slots.move(leased, free)
		}
	} else if ok {
		r.slots.move(dialing, free)
	}
}

func TestMoreThanMayBeDialedAtOnceComeOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(cfg *setup) { cfg.MinIdle = 5 })
		r.slots.parallel = 2
		r.back.whenDialed(takes(time.Second))
		r.run()
		for second, want := range []int{0, 2, 4, 5} {
			synctest.Wait()
			if r.slots.count(idle) != want {
				t.Errorf("after %d s %d lie idle, want %d", second, r.slots.count(idle), want)
			}
			time.Sleep(time.Second)
		}
		if most := r.back.mostAtOnce(); most != 2 {
			t.Errorf("%d dials at once, want 2", most)
		}
	})
}

func TestTheAuthorityIsAskedForEachDialAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(cfg *setup) { cfg.MinIdle = 5 })
		r.slots.refuse(true) // it says no
		r.run()
		time.Sleep(100 * time.Second)
		if n := len(r.back.dialTimes()); n != 0 {
			t.Errorf("dialed %d times without leave", n)
		}
		r.slots.refuse(false)
		r.TopUp()
		synctest.Wait()
		if r.wantIdle(5); r.slots.grants() != len(r.back.dialTimes()) {
			t.Errorf("dialed %d times with leave for %d", len(r.back.dialTimes()), r.slots.grants())
		}
	})
}

func TestNoneIsKeptIdleWhereNoneIsWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, nil)
		r.close(r.mustDial(), Used)
		time.Sleep(time.Hour)
		if n := len(r.back.dialTimes()); n != 1 {
			t.Errorf("%d dials, want the client's", n)
		}
	})
}

// visit is one client whose session takes no time.
func (r *rig) visit() {
	if ready, ok := r.slots.pick(); !ok {
		r.t.Error("no room for a client")
	} else if l := r.openIn(ready); l != nil {
		r.close(l, Used)
	}
}

// openIn makes a lease of a slot that pick has reserved, as package proxy does.
func (r *rig) openIn(ready bool) *Lease {
	if ready {
		if l := r.tryTake(); l != nil {
			return l
		}
		r.slots.move(leased, dialing)
	}
	l, _ := r.dialIn(r.t.Context())
	return l
}

func TestAutomaticallyAsManyLieIdleAsTheTrafficCallsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(cfg *setup) { cfg.MinIdle, cfg.Max = -1, 100 })
		r.back.whenDialed(takes(50 * time.Millisecond))
		r.run()
		time.Sleep(time.Second)
		r.wantIdle(1) // the first client finds a connection

		for range 500 { // 100 a second, of which 5 come during a dial
			go r.visit()
			time.Sleep(10 * time.Millisecond)
		}
		if got := r.slots.lastWant(); got < 9 || got > 11 { // 5 + 2√5
			t.Errorf("it wants %d ahead, want 10 or so", got)
		}
		time.Sleep(100 * time.Millisecond)
		if got := r.slots.count(idle); got < 9 || got > 11 {
			t.Errorf("%d lie idle, want 10 or so", got)
		}
		ready := r.Stats().Ready
		for range 100 {
			go r.visit()
			time.Sleep(10 * time.Millisecond)
		}
		if got := r.Stats().Ready - ready; got != 100 {
			t.Errorf("%d of 100 found their connection ready, want all", got)
		}

		time.Sleep(10 * time.Second) // nobody comes
		r.visit()
		if got := r.slots.lastWant(); got != 1 {
			t.Errorf("after a pause it wants %d ahead, want 1", got)
		}
		time.Sleep(61 * time.Second) // the last one was dialed within 30 s, and lay idle for 30
		r.wantIdle(0)
		dials := len(r.back.dialTimes())
		time.Sleep(time.Hour)
		if n := len(r.back.dialTimes()) - dials; n != 0 {
			t.Errorf("it dialed %d times though nobody came", n)
		}

		r.visit()
		time.Sleep(time.Second)
		r.wantIdle(1)
	})
}

func TestTheFirstClientAfterAPauseHasAnotherConnectionDialed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, func(cfg *setup) { cfg.MinIdle = -1 })
		time.Sleep(time.Minute)
		r.wantIdle(0)
		r.mustDial()
		synctest.Wait()
		r.wantIdle(1)
	})
}

func TestWanted(t *testing.T) {
	tests := []struct {
		every, dial time.Duration // clients come so often, a dial takes so long
		want        int
	}{
		{every: time.Second, dial: time.Millisecond, want: 1},
		{every: 10 * time.Millisecond, dial: time.Millisecond, want: 1},           // 0.1 + 2√0.1
		{every: time.Millisecond, dial: time.Millisecond, want: 4},                // 1 + 2√1, and a little
		{every: time.Millisecond, dial: 100 * time.Millisecond, want: 121},        // 100 + 2√100
		{every: 100 * time.Microsecond, dial: 100 * time.Millisecond, want: 1064}, // 1000 + 2√1000
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("every %v, dial takes %v", tt.every, tt.dial), func(t *testing.T) {
			var d demand
			now := time.Unix(1e9, 0)
			if got := d.wanted(now, time.Minute); got != 0 {
				t.Errorf("wants %d before anybody came", got)
			}
			for range 100 {
				d.dialed(tt.dial)
			}
			for range int(20 * time.Second / tt.every) {
				now = now.Add(tt.every)
				d.note(now)
			}
			if got := d.wanted(now, time.Minute); got != tt.want {
				t.Errorf("wants %d, want %d", got, tt.want)
			}
			if got := d.wanted(now.Add(30*time.Second), time.Minute); got != 1 {
				t.Errorf("wants %d after a pause, want 1", got)
			}
			if got := d.wanted(now.Add(time.Minute), time.Minute); got != 0 {
				t.Errorf("wants %d after nobody came for a minute, want 0", got)
			}
		})
	}
}

// Clients go on to come while this machine has no descriptors.
func TestDialingAheadRestsAfterALocalFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(cfg *setup) { cfg.MinIdle = 1 })
		r.back.whenDialed(fails(syscall.EMFILE))
		r.run()
		for range 300 {
			time.Sleep(10 * time.Millisecond)
			r.TopUp()
		}
		synctest.Wait()
		for i, at := range r.back.dialTimes()[1:] {
			if wait := at.Sub(r.back.dialTimes()[i]); wait < time.Second {
				t.Errorf("the next dial ahead came after %v, want a rest of 1s", wait)
			}
		}
		if n := len(r.back.dialTimes()); n < 3 {
			t.Errorf("%d dials ahead in 3 s, want one a second", n)
		}
		if r.slots.isDown() {
			t.Error("the backend is down for it")
		}
		r.back.whenDialed(nil)
		time.Sleep(time.Second)
		synctest.Wait()
		r.wantIdle(1)
	})
}

func TestAStaleFailureDoesNotLeaveAPlaceEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(cfg *setup) { cfg.MinIdle = 2 })
		r.back.whenDialed(hangs) // until the dial timeout
		r.run()
		time.Sleep(time.Second)
		r.back.whenDialed(fails(syscall.ECONNREFUSED))
		r.dial(t.Context())
		r.mends()
		time.Sleep(6 * time.Second) // the first two dials have failed
		synctest.Wait()
		r.wantIdle(2)
	})
}
