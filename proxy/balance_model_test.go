package proxy

import (
	"math/bits"
	"math/rand/v2"

	"forebay/balance"
)

// modelled are the strategies of the model: all but that of the ring.
var modelled = []balance.Strategy{balance.LeastConn, balance.RoundRobin, balance.WeightedRoundRobin, balance.Random,
	balance.WeightedRandom, balance.RandomTwo, balance.SourceHash, balance.First}

// modelChoice is a strategy, written again: a look at each backend for every choice.
type modelChoice struct {
	balance.Config
	rng  *rand.Rand
	last [4]int // of round-robin, for each tier
}

func newModelChoice(cfg balance.Config) modelChoice {
	return modelChoice{cfg, rand.New(rand.NewPCG(cfg.Seed, 0)), [4]int{-1, -1, -1, -1}}
}

// tier is the place of a backend in the order in which they are asked, -1 for one that
// is not.
func (m *model) tier(b *modelBackend) int {
	tier := 0
	switch {
	case b.gone || b.removed || b.state != Ready, b.down && !m.choice.TryDown:
		return -1
	case b.down:
		tier = 2
	}
	if b.backup {
		tier++
	}
	return tier
}

// choose returns the one of those with room that the strategy takes.
func (m *model) choose(tier int, client balance.Client, room []int) int {
	c := &m.choice
	switch c.Strategy {
	case balance.RoundRobin:
		c.last[tier] = from(c.last[tier]+1, room)
		return c.last[tier]
	case balance.WeightedRoundRobin:
		return m.turn(room)
	case balance.Random:
		return room[c.rng.Int64N(int64(len(room)))]
	case balance.WeightedRandom:
		return m.draw(room)
	case balance.RandomTwo:
		return m.lessOfTwo(room)
	case balance.SourceHash:
		return from(m.owner(client, tier%2 == 1), room)
	case balance.First:
		return room[0]
	}
	return m.turn(m.leastLoaded(room))
}

// from returns the first that is not below i, or else the first.
func from(i int, room []int) int {
	for _, r := range room {
		if r >= i {
			return r
		}
	}
	return room[0]
}

// draw returns one by weight.
func (m *model) draw(room []int) int {
	var tickets []int
	for _, i := range room {
		for range m.backends[i].weight {
			tickets = append(tickets, i)
		}
	}
	return tickets[m.choice.rng.Int64N(int64(len(tickets)))]
}

func (m *model) lessOfTwo(room []int) int {
	one := m.draw(room)
	if len(room) == 1 {
		return one
	}
	var others []int
	for _, i := range room {
		if i != one {
			others = append(others, i)
		}
	}
	if two := m.draw(others); m.load(two) < m.load(one) {
		return two
	}
	return one
}

// load is active/max. Equal fractions have equal quotients: division is exact enough.
func (m *model) load(i int) float64 {
	b := &m.backends[i]
	return float64(b.active()) / float64(b.bound())
}

func (m *model) leastLoaded(room []int) (best []int) {
	least := 1e9
	for _, i := range room {
		load := m.load(i)
		if load < least {
			least, best = load, nil
		}
		if load == least {
			best = append(best, i)
		}
	}
	return best
}

// turn is smooth weighted round robin among those in best.
func (m *model) turn(best []int) int {
	if len(best) == 1 {
		return best[0]
	}
	sum, winner := 0, best[0]
	for _, i := range best {
		b := &m.backends[i]
		b.credit += b.weight
		sum += b.weight
		if b.credit > m.backends[winner].credit {
			winner = i
		}
	}
	m.backends[winner].credit -= sum
	return winner
}

// owner returns in whose share a client is: of all, whether they are up or not.
func (m *model) owner(client balance.Client, backup bool) int {
	var tickets []int
	for i, b := range m.backends {
		for range b.weight {
			if !b.gone && b.backup == backup {
				tickets = append(tickets, i)
			}
		}
	}
	place, _ := bits.Mul64(splitMix(uint64(client)), uint64(len(tickets)))
	return tickets[place]
}

// splitMix is the finalizer of SplitMix64.
func splitMix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
