package balance

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// fleet returns n backends of eight kinds, as large fleets have few: two weights, and
// four maxes.
func fleet(n int) []Backend {
	backends := make([]Backend, n)
	for i := range backends {
		backends[i] = Backend{Name: fmt.Sprintf("10.0.%d.%d:9090", i/250, i%250), Max: 8 << (i % 4), Weight: 1 + i/4%2}
	}
	return backends
}

// alike returns n backends of one kind: at the same load all of them are tied.
func alike(n int) []Backend {
	backends := fleet(n)
	for i := range backends {
		backends[i].Max, backends[i].Weight = 64, 1
	}
	return backends
}

// distinct returns n backends no two of which are alike.
func distinct(n int) []Backend {
	backends := fleet(n)
	for i := range backends {
		backends[i].Max, backends[i].Weight = 8+i, 1+i
	}
	return backends
}

var fleets = []struct {
	name string
	of   func(n int) []Backend
}{{"alike", alike}, {"8kinds", fleet}, {"distinct", distinct}}

var sizes = []int{2, 16, 256, 4096, 10_000}

// load has half of all slots leased, and returns whose they are in an order that is no
// backend's.
func load(b *Balancer) []int {
	var leased []int
	for i, l := range b.Loads() {
		for range l.Max / 2 {
			b.Move(i, Free, Leased)
			leased = append(leased, i)
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	rng.Shuffle(len(leased), func(i, j int) { leased[i], leased[j] = leased[j], leased[i] })
	return leased
}

func pickAndGiveBack(b *testing.B, bal *Balancer, c Client) {
	bal.Move(pickFor(b, bal, c), Dialing, Free)
}

// BenchmarkPick is one Pick and its end: of an idle fleet, where every pick is a tie of
// all, and with half of the slots leased, one of which ends for each that begins.
func BenchmarkPick(b *testing.B) {
	for _, s := range Strategies {
		for _, fl := range fleets {
			if s != LeastConn && s != WeightedRoundRobin && fl.name != "8kinds" {
				continue // it is the same to the others
			}
			for _, n := range sizes {
				name := fmt.Sprintf("%s/%s/%d", s, fl.name, n)
				b.Run(name+"/idle", func(b *testing.B) { benchmarkIdle(b, newBy(b, Config{Strategy: s}, fl.of(n)...)) })
				b.Run(name+"/busy", func(b *testing.B) { benchmarkBusy(b, newBy(b, Config{Strategy: s}, fl.of(n)...)) })
			}
		}
	}
}

func benchmarkIdle(b *testing.B, bal *Balancer) {
	pickAndGiveBack(b, bal, 0) // the first builds what is built but once
	b.ReportAllocs()
	client := Client(0)
	for b.Loop() {
		pickAndGiveBack(b, bal, client)
		client++
	}
}

func benchmarkBusy(b *testing.B, bal *Balancer) {
	leased := load(bal)
	pickAndGiveBack(b, bal, 0)
	b.ReportAllocs()
	client := Client(0)
	for b.Loop() {
		at := int(client) % len(leased)
		bal.Move(leased[at], Leased, Free)
		leased[at] = pickFor(b, bal, client)
		bal.Move(leased[at], Dialing, Leased)
		client++
	}
}

// BenchmarkPickOf32 is the same from 32 goroutines, under one lock as in the proxy.
func BenchmarkPickOf32(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("least-conn/8kinds/%d", n), func(b *testing.B) {
			bal := newBy(b, Config{}, fleet(n)...)
			var mu sync.Mutex
			var full atomic.Int64
			b.ReportAllocs()
			b.SetParallelism(16)
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					mu.Lock()
					c, err := bal.Pick(0, nil)
					mu.Unlock()
					if err != nil {
						full.Add(1)
						continue
					}
					mu.Lock()
					bal.Move(c.Backend, Dialing, Free)
					mu.Unlock()
				}
			})
		})
	}
}
