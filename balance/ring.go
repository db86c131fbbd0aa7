package balance

import (
	"cmp"
	"math/bits"
	"slices"
)

const (
	// pointsPerWeight is how many points a backend has on the ring for each 1 of its
	// weight, and mostPoints how many there may be in all: where there would be more each
	// has half as many, or a quarter, and at least one. Where the sum of the weights
	// crosses 16,384, or twice that, up to half of all clients therefore move.
	pointsPerWeight = 64
	mostPoints      = 1 << 20

	// probes is how many places a client looks at. It belongs to the point that is
	// nearest behind any of them (multi-probe consistent hashing: Appleton and O'Reilly,
	// 2015). With a single one a point's share is as long as the gap before it; the
	// nearest of several is seldom far, so that long gaps do not count: a point is
	// expected to have 1 + 1/probes of what is fair at the most, and of backends with 64
	// points most are within 3 %. A classic ring needs a thousand points of each for that.
	probes = 8

	// The most that a backend may have of its fair share, in quarters.
	boundQuarters = 5
)

// consistentHash takes the one that has the nearest point behind any of the client's
// probes, of those that are held and below their bound: as if the others had no points, so
// that a client goes to the same one whether its own is full, drained or removed. Where
// all that are held have reached their bound, as where those with a low max are full, it
// takes the nearest of those that are held.
type consistentHash struct {
	*ring
	tier *tier
	held set
	load turns // by active/weight: it knows whether any is below its bound
}

func (h *consistentHash) hold(i int, m *member) {
	h.held.add(i)
	h.load.hold(i, m.active, m.Weight, m)
}

func (h *consistentHash) drop(i int, m *member) {
	h.held.remove(i)
	h.load.drop(i, m)
}

func (h *consistentHash) forget(i int) { h.load.forget(i) }

func (h *consistentHash) next(c Client) int {
	h.build()
	h.load.lead()
	k := &h.load.classes[h.load.tied[0]]
	bounded := h.below(int(k.lowest), k.of)
	w := h.look(c)
	for {
		n := w.nearest()
		if i := int(h.points[w.point[n]].owner); h.may(i, bounded) {
			return i
		}
		h.reach(&w, n, h.following(w.point[n]))
	}
}

// may reports whether backend i may be taken.
func (h *consistentHash) may(i int, bounded bool) bool {
	if !h.held.has(i) {
		return false
	}
	m := &h.b.members[i]
	return !bounded || h.below(m.active, m.Weight)
}

// below reports whether one more is within the bound of a backend: 1.25 of its share by
// weight of all that would then be active, rounded up.
func (h *consistentHash) below(active, weight int) bool {
	return 4*int64(active)*h.tier.weight < boundQuarters*(h.tier.active+1)*int64(weight)
}

// ring has the points of all backends, whether they are up or not, in order.
type ring struct {
	b      *Balancer
	backup bool
	stale  set  // backends whose points may be others now
	dirty  bool // there are some
	halved int  // how often the number of points was halved

	points []point
	starts []uint32 // of the points whose position begins with these bits
	shift  int      // that leaves those bits
}

type point struct {
	at    uint64
	owner int32
}

func (r *ring) reformed(i int) {
	r.stale.add(i)
	r.dirty = true
}

// way is how far a client has looked: behind each of its probes the next point, and its
// distance from the probe.
type way struct {
	at    [probes]uint64
	point [probes]int
	far   [probes]uint64
}

// look begins a client's way.
func (r *ring) look(c Client) (w way) {
	at, step := mix(uint64(c)), mix(^uint64(c))|1
	for n := range w.at {
		w.at[n] = at
		r.reach(&w, n, r.after(at))
		at += step
	}
	return w
}

// reach notes that point p is the next behind probe n.
func (r *ring) reach(w *way, n, p int) {
	w.point[n], w.far[n] = p, r.points[p].at-w.at[n] // modulo 2^64: the ring is a circle
}

// nearest returns the probe whose point is the nearest.
func (w *way) nearest() int {
	best := 0
	for n, far := range w.far {
		if far < w.far[best] {
			best = n
		}
	}
	return best
}

// after returns the first point that is not before a position.
func (r *ring) after(at uint64) int {
	p := int(r.starts[at>>r.shift])
	for p < len(r.points) && r.points[p].at < at {
		p++
	}
	if p == len(r.points) {
		return 0
	}
	return p
}

func (r *ring) following(p int) int {
	if p++; p < len(r.points) {
		return p
	}
	return 0
}

// build replaces the points of the backends that have changed, if any have.
func (r *ring) build() {
	if !r.dirty {
		return
	}
	r.dirty = false
	if h := r.halvings(); h != r.halved {
		r.halved = h
		for i := range r.b.members {
			r.stale.add(i)
		}
	}
	kept := r.points[:0]
	for _, p := range r.points {
		if !r.stale.has(int(p.owner)) {
			kept = append(kept, p)
		}
	}
	var added []point
	for i := range r.b.members {
		if r.stale.has(i) && r.has(i) {
			added = r.appendPoints(added, i)
		}
	}
	clear(r.stale)
	slices.SortFunc(added, r.compare)
	r.points = r.merge(kept, added)
	r.index()
}

func (r *ring) has(i int) bool {
	m := &r.b.members[i]
	return m.Max > 0 && m.Backup == r.backup
}

// halvings returns how often the number of points must be halved.
func (r *ring) halvings() int {
	var total int64
	for i := range r.b.members {
		if r.has(i) {
			total += int64(r.b.members[i].Weight) * pointsPerWeight
		}
	}
	return bits.Len64(uint64(max(0, total-1) / mostPoints))
}

// appendPoints adds the points of backend i. They go by its name and weight, and the
// fewer it has the first of those that are more.
func (r *ring) appendPoints(points []point, i int) []point {
	m := &r.b.members[i]
	seed := mix(uint64(i))
	if m.Name != "" {
		seed = hashName(m.Name)
	}
	for n := range max(1, m.Weight*pointsPerWeight>>r.halved) {
		points = append(points, point{mix(seed + uint64(n)*golden), int32(i)})
	}
	return points
}

// compare orders points. Two at the same place, a freak, are in the order of names.
func (r *ring) compare(x, y point) int {
	if c := cmp.Compare(x.at, y.at); c != 0 {
		return c
	}
	return cmp.Compare(r.b.members[x.owner].Name, r.b.members[y.owner].Name)
}

// merge makes one sorted list of two. The first is that of the ring, and is reused.
func (r *ring) merge(kept, added []point) []point {
	i, j := len(kept)-1, len(added)-1
	all := slices.Grow(kept, len(added))[:len(kept)+len(added)]
	for at := len(all) - 1; j >= 0; at-- { // from the end, where there is room
		if i >= 0 && r.compare(all[i], added[j]) > 0 {
			all[at] = all[i]
			i--
		} else {
			all[at] = added[j]
			j--
		}
	}
	return all
}

// index notes where on the ring each stretch of it begins: as many stretches as there
// are points, so that a search is a look or two.
func (r *ring) index() {
	n := max(1, bits.Len(uint(len(r.points))))
	r.shift = 64 - n
	r.starts = slices.Grow(r.starts[:0], 1<<n)[:1<<n]
	p := 0
	for s := range r.starts {
		for p < len(r.points) && r.points[p].at>>r.shift < uint64(s) {
			p++
		}
		r.starts[s] = uint32(p)
	}
}

// hashName is FNV-1a, 64 bits: https://www.isthe.com/chongo/tech/comp/fnv/.
func hashName(s string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 0x100000001b3
	}
	return mix(h)
}
