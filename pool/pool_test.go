package pool

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wantClosed checks how many connections were closed for which reason.
func (r *rig) wantClosed(want map[string]int64) {
	r.t.Helper()
	if got := r.Stats().Closed; !maps.Equal(got, want) {
		r.t.Errorf("closed %v, want %v", got, want)
	}
}

// wantIdle checks how many connections lie idle.
func (r *rig) wantIdle(want int) {
	r.t.Helper()
	if got := r.slots.count(idle); got != want {
		r.t.Errorf("%d lie idle, want %d", got, want)
	}
}

// lifetime gives a Config a MaxLifetime that ends within 9 and 11 s.
func lifetime(cfg *setup) { cfg.MaxLifetime = 10 * time.Second }

// fates are what can happen to an idle connection, and what comes of it.
var fates = []struct {
	name  string
	used  bool
	edit  func(*setup)
	after time.Duration // it lies idle for so long
	bytes bool          // then its backend says this
	end   error
	want  Reason
}{
	{name: "a quiet virgin is fit", want: fit},
	{name: "a quiet used one is fit", used: true, want: fit},
	{name: "a virgin with a greeting is fit", bytes: true, want: fit},
	{name: "a virgin with a FIN is dead", end: fin, want: BackendClosed},
	{name: "a virgin with a FIN behind its greeting is dead", bytes: true, end: fin, want: BackendClosed},
	{name: "a virgin that was reset is dead", end: syscall.ECONNRESET, want: BackendClosed},
	{name: "a used one with bytes is dirty", used: true, bytes: true, want: StrayBytes},
	{name: "a used one with a FIN is dead", used: true, end: fin, want: BackendClosed},
	{name: "a used one with a FIN behind bytes is dead", used: true, bytes: true, end: fin, want: BackendClosed},
	{name: "a virgin just before its time", after: 30*time.Second - 1, want: fit},
	{name: "a virgin at its time", after: 30 * time.Second, want: VirginTimeout},
	{name: "a used one at the time of virgins", used: true, after: 30 * time.Second, want: fit},
	{name: "a used one just before its time", used: true, after: 60*time.Second - 1, want: fit},
	{name: "a used one at its time", used: true, after: 60 * time.Second, want: IdleTimeout},
	{name: "a virgin before the end of its life", edit: lifetime, after: 9*time.Second - 1, want: fit},
	{name: "a virgin after the end of its life", edit: lifetime, after: 11 * time.Second, want: Lifetime},
	{name: "a used one after the end of its life", used: true, edit: lifetime, after: 11 * time.Second, want: Lifetime},
	{name: "a used one that is dead and too old", used: true, after: 60 * time.Second, end: fin, want: IdleTimeout},
}

// The pool is not run here, so nobody but Take sees what has happened.
func TestTakeLeasesOnlyWhatIsFit(t *testing.T) {
	for _, tt := range fates {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, tt.edit)
				c := r.rests(tt.used)
				time.Sleep(tt.after)
				c.says(tt.bytes, tt.end)
				l := r.take()
				if tt.want == fit {
					if l == nil || l.Conn() != Conn(c) || !l.Ready {
						t.Fatalf("Take() = %+v, want the connection, ready", l)
					}
					r.wantClosed(map[string]int64{})
					return
				}
				if l != nil {
					t.Error("it was leased")
				}
				if !c.closed() {
					t.Error("it was not closed")
				}
				r.wantClosed(map[string]int64{tt.want.String(): 1})
			})
		})
	}
}

// The same with Run, which closes the connection when it happens: no client
// comes.
func TestRunClosesWhatIsUnfit(t *testing.T) {
	for _, tt := range fates {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := running(t, tt.edit)
				c := r.rests(tt.used)
				time.Sleep(tt.after)
				synctest.Wait()
				if c.closed() && tt.end == nil { // its time was up
					r.wantClosed(map[string]int64{tt.want.String(): 1})
					return
				}
				if !c.closed() {
					c.says(tt.bytes, tt.end)
				}
				if tt.bytes || tt.end != nil {
					time.Sleep(watchAfter)
				}
				synctest.Wait()
				if got, want := c.closed(), tt.want != fit; got != want {
					t.Errorf("closed: %v, want %v", got, want)
				}
				if tt.want != fit {
					r.wantClosed(map[string]int64{tt.want.String(): 1})
					r.wantIdle(0)
				}
			})
		})
	}
}

func TestKeepTakesOnlyWhatIsFit(t *testing.T) {
	for _, tt := range fates {
		if tt.want == IdleTimeout || tt.used && tt.after > 0 {
			continue // it was not idle
		}
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, tt.edit)
				l := r.mustDial()
				time.Sleep(tt.after)
				l.Conn().(*fakeConn).says(tt.bytes, tt.end)
				if got, want := r.keep(l, tt.used), tt.want == fit; got != want {
					t.Errorf("Keep() = %v, want %v", got, want)
				}
				if tt.want != fit {
					r.wantClosed(map[string]int64{tt.want.String(): 1})
				}
			})
		})
	}
}

func TestAUsedConnectionStaysUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		c := r.rests(true)
		r.keep(r.take(), false)
		c.says(true, nil)
		if r.take() != nil {
			t.Error("bytes on it were taken for a greeting")
		}
	})
}

func TestAnUntouchedConnectionDoesNotGetYounger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, nil)
		c := r.rests(false)
		time.Sleep(20 * time.Second)
		r.keep(r.take(), false)
		time.Sleep(20 * time.Second)
		if got := c.lived(); got != 30*time.Second {
			t.Errorf("it was closed after %v, want 30s", got)
		}
	})
}

func TestReadyTellsWhetherAConnectionWasThereBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		l := r.mustDial()
		if l.Ready {
			t.Error("one that was dialed for its client is called ready")
		}
		r.keep(l, false)
		if l := r.take(); !l.Ready {
			t.Error("one that lay idle is not called ready")
		}
		if got := r.Stats().Ready; got != 1 {
			t.Errorf("counted %d ready, want 1", got)
		}
	})
}

func TestTheNewestIsLeasedFirstWhateverIsSwept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, nil)
		leases := []*Lease{r.mustDial(), r.mustDial(), r.mustDial(), r.mustDial()}
		var order []Conn
		for _, l := range leases {
			order = append(order, l.Conn())
			r.keep(l, false)
			synctest.Wait() // a sweep under way would put back what is older on top
		}
		for range 3 {
			r.nudge()
			synctest.Wait()
		}
		order[1].(*fakeConn).says(false, fin)
		untilWatched()
		for _, i := range []int{3, 2, 0} {
			if got := r.take().Conn(); got != order[i] {
				t.Errorf("leased another than the newest, which is the %dth", i)
			}
		}
	})
}

func TestNobodyOwnsTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.rests(false)
		r.rests(false)
		if a, b := r.take(), r.take(); a.Conn() == b.Conn() {
			t.Error("one connection was leased twice")
		}
	})
}

func TestRunEndsWithNothingLeft(t *testing.T) {
	tests := []struct {
		name    string
		minIdle int
		before  func(r *rig)
	}{
		{name: "nothing was there", before: func(*rig) {}},
		{name: "idle connections", minIdle: 3, before: func(*rig) {}},
		{name: "dead idle connections", minIdle: 3, before: func(r *rig) {
			for _, c := range r.back.all() {
				c.says(false, fin)
			}
		}},
		{name: "dials ahead under way", minIdle: 3, before: func(r *rig) {
			r.back.whenDialed(hangs)
			for _, c := range r.back.all() {
				c.says(false, fin)
			}
			synctest.Wait()
		}},
		{name: "a dial whose client has left", before: func(r *rig) {
			r.back.whenDialed(hangs)
			ctx, cancel := context.WithCancel(r.t.Context())
			cancel()
			r.dial(ctx)
		}},
		{name: "dialing ahead rests", minIdle: 1, before: func(r *rig) {
			r.back.whenDialed(fails(syscall.EMFILE))
			r.back.all()[0].says(false, fin)
			synctest.Wait()
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := running(t, func(cfg *setup) { cfg.MinIdle = tt.minIdle })
				synctest.Wait()
				tt.before(r)
				begin := time.Now()
				downs, errs := r.downs(), r.Stats().DialErrors
				r.stop()
				r.empties()
				if r.downs() != downs || r.Stats().DialErrors != errs {
					t.Error("dials that were cut count as failed")
				}
				if took := time.Since(begin); took != 0 {
					t.Errorf("Run took %v to end", took)
				}
			})
		})
	}
}

// downs returns how often the pool has said that a dial failed.
func (r *rig) downs() (n int) {
	for _, s := range r.slots.events() {
		if s == "DialFailed" {
			n++
		}
	}
	return n
}

func TestShutdownIsAReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, func(cfg *setup) { cfg.MinIdle = 3 })
		synctest.Wait()
		r.stop()
		r.wantClosed(map[string]int64{"shutdown": 3})
	})
}

func TestAClosedPoolGivesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		l := r.mustDial()
		r.cancel() // the first thing that close does
		if r.keep(l, false) {
			t.Error("it kept a connection")
		}
		if l, err := r.dial(t.Context()); err == nil {
			t.Errorf("Dial() = %v", l)
		}
		if l := r.Take(); l != nil {
			t.Errorf("Take() = %v", l)
		}
		r.wantClosed(map[string]int64{"shutdown": 1})
	})
}

// puddle counts time from a variable of its own, set before the bubble was.
func TestPuddleKeepsTheTimeOfTheBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.rests(true)
		time.Sleep(7 * time.Second)
		all := r.puddle.AcquireAllIdle()
		if got := all[0].IdleDuration(); got != 7*time.Second {
			t.Errorf("it lay idle for %v, want 7s", got)
		}
		if got := time.Since(all[0].CreationTime()); got != 7*time.Second {
			t.Errorf("it is %v old, want 7s", got)
		}
		all[0].ReleaseUnused()
	})
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	good := Config{VirginTimeout: 1, IdleTimeout: 1, DialTimeout: 1,
		Dial: func(context.Context) (Conn, error) { return nil, nil }, Slots: &referee{}}
	tests := []struct {
		name string
		edit func(*Config)
		want string // part of the error; "": none
	}{
		{name: "all that is needed", edit: func(*Config) {}},
		{name: "no dial", edit: func(c *Config) { c.Dial = nil }, want: "required"},
		{name: "no slots", edit: func(c *Config) { c.Slots = nil }, want: "required"},
		{name: "no virgin timeout", edit: func(c *Config) { c.VirginTimeout = 0 }, want: "above 0"},
		{name: "no idle timeout", edit: func(c *Config) { c.IdleTimeout = 0 }, want: "above 0"},
		{name: "no dial timeout", edit: func(c *Config) { c.DialTimeout = -1 }, want: "above 0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := good
			tt.edit(&cfg)
			_, err := New(cfg)
			if (err == nil) != (tt.want == "") || !strings.Contains(fmt.Sprint(err), tt.want) && tt.want != "" {
				t.Errorf("New: %v, want %q", err, tt.want)
			}
		})
	}
}

func TestReasonsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for r := fit; r < numReasons; r++ {
		if r.String() == "" || seen[r.String()] {
			t.Errorf("reason %d is called %q", int(r), r)
		}
		seen[r.String()] = true
	}
}

func TestStatsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.rests(false)
		r.take()
		r.back.whenDialed(fails(syscall.EMFILE))
		r.dial(t.Context())
		got := r.Stats()
		if got.Dials != 2 || got.Dialed != 1 || got.DialErrors != 1 || got.Ready != 1 || len(got.Closed) != 0 {
			t.Errorf("stats = %+v, want 2 dials, 1 failed, 1 ready, none closed", got)
		}
	})
}
