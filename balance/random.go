package balance

import "math/rand/v2"

// random draws one of those held by weight, or evenly.
type random struct {
	rng  *rand.Rand
	even bool
	sums sums
}

func (r *random) hold(i int, m *member) {
	if r.even {
		r.sums.set(i, 1)
		return
	}
	r.sums.set(i, int64(m.Weight))
}

func (r *random) drop(i int, _ *member) { r.sums.set(i, 0) }

func (r *random) next(Client) int { return r.sums.find(r.rng.Int64N(r.sums.total)) }

// randomTwo draws two by weight, and takes the lower active/bound; of equals the first
// that was drawn.
type randomTwo struct {
	random
	b *Balancer
}

func (r *randomTwo) next(c Client) int {
	one := r.random.next(c)
	weight := r.sums.values[one]
	if weight == r.sums.total {
		return one // there is no other
	}
	r.sums.set(one, 0)
	two := r.random.next(c)
	r.sums.set(one, weight)
	if x, y := &r.b.members[one], &r.b.members[two]; int64(y.Active())*int64(x.Bound()) < int64(x.Active())*int64(y.Bound()) {
		return two
	}
	return one
}

// sums are values, by index, and their prefix sums in a tree (Fenwick, 1994), so that
// both a change and a search cost the logarithm of their number.
type sums struct {
	values []int64
	tree   []int64 // tree[i] is the sum of the lowest set bit of i values up to the ith, counted from 1
	total  int64
}

// set has value i be v.
func (s *sums) set(i int, v int64) {
	for i >= len(s.values) {
		s.grow()
	}
	d := v - s.values[i]
	if d == 0 {
		return
	}
	s.values[i] = v
	s.total += d
	for at := i + 1; at < len(s.tree); at += at & -at {
		s.tree[at] += d
	}
}

// grow doubles the room; as it is a power of two, only its last sum is over all.
func (s *sums) grow() {
	n := max(1, 2*len(s.values))
	values, tree := make([]int64, n), make([]int64, n+1)
	copy(values, s.values)
	copy(tree, s.tree)
	tree[n] = s.total
	s.values, s.tree = values, tree
}

// find returns the index whose value covers place n, counted over all values from 0; n
// is below total.
func (s *sums) find(n int64) int {
	at := 0
	for step := len(s.values); step > 0; step /= 2 {
		if next := at + step; next < len(s.tree) && s.tree[next] <= n {
			at = next
			n -= s.tree[next]
		}
	}
	return at
}
