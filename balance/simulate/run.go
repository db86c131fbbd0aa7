package simulate

import (
	"container/heap"
	"errors"
	"fmt"
	"time"

	"forebay/balance"
)

// run is one strategy in one scenario.
type run struct {
	Scenario
	bal     *balance.Balancer
	source  *source
	servers []*server
	works   endings
	queue   fifo[*request]

	waits, responses []time.Duration // of those that were served
	refused          int
	waiting          level
}

func newRun(sc Scenario, s balance.Strategy) (*run, error) {
	if err := sc.check(); err != nil {
		return nil, fmt.Errorf("simulate: %w", err)
	}
	bal, err := balance.New(balance.Config{Strategy: s, Seed: sc.Seed})
	if err != nil {
		return nil, err
	}
	r := &run{Scenario: sc, bal: bal, source: newSource(sc), waiting: newLevel(sc.Duration)}
	for _, be := range sc.Backends {
		be = be.withDefaults()
		if _, err := bal.Add(balance.Backend{Name: be.Name, Max: be.Max, Weight: be.Weight}); err != nil {
			return nil, err
		}
		r.servers = append(r.servers, &server{Backend: be, active: newLevel(sc.Duration)})
	}
	return r, nil
}

// loop goes from event to event until the last request has gone. Of those at the same
// time a work that ends goes first, since it may still serve who would be refused, and
// an arrival last.
func (r *run) loop() {
	next := r.source.next()
	for next != nil || len(r.works) > 0 {
		arrival, end, deadline := forever, forever, forever
		if next != nil {
			arrival = next.arrived
		}
		if len(r.works) > 0 {
			end = r.works[0].at
		}
		if r.queue.len() > 0 && r.AcquireTimeout > 0 {
			deadline = r.queue.oldest().arrived + r.AcquireTimeout // they arrived in this order
		}
		switch {
		case end <= deadline && end <= arrival:
			r.end(heap.Pop(&r.works).(ending))
		case deadline <= arrival:
			r.dequeue(deadline)
			r.refused++
		default:
			r.arrive(next)
			next = r.source.next()
		}
	}
}

// arrive leases a slot for a request, queues it, or refuses it.
func (r *run) arrive(req *request) {
	now := req.arrived
	switch {
	case r.lease(now, req):
	case r.queue.len() >= r.Queue:
		r.refused++
	default:
		r.queue.push(req)
		r.waiting.set(now, r.queue.len())
	}
}

// lease gives a request to the backend that the strategy picks, and reports false where
// all are full.
func (r *run) lease(now time.Duration, req *request) bool {
	choice, err := r.bal.Pick(req.client, nil)
	if errors.Is(err, balance.ErrFull) {
		return false
	}
	if err != nil {
		panic(err) // none is ever down or tried
	}
	req.backend = choice.Backend
	r.bal.Move(choice.Backend, balance.Dialing, balance.Leased)
	s := r.servers[choice.Backend]
	s.active.set(now, r.bal.Count(choice.Backend, balance.Leased))
	if s.take(req) {
		r.begin(now, req)
	}
	return true
}

// begin has a worker take up a request.
func (r *run) begin(now time.Duration, req *request) {
	var ended time.Duration
	req.begun, ended = r.servers[req.backend].work(now, req.work)
	heap.Push(&r.works, ending{at: ended, request: req})
}

// end frees the worker and the slot of a request, each for the oldest that waits for it.
func (r *run) end(e ending) {
	now, req := e.at, e.request
	r.waits = append(r.waits, req.begun-req.arrived)
	r.responses = append(r.responses, now-req.arrived)
	s := r.servers[req.backend]
	if next := s.done(); next != nil {
		r.begin(now, next)
	}
	r.bal.Move(req.backend, balance.Leased, balance.Free)
	s.active.set(now, r.bal.Count(req.backend, balance.Leased))
	if r.queue.len() > 0 && r.lease(now, r.queue.oldest()) {
		r.dequeue(now)
	}
}

func (r *run) dequeue(now time.Duration) {
	r.queue.pop()
	r.waiting.set(now, r.queue.len())
}

// ending is a work that ends.
type ending struct {
	at time.Duration
	*request
}

// endings are a heap: the first is the one that ends first, and of several the one that
// arrived first, so that no order is left to chance.
type endings []ending

func (e endings) Len() int      { return len(e) }
func (e endings) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *endings) Push(x any)   { *e = append(*e, x.(ending)) }

func (e endings) Less(i, j int) bool {
	if e[i].at != e[j].at {
		return e[i].at < e[j].at
	}
	return e[i].arrived < e[j].arrived
}

func (e *endings) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	(*e)[last] = ending{}
	*e = (*e)[:last]
	return x
}
