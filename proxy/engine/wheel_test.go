package engine

import (
	"math/rand/v2"
	"testing"
	"time"
)

// alarmed is a timer of a test.
type alarmed struct {
	timer
	w     *wheel
	now   *time.Duration
	at    time.Duration // what it is set to; negative: not set
	rings func(a *alarmed)
}

func (a *alarmed) timeUp() { a.rings(a) }

func (a *alarmed) set(d time.Duration) {
	a.at = d
	a.w.schedule(&a.timer, d, a)
}

// TestWheelDoesAsItsModel sets, moves and clears timers, also from timers, and lets
// time go on by steps of every magnitude: each goes off once, not before its time, and
// not after a tick later.
func TestWheelDoesAsItsModel(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		duration := func() time.Duration {
			return time.Duration(r.Int64N(1 + int64(time.Hour)>>r.IntN(42)))
		}
		w, now := &wheel{}, time.Duration(0)
		timers := make([]*alarmed, 50)
		for i := range timers {
			timers[i] = &alarmed{w: w, now: &now, at: -1, rings: func(a *alarmed) {
				if a.at < 0 || now < a.at {
					t.Fatalf("seed %d: went off at %v, set to %v", seed, now, a.at)
				}
				a.at = -1
				if r.IntN(3) == 0 {
					a.set(now + duration())
				}
				if other := timers[r.IntN(len(timers))]; r.IntN(3) == 0 {
					other.cancel()
					other.at = -1
				}
			}}
		}
		for range 300 {
			a := timers[r.IntN(len(timers))]
			if r.IntN(4) == 0 {
				a.cancel()
				a.at = -1
			} else {
				a.set(now + duration())
			}
			if r.IntN(2) == 0 {
				now += duration()
				w.advance(now)
			}
			due, ok := w.due()
			for _, a := range timers {
				if a.timer.set() != (a.at >= 0) {
					t.Fatalf("seed %d: set %v, want %v", seed, a.timer.set(), a.at)
				}
				if a.at < 0 {
					continue
				}
				if a.at+2*wheelTick <= now {
					t.Fatalf("seed %d: at %v one set to %v has not gone off", seed, now, a.at)
				}
				if !ok || due > max(a.at, now)+2*wheelTick {
					t.Fatalf("seed %d: due at %v (%v), with one set to %v", seed, due, ok, a.at)
				}
			}
		}
	}
}

func TestWheelIsExactToTheTick(t *testing.T) {
	for _, at := range []time.Duration{0, 1, wheelTick, wheelTick + 1, 63 * wheelTick, 64 * wheelTick, 65 * wheelTick, time.Second,
		time.Minute, time.Hour, 30 * 24 * time.Hour, 10 * 365 * 24 * time.Hour} {
		w, now, rang := &wheel{}, time.Duration(0), time.Duration(-1)
		a := &alarmed{w: w, rings: func(*alarmed) { rang = now }}
		a.set(at)
		for steps := 0; rang < 0; steps++ {
			due, ok := w.due()
			if !ok || steps > 1000 {
				t.Fatalf("set to %v: nothing is due after %d steps", at, steps)
			}
			now = due
			w.advance(now)
		}
		if rang < at || rang > at+wheelTick {
			t.Errorf("set to %v it went off at %v", at, rang)
		}
		if _, ok := w.due(); ok {
			w.advance(now + 1000*time.Hour)
			if _, ok := w.due(); ok {
				t.Errorf("set to %v: something is due without a timer", at)
			}
		}
	}
}
