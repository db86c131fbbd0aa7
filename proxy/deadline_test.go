package proxy

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestEachWaitEndsAtItsOwnDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newTestDispatcher(t, 4, 100, 1)
		fill(t, d)
		begin := time.Now()
		var mu sync.Mutex
		ended := map[uint64]time.Duration{}
		for i, patience := range []time.Duration{3, 5, 1, 4, 2, 1, 6} { // seconds
			w, _ := newWaiter(claim{ticket: uint64(i)}, patience*time.Second)
			w.granted = func(choice, error) {
				mu.Lock()
				defer mu.Unlock()
				ended[w.ticket] = time.Since(begin) / time.Second
			}
			d.join(w)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		for i, want := range []time.Duration{3, 5, 1, 4, 2, 1, 6} {
			if got := ended[uint64(i)]; got != want {
				t.Errorf("wait %d ended after %d s, want %d s", i, got, want)
			}
		}
		d.cut()
	})
}

// The alarm is set for the first who waits, and then when it has gone off: not for each
// one who comes or is served.
func TestUnderConstantTrafficTheAlarmSeldomGoesOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout, wait, between, traffic = 3 * time.Second, 10 * time.Millisecond, time.Millisecond, 30 * time.Second
		d := newTestDispatcher(t, 4, 100, 1)
		fill(t, d)
		set := map[time.Time]bool{} // times that the alarm was set to
		var waiting []*waiter
		for n := range uint64(traffic / between) {
			w, _ := newWaiter(claim{ticket: n}, timeout)
			d.join(w)
			if waiting = append(waiting, w); len(waiting) > int(wait/between) {
				if !d.leave(waiting[0]) {
					t.Fatal("a wait has ended before its time")
				}
				waiting = waiting[1:]
			}
			d.mu.Lock()
			set[d.alarm.at] = true
			d.mu.Unlock()
			time.Sleep(between)
		}
		synctest.Wait()
		if most := int(traffic/timeout) + 1; len(set) > most {
			t.Errorf("the alarm was set %d times in %v, want %d at most", len(set), traffic, most)
		}
		d.cut()
	})
}

func TestAlarmIsBroughtForwardOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a alarm
		var rang []time.Duration
		begin := time.Now()
		ring := func() { rang = append(rang, time.Since(begin)) }
		for _, s := range []time.Duration{3, 5, 2, 2, 4} {
			a.bringForward(begin.Add(s*time.Second), ring)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(rang) != 1 || rang[0] != 2*time.Second {
			t.Errorf("it went off after %v, want once, after 2s", rang)
		}
	})
}

func TestAfterACutNoAlarmIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newTestDispatcher(t, 4, 100, 1)
		fill(t, d)
		w, grantc := newWaiter(claim{ticket: 1}, time.Second)
		d.join(w)
		d.cut()
		<-grantc
		if d.alarm.timer.Stop() {
			t.Error("the timer was still set")
		}
	})
}
