package pool

import (
	"context"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestEachFailedDialIsToldWithItsBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.back.whenDialed(func(ctx context.Context) error {
			pause(ctx, time.Second)
			return syscall.ECONNREFUSED
		})
		began := time.Now()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { r.dial(t.Context()) })
		}
		wg.Wait()
		if got := r.slots.events(); !slices.Equal(got, []string{"DialFailed", "DialFailed", "DialFailed"}) || !r.slots.began.Equal(began) {
			t.Errorf("the pool said %v, the last dial begun at %v; want DialFailed three times, %v", got, r.slots.began, began)
		}
		r.back.whenDialed(nil)
		r.mustDial()
		if r.slots.succeeded != 1 {
			t.Errorf("the pool told %d times that a dial succeeded, want once", r.slots.succeeded)
		}
	})
}

// Run is not there to help.
func TestAfterAnOutageComeThoseThatAreWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(cfg *setup) { cfg.MinIdle = 3 })
		r.slots.parallel = 1
		r.breaks()
		r.mends()
		synctest.Wait()
		r.wantIdle(3)
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
		r := newRig(t, func(cfg *setup) { cfg.MinIdle = 1 })
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
		r := newRig(t, func(cfg *setup) { cfg.MinIdle = 1 })
		r.back.whenDialed(takes(3 * time.Second))
		r.run()
		synctest.Wait()
		r.breaks()
		r.mends()
		time.Sleep(2 * time.Second)
		time.Sleep(time.Second + 100*time.Millisecond)
		r.wantClosed(map[string]int64{"failed": 1})
		r.wantIdle(1) // another
	})
}

func TestAFaultOfThisMachineIsNotTheBackends(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL} {
		t.Run(errno.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := running(t, func(cfg *setup) { cfg.MinIdle = 1 })
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
