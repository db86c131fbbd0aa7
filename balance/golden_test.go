package balance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The sequences are worked out by hand from the published algorithms. In a script a word
// of letters is the backends picked, and one with a colon something that happens between
// picks, to the backend of its letter.
//
// For smooth weighted round robin (nginx, ngx_http_upstream_round_robin.c, commit
// 52327e0627f4) a comment has the credits where it is not plain what comes next: those
// that a pick leaves, or that it compares.
func TestGoldenSequences(t *testing.T) {
	tests := []struct {
		name     string
		strategy Strategy
		weights  []int
		max      []int // nil: 9 each
		script   string
	}{
		{name: "weights 5 1 1", strategy: WeightedRoundRobin, weights: []int{5, 1, 1},
			script: "aabacaa aabacaa"},
		{name: "weights 5 1 3 2", strategy: WeightedRoundRobin, weights: []int{5, 1, 3, 2},
			script: "acdabacadca acdabacadca"},
		{name: "weights 20 30 50", strategy: WeightedRoundRobin, weights: []int{20, 30, 50},
			script: "cbacbccabc cbacbccabc"},
		{name: "equal weights take turns in order", strategy: WeightedRoundRobin, weights: []int{7, 7, 7},
			script: "abcabc"},
		{name: "a single one", strategy: WeightedRoundRobin, weights: []int{3},
			script: "aaa"},
		{name: "one goes down and comes back with its credit", strategy: WeightedRoundRobin, weights: []int{5, 1, 1},
			// after aa: -4 2 2; without b: 1 3, 6 -2, 5 -1; with it again: 4 3 0, 2 4 1
			script: "aa down:b caa up:b ab"},
		{name: "one is full for a while", strategy: WeightedRoundRobin, weights: []int{5, 1, 1},
			script: "aa full:b caa free:b ab"},
		{name: "the heavy one is drained for a while", strategy: WeightedRoundRobin, weights: []int{5, 1, 1},
			// after a: -2 1 1, and after bcbc of b and c alone too; then 3 2 2, 1 3 3, 6 -3 4
			script: "a drain:a bcbc ready:a aba"},
		{name: "one is added in mid-cycle, with the mean credit", strategy: WeightedRoundRobin, weights: []int{5, 1, 1},
			// -4 2 2 and 0 of weight 5: 1 3 3 5, 6 4 4 -2, -1 5 5 3
			script: "aa add:d5 dab"},
		{name: "one is removed in mid-cycle", strategy: WeightedRoundRobin, weights: []int{5, 1, 1, 5},
			// -7 1 1 5, then d: -2 2 2 -2; without c: 3 3 3, -3 4 8, 2 5 2, 7 -5 7
			script: "ad remove:c adba"},
		{name: "one weighs more in mid-cycle", strategy: WeightedRoundRobin, weights: []int{5, 1, 1},
			// -4 2 2, then of 5 8 1: 1 10 3, 6 4 4, -3 12 5
			script: "aa weight:b=8 bab"},

		{name: "in order, weights ignored", strategy: RoundRobin, weights: []int{5, 1, 1},
			script: "abcabc"},
		{name: "one goes down and comes back", strategy: RoundRobin, weights: []int{1, 1, 1},
			script: "abca down:b cac up:b ab"},
		{name: "one is full for a while", strategy: RoundRobin, weights: []int{1, 1, 1},
			script: "ab full:c ab free:c c"},
		{name: "one is added in mid-cycle", strategy: RoundRobin, weights: []int{1, 1, 1},
			script: "ab add:d1 cdab"},
		{name: "one is removed in mid-cycle", strategy: RoundRobin, weights: []int{1, 1, 1},
			script: "ab remove:b cac"},
		{name: "all but one are down", strategy: RoundRobin, weights: []int{1, 1, 1},
			script: "a down:a down:c bb up:a up:c cab"},

		{name: "the first with room", strategy: First, weights: []int{1, 9, 1},
			script: "aaa full:a bbb down:b ccc free:a aa full:a up:b b"},
		{name: "fills up in order", strategy: First, weights: []int{1, 1, 1}, max: []int{2, 1, 3},
			script: "hold: aabccc"},
		{name: "the first that is added", strategy: First, weights: []int{1, 1},
			script: "a full:a b full:b add:c1 c remove:a add:a1 a"},

		{name: "all tied at no load: as weighted round robin", strategy: LeastConn, weights: []int{5, 1, 3, 2},
			script: "acdabacadca"},
		{name: "ties of 2/2 and 2/4", strategy: LeastConn, weights: []int{1, 3}, max: []int{2, 4},
			// 0/2 0/4 tie: 1 3, b; 0/2 wins; 1/4 wins; 1/2 2/4 tie: 2 2, a; b is left
			script: "hold: babab b"},
		{name: "only the tied pay", strategy: LeastConn, weights: []int{5, 1, 1}, max: []int{4, 4, 4},
			// at 0: 5 1 1, a; b and c tied: 2 2, b; c alone; all at 1/4: 3 1 2, a;
			// b and c: 2 3, c; b alone
			script: "hold: abcacb"},
		{name: "one that comes back is empty, and has all until it has caught up", strategy: LeastConn, weights: []int{1, 1},
			script: "hold: ab down:b aa up:b bb"},
		{name: "one that is full is no part of a tie", strategy: LeastConn, weights: []int{1, 1, 1}, max: []int{1, 2, 2},
			// after abc: -2 0 2 of 1 1 1; of b and c: 1 3
			script: "hold: abc cb"},
		{name: "one is added, and has all until it has caught up", strategy: LeastConn, weights: []int{1, 1},
			// a and b tie at 0/9, b alone; they tie at 1/9 with -1 1: 0 2, a alone
			script: "hold: abba add:c1 cc"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%s/%s", tt.strategy, tt.name), func(t *testing.T) {
			p := &player{t: t, b: newBy(t, Config{Strategy: tt.strategy})}
			for i, w := range tt.weights {
				be := Backend{Max: 9, Weight: w}
				if tt.max != nil {
					be.Max = tt.max[i]
				}
				p.add(be)
			}
			if got := p.play(tt.script); got != tt.script {
				t.Errorf("picked %s, want %s", got, tt.script)
			}
		})
	}
}

// player acts a script out.
type player struct {
	t    *testing.T
	b    *Balancer
	hold bool // picks are not given back
}

// play returns the script with the letters that were picked.
func (p *player) play(script string) string {
	words := strings.Fields(script)
	for i, word := range words {
		if strings.Contains(word, ":") {
			p.do(word)
			continue
		}
		var picked strings.Builder
		for range word {
			at := pick(p.t, p.b)
			picked.WriteString(letter(at))
			if !p.hold {
				p.b.Move(at, Dialing, Free)
			}
		}
		words[i] = picked.String()
	}
	return strings.Join(words, " ")
}

func (p *player) do(word string) {
	what, who, _ := strings.Cut(word, ":")
	i, n := 0, 0
	if who != "" {
		i = int(who[0] - 'a')
		n, _ = strconv.Atoi(strings.TrimLeft(who[1:], "="))
	}
	switch what {
	case "hold":
		p.hold = true
	case "down", "up":
		p.b.SetOut(i, Down, what == "down")
	case "drain", "ready":
		p.b.SetOut(i, Drained, what == "drain")
	case "full":
		put(p.b, i, Leased, p.b.Count(i, Free))
	case "free":
		for p.b.TryMove(i, Leased, Free) {
		}
	case "weight":
		p.b.SetWeight(i, n)
	case "remove":
		for p.b.TryMove(i, Leased, Free) {
		}
		if !p.b.Remove(i) {
			p.t.Fatalf("%s: not empty", word)
		}
	case "add":
		if got := p.add(Backend{Max: 9, Weight: n}); got != i {
			p.t.Fatalf("%s: it is backend %s", word, letter(got))
		}
	default:
		p.t.Fatalf("what is %s?", word)
	}
}

func (p *player) add(be Backend) int {
	i, err := p.b.Add(be)
	if err != nil {
		p.t.Fatal(err)
	}
	return i
}

// clientIn returns a client whose place in the shares lies in this part of all, from 0
// to 1.
func clientIn(lo, hi float64) Client {
	for c := Client(0); ; c++ {
		if place := float64(mix(uint64(c))) / (1 << 64); place > lo && place < hi {
			return c
		}
	}
}

func TestSourceHashGoesByShares(t *testing.T) {
	b := newBy(t, Config{Strategy: SourceHash}, Backend{Max: 9, Weight: 2}, Backend{Max: 9, Weight: 1}, Backend{Max: 9, Weight: 1})
	in := []Client{clientIn(0, .5), clientIn(.5, .75), clientIn(.75, 1)} // of a, b and c
	want := func(when, want string) {
		t.Helper()
		var got strings.Builder
		for _, c := range slices.Repeat(in, 2) { // a second time: nothing may have changed
			i := pickFor(t, b, c)
			b.Move(i, Dialing, Free)
			got.WriteString(letter(i))
		}
		if got.String() != want+want {
			t.Errorf("%s: a client of each share goes to %s, want %s twice", when, &got, want)
		}
	}
	want("all up", "abc")
	b.SetOut(1, Down, true)
	want("b down: the next in order", "acc")
	b.SetOut(2, Drained, true)
	want("b down and c drained: around the end", "aaa")
	b.SetOut(1, Down, false)
	want("b up again", "aba")
	b.SetOut(2, Drained, false)
	put(b, 0, Leased, 9)
	want("a full", "bbc")
	for b.TryMove(0, Leased, Free) {
	}
	want("as before", "abc")
	b.SetWeight(0, 6) // of 8: the second client is a's now
	want("a weighs more", "aac")
	i, _ := b.Add(Backend{Max: 9, Weight: 24}) // of 32: the third is d's, the second too
	if want("d is added", "add"); !b.Remove(i) {
		t.Error("d is not empty")
	}
	want("d is removed", "aac")
}

// A client's way along the ring: its own backend, then the next, each once.
func TestConsistentHashGoesAlongTheRing(t *testing.T) {
	b := newBy(t, Config{Strategy: ConsistentHash}, alike(5)...)
	for c := range Client(200) {
		var way []int
		for len(way) < 5 {
			i := pickUntried(t, b, c, way)
			b.Move(i, Dialing, Free)
			way = append(way, i)
		}
		at := func(when string, want int) {
			t.Helper()
			i := pickFor(t, b, c)
			b.Move(i, Dialing, Free)
			if i != want {
				t.Fatalf("client %d, whose way is %v: picked %d with %s", c, way, i, when)
			}
		}
		at("all up", way[0])
		b.SetOut(way[0], Down, true)
		at("the first down", way[1])
		b.SetOut(way[1], Drained, true)
		at("the second drained too", way[2])
		put(b, way[2], Leased, 64)
		at("the third full", way[3])
		b.SetOut(way[0], Down, false)
		b.SetOut(way[1], Drained, false)
		for b.TryMove(way[2], Leased, Free) {
		}
		at("all up again", way[0])
	}
}

// pickUntried is Pick where it must succeed.
func pickUntried(t testing.TB, b *Balancer, c Client, tried []int) int {
	t.Helper()
	choice, err := b.Pick(c, tried)
	if err != nil {
		t.Fatal(err)
	}
	return choice.Backend
}
