package loadtest

import (
	"math"
	"sync/atomic"
	"time"
)

// timerGrain is how late the runtime's timers may be by themselves: an idle
// process sleeps in epoll_wait, which counts milliseconds.
const timerGrain = 2 * time.Millisecond

// A plan hands out the requests of a run, each to one client.
type plan struct {
	start    time.Time
	requests int64         // in all; 0: by duration
	duration time.Duration // when requests is 0
	rate     float64       // per second; 0: closed loop
	taken    atomic.Int64
}

// next takes the next request of the plan and returns when it is due, 0 for at
// once, as the time since start. It reports false when the plan is at its end.
func (p *plan) next() (due time.Duration, ok bool) {
	i := p.taken.Add(1) - 1
	if p.requests > 0 && i >= p.requests {
		return 0, false
	}
	if p.rate == 0 {
		return 0, true
	}
	due = p.due(i)
	return due, p.requests > 0 || due < p.duration
}

func (p *plan) due(i int64) time.Duration {
	ns := float64(i) / p.rate * float64(time.Second)
	if ns >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(ns)
}

// planned returns how many requests an open-loop plan has due within the first
// d of a run.
func (p *plan) planned(d time.Duration) int64 {
	n := math.Ceil(d.Seconds() * p.rate)
	if p.requests > 0 {
		n = min(n, float64(p.requests))
	}
	return int64(n)
}

// wait returns when the request that is due may start, and from when on its
// latency counts. It reports false if stop was closed before that.
//
// In an open loop latency counts from when the request was due: if the client
// was busy then, the server was late. A client that was not busy only waited
// for its timer, whose grain is not held against the server.
func (p *plan) wait(due time.Duration, stop <-chan struct{}) (from time.Time, ok bool) {
	if p.rate == 0 {
		return time.Time{}, true
	}
	from = p.start.Add(due)
	if time.Until(from) <= 0 {
		return from, true
	}
	if !pause(time.Until(from), stop) {
		return from, false
	}
	return from.Add(min(time.Since(from), timerGrain)), true
}

// pause lets d pass and reports whether it did before stop was closed.
func pause(d time.Duration, stop <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-stop:
		return false
	}
}
