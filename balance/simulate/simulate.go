// Package simulate shows what the strategies of package balance make of a load, in
// virtual time.
//
// # The model
//
// Requests arrive as a Poisson process. Each is of one of a number of clients, of which
// some ask far more than others, and is an amount of work. A balance.Balancer, the one
// that the proxy has, picks a backend for it and reserves one of its slots. Where all
// are full it waits in one queue for all backends, first come first served, as in
// package proxy: whatever frees a slot serves the oldest, and who has waited for the
// acquire timeout is refused, as is who finds the queue full.
//
// A backend has workers. Each does one request after the other, at the speed of the
// backend. A backend that has more slots than workers therefore has a queue of its own,
// which the proxy does not see but by the slots that it holds: this is where strategies
// differ. While a backend stalls it makes no progress and takes what it is given.
//
// Dials take no time, no connection is kept and no backend is found to be down: what is
// compared is the choice alone.
//
// # How strategies are compared
//
// Arrivals, clients and works are drawn from streams of their own, which depend on the
// seed and on nothing else (common random numbers): two strategies are given the same
// requests at the same times, and differ by their choices. The same Scenario has the
// same Result every time, on one architecture: others may round the draws differently.
//
// The package imports the standard library and balance. It reads no clock and starts no
// goroutine.
package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"forebay/balance"
)

// A Scenario is a load and the backends that it meets.
type Scenario struct {
	Rate        float64       // requests per second, on average; above 0
	Service     Service       // how works are distributed; "": Exponential
	ServiceTime time.Duration // mean time of a request on a backend of speed 1; above 0
	Backends    []Backend     // at least one
	Clients     int           // addresses that requests come from; 0: one
	Duration    time.Duration // arrivals come for so long; what has come is then served; above 0
	Seed        uint64        // of all that is drawn

	// AcquireTimeout bounds the wait in the queue. Zero: no bound.
	AcquireTimeout time.Duration

	// Queue bounds how many wait in the queue at once. Zero: nobody waits.
	Queue int
}

// A Backend is what is known of one server.
type Backend struct {
	Name    string  // "": it has none; see balance.Backend
	Max     int     // slots, connections that the proxy may have open; at least 1
	Weight  int     // its share, where a strategy regards it; 0: 1
	Workers int     // requests that it works on at once; 0: Max, so that it has no queue
	Speed   float64 // its works take their time divided by this; 0: 1
	Stall   Stall   // when it makes no progress
}

// A Stall is a time without progress. The zero value is none.
type Stall struct {
	From time.Duration
	For  time.Duration
}

// Capacity returns the requests per second that all backends can serve while none stalls.
func (sc Scenario) Capacity() float64 {
	var sum float64
	for _, be := range sc.Backends {
		sum += be.withDefaults().capacity()
	}
	return sum / sc.ServiceTime.Seconds()
}

// String describes the scenario in a line, but for what is particular to a backend.
func (sc Scenario) String() string {
	return fmt.Sprintf("%.4g requests/s for %v, %.0f %% of what %d backends can serve; service times %s, of mean %v",
		sc.Rate, sc.Duration, 100*sc.Rate/sc.Capacity(), len(sc.Backends), cmp.Or(sc.Service, Exponential), sc.ServiceTime)
}

// String describes the backend in a line.
func (be Backend) String() string {
	be = be.withDefaults()
	s := fmt.Sprintf("%s: max %d, %d workers, speed %.4g, weight %d", be.Name, be.Max, be.Workers, be.Speed, be.Weight)
	if be.Stall.For > 0 {
		s += fmt.Sprintf(", stalls from %v to %v", be.Stall.From, be.Stall.From+be.Stall.For)
	}
	return s
}

// capacity is the work that a backend does per second: seconds of speed 1.
func (be Backend) capacity() float64 { return be.Speed * float64(be.Workers) }

func (be Backend) withDefaults() Backend {
	if be.Weight == 0 {
		be.Weight = 1
	}
	if be.Workers == 0 {
		be.Workers = be.Max
	}
	if be.Speed == 0 {
		be.Speed = 1
	}
	return be
}

// Run returns what a strategy makes of a scenario. The error tells what of the scenario
// cannot be, or that there is no such strategy.
func Run(sc Scenario, s balance.Strategy) (Result, error) {
	r, err := newRun(sc, s)
	if err != nil {
		return Result{}, err
	}
	r.loop()
	return r.result(s), nil
}

// check returns what is wrong, but for what balance checks itself.
func (sc Scenario) check() error {
	switch {
	case !(sc.Rate > 0) || math.IsInf(sc.Rate, 1):
		return fmt.Errorf("the rate is %v; it must be above 0", sc.Rate)
	case sc.ServiceTime <= 0 || sc.ServiceTime > forever || sc.Duration <= 0 || sc.Duration > forever:
		return fmt.Errorf("service time %v and duration %v; both must be above 0 and at most %v", sc.ServiceTime, sc.Duration, forever)
	case sc.Clients < 0 || sc.Queue < 0 || sc.AcquireTimeout < 0 || sc.AcquireTimeout > forever:
		return fmt.Errorf("clients %d, queue %d and acquire timeout %v; none must be below 0, nor a time above %v",
			sc.Clients, sc.Queue, sc.AcquireTimeout, forever)
	case len(sc.Backends) == 0:
		return errors.New("there is no backend")
	}
	for i, be := range sc.Backends {
		from, long := be.Stall.From, be.Stall.For
		if be.Workers < 0 || !(be.Speed >= 0) || math.IsInf(be.Speed, 1) || from < 0 || from > forever || long < 0 || long > forever {
			return fmt.Errorf("backend %d has %d workers, speed %v and stalls at %v for %v; none must be below 0, nor a time above %v",
				i, be.Workers, be.Speed, from, long, forever)
		}
	}
	return sc.Service.check()
}
