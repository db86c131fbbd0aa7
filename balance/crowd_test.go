package balance

import (
	"errors"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// Under one lock, as their owner must, 64 goroutines pick, hold and give back while one
// changes the set. What is taken is counted beside the Balancer's own account.
func TestCountsAddUpWith64Goroutines(t *testing.T) {
	for _, s := range Strategies {
		t.Run(string(s), func(t *testing.T) {
			const max = 3
			backends := alike(12)
			for i := range backends {
				backends[i].Max, backends[i].Backup = max, i >= 10
			}
			b := newBy(t, Config{Strategy: s}, backends...)
			var mu sync.Mutex
			var taken [12]atomic.Int32
			locked := func(f func()) {
				mu.Lock()
				defer mu.Unlock()
				f()
			}
			var all sync.WaitGroup
			for g := range 64 {
				all.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(g), 0))
					for range 500 {
						var c Choice
						var err error
						locked(func() { c, err = b.Pick(Client(rng.IntN(100)), nil) })
						if err != nil {
							if !errors.Is(err, ErrFull) && !errors.Is(err, ErrNone) {
								t.Error(err)
							}
							continue
						}
						if n := taken[c.Backend].Add(1); n > max {
							t.Errorf("%d slots of backend %d are taken, of %d", n, c.Backend, max)
						}
						from := Dialing
						if c.Ready {
							from = Leased
						}
						taken[c.Backend].Add(-1) // before it is free: another may have it at once
						locked(func() { b.Move(c.Backend, from, []State{Free, Idle}[rng.IntN(2)]) })
					}
				})
			}
			all.Go(func() {
				rng := rand.New(rand.NewPCG(64, 0))
				for range 500 {
					i := rng.IntN(12)
					locked(func() { b.SetOut(i, Down, rng.IntN(2) == 0) })
					locked(func() { b.SetWeight(i, 1+rng.IntN(5)) })
				}
			})
			all.Wait()
			for i, l := range b.Loads() {
				if l.Active() != 0 || l.Slots[Idle]+l.Slots[Free] != max {
					t.Errorf("backend %d ends with %v, want all idle or free", i, l.Slots)
				}
			}
			for i := range b.tiers {
				if a := b.tiers[i].active; a != 0 {
					t.Errorf("tier %d counts %d active, want none", i, a)
				}
			}
		})
	}
}

// The right spine of a leftist tree is as long as the logarithm of its size at most: that
// bounds the recursion of meld, whatever came before.
func TestHeapsStayShallow(t *testing.T) {
	b := newWeighted(t, alike(5000)...)
	x := &b.tiers[upTier].rule.(*leastConn).turns
	rng := rand.New(rand.NewPCG(8, 9))
	var leased []int
	for step := range 50_000 {
		if len(leased) > 0 && (len(leased) > 20_000 || rng.IntN(3) == 0) {
			k := rng.IntN(len(leased))
			b.Move(leased[k], Leased, Free)
			leased[k] = leased[len(leased)-1]
			leased = leased[:len(leased)-1]
		} else {
			i := pick(t, b)
			b.Move(i, Dialing, Leased)
			leased = append(leased, i)
		}
		if step%100 > 0 {
			continue
		}
		for _, k := range x.classes[0].buckets {
			wantHeap(t, x, k.top)
			if most := int32(bits.Len(uint(k.count))); x.rank(k.top) > most {
				t.Fatalf("step %d: the right spine of %d is %d long, want at most %d", step, k.count, x.rank(k.top), most)
			}
		}
	}
}

// wantHeap looks at each node below top.
func wantHeap(t *testing.T, x *turns, top int32) {
	if top == none {
		return
	}
	n := x.nodes[top]
	if x.rank(n.left) < x.rank(n.right) || n.rank != x.rank(n.right)+1 {
		t.Fatalf("rank %d above %d and %d", n.rank, x.rank(n.left), x.rank(n.right))
	}
	for _, below := range []int32{n.left, n.right} {
		if below != none && (x.before(below, top) || x.nodes[below].parent != top) {
			t.Fatalf("node %d is out of order below %d", below, top)
		}
		wantHeap(t, x, below)
	}
}
