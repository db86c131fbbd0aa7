package pool

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestBytesThatNobodyAskedForAreShownAndEndTheConnection(t *testing.T) {
	tests := []struct {
		name         string
		silent, used bool
		want         bool
	}{
		{name: "on a used connection", used: true, want: true},
		{name: "on a virgin one where backends are silent", silent: true, want: true},
		{name: "but a greeting is its client's", want: false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var shown []Conn
				r := running(t, func(cfg *setup) {
					cfg.Silent = tt.silent
					cfg.Stray = func(c Conn) { shown = append(shown, c) }
				})
				c := r.rests(tt.used)
				time.Sleep(watchAfter)
				synctest.Wait()
				c.says(true, nil)
				synctest.Wait()
				if c.closed() != tt.want || (len(shown) == 1) != tt.want {
					t.Errorf("closed %v, shown %d times; want both: %v", c.closed(), len(shown), tt.want)
				}
			})
		})
	}
}

func TestABusyConnectionIsNotWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, nil)
		c := r.rests(true)
		for range 100 {
			time.Sleep(watchAfter / 50)
			l := r.take()
			if l == nil || l.Conn() != Conn(c) {
				t.Fatalf("Take() = %v, want the connection", l)
			}
			r.keep(l, true)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.watches > 5 { // a sweep comes now and then
			t.Errorf("watched %d times in 100 leases", c.watches)
		}
	})
}
