package balance

// The heap of a bucket is a leftist tree (Crane, 1972; Knuth, volume 3, 5.2.3), whose
// links are in the nodes: it needs no memory of its own however its backends move, and
// inserting and removing cost at most the logarithm of their number. Its top is the
// highest credit, and of equals the first in order.

// insert adds node i to the heap at top, and returns the new top.
func (t *turns) insert(top, i int32) int32 {
	x := &t.nodes[i]
	x.left, x.right, x.parent, x.rank = none, none, none, 1
	top = t.meld(top, i)
	t.nodes[top].parent = none
	return top
}

// remove takes node i out of the heap at top, and returns the new top.
func (t *turns) remove(top, i int32) int32 {
	x := &t.nodes[i]
	child := t.meld(x.left, x.right)
	if child != none {
		t.nodes[child].parent = x.parent
	}
	if x.parent == none {
		return child
	}
	if p := &t.nodes[x.parent]; p.left == i {
		p.left = child
	} else {
		p.right = child
	}
	for at := x.parent; at != none && t.lean(at); at = t.nodes[at].parent {
	}
	return top
}

// meld makes one heap of two, and returns its top. It is as deep as their right spines
// are long, which is the logarithm of their sizes.
func (t *turns) meld(a, b int32) int32 {
	switch {
	case a == none:
		return b
	case b == none:
		return a
	case t.before(b, a):
		a, b = b, a
	}
	x := &t.nodes[a]
	right := t.meld(x.right, b)
	x.right = right
	t.nodes[right].parent = a
	t.lean(a)
	return a
}

// lean puts the higher rank on the left of node i, whose rank is the length of the right
// spine. It reports whether that has changed.
func (t *turns) lean(i int32) (changed bool) {
	x := &t.nodes[i]
	if t.rank(x.left) < t.rank(x.right) {
		x.left, x.right = x.right, x.left
	}
	was := x.rank
	x.rank = t.rank(x.right) + 1
	return x.rank != was
}

func (t *turns) rank(i int32) int32 {
	if i == none {
		return 0
	}
	return t.nodes[i].rank
}

// before goes by the difference: it is small, while the credits themselves, less a growth
// that has no end, wrap around some day.
func (t *turns) before(a, b int32) bool {
	d := t.nodes[a].credit - t.nodes[b].credit
	return d > 0 || d == 0 && a < b
}
