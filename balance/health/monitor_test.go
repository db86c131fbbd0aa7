package health

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// rig is a Monitor, with its owner, the slots and the backend, all played by the test.
type rig struct {
	*Monitor
	t *testing.T

	mu      sync.Mutex
	said    []string // by the Monitor
	telling bool
	within  func(said string) // run within the owner
	dial    func(ctx context.Context) error
	dials   []time.Time // of checks
	open    int         // connections and dials of checks
	most    int         // at once
	slots   int         // that are free
	held    int
}

// newRig returns a rig that is not run. The backend accepts.
func newRig(t *testing.T, edit func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, slots: 1000}
	cfg := Config{Addr: "backend:1", Owner: r, Interval: 2 * time.Second, Timeout: time.Second, Reserve: r.reserve,
		Dial: r.dialed, IsLocal: func(err error) bool { return errors.Is(err, syscall.EMFILE) }}
	if edit != nil {
		edit(&cfg)
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Monitor = m
	return r
}

// running is newRig with Run under way until the test ends. Nothing is held then.
func running(t *testing.T, edit func(*Config)) *rig {
	t.Helper()
	r := newRig(t, edit)
	ctx, cancel := context.WithCancel(context.Background())
	donec := make(chan struct{})
	go func() {
		defer close(donec)
		r.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-donec
		if r.open != 0 || r.held != 0 {
			t.Errorf("at the end %d connections are open and %d slots held", r.open, r.held)
		}
	})
	return r
}

func (r *rig) Down(why error) { r.say("down: " + why.Error()) }
func (r *rig) Up()            { r.say("up") }

func (r *rig) say(s string) {
	r.mu.Lock()
	if r.telling {
		r.t.Errorf("told of %q while it is told of something else", s)
	}
	if s == "up" && r.held > 0 {
		r.t.Error("up before the slot of the check was given back")
	}
	r.telling = true
	r.said = append(r.said, s)
	within := r.within
	r.mu.Unlock()
	if within != nil {
		within(s)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.telling = false
}

func (r *rig) reserve() (release func(), ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.slots == 0 {
		return nil, false
	}
	r.slots--
	r.held++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.open > 0 {
			r.t.Error("a slot was given back before its connection was closed")
		}
		r.slots++
		r.held--
	}, true
}

func (r *rig) dialed(ctx context.Context, network, addr string) (net.Conn, error) {
	r.mu.Lock()
	if network != "tcp" || addr != "backend:1" {
		r.t.Errorf("dialed %s %s", network, addr)
	}
	if r.held == 0 {
		r.t.Error("dialed without a slot")
	}
	r.dials = append(r.dials, time.Now())
	r.open++
	r.most = max(r.most, r.open)
	dial := r.dial
	r.mu.Unlock()
	if dial != nil {
		if err := dial(ctx); err != nil {
			r.closed()
			return nil, err
		}
	}
	ours, theirs := net.Pipe()
	theirs.Close()
	return &conn{ours, sync.OnceFunc(r.closed)}, nil
}

func (r *rig) closed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open--
}

type conn struct {
	net.Conn
	closed func()
}

func (c *conn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// whenDialed has the backend do so from now on.
func (r *rig) whenDialed(dial func(ctx context.Context) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dial = dial
	r.dials = nil
}

// undamped has every failure take the backend down, and every check bring it up.
func undamped(cfg *Config) { cfg.Fall, cfg.Rise, cfg.Interval = 1, 1, 2*calm }

func fails(err error) func(context.Context) error {
	return func(context.Context) error { return err }
}

func hangs(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (r *rig) dialTimes() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.dials)
}

// wantSaid checks what the Monitor has told its owner: words, with why left out.
func (r *rig) wantSaid(want string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var got []string
	for _, s := range r.said {
		word, _, _ := strings.Cut(s, ":")
		got = append(got, word)
	}
	if strings.Join(got, " ") != want {
		r.t.Errorf("the owner was told %q, want %q", r.said, want)
	}
}

var refused = fails(syscall.ECONNREFUSED)

// fault has clients of these numbers not served.
func (r *rig) fault(clients ...byte) {
	for _, c := range clients {
		r.ClientFault(netip.AddrFrom4([4]byte{10, 0, 0, c}), FaultTimeout)
	}
}

// pauses are the times between the dials of checks.
func pauses(times []time.Time) (ds []time.Duration) {
	for i := 1; i < len(times); i++ {
		ds = append(ds, times[i].Sub(times[i-1]))
	}
	return ds
}

func TestChecksComeAtTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, nil)
		time.Sleep(10 * time.Minute)
		ds := pauses(r.dialTimes())
		least, most := slices.Min(ds), slices.Max(ds)
		if least < 1800*time.Millisecond || most > 2200*time.Millisecond {
			t.Errorf("between checks lie %v to %v, want 2s ±10%%", least, most)
		}
		if least > 1900*time.Millisecond || most < 2100*time.Millisecond {
			t.Errorf("between checks lie %v to %v, want some jitter", least, most)
		}
		r.wantSaid("")
	})
}

func TestTheFirstChecksOfManyAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var rigs []*rig
		for range 100 {
			rigs = append(rigs, running(t, nil))
		}
		time.Sleep(3 * time.Second)
		var quarter [4]int
		for _, r := range rigs {
			first := r.dialTimes()[0].Sub(start)
			if first > 2200*time.Millisecond {
				t.Errorf("the first check came after %v", first)
			}
			quarter[min(3, first/(500*time.Millisecond))]++
		}
		if slices.Min(quarter[:]) == 0 {
			t.Errorf("in the quarters of the interval came %v first checks, want some in each", quarter)
		}
	})
}

func TestChecksDoNotOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, func(cfg *Config) { cfg.Timeout = 5 * time.Second })
		r.whenDialed(hangs)
		time.Sleep(time.Minute)
		if n := len(r.dialTimes()); r.most != 1 || n < 10 {
			t.Errorf("%d checks, %d at once, want at least 10, and 1", n, r.most)
		}
	})
}

func TestABackendThatHangsIsDownWithinIntervalTimesFall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, nil)
		time.Sleep(time.Minute)
		r.whenDialed(hangs)
		time.Sleep(2*time.Second*11/10 + 3*time.Second) // the wait for a check, and three time-outs
		r.wantSaid("down")
		r.whenDialed(nil)
		time.Sleep(2 * 2 * time.Second * 11 / 10)
		r.wantSaid("down up")
	})
}

func TestAfterAFailureChecksComeSooner(t *testing.T) {
	tests := []struct {
		name     string
		interval time.Duration
		want     time.Duration
	}{
		{"four times as often", 2 * time.Second, 500 * time.Millisecond},
		{"but ten times a second at most", 200 * time.Millisecond, 100 * time.Millisecond},
		{"unless the interval is shorter", 20 * time.Millisecond, 20 * time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := running(t, func(cfg *Config) { cfg.Interval, cfg.Fall = tt.interval, 1000 })
				r.whenDialed(refused)
				time.Sleep(tt.interval * 100)
				ds := pauses(r.dialTimes())
				if least, most := slices.Min(ds), slices.Max(ds); least < tt.want*9/10 || most > tt.want*11/10 {
					t.Errorf("between failed checks lie %v to %v, want %v ±10%%", least, most, tt.want)
				}
			})
		})
	}
}

func TestAFailedDialBringsTheNextCheckForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, func(cfg *Config) { cfg.Interval = time.Hour })
		for len(r.dialTimes()) == 0 {
			time.Sleep(time.Second)
		}
		r.whenDialed(refused)
		time.Sleep(30 * time.Minute) // more than a quarter of the interval
		r.DialFailed(time.Now(), syscall.ECONNREFUSED)
		synctest.Wait()
		if n := len(r.dialTimes()); n != 1 {
			t.Errorf("%d checks at once after a dial failed, want 1", n)
		}
	})
}

func TestNoCrowdOfClientsMakesMoreChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, func(cfg *Config) { cfg.Talk = func(net.Conn) error { return nil } })
		for range 10000 {
			r.fault(1, 2, 3, 4, 5)
			time.Sleep(time.Millisecond)
		}
		ds := pauses(r.dialTimes())
		if least := slices.Min(ds); least < 450*time.Millisecond {
			t.Errorf("a check came after %v, want no less than 450ms", least)
		}
		if n := len(ds); n < 15 {
			t.Errorf("%d checks in 10s, want one each 500ms", n)
		}
		r.wantSaid("")
	})
}

func TestClientsAndChecksThatOnlyConnect(t *testing.T) {
	tests := []struct {
		name    string
		clients []byte
		want    string
	}{
		{"three clients take nothing down", []byte{1, 2, 3}, ""},
		{"four that meet nothing else do", []byte{1, 2, 3, 4}, "down"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := running(t, nil)
				time.Sleep(10 * time.Second)
				for range 5 {
					r.fault(tt.clients...)
					time.Sleep(400 * time.Millisecond)
				}
				r.wantSaid(tt.want)
			})
		})
	}
}

// The address of a client counts, however its machine comes by it.
func TestAFloodOfOneClientTakesNothingDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, nil)
		for range 1000 {
			r.ClientFault(netip.Addr{}, FaultReset)
			r.fault(1, 2)
			time.Sleep(100 * time.Millisecond)
		}
		r.wantSaid("")
	})
}

func TestABackendThatServesSomebodyStaysUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, nil)
		for range 1000 {
			r.fault(1, 2, 3, 4, 5, 6)
			r.Served()
			time.Sleep(100 * time.Millisecond)
		}
		r.wantSaid("")
	})
}

func TestDialsThatSucceedKeepItUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		for range 10 {
			r.DialFailed(time.Now(), syscall.ECONNREFUSED)
			r.DialFailed(time.Now(), syscall.ECONNREFUSED)
			r.DialSucceeded()
		}
		r.wantSaid("")
		for range 3 {
			r.DialFailed(time.Now(), syscall.ECONNREFUSED)
		}
		r.wantSaid("down")
	})
}

func TestACheckFromBeforeItWentDownDoesNotBringItUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, func(cfg *Config) { cfg.Rise = 1 })
		r.whenDialed(func(context.Context) error {
			time.Sleep(900 * time.Millisecond)
			return nil
		})
		for len(r.dialTimes()) == 0 {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Millisecond)
		for range 3 {
			r.DialFailed(time.Now(), syscall.ECONNREFUSED)
		}
		time.Sleep(time.Second)
		r.wantSaid("down")
	})
}

func TestACheckWithoutASlotSaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, nil)
		r.mu.Lock()
		r.slots = 0
		r.mu.Unlock()
		r.whenDialed(refused)
		time.Sleep(time.Minute)
		s := r.Snapshot()
		if len(r.dialTimes()) > 0 || s.Checks > 0 || s.Skipped < 100 || s.LastSkip == "" {
			t.Errorf("%d checks, %d skipped (%q); want none, and one each 500ms", s.Checks, s.Skipped, s.LastSkip)
		}
		r.wantSaid("")
		r.mu.Lock()
		r.slots = 1
		r.mu.Unlock()
		time.Sleep(3 * time.Second)
		r.wantSaid("down")
	})
}

func TestCheckThatHadNoSlotIsMadeAsSoonAsThereIsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, func(*Config) {})
		r.mu.Lock()
		r.slots = 0
		r.mu.Unlock()
		time.Sleep(10 * time.Second)
		r.mu.Lock()
		before := len(r.dials)
		r.slots = 1
		r.mu.Unlock()
		at := time.Now()
		r.SlotFree()
		synctest.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.dials) != before+1 || !r.dials[before].Equal(at) {
			t.Errorf("%d checks came with the slot, want 1, at once", len(r.dials)-before)
		}
	})
}

func TestAFaultOfThisMachineSaysNothing(t *testing.T) {
	for _, fault := range []error{syscall.EMFILE, &net.OpError{Op: "dial", Err: syscall.EMFILE}} {
		t.Run(fault.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := running(t, nil)
				r.whenDialed(fails(fault))
				time.Sleep(time.Minute)
				if s := r.Snapshot(); s.Skipped == 0 || s.FailedChecks > 0 {
					t.Errorf("%d checks skipped and %d failed", s.Skipped, s.FailedChecks)
				}
				r.wantSaid("")
			})
		})
	}
}

func TestTalkDecides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, func(cfg *Config) {
			cfg.Talk = func(c net.Conn) error {
				_, err := c.Read(make([]byte, 1)) // the other end is closed
				return err
			}
		})
		time.Sleep(4 * time.Second)
		r.wantSaid("down")
		if s := r.Snapshot(); s.Why != "EOF" {
			t.Errorf("down for %q, want what Talk said", s.Why)
		}
	})
}

func TestTalkIsCutAtTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, func(cfg *Config) {
			cfg.Dial = func(context.Context, string, string) (net.Conn, error) {
				ours, theirs := net.Pipe()
				t.Cleanup(func() { theirs.Close() })
				return ours, nil
			}
			cfg.Talk = func(c net.Conn) error {
				_, err := c.Read(make([]byte, 1))
				return err
			}
		})
		time.Sleep(6 * time.Second)
		r.wantSaid("down")
		if s := r.Snapshot(); s.Took != time.Second {
			t.Errorf("a check took %v, want the timeout of 1s", s.Took)
		}
	})
}

func TestRunEndsWithItsContext(t *testing.T) {
	states := []struct {
		name string
		dial func(context.Context) error
		edit func(*Config)
	}{
		{"between checks", nil, nil},
		{"in a check", hangs, func(cfg *Config) { cfg.Timeout = time.Hour }},
		{"while there is nothing to check", nil, func(cfg *Config) { cfg.Interval = 0 }},
		{"in a back-off", refused, func(cfg *Config) { cfg.Interval = 0 }},
	}
	for _, tt := range states {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, tt.edit)
				r.dial = tt.dial
				if tt.dial != nil && r.cfg.Interval == 0 {
					r.DialFailed(time.Now(), errFailed)
				}
				said := slices.Clone(r.said)
				ctx, cancel := context.WithCancel(t.Context())
				donec := make(chan struct{})
				go func() {
					defer close(donec)
					r.Run(ctx)
				}()
				time.Sleep(10 * time.Second)
				cancel()
				synctest.Wait()
				select {
				case <-donec:
				default:
					t.Fatal("Run goes on")
				}
				if !slices.Equal(r.said, said) || r.Snapshot().FailedChecks > 0 && r.cfg.Interval > 0 {
					t.Errorf("the check that was cut was told: %q", r.said)
				}
			})
		})
	}
}

func TestTheOwnerMayCallBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, undamped)
		r.within = func(said string) {
			up := r.Snapshot().Up
			r.fault(1)
			r.Served()
			r.DialSucceeded()
			if n := len(r.said); said == "up" && n < 6 {
				if !up {
					t.Error("told of up while down")
				}
				r.DialFailed(time.Now(), errFailed)
				if len(r.said) != n {
					t.Error("the next change was told within this one")
				}
			} else if said != "up" {
				r.checked(time.Now(), nil)
			}
		}
		r.DialFailed(time.Now(), errFailed)
		r.wantSaid("down up down up down up")
	})
}

func TestTheOwnerIsToldInOrderByMany(t *testing.T) {
	r := newRig(t, undamped)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				r.DialFailed(time.Now(), errFailed)
				r.checked(time.Now(), nil)
				r.DialSucceeded()
				r.Served()
				r.fault(1)
			}
		})
	}
	wg.Wait()
	if len(r.said) < 2 || len(r.untold) > 0 {
		t.Errorf("%d changes were told and %d were not", len(r.said), len(r.untold))
	}
	for i, s := range r.said {
		if down := strings.HasPrefix(s, "down"); down != (i%2 == 0) {
			t.Fatalf("change %d is %q", i, s)
		}
	}
}

func TestSuccessesTakeNoLockWhileAllIsWell(t *testing.T) {
	r := newRig(t, nil)
	r.Monitor.mu.Lock()
	defer r.Monitor.mu.Unlock()
	r.Served() // which would wait for ever
	r.DialSucceeded()
}

func TestWhatOperatorsSee(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		r := running(t, nil)
		time.Sleep(time.Minute)
		if s := r.Snapshot(); !s.Up || !s.Since.Equal(start) || s.Checks < 20 || s.Why+s.LastError != "" || len(s.History) > 0 {
			t.Errorf("while all is well: %+v", s)
		}
		r.fault(1, 2)
		r.DialFailed(time.Now(), syscall.ECONNREFUSED)
		s := r.Snapshot()
		if s.Failures != 1 || s.Unserved != 2 || s.FailedDials != 1 || s.ClientFaults != 2 || s.LastError != "connection refused" {
			t.Errorf("after faults: %+v", s)
		}
		r.whenDialed(fails(errors.New("it is no more")))
		time.Sleep(3 * time.Second)
		s = r.Snapshot()
		if s.Up || s.Why != "it is no more" || s.FailedChecks < 2 || s.Needed != 2 || len(s.History) != 1 ||
			s.History[0] != (Transition{At: s.Since, Why: s.Why}) {
			t.Errorf("while it is down: %+v", s)
		}
		r.whenDialed(nil)
		time.Sleep(5 * time.Second)
		s = r.Snapshot()
		if !s.Up || s.Why != "" || len(s.History) != 2 || s.History[1] != (Transition{At: s.Since, Up: true}) || s.LastError == "" {
			t.Errorf("when it is up again: %+v", s)
		}
	})
}

func TestTheHistoryIsBounded(t *testing.T) {
	r := newRig(t, undamped)
	for range 100 {
		r.DialFailed(time.Now(), errFailed)
		r.checked(time.Now(), nil)
	}
	h := r.Snapshot().History
	if len(h) != 32 || h[0].Up || !h[31].Up || !h[31].At.Equal(r.Snapshot().Since) {
		t.Errorf("%d transitions, from %+v to %+v; want the newest 32", len(h), h[0], h[len(h)-1])
	}
}

func TestNewRefuses(t *testing.T) {
	tests := []struct {
		name string
		edit func(*Config)
		want string
	}{
		{"no address", func(cfg *Config) { cfg.Addr = "" }, "health: no address"},
		{"no owner", func(cfg *Config) { cfg.Owner = nil }, "health: no owner"},
		{"a negative number", func(cfg *Config) { cfg.Rise = -1 }, "none may be negative"},
		{"a negative time", func(cfg *Config) { cfg.Timeout = -1 }, "none may be negative"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := Config{Addr: "a:1", Owner: &rig{}}
			tt.edit(&cfg)
			if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("New = %v, want %q", err, tt.want)
			}
		})
	}
}

func BenchmarkServed(b *testing.B) {
	m, err := New(Config{Addr: "a:1", Owner: &rig{}})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		m.Served()
	}
}
