package health

import (
	"net"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func off(cfg *Config) { cfg.Interval = 0 }

func TestWithoutAnIntervalNothingIsCheckedWhileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, off)
		r.whenDialed(refused)
		time.Sleep(time.Hour)
		for range 100 {
			r.fault(1, 2, 3, 4, 5)
			time.Sleep(time.Second)
		}
		if n := len(r.dialTimes()); n != 0 {
			t.Errorf("%d checks, want none", n)
		}
		r.wantSaid("")
	})
}

func TestWithoutAnIntervalOneDialTakesItDownAndOneCheckBringsItUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, off)
		want := ""
		for range 5 { // nor is it dampened
			r.DialFailed(time.Now(), syscall.ECONNREFUSED)
			want += "down "
			r.wantSaid(want[:len(want)-1])
			time.Sleep(firstBackoff)
			synctest.Wait()
			want += "up "
			r.wantSaid(want[:len(want)-1])
		}
		n := len(r.dialTimes())
		time.Sleep(time.Hour)
		if more := len(r.dialTimes()) - n; more > 0 {
			t.Errorf("%d checks after it came up", more)
		}
	})
}

func TestWithoutAnIntervalChecksOnlyConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, func(cfg *Config) {
			cfg.Interval, cfg.Talk = 0, func(net.Conn) error { return errFailed }
		})
		r.DialFailed(time.Now(), syscall.ECONNREFUSED)
		time.Sleep(firstBackoff)
		synctest.Wait()
		r.wantSaid("down up")
	})
}

func TestWithoutAnIntervalManyFailuresAreOneOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, off)
		r.whenDialed(hangs)
		began := time.Now()
		for range 10 {
			r.DialFailed(began, syscall.ECONNREFUSED)
			time.Sleep(time.Second)
		}
		r.whenDialed(nil)
		time.Sleep(lastBackoff + time.Second)
		r.DialFailed(began, syscall.ECONNREFUSED) // it hung all the time
		r.wantSaid("down up")
		if r.most != 1 {
			t.Errorf("%d checks at once, want 1", r.most)
		}
	})
}

func TestWithoutAnIntervalChecksBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, off)
		r.whenDialed(refused)
		r.DialFailed(time.Now(), syscall.ECONNREFUSED)
		down := time.Now()
		time.Sleep(10 * time.Minute)
		limit := 100 * time.Millisecond
		var late []time.Duration // pauses when the back-off has grown
		for i, wait := range pauses(append([]time.Time{down}, r.dialTimes()...)) {
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
		if least, most := slices.Min(late), slices.Max(late); least > time.Second || most < 4*time.Second {
			t.Errorf("the late pauses are %v to %v, want some near 0 and some near 5s", least, most)
		}
	})
}

func TestWithoutAnIntervalTheBackOffBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, off)
		for range 3 {
			r.whenDialed(refused)
			r.DialFailed(time.Now(), syscall.ECONNREFUSED)
			down := time.Now()
			time.Sleep(time.Minute)
			if first := r.dialTimes()[0].Sub(down); first > firstBackoff {
				t.Errorf("the first check came after %v, want 100ms at most", first)
			}
			r.whenDialed(nil)
			time.Sleep(lastBackoff)
		}
		r.wantSaid("down up down up down up")
	})
}

func TestWithoutAnIntervalFaultsOfThisMachineAndSlotsSayNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, off)
		r.whenDialed(fails(syscall.EMFILE))
		r.DialFailed(time.Now(), syscall.ECONNREFUSED)
		time.Sleep(time.Minute)
		r.mu.Lock()
		r.slots = 0
		r.mu.Unlock()
		r.whenDialed(nil)
		time.Sleep(time.Minute)
		r.wantSaid("down")
		if n := len(r.dialTimes()); n != 0 {
			t.Errorf("%d checks without a slot", n)
		}
		r.mu.Lock()
		r.slots = 1
		r.mu.Unlock()
		time.Sleep(lastBackoff)
		r.wantSaid("down up")
	})
}
