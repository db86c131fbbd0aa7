package balance

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// A Strategy is how a backend is chosen among those that may serve a client. None of
// them picks a backend that is full, down or tried.
type Strategy string

// The strategies, each with when to choose it and what is known against it.
const (
	// LeastConn takes the lowest active/max, and turns in proportion to weight on ties.
	// For nearly everything: a slow backend keeps its connections for longer, and so
	// gets fewer clients. Known weakness: a backend that fails fast looks idle, and
	// draws clients until it is found to be down.
	LeastConn Strategy = "least-conn"

	// RoundRobin takes the backends in order. For backends that are alike and requests
	// that cost the same. Known weakness: weight is ignored, and so is load.
	RoundRobin Strategy = "round-robin"

	// WeightedRoundRobin takes turns in proportion to weight, smoothly: of weights 5, 1
	// and 1 the turns are a a b a c a a. For backends of known, unequal strength.
	// Known weakness: load is ignored, and a slow backend fills up.
	WeightedRoundRobin Strategy = "weighted-round-robin"

	// Random draws evenly. For many proxies that begin at once and know nothing of each
	// other: orderly ones would all begin with the first. Known weakness: it is uneven
	// in the short run, and bursts hit some backends.
	Random Strategy = "random"

	// WeightedRandom draws by weight. For many proxies, and unequal backends. Known
	// weakness: that of Random.
	WeightedRandom Strategy = "weighted-random"

	// RandomTwo draws two different ones by weight and takes the lower active/max: the
	// power of two choices (Mitzenmacher, 2001). For many proxies before the same
	// backends, where the least loaded one that each sees would be the same for all, a
	// herd. Known weakness: with few backends it is less even than LeastConn.
	RandomTwo Strategy = "random-two"

	// SourceHash has the client's address decide, by weight; the port does not matter.
	// For backends that keep something of their clients. Known weakness: where the set
	// of backends changes many clients are mapped anew, clients behind one address are
	// one client, and those of a backend that is down all go to the next in order.
	SourceHash Strategy = "source-hash"

	// ConsistentHash has the client's address decide by a ring on which each backend
	// has places in proportion to its weight (Karger et al., 1997), and gives none more
	// than 1.25 of its fair share while others have room (bounded loads: Mirrokni,
	// Thorup and Zadimoghaddam, 2018). For backends that cache what their clients ask:
	// one that comes or goes moves only its own share of clients. Known weakness:
	// clients behind one address are one client, until the bound moves some of them.
	ConsistentHash Strategy = "consistent-hash"

	// First takes the first in order that has room. For filling up a backend before the
	// next is opened, so that those at the end can be switched off. Known weakness: the
	// first is always full.
	First Strategy = "first"
)

// Strategies are all there are.
var Strategies = []Strategy{LeastConn, RoundRobin, WeightedRoundRobin, Random, WeightedRandom, RandomTwo,
	SourceHash, ConsistentHash, First}

// Hashes reports whether the client decides.
func (s Strategy) Hashes() bool { return s == SourceHash || s == ConsistentHash }

// A rule is what a strategy knows of one tier: its backends that have room.
type rule interface {
	// hold tells that backend i has room and is as m says, whether it is held already
	// or not. The winner of next is told when its slot has been taken.
	hold(i int, m *member)

	// drop tells that a backend which is held is so no longer.
	drop(i int, m *member)

	// next returns the one of those held that is client c's. At least one is held.
	next(c Client) int
}

// A forgetter is a rule that keeps something of the backends that it does not hold.
type forgetter interface {
	// forget tells that backend i, which is not held, has left the tier.
	forget(i int)
}

// newRules returns a rule for each tier. Those of backends that are up and of those that
// are down share what goes by the whole set.
func newRules(cfg Config, b *Balancer) (rules [numTiers]rule, err error) {
	strategy := cfg.Strategy
	if strategy == "" {
		strategy = LeastConn
	}
	if !slices.Contains(Strategies, strategy) {
		names := make([]string, len(Strategies))
		for i, s := range Strategies {
			names[i] = string(s)
		}
		return rules, fmt.Errorf("balance: there is no strategy %q; there is %s", strategy, strings.Join(names, ", "))
	}
	rng := rand.New(rand.NewPCG(cfg.Seed, 0))
	layouts := [2]layout{}
	for backup := range layouts {
		switch strategy {
		case SourceHash:
			layouts[backup] = &shares{b: b, backup: backup == 1}
		case ConsistentHash:
			layouts[backup] = &ring{b: b, backup: backup == 1}
		}
	}
	for t := range rules {
		rules[t] = newRule(strategy, b, &b.tiers[t], rng, layouts[t%2])
	}
	if layouts[0] != nil {
		b.layouts = layouts[:]
	}
	return rules, nil
}

func newRule(s Strategy, b *Balancer, t *tier, rng *rand.Rand, l layout) rule {
	switch s {
	case RoundRobin:
		return &roundRobin{last: -1}
	case WeightedRoundRobin:
		return &weightedRoundRobin{}
	case Random:
		return &random{rng: rng, even: true}
	case WeightedRandom:
		return &random{rng: rng}
	case RandomTwo:
		return &randomTwo{random{rng: rng}, b}
	case SourceHash:
		return &sourceHash{shares: l.(*shares)}
	case ConsistentHash:
		return &consistentHash{ring: l.(*ring), tier: t, load: turns{flat: true}}
	case First:
		return &first{}
	default:
		return &leastConn{}
	}
}

// A layout is what a strategy makes of the whole set of backends, whether they are up
// and have room or not.
type layout interface {
	// reformed tells that backend i was added or removed, or has another weight.
	reformed(i int)

	// build does at once what the next pick would have to.
	build()
}

// reformed tells the layouts, if there are any.
func (b *Balancer) reformed(i int) {
	for _, l := range b.layouts {
		l.reformed(i)
	}
}
