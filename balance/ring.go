package balance

import (
	"cmp"
	"math/bits"
	"slices"
)

const (
	// pointsPerWeight is how many points a backend has on the ring for each 1 of its
	// weight, and mostPoints how many there may be in all: where there would be more each
	// has half as many, or a quarter, and at least one. A crossing of that moves clients.
	pointsPerWeight = 64
	mostPoints      = 1 << 20

	// probes is how many places a client looks at. It belongs to the point that is
	// nearest behind any of them (multi-probe consistent hashing: Appleton and O'Reilly,
	// 2015). With a single one a point's share is as long as the gap before it; the
	// nearest of several is seldom far, so that long gaps do not count: no share is more
	// than 1 + 1/probes of what is fair, and with 64 points most are within 3 %. A
	// classic ring needs a thousand points of each backend for that.
	probes = 12

	// The most that a backend may have of its fair share, in quarters.
	boundQuarters = 5
)

// consistentHash takes the first on the ring, from the client's point on, that is held
// and below its bound. Where all that are held have reached theirs, as where those with
// a low max are full, the first that is held.
type consistentHash struct {
	ring *ring
	b    *Balancer
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

func (h *consistentHash) next(c Client) int {
	h.load.lead()
	k := &h.load.classes[h.load.tied[0]]
	some := h.below(int64(k.lowest), int64(k.of))
	for p := h.ring.find(c); ; p = h.ring.following(p) {
		i := int(h.ring.points[p].owner)
		if h.held.has(i) && (!some || h.below(int64(h.b.members[i].active), int64(h.b.members[i].Weight))) {
			return i
		}
	}
}

// below reports whether one more is within the bound of a backend: 1.25 of its share by
// weight of all that would then be active, rounded up.
func (h *consistentHash) below(active, weight int64) bool {
	return 4*active*h.tier.weight < boundQuarters*(h.tier.active+1)*weight
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

// find returns the point that is nearest behind any of the client's probes.
func (r *ring) find(c Client) int {
	if r.dirty {
		r.renew()
	}
	best, least := 0, uint64(1<<64-1)
	at, step := mix(uint64(c)), mix(^uint64(c))|1
	for range probes {
		p := r.after(at)
		if d := r.points[p].at - at; d < least { // modulo 2^64: the ring is a circle
			best, least = p, d
		}
		at += step
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

// renew replaces the points of the backends that have changed.
func (r *ring) renew() {
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
	total := 0
	for i := range r.b.members {
		if r.has(i) {
			total += r.b.members[i].Weight * pointsPerWeight
		}
	}
	return bits.Len(uint(max(0, total-1) / mostPoints))
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
