package balance

// The strategies that go by the order of the backends.

// roundRobin takes the one after the last.
type roundRobin struct {
	held set
	last int
}

func (r *roundRobin) hold(i int, _ *member) { r.held.add(i) }
func (r *roundRobin) drop(i int, _ *member) { r.held.remove(i) }

func (r *roundRobin) next(Client) int {
	r.last = r.held.next(r.last + 1)
	return r.last
}

// first takes the first.
type first struct{ held set }

func (f *first) hold(i int, _ *member) { f.held.add(i) }
func (f *first) drop(i int, _ *member) { f.held.remove(i) }
func (f *first) next(Client) int       { return f.held.next(0) }
