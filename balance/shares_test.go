package balance

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

const manyPicks = 100_000

// counts returns how often each backend is picked for these clients, each of which ends
// before the next comes.
func counts(t *testing.T, b *Balancer, client func(n int) Client) []int {
	got := make([]int, len(b.members))
	for n := range manyPicks {
		i := pickFor(t, b, client(n))
		b.Move(i, Dialing, Free)
		got[i]++
	}
	return got
}

// wantShares compares with shares in proportion to weights: each within 1 % of all, and
// together no further off than chance is once in 10,000 times (chi-squared, by the
// approximation of Wilson and Hilferty, 1931).
func wantShares(t *testing.T, got []int, weights []float64) {
	t.Helper()
	sum, total, chi := 0.0, 0, 0.0
	for i, w := range weights {
		sum += w
		total += got[i]
	}
	for i, w := range weights {
		want := float64(total) * w / sum
		if d := math.Abs(float64(got[i]) - want); d > .01*float64(total) {
			t.Errorf("backend %d is picked %d times of %d, want %.0f", i, got[i], total, want)
		}
		chi += (float64(got[i]) - want) * (float64(got[i]) - want) / want
	}
	df := float64(len(weights) - 1)
	if z := (math.Cbrt(chi/df) - (1 - 2/(9*df))) / math.Sqrt(2/(9*df)); z > 3.72 {
		t.Errorf("picked %v: chi-squared is %.1f with %g degrees of freedom, %.1f sigmas too much", got, chi, df, z)
	}
}

func weighing(weights ...int) []Backend {
	backends := make([]Backend, len(weights))
	for i, w := range weights {
		backends[i] = Backend{Name: fmt.Sprintf("10.1.2.%d:9090", i), Max: 1000, Weight: w}
	}
	return backends
}

func TestSharesOfRandomStrategies(t *testing.T) {
	tests := []struct {
		name     string
		strategy Strategy
		weights  []int
		down     int // this one is; 0: none
		want     []float64
	}{
		{name: "evenly, weights ignored", strategy: Random, weights: []int{1, 2, 30, 4, 5}, want: []float64{1, 1, 1, 1, 1}},
		{name: "one down", strategy: Random, weights: []int{1, 1, 1, 1, 1}, down: 3, want: []float64{1, 1, 1, 0, 1}},
		{name: "by weight", strategy: WeightedRandom, weights: []int{5, 1, 3, 2}, want: []float64{5, 1, 3, 2}},
		{name: "by large weights", strategy: WeightedRandom, weights: []int{1000000, 1000000, 500000}, want: []float64{2, 2, 1}},
		{name: "one down", strategy: WeightedRandom, weights: []int{5, 1, 3, 2}, down: 2, want: []float64{5, 1, 0, 2}},
		{name: "by weight where loads are equal", strategy: RandomTwo, weights: []int{5, 1, 3, 2}, want: []float64{5, 1, 3, 2}},
		{name: "one down", strategy: RandomTwo, weights: []int{5, 1, 3, 2}, down: 2, want: []float64{5, 1, 0, 2}},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%s/%s", tt.strategy, tt.name), func(t *testing.T) {
			b := newBy(t, Config{Strategy: tt.strategy, Seed: 1}, weighing(tt.weights...)...)
			if tt.down > 0 {
				b.SetOut(tt.down, Down, true)
			}
			got := counts(t, b, func(int) Client { return 0 })
			var shown []int
			var want []float64
			for i, w := range tt.want {
				if w > 0 {
					shown, want = append(shown, got[i]), append(want, w)
				} else if got[i] > 0 {
					t.Errorf("the one that is down was picked")
				}
			}
			wantShares(t, shown, want)
		})
	}
}

// The lower load of two wins: that of the two heaviest of all never, unless it is drawn
// with one that is as heavy.
func TestRandomTwoTakesTheLowerLoad(t *testing.T) {
	b := newBy(t, Config{Strategy: RandomTwo, Seed: 1}, weighing(1, 1, 1, 1)...)
	for i := range 4 {
		put(b, i, Leased, 100*i)
	}
	wantShares(t, counts(t, b, func(int) Client { return 0 })[:3], []float64{3, 2, 1}) // of six pairs
	if n := counts(t, b, func(int) Client { return 0 })[3]; n != 0 {
		t.Errorf("the one with the highest load was picked %d times", n)
	}
}

func TestTheSameSeedDrawsTheSame(t *testing.T) {
	for _, s := range []Strategy{Random, WeightedRandom, RandomTwo} {
		draws := func(seed uint64) (got [64]int) {
			b := newBy(t, Config{Strategy: s, Seed: seed}, weighing(1, 2, 3)...)
			for n := range got {
				got[n] = pick(t, b)
			}
			return got
		}
		if one := draws(1); one != draws(1) || one == draws(2) {
			t.Errorf("%s: want the same draws of one seed, and others of another", s)
		}
	}
}

// addresses returns the nth of clients that differ as those of networks do: the hash has
// to spread them, not they themselves.
func addresses(kind string) func(n int) Client {
	rng := rand.New(rand.NewPCG(3, 4))
	return func(n int) Client {
		v4 := [4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}
		v6 := [16]byte{0x20, 0x01, 0x0d, 0xb8, 8: byte(n >> 16), 9: byte(n >> 8), 10: byte(n)} // a /88 each
		switch kind {
		case "neighbours":
			return ClientAt(netip.AddrFrom4(v4))
		case "networks of IPv6":
			return ClientAt(netip.AddrFrom16(v6))
		default:
			for i := range v4 {
				v4[i] = byte(rng.Uint32())
			}
			return ClientAt(netip.AddrFrom4(v4))
		}
	}
}

var kindsOfAddresses = []string{"anywhere", "neighbours", "networks of IPv6"}

func TestSharesOfSourceHash(t *testing.T) {
	for _, kind := range kindsOfAddresses {
		t.Run(kind, func(t *testing.T) {
			b := newBy(t, Config{Strategy: SourceHash}, weighing(5, 1, 3, 2, 1)...)
			wantShares(t, counts(t, b, addresses(kind)), []float64{5, 1, 3, 2, 1})
		})
	}
}

// A ring cannot be as even as a draw: shares differ by some per cent.
func TestSharesOfConsistentHash(t *testing.T) {
	for _, kind := range kindsOfAddresses {
		for _, weights := range [][]int{{1, 1}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {5, 1, 3, 2, 1}, {100, 200, 300}} {
			t.Run(fmt.Sprint(kind, weights), func(t *testing.T) {
				b := newBy(t, Config{Strategy: ConsistentHash}, weighing(weights...)...)
				sum := 0
				for _, w := range weights {
					sum += w
				}
				for i, n := range counts(t, b, addresses(kind)) {
					fair := float64(manyPicks) * float64(weights[i]) / float64(sum)
					if r := float64(n) / fair; r > 1.1 || r < .85 {
						t.Errorf("backend %d has %.3f of its fair share", i, r)
					}
				}
			})
		}
	}
}

// owners returns whose each client is.
func owners(t *testing.T, b *Balancer, clients int) []int {
	got := make([]int, clients)
	for n := range got {
		got[n] = pickFor(t, b, ClientAt(netip.AddrFrom4([4]byte{172, byte(n >> 16), byte(n >> 8), byte(n)})))
		b.Move(got[n], Dialing, Free)
	}
	return got
}

// Whichever backend leaves, at most 1.1 times its share of the clients move, and they are
// its own. When it comes back everything is as before.
func TestOnlyTheClientsOfOneThatLeavesMove(t *testing.T) {
	for _, n := range []int{2, 3, 10, 64} {
		b := newBy(t, Config{Strategy: ConsistentHash}, alike(n)...)
		before := owners(t, b, 3000*n) // few clients are uneven by themselves
		for gone := 0; gone < n; gone += max(1, n/10) {
			be := b.Load(gone).Backend
			if !b.Remove(gone) {
				t.Fatal("not empty")
			}
			moved := 0
			for c, after := range owners(t, b, len(before)) {
				if after == before[c] {
					continue
				}
				if moved++; before[c] != gone {
					t.Fatalf("of %d, %d gone: client %d moves from %d to %d", n, gone, c, before[c], after)
				}
			}
			if most := 1.1 * float64(len(before)) / float64(n); float64(moved) > most {
				t.Errorf("of %d, %d gone: %d of %d clients move, want at most %.0f", n, gone, moved, len(before), most)
			}
			if i, _ := b.Add(be); i != gone {
				t.Fatalf("it comes back as %d", i)
			}
		}
		if after := owners(t, b, len(before)); !slices.Equal(after, before) {
			t.Errorf("of %d: not all clients are where they were", n)
		}
	}
}

// A backend that is full or drained, and then removed, moves its clients once: where they
// went they stay, evenly.
func TestClientsOfADrainedBackendMoveOnce(t *testing.T) {
	for _, n := range []int{3, 10} {
		b := newBy(t, Config{Strategy: ConsistentHash}, alike(n)...)
		clients := 5000 * n
		before := owners(t, b, clients)
		put(b, 0, Leased, 64)
		full := owners(t, b, clients)
		b.SetOut(0, Drained, true)
		for b.TryMove(0, Leased, Free) {
		}
		drained := owners(t, b, clients)
		b.Remove(0)
		removed := owners(t, b, clients)
		took := make([]int, n)
		for c, was := range before {
			if was == 0 {
				took[drained[c]]++
			}
			if was != 0 && drained[c] != was || full[c] != drained[c] || removed[c] != drained[c] {
				t.Fatalf("of %d: client %d is of %d, then %d, %d and %d", n, c, was, full[c], drained[c], removed[c])
			}
		}
		for i, got := range took[1:] {
			if r := float64(got) * float64(n) * float64(n-1) / float64(clients); r < .75 || r > 1.3 {
				t.Errorf("of %d: backend %d took %.2f of its part of the clients", n, i+1, r)
			}
		}
	}
}

// A backend's places go by its name: whatever order they are given in, and after others
// have come and gone, the same clients are its.
func TestTheRingGoesByNames(t *testing.T) {
	fleet := alike(9)
	b := newBy(t, Config{Strategy: ConsistentHash}, fleet...)
	want := owners(t, b, 1000)
	turned := newBy(t, Config{Strategy: ConsistentHash}, alike(12)[9:]...)
	for i := range fleet {
		if _, err := turned.Add(fleet[len(fleet)-1-i]); err != nil {
			t.Fatal(err)
		}
	}
	owners(t, turned, 1)
	for i := range 3 {
		turned.Remove(i)
	}
	for c, i := range owners(t, turned, 1000) {
		if name := turned.Load(i).Name; name != fleet[want[c]].Name {
			t.Fatalf("client %d is of %s, and with another order of %s", c, fleet[want[c]].Name, name)
		}
	}
}

// Where the weights add up to more than the ring has places for, each backend has fewer:
// in proportion still, and by far most clients stay.
func TestLargeWeightsShareTheRing(t *testing.T) {
	few := newBy(t, Config{Strategy: ConsistentHash}, weighing(1000, 2000, 3000)...)
	many := newBy(t, Config{Strategy: ConsistentHash}, weighing(1000, 2000, 3000, 994_000)...)
	counts(t, many, addresses("anywhere"))
	for _, l := range many.tiers[upTier].rule.(*consistentHash).ring.points {
		if l.owner < 0 || l.owner > 3 {
			t.Fatalf("a point of backend %d", l.owner)
		}
	}
	if n := len(many.tiers[upTier].rule.(*consistentHash).ring.points); n > mostPoints || n < mostPoints/2 {
		t.Errorf("%d points on the ring, want up to %d", n, mostPoints)
	}
	got := counts(t, many, addresses("anywhere"))
	for i, w := range []float64{1000, 2000, 3000, 994_000} {
		if r := float64(got[i]) / (manyPicks * w / 1e6); r > 1.35 || r < .65 { // few picks: the noise of the draw is large
			t.Errorf("backend %d of weight %g has %.3f of its fair share", i, w, r)
		}
	}
	if !many.Remove(3) {
		t.Fatal("not empty")
	}
	before := owners(t, few, 1000)
	for c, i := range owners(t, many, 1000) {
		if i != before[c] {
			t.Fatalf("client %d is of %d, not %d: the points did not all come back", c, i, before[c])
		}
	}
}

// However uneven the clients are, no backend has more than 1.25 of its fair share of
// those that are there, rounded up, while another has room.
func TestNoBackendIsAboveItsBound(t *testing.T) {
	tests := []struct {
		name    string
		clients int // different ones
		weights []int
	}{
		{name: "one client", clients: 1, weights: []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
		{name: "two clients, unequal weights", clients: 2, weights: []int{5, 1, 3, 2}},
		{name: "few clients", clients: 20, weights: []int{1, 2, 1, 2, 1, 2, 7}},
		{name: "many clients", clients: 1 << 20, weights: []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBy(t, Config{Strategy: ConsistentHash}, weighing(tt.weights...)...)
			sum := 0
			for _, w := range tt.weights {
				sum += w
			}
			rng := rand.New(rand.NewPCG(5, 6))
			var leased []int
			for range 20_000 {
				if len(leased) > 0 && (len(leased) == 500 || rng.IntN(3) == 0) {
					k := rng.IntN(len(leased))
					b.Move(leased[k], Leased, Free)
					leased[k] = leased[len(leased)-1]
					leased = leased[:len(leased)-1]
					continue
				}
				i := pickFor(t, b, Client(rng.IntN(tt.clients)))
				b.Move(i, Dialing, Leased)
				leased = append(leased, i)
				bound := math.Ceil(1.25 * float64(len(leased)*tt.weights[i]) / float64(sum))
				if n := b.Count(i, Leased); float64(n) > bound {
					t.Fatalf("backend %d has %d of %d, want at most %.0f", i, n, len(leased), bound)
				}
			}
		})
	}
}

// Where those with room have all reached their bound, it does not bind: nobody waits
// while there is room.
func TestTheBoundDoesNotBindWhereOthersAreFull(t *testing.T) {
	small, large := Backend{Name: "small", Max: 2, Weight: 1}, Backend{Name: "large", Max: 98, Weight: 1}
	b := newBy(t, Config{Strategy: ConsistentHash}, small, large)
	for c := range Client(100) {
		pickFor(t, b, c)
	}
	if b.Count(0, Dialing) != 2 || b.Count(1, Dialing) != 98 {
		t.Errorf("%d and %d slots are taken, want all", b.Count(0, Dialing), b.Count(1, Dialing))
	}
}

func TestClientAt(t *testing.T) {
	tests := []struct {
		name, one, other string
		same             bool
	}{
		{"IPv4 and its IPv6-mapped form", "192.0.2.7", "::ffff:192.0.2.7", true},
		{"the zone does not matter", "fe80::1%eth0", "fe80::1%eth1", true},
		{"with and without a zone", "fe80::1%eth0", "fe80::1", true},
		{"neighbours", "192.0.2.7", "192.0.2.8", false},
		{"IPv4 and the IPv6 address with its bits", "0.0.0.1", "::1", false},
		{"the halves of an IPv6 address are not alike", "2001:db8::1:0:0:0", "1::2001:db8:0:0", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			one, other := ClientAt(netip.MustParseAddr(tt.one)), ClientAt(netip.MustParseAddr(tt.other))
			if (one == other) != tt.same {
				t.Errorf("%s is %x and %s is %x", tt.one, one, tt.other, other)
			}
		})
	}
	if ClientAt(netip.Addr{}) == ClientAt(netip.IPv6Unspecified()) {
		t.Error("who has no address is taken for ::")
	}
	// The numbers themselves must stay: two forebays in front of the same backends agree,
	// also while one of them is new.
	for addr, want := range map[string]Client{"192.0.2.7": 0x1d7d8c56a382ab74, "2001:db8::1": 0x4de897d954fd23d5} {
		if got := ClientAt(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s is %#x, want %#x", addr, uint64(got), uint64(want))
		}
	}
}

// So must the places on the ring and the shares.
func TestWhoseAClientIsDoesNotChangeWithTheVersion(t *testing.T) {
	for s, want := range map[Strategy][]int{
		ConsistentHash: {4, 6, 7, 6, 0, 3, 5, 5, 4, 9, 1, 4, 7, 8, 7, 7},
		SourceHash:     {5, 8, 5, 5, 5, 8, 6, 6, 9, 1, 8, 8, 4, 7, 3, 2},
	} {
		b := newBy(t, Config{Strategy: s}, alike(10)...)
		if got := owners(t, b, 16); !slices.Equal(got, want) {
			t.Errorf("%s: the first clients are of %v, want %v", s, got, want)
		}
	}
}
