package pool

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"forebay/proxy/proxytest"
)

// storm is a random workload: clients that take, dial, keep, close and leave, in
// front of a backend that fails in every way that it can.
type storm struct {
	*rig
	seed    uint64
	clients int
	lasts   time.Duration
}

// short has everything happen within a second.
func short(rng *rand.Rand) func(*setup) {
	return func(cfg *setup) {
		cfg.Max = 1 + rng.IntN(12)
		cfg.MinIdle = rng.IntN(5) - 1
		cfg.VirginTimeout = 200 * time.Millisecond
		cfg.IdleTimeout = 150 * time.Millisecond
		cfg.DialTimeout = 50 * time.Millisecond
		if rng.IntN(2) == 0 {
			cfg.MaxLifetime = 300 * time.Millisecond
		}
	}
}

func newStorm(t *testing.T, seed uint64, clients int, lasts time.Duration) *storm {
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	s := &storm{newRig(t, short(rng)), seed, clients, lasts}
	s.slots.parallel = 1 + rng.IntN(4)
	s.slots.before = func(string) { // others may come in between
		if rand.IntN(3) == 0 {
			runtime.Gosched()
		}
	}
	s.back.greet = s.mortal
	return s
}

func upTo(d time.Duration) time.Duration { return rand.N(d + 1) }

// mortal has a new connection come to some end, sooner or later.
func (s *storm) mortal(c *fakeConn) {
	c.looked = runtime.Gosched // a sweep takes its time
	switch rand.IntN(8) {
	case 0:
		c.says(false, fin)
	case 1, 2:
		c.saysAfter(upTo(200*time.Millisecond), false, fin)
	case 3:
		c.saysAfter(upTo(200*time.Millisecond), true, nil)
	case 4:
		c.saysAfter(upTo(100*time.Millisecond), true, syscall.ECONNRESET)
	}
}

// weather changes how the backend answers, until ctx ends.
func (s *storm) weather(ctx context.Context) {
	for ctx.Err() == nil {
		var dial func(context.Context) error
		switch rand.IntN(8) {
		case 0:
			dial = fails(syscall.ECONNREFUSED)
		case 1:
			dial = fails(syscall.EADDRNOTAVAIL)
		case 2:
			dial = hangs
		case 3:
			dial = func(ctx context.Context) error {
				pause(ctx, upTo(20*time.Millisecond))
				return []error{nil, nil, syscall.ECONNRESET, syscall.EMFILE}[rand.IntN(4)]
			}
		default:
			dial = func(ctx context.Context) error { return pause(ctx, upTo(20*time.Millisecond)) }
		}
		s.back.whenDialed(dial)
		if rand.IntN(2) == 0 {
			s.slots.comesUp()
			s.TopUp()
		}
		if rand.IntN(4) == 0 {
			s.slots.setMax(1 + rand.IntN(12))
			s.Trim()
			s.TopUp()
		}
		pause(ctx, upTo(200*time.Millisecond))
	}
}

// client comes again and again, until ctx ends.
func (s *storm) client(ctx context.Context) {
	for ctx.Err() == nil {
		pause(ctx, upTo(30*time.Millisecond))
		ready, ok := s.slots.pick()
		if !ok {
			continue
		}
		if rand.IntN(10) == 0 { // it was granted a slot as it left
			pause(ctx, upTo(time.Millisecond))
			s.undo(ready)
			continue
		}
		if l := s.open(ready); l != nil {
			pause(ctx, upTo(20*time.Millisecond))
			s.end(l)
		}
	}
}

func (s *storm) undo(ready bool) {
	if ready {
		s.slots.move(leased, idle)
	} else {
		s.slots.move(dialing, free)
	}
}

// open makes a lease, for a client that may lose patience.
func (s *storm) open(ready bool) *Lease {
	if ready {
		if l := s.tryTake(); l != nil {
			return l
		}
		s.slots.move(leased, dialing)
	}
	ctx, cancel := context.WithTimeout(context.Background(), upTo(60*time.Millisecond))
	defer cancel()
	l, _ := s.dialIn(ctx)
	return l
}

func (s *storm) end(l *Lease) {
	switch rand.IntN(3) {
	case 0:
		s.keep(l, false)
	case 1:
		s.keep(l, true)
	default:
		s.close(l, Used)
	}
}

// rages runs the workload to its end, and then has the backend be well.
func (s *storm) rages() {
	ctx, cancel := context.WithTimeout(context.Background(), s.lasts)
	defer cancel()
	var wg sync.WaitGroup
	for range s.clients {
		wg.Go(func() { s.client(ctx) })
	}
	wg.Go(func() { s.weather(ctx) })
	wg.Wait()
	s.back.mu.Lock()
	s.back.dial, s.back.greet = nil, nil
	s.back.mu.Unlock()
}

// recovers has the backend come up. A dial of before may take it down again.
func (s *storm) recovers() {
	s.slots.comesUp()
	s.TopUp()
}

// overdue fails the test where an idle connection is still open long after its
// end or its time.
func (s *storm) overdue() {
	const late = watchAfter + 50*time.Millisecond // a used one is not watched at once
	for _, c := range s.back.all() {
		c.mu.Lock()
		now := time.Now()
		switch {
		case c.isClosed || c.leased:
		case c.end != nil && now.Sub(c.endedAt) > late:
			s.t.Errorf("a dead connection lies idle for %v", now.Sub(c.endedAt))
		case c.used && c.bytes && now.Sub(c.endedAt) > late && now.Sub(c.idleSince) > late:
			s.t.Errorf("a dirty connection lies idle for %v", now.Sub(c.endedAt))
		case !c.used && now.Sub(c.born) > s.cfg.VirginTimeout+late:
			s.t.Errorf("a virgin is %v old", now.Sub(c.born))
		case c.used && now.Sub(c.idleSince) > s.cfg.IdleTimeout+late:
			s.t.Errorf("a used connection lies idle for %v", now.Sub(c.idleSince))
		case s.cfg.MaxLifetime > 0 && now.Sub(c.born) > s.cfg.MaxLifetime*11/10+late:
			s.t.Errorf("a connection is %v old", now.Sub(c.born))
		}
		c.mu.Unlock()
	}
}

// calm reports whether the backend is up and as many lie idle as are wanted when
// nobody has come for long.
func (s *storm) calm() bool {
	return !s.slots.isDown() && s.slots.count(idle) == max(0, min(s.cfg.MinIdle, s.slots.slots())) &&
		s.slots.count(free)+s.slots.count(idle) == s.slots.slots()
}

func TestTheAccountHoldsInAStorm(t *testing.T) {
	seeds := 20
	if testing.Short() {
		seeds = 5
	}
	for range seeds {
		synctest.Test(t, func(t *testing.T) {
			s := newStorm(t, rand.Uint64(), 1+rand.IntN(40), 2*time.Second)
			s.run()
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() {
				for pause(ctx, 5*time.Millisecond) == nil {
					s.overdue()
				}
			})
			s.rages()
			time.Sleep(time.Second)
			s.recovers()
			time.Sleep(7 * time.Second) // the last rest, and what was idle has gone
			synctest.Wait()
			if !s.calm() {
				t.Errorf("after the storm the slots are %v, down: %v, with %d to be kept idle",
					s.slots.counts, s.slots.isDown(), s.cfg.MinIdle)
			}
			cancel()
			wg.Wait()
		})
		if t.Failed() {
			return
		}
	}
}

// The same with the clock of this machine, and the shutdown right behind it, while
// dials are under way.
func TestTheAccountHoldsInAStormInRealTime(t *testing.T) {
	for range 4 {
		s := newStorm(t, rand.Uint64(), 200, 500*time.Millisecond)
		s.run()
		s.rages()
		s.stop()
		s.empties()
	}
}

func TestARealPoolCalmsDown(t *testing.T) {
	s := newStorm(t, rand.Uint64(), 100, 500*time.Millisecond)
	s.run()
	s.rages()
	proxytest.Eventually(t, "calm after the storm", func() bool {
		s.recovers()
		return s.calm()
	})
}
