package pool

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// endsAtBirth has the backend end connections before the pool has them: as many
// more as the returned number says.
func (r *rig) endsAtBirth() *atomic.Int64 {
	dial, more := r.cfg.Dial, new(atomic.Int64)
	r.cfg.Dial = func(ctx context.Context) (Conn, error) {
		c, err := dial(ctx)
		if err == nil && more.Add(-1) >= 0 {
			c.(*fakeConn).says(false, fin)
			c = lateConn{c.(*fakeConn)}
		}
		return c, err
	}
	return more
}

// lateConn comes into the pool when all that its watch has set off is over.
type lateConn struct{ *fakeConn }

func (c lateConn) Watch(f func(bytes bool, end error) bool) (stop func()) {
	defer time.Sleep(time.Millisecond)
	return c.fakeConn.Watch(f)
}

func TestABackendThatAcceptsAndClosesIsNotDialedInALoop(t *testing.T) {
	tests := []struct {
		name    string
		minIdle int
		most    int // dials in a minute: the back-off soon allows one in 5 s
	}{
		{name: "one ahead", minIdle: 1, most: 25},
		{name: "three ahead", minIdle: 3, most: 75},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, func(cfg *setup) { cfg.MinIdle = tt.minIdle })
				r.endsAtBirth().Store(1000)
				r.run()
				time.Sleep(time.Minute)
				if n := len(r.back.dialTimes()); n > tt.most || n < 10 {
					t.Errorf("%d dials in a minute, want 10 to %d", n, tt.most)
				}
			})
		})
	}
}

func TestDialingAheadGoesOnOnceConnectionsLastAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(cfg *setup) { cfg.MinIdle = 2 })
		ends := r.endsAtBirth()
		ends.Store(1000)
		r.run()
		time.Sleep(time.Minute)
		r.wantIdle(0)
		ends.Store(0)
		time.Sleep(lastRest + sweepAgain)
		r.wantIdle(2)
	})
}

// The watch of a connection may see its end before the connection is among the
// idle ones, where a sweep would look for it.
func TestAConnectionThatEndedBeforeItWasIdleIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(cfg *setup) { cfg.MinIdle = 2 })
		ends := r.endsAtBirth()
		r.run()
		synctest.Wait() // two lie idle, and have a sweep come at their time
		ends.Store(1)
		r.take() // has the third dialed
		time.Sleep(time.Millisecond + sweepAgain)
		untilWatched()
		r.wantIdle(2)
		if all := r.back.all(); len(all) != 4 || !all[2].closed() {
			t.Errorf("%d connections were made; want the third closed and replaced by a fourth", len(all))
		}
	})
}
