package pool

import (
	"context"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"forebay/proxy/proxytest"
)

// breaks has the backend refuse from now on, and a client notice it.
func (r *rig) breaks() {
	r.back.whenDialed(fails(syscall.ECONNREFUSED))
	if _, err := r.dial(r.t.Context()); err == nil {
		r.t.Error("a dial of a broken backend succeeded")
	}
}

func TestManyFailuresAreOneOutageWithOneProber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.back.whenDialed(func(ctx context.Context) error {
			pause(ctx, time.Second)
			return syscall.ECONNREFUSED
		})
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { r.dial(t.Context()) })
		}
		wg.Wait()
		if got := r.slots.events(); !slices.Equal(got, []string{"Down"}) {
			t.Errorf("the pool said %v, want Down once", got)
		}
		r.back.mostAtOnce()
		time.Sleep(10 * time.Second)
		if most := r.back.mostAtOnce(); most != 1 {
			t.Errorf("%d probes at once, want 1", most)
		}
	})
}

func TestTheProberBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.breaks()
		time.Sleep(10 * time.Minute)
		times := r.back.dialTimes()
		limit := 100 * time.Millisecond
		var late []time.Duration // pauses when the back-off has grown
		for i := range times[1:] {
			wait := times[i+1].Sub(times[i])
			if wait > limit {
				t.Errorf("pause %d is %v, above %v", i, wait, limit)
			}
			if limit == 5*time.Second {
				late = append(late, wait)
			}
			limit = min(2*limit, 5*time.Second)
		}
		var sum time.Duration
		for _, wait := range late {
			sum += wait
		}
		if mean := sum / time.Duration(len(late)); mean < 2*time.Second || mean > 3*time.Second {
			t.Errorf("the late pauses are %v on average, want about 2.5s: full jitter", mean)
		}
		if least := slices.Min(late); least > time.Second {
			t.Errorf("the late pauses are at least %v, want some near 0", least)
		}
		if most := slices.Max(late); most < 4*time.Second {
			t.Errorf("the late pauses are at most %v, want some near 5s", most)
		}
	})
}

func TestABackendThatComesBackIsUpWithAnIdleConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, nil)
		r.breaks()
		time.Sleep(time.Minute)
		r.back.whenDialed(nil)
		time.Sleep(5 * time.Second)
		said := r.slots.events()
		if got := said[len(said)-2:]; !slices.Equal(got, []string{"AheadDone(true)", "Up"}) {
			t.Errorf("at last the pool said %v", got)
		}
		r.wantIdle(1)
		if l := r.take(); l == nil {
			t.Error("the probe's connection cannot be leased")
		}

		dials := len(r.back.dialTimes())
		time.Sleep(time.Hour)
		if n := len(r.back.dialTimes()); n != dials {
			t.Errorf("the prober has not ended: %d more dials", n-dials)
		}
		r.breaks() // and there is another after the next outage
		r.back.whenDialed(nil)
		time.Sleep(time.Second)
		if r.slots.isDown() {
			t.Error("down after a second outage")
		}
	})
}

// Run is not there to help.
func TestAfterTheProbeComeTheOthersThatAreWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(cfg *Config) { cfg.MinIdle = 3 })
		r.slots.parallel = 1
		r.breaks()
		r.back.whenDialed(nil)
		time.Sleep(time.Second)
		r.wantIdle(3)
	})
}

func TestTheConnectionOfTheProbeHasItsTimeToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, nil)
		r.breaks()
		r.back.whenDialed(nil)
		time.Sleep(time.Second)
		c := r.back.all()[0]
		time.Sleep(time.Minute)
		if c.lived() != 30*time.Second {
			t.Error("it was not closed after the virgin timeout")
		}
	})
}

func TestConnectionsFromBeforeAnOutageAreNotTrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, nil)
		r.rests(true)
		r.rests(false)
		kept := r.take()
		r.breaks()
		synctest.Wait()
		r.wantClosed(map[string]int64{"failed": 1})
		if r.keep(kept, false) {
			t.Error("one that was leased meanwhile was kept")
		}
	})
}

// A dial ahead begins before the outage and succeeds in it.
func TestAConnectionThatComesLateIsNotTrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(cfg *Config) { cfg.MinIdle = 1 })
		r.back.whenDialed(takes(time.Second))
		r.run()
		synctest.Wait()
		r.breaks()
		r.back.whenDialed(hangs)
		time.Sleep(time.Second)
		synctest.Wait()
		time.Sleep(100 * time.Millisecond)
		r.wantIdle(0)
		r.wantClosed(map[string]int64{"failed": 1})
	})
}

func TestAConnectionThatComesAfterAnOutageFromBeforeItIsNotTrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(cfg *Config) { cfg.MinIdle = 1 })
		r.back.whenDialed(takes(3 * time.Second))
		r.run()
		synctest.Wait()
		r.breaks()
		r.back.whenDialed(nil)
		time.Sleep(2 * time.Second)
		if r.slots.isDown() {
			t.Fatal("not up again")
		}
		time.Sleep(time.Second + 100*time.Millisecond)
		r.wantClosed(map[string]int64{"failed": 1})
		r.wantIdle(1) // the probe's
	})
}

func TestAFailureFromBeforeAnOutageTellsNothingNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, nil)
		r.back.whenDialed(func(ctx context.Context) error {
			pause(ctx, 3*time.Second)
			return syscall.ECONNREFUSED
		})
		var wg sync.WaitGroup
		wg.Go(func() { r.dial(t.Context()) })
		synctest.Wait()
		r.breaks()
		r.back.whenDialed(nil)
		time.Sleep(2 * time.Second)
		want := []string{"Down", "AheadDone(true)", "Up"}
		if got := r.slots.events(); !slices.Equal(got, want) {
			t.Fatalf("the pool said %v, want %v", got, want)
		}
		wg.Wait()
		synctest.Wait()
		if got := r.slots.events(); !slices.Equal(got, want) {
			t.Errorf("after a stale failure the pool said %v", got)
		}
	})
}

// A failure that is noticed while the backend is being called up must come after
// that, or the backend would count as up with a prober at work. No bubble: a
// goroutine waits for a lock.
func TestDownComesAfterUp(t *testing.T) {
	r := newRig(t, nil)
	var once sync.Once
	failed := make(chan struct{})
	r.slots.before = func(method string) {
		if method != "Up" {
			return
		}
		once.Do(func() {
			go func() {
				defer close(failed)
				r.down(r.epoch.Load(), syscall.ECONNREFUSED)
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			select {
			case <-failed: // it came first
			case <-ctx.Done(): // it waits
			}
		})
	}
	r.breaks()
	r.back.whenDialed(nil)
	proxytest.Receive(t, failed, "the second failure")
	said := slices.DeleteFunc(r.slots.events(), func(s string) bool { return s != "Up" && s != "Down" })
	if len(said) < 3 || said[0] != "Down" || said[1] != "Up" || said[2] != "Down" {
		t.Errorf("the pool said %v, want Down, Up, Down", said)
	}
}

func TestAFaultOfThisMachineIsNotTheBackends(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL} {
		t.Run(errno.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := running(t, func(cfg *Config) { cfg.MinIdle = 1 })
				synctest.Wait()
				r.back.whenDialed(fails(errno))
				r.dial(t.Context())
				r.back.all()[0].says(false, fin)
				time.Sleep(3 * time.Second)
				if r.slots.isDown() {
					t.Error("the backend is down")
				}
				r.back.whenDialed(nil)
				time.Sleep(time.Second)
				synctest.Wait()
				r.wantIdle(1)
			})
		})
	}
}

func TestAProbeThatMeetsAFaultOfThisMachineGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.breaks()
		r.back.whenDialed(fails(syscall.EMFILE))
		time.Sleep(time.Minute) // the referee takes no such reason for Down
		if !r.slots.isDown() {
			t.Error("up without a successful dial")
		}
		r.back.whenDialed(nil)
		time.Sleep(5 * time.Second)
		if r.slots.isDown() {
			t.Error("still down")
		}
	})
}

func TestAProberWithoutASlotTriesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(cfg *Config) { cfg.Max = 2 })
		l := r.mustDial()
		r.breaks()
		r.back.whenDialed(nil)
		r.slots.move(free, dialing) // somebody has the other slot
		time.Sleep(time.Minute)
		if !r.slots.isDown() || len(r.back.dialTimes()) != 2 {
			t.Error("it dialed without a slot")
		}
		r.close(l, Used)
		time.Sleep(5 * time.Second)
		if r.slots.isDown() {
			t.Error("still down, with a slot for a probe")
		}
		r.slots.move(dialing, free)
	})
}

func TestADialOfAnOutageTellsNothingOnceItIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, nil)
		synctest.Wait()
		r.breaks()
		epoch := r.epoch.Load() // a client dials
		r.back.whenDialed(nil)
		time.Sleep(2 * lastBackoff)
		r.down(epoch, syscall.ECONNREFUSED) // its dial has failed at last
		if n := r.downs(); n != 1 {
			t.Errorf("the backend went down %d times, want once", n)
		}
	})
}
