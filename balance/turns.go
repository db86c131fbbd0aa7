package balance

import "slices"

// turns are backends in buckets by their load, and in each bucket by whose turn it is.
//
// Backends of equal weight and equal denominator of the load are of one class. A class
// has a bucket for each numerator: the backends of one bucket are always tied, and take
// part in the same ties, in each of which their credits grow by the same weight. So the
// bucket counts that growth, once for all, and the order of its backends, a heap, changes
// only as they come and go. A turn then costs a look at each class, and a step of one
// heap; where the weights and maxes are few, however many backends there are.
//
// What a class or a bucket says of a backend's credit is exact: it is the one that smooth
// weighted round robin gives, when all the tied are looked at each time.
type turns struct {
	flat    bool // nobody takes turns: the buckets only count
	nodes   []node
	classes []class
	byKey   map[classKey]int32
	free    []int32 // classes that nobody is of
	tied    []int32 // classes; scratch of lead
}

// node is a backend in a heap: see heap.go. As in all of turns, none is -1.
type node struct {
	credit int64 // without the growth of its bucket, while it is in one
	class  int32
	bucket int32 // none: it is in no bucket, and credit is all of it

	left, right, parent int32
	rank                int32
}

const none = -1

type classKey struct {
	weight, of int
}

// class is the backends whose load is a number of the same, and whose weight is the same.
type class struct {
	classKey
	lowest  int32 // bucket that has a backend; none: no bucket has
	held    int32 // nodes in buckets
	users   int32 // nodes that are of this class, in a bucket or not
	buckets []bucket
	levels  set // buckets that have a backend: what may lie between two of these is long
}

// bucket is those of a class that have the same load.
type bucket struct {
	growth int64 // of the credits of all since it was empty
	top    int32 // of the heap: whose turn it is
	count  int32
}

// hold has backend i in the bucket of load n/of; n is at least 0 and of at least 1. One
// that its rule has not held has the credit that it brings.
func (t *turns) hold(i int, n, of int, m *member) {
	for i >= len(t.nodes) {
		t.nodes = append(t.nodes, node{class: none, bucket: none})
	}
	x := &t.nodes[i]
	key := classKey{m.Weight, of}
	same := x.class != none && t.classes[x.class].classKey == key
	if same && x.bucket == int32(n) {
		return
	}
	if !m.held {
		x.credit = m.credit
	}
	from, old := x.class, x.bucket
	if !same {
		t.takeOut(i)
		t.setClass(i, key)
		old = none
	}
	if old != none {
		t.pull(i) // the lowest is looked for when it has its new place
	}
	t.put(i, int32(n))
	if old != none {
		t.classes[from].settle(old)
	}
}

// drop takes backend i out of its bucket, and gives its credit back.
func (t *turns) drop(i int, m *member) {
	t.takeOut(i)
	m.credit = t.nodes[i].credit
}

// forget has backend i, which is in no bucket, be of no class, so that a class of nobody
// is no longer looked at.
func (t *turns) forget(i int) {
	if i < len(t.nodes) && t.nodes[i].class != none {
		t.leaveClass(t.nodes[i].class)
		t.nodes[i].class = none
	}
}

// turn returns whose turn it is among the backends of the lowest load. Where there are
// several the winner pays, and is in no bucket until it is held again.
func (t *turns) turn() int {
	t.lead()
	if k := &t.classes[t.tied[0]]; len(t.tied) == 1 && k.buckets[k.lowest].count == 1 {
		return int(k.buckets[k.lowest].top) // no tie: the credits stay as they are
	}
	var total, most int64
	var winner int32 = none
	for _, c := range t.tied {
		k := &t.classes[c]
		b := &k.buckets[k.lowest]
		b.growth += int64(k.weight)
		total += int64(k.weight) * int64(b.count)
		credit := t.nodes[b.top].credit + b.growth
		if winner == none || credit > most || credit == most && b.top < winner {
			winner, most = b.top, credit
		}
	}
	t.takeOut(int(winner))
	t.nodes[winner].credit -= total
	return int(winner)
}

// lead gathers in tied the classes of the lowest load, compared by multiplying across.
func (t *turns) lead() {
	t.tied = t.tied[:0]
	n, of := int64(0), int64(0)
	for c := range t.classes {
		k := &t.classes[c]
		if k.lowest == none {
			continue
		}
		l, r := int64(k.lowest)*of, n*int64(k.of)
		switch {
		case len(t.tied) == 0 || l < r:
			t.tied = append(t.tied[:0], int32(c))
			n, of = int64(k.lowest), int64(k.of)
		case l == r:
			t.tied = append(t.tied, int32(c))
		}
	}
}

// setClass has backend i, which is in no bucket, be of another class.
func (t *turns) setClass(i int, key classKey) {
	x := &t.nodes[i]
	if x.class != none {
		t.leaveClass(x.class)
	}
	c, ok := t.byKey[key]
	if !ok {
		c = t.newClass(key)
	}
	t.classes[c].users++
	x.class = c
}

// newClass takes the place of a class that nobody is of, if there is one.
func (t *turns) newClass(key classKey) int32 {
	if t.byKey == nil {
		t.byKey = make(map[classKey]int32)
	}
	c := len(t.classes)
	if n := len(t.free); n > 0 {
		c, t.free = int(t.free[n-1]), t.free[:n-1]
	} else {
		t.classes = append(t.classes, class{})
	}
	t.classes[c] = class{classKey: key, lowest: none}
	t.byKey[key] = int32(c)
	return int32(c)
}

func (t *turns) leaveClass(c int32) {
	k := &t.classes[c]
	if k.users--; k.users == 0 {
		delete(t.byKey, k.classKey)
		t.classes[c] = class{lowest: none}
		t.free = append(t.free, c)
	}
}

// put adds backend i to bucket n of its class.
func (t *turns) put(i int, n int32) {
	x := &t.nodes[i]
	k := &t.classes[x.class]
	if more := int(n) + 1 - len(k.buckets); more > 0 {
		k.buckets = slices.Grow(k.buckets, more)
		for range more {
			k.buckets = append(k.buckets, bucket{top: none})
		}
	}
	b := &k.buckets[n]
	x.bucket = n
	x.credit -= b.growth
	if !t.flat {
		b.top = t.insert(b.top, int32(i))
	}
	b.count++
	k.held++
	k.levels.add(int(n))
	if k.lowest == none || n < k.lowest {
		k.lowest = n
	}
}

// takeOut takes backend i out of its bucket, if it is in one.
func (t *turns) takeOut(i int) {
	x := &t.nodes[i]
	if x.bucket == none {
		return
	}
	n := x.bucket
	t.pull(i)
	t.classes[x.class].settle(n)
}

// pull is takeOut where the class is settled later.
func (t *turns) pull(i int) {
	x := &t.nodes[i]
	k := &t.classes[x.class]
	b := &k.buckets[x.bucket]
	k.held--
	if b.count--; b.count == 0 {
		k.levels.remove(int(x.bucket))
	}
	x.credit += b.growth
	x.bucket = none
	if !t.flat {
		b.top = t.remove(b.top, int32(i))
	}
	if b.count == 0 {
		b.growth = 0
	}
}

// settle finds the lowest bucket anew, after one has left bucket n.
func (k *class) settle(n int32) {
	if k.lowest != n || k.buckets[n].count > 0 {
		return
	}
	k.lowest = none
	if k.held > 0 {
		k.lowest = int32(k.levels.next(int(n))) // there is none below
	}
}
