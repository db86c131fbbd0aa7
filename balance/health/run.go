package health

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// hurried is the part of the interval that lies between checks while something
	// waits to be settled, and leastHurried the least that it is made to be.
	hurried      = 4
	leastHurried = 100 * time.Millisecond
)

// Without an interval, the back-off of the checks of a backend that is down doubles
// from the first to the last of these. Each pause is drawn between 0 and the back-off
// (full jitter), so that many proxies do not come back to a backend in step.
const (
	firstBackoff = 100 * time.Millisecond
	lastBackoff  = 5 * time.Second
)

// Run checks the backend until ctx ends, and cuts the check under way then. It must be
// called once. What is told by DialFailed counts before and after it too, but nothing
// brings the backend up then.
func (m *Monitor) Run(ctx context.Context) {
	if m.cfg.Interval > 0 {
		m.watch(ctx)
	} else {
		m.revive(ctx)
	}
}

// watch checks the backend at intervals.
func (m *Monitor) watch(ctx context.Context) {
	last := time.Now().Add(-rand.N(m.cfg.Interval)) // many monitors begin together
	told := true
	for m.rest(ctx, last, told) {
		last = time.Now()
		told = m.check(ctx)
	}
}

// rest waits until the next check is due, and reports false if ctx has ended. last is
// when the last one began, told whether it told anything.
func (m *Monitor) rest(ctx context.Context, last time.Time, told bool) bool {
	jitter := 0.9 + 0.2*rand.Float64()
	for {
		if !told && m.slot.Load() {
			return true
		}
		pace := m.cfg.Interval
		if !told || m.urgent() {
			pace = min(pace, max(pace/hurried, leastHurried))
		}
		due := last.Add(time.Duration(jitter * float64(pace)))
		if pause(ctx, time.Until(due), m.wake) {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
	}
}

// revive checks the backend while it is down, until it is up again.
func (m *Monitor) revive(ctx context.Context) {
	for ctx.Err() == nil {
		for backoff := firstBackoff; m.isDown() && pause(ctx, rand.N(backoff), nil); backoff = min(2*backoff, lastBackoff) {
			m.check(ctx)
		}
		select {
		case <-ctx.Done():
		case <-m.wake:
		}
	}
}

// pause waits for d, and reports false if ctx ended or something came from wake before.
func pause(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
	case <-wake:
	}
	return false
}

func (m *Monitor) urgent() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.machine.urgent(time.Now())
}
