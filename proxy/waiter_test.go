package proxy

import (
	"context"
	"time"

	"forebay/balance"
)

// grant is what a waiter of a test was told.
type grant struct {
	choice choice
	err    error
}

// at returns the backend that has index i.
func (d *dispatcher) at(i int) *backend {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.backends[i]
}

func (d *dispatcher) slots(i int) slots { return slots{d, d.at(i)} }

func (d *dispatcher) these(indices ...int) (backends []*backend) {
	for _, i := range indices {
		backends = append(backends, d.at(i))
	}
	return backends
}

// loads returns the slots of each backend, by index, and how many clients wait.
func (d *dispatcher) loads() ([]balance.Load, int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.bal.Loads(), d.waiters.Len()
}

// longWait is longer than any test waits.
const longWait = time.Hour

// newWaiter returns a waiter, and what it is told.
func newWaiter(c claim, patience time.Duration) (*waiter, chan grant) {
	grantc := make(chan grant, 1)
	return &waiter{claim: c, deadline: time.Now().Add(patience),
		granted: func(c choice, err error) { grantc <- grant{c, err} }}, grantc
}

// wait is join for a session of a test, which waits until it is granted a slot, or ctx
// ends.
func (d *dispatcher) wait(ctx context.Context, c claim) (choice, error) {
	w, grantc := newWaiter(c, longWait)
	if waits, c, err := d.join(w); !waits {
		return c, err
	}
	select {
	case g := <-grantc:
		return g.choice, g.err
	case <-ctx.Done():
		if !d.leave(w) {
			if g := <-grantc; g.err == nil {
				d.giveBack(g.choice)
			}
		}
		return choice{}, context.Cause(ctx)
	}
}

// await is acquire for a session of a test, which waits.
func (s *session) await() (*lease, error) {
	type answer struct {
		l   *lease
		err error
	}
	answerc := make(chan answer, 1)
	s.acquire(func(l *lease, err error) { answerc <- answer{l, err} })
	a := <-answerc
	return a.l, a.err
}
