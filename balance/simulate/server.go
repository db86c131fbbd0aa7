package simulate

import "time"

// server is a backend at work.
type server struct {
	Backend
	busy  int            // workers
	queue fifo[*request] // those that no worker has taken up

	given  time.Duration // work of all that it got
	served int
	active level // slots that are leased
}

// take gives the server a request, and reports whether a worker takes it up at once. If
// not, done returns it later.
func (s *server) take(r *request) bool {
	s.given += r.work
	s.served++
	if s.busy == s.Workers {
		s.queue.push(r)
		return false
	}
	s.busy++
	return true
}

// done tells that a worker is free, and returns what it takes up, or nil.
func (s *server) done() *request {
	if s.queue.len() == 0 {
		s.busy--
		return nil
	}
	return s.queue.pop()
}

// work returns when a worker that takes up d of work at now begins with it, and when it
// has done it.
func (s *server) work(now, d time.Duration) (begun, ended time.Duration) {
	from, to := s.Stall.From, s.Stall.From+s.Stall.For
	begun = now
	if from <= now && now < to {
		begun = to
	}
	ended = begun + span(float64(d)/s.Speed)
	if begun < from && from < ended {
		ended += s.Stall.For
	}
	return begun, min(ended, forever)
}

// fifo is a queue, first in first out. The zero value is empty.
type fifo[T any] struct {
	items []T
	head  int
}

func (q *fifo[T]) len() int  { return len(q.items) - q.head }
func (q *fifo[T]) push(x T)  { q.items = append(q.items, x) }
func (q *fifo[T]) oldest() T { return q.items[q.head] }

func (q *fifo[T]) pop() T {
	var zero T
	x := q.items[q.head]
	q.items[q.head] = zero
	q.head++
	if q.head > len(q.items)/2 { // else what has left would stay for ever
		q.items = append(q.items[:0], q.items[q.head:]...)
		q.head = 0
	}
	return x
}
