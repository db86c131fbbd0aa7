package balance

import "testing"

// wantInvariants counts anew all that is counted as it changes.
func wantInvariants(t *testing.T, b *Balancer) {
	t.Helper()
	var want [numTiers]tier
	for i := range b.members {
		m := &b.members[i]
		if at := b.tierOf(m); at != m.tier {
			t.Fatalf("backend %d is in tier %d, want %d", i, m.tier, at)
		}
		if m.tier == noTier {
			if m.held || m.active != 0 || m.weight != 0 {
				t.Fatalf("backend %d is out, and counted", i)
			}
			continue
		}
		if m.held != m.hasRoom() {
			t.Fatalf("backend %d is held: %v, and has room: %v", i, m.held, m.hasRoom())
		}
		w := &want[m.tier]
		w.size++
		if m.held {
			w.room++
		}
		w.active += int64(m.Active())
		w.weight += int64(m.Weight)
	}
	for at, got := range b.tiers {
		want[at].rule = got.rule
		if got != want[at] {
			t.Fatalf("tier %d is %+v, want %+v", at, got, want[at])
		}
		if x := turnsOf(got.rule); x != nil {
			wantTurns(t, x, func(i int) bool { return b.members[i].tier == at && b.members[i].held })
		}
	}
}

// turnsOf returns the turns that a rule has; nil: it has none.
func turnsOf(r rule) *turns {
	switch r := r.(type) {
	case *leastConn:
		return &r.turns
	case *weightedRoundRobin:
		return &r.turns
	case *consistentHash:
		return &r.load
	}
	return nil
}

func wantTurns(t *testing.T, x *turns, held func(int) bool) {
	t.Helper()
	users, counts := map[int32]int32{}, map[[2]int32]int32{}
	for i, n := range x.nodes {
		if (n.bucket != none) != held(i) {
			t.Fatalf("node %d is in bucket %d, and held: %v", i, n.bucket, held(i))
		}
		if n.class != none {
			users[n.class]++
		}
		if n.bucket != none {
			counts[[2]int32{n.class, n.bucket}]++
		}
	}
	if len(x.byKey) != len(users) {
		t.Fatalf("%d classes for %d that have users", len(x.byKey), len(users))
	}
	for c, k := range x.classes {
		lowest, in := int32(none), int32(0)
		for n, b := range k.buckets {
			if b.count != counts[[2]int32{int32(c), int32(n)}] || k.levels.has(n) != (b.count > 0) {
				t.Fatalf("bucket %d of class %d has %d, want %d", n, c, b.count, counts[[2]int32{int32(c), int32(n)}])
			}
			if b.count > 0 && lowest == none {
				lowest = int32(n)
			}
			in += b.count
			wantHeap(t, x, b.top)
		}
		if k.lowest != lowest || k.held != in || k.users != users[int32(c)] {
			t.Fatalf("class %d is %d from %d of %d, want %d from %d of %d", c, k.held, k.lowest, k.users, in, lowest, users[int32(c)])
		}
	}
}

// What is done to an index that is nobody's counts for nothing.
func TestNothingDoneToAVacantIndexCounts(t *testing.T) {
	b := newBalancer(t, 1, 1)
	b.Remove(0)
	b.Remove(0)
	b.SetOut(0, Removed, false)
	b.SetBackup(0, true)
	wantInvariants(t, b)
	b.Remove(1)
	if _, err := b.Pick(0, nil); err != ErrNone {
		t.Errorf("Pick = %v where there is nobody, want ErrNone", err)
	}
}

// A class of nobody would be looked at by every pick, and keep its buckets.
func TestClassesOfThoseWhoAreGoneAreForgotten(t *testing.T) {
	b := newWeighted(t, distinct(100)...)
	for i := range b.members {
		switch {
		case i >= 60:
			b.Remove(i)
		case i >= 30:
			b.SetOut(i, Down, true)
		case i >= 10:
			b.SetBackup(i, true)
		}
	}
	if n := len(turnsOf(b.tiers[upTier].rule).byKey); n != 10 {
		t.Errorf("%d classes of 10 that are left", n)
	}
	wantInvariants(t, b)
}
