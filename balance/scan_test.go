package balance

import (
	"cmp"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
)

// scan is each strategy in its plainest form: it looks at every backend for every pick.
// What the slots are it takes from the Balancer, whose account TestBalancerDoesAsTheModel
// is about; what a strategy remembers it keeps itself.
type scan struct {
	Config
	rng     *rand.Rand
	credits map[int]int64 // of each backend that is there
	last    map[int]int   // of each tier
	dials   map[int]int   // limits
}

func newScan(cfg Config) *scan {
	return &scan{Config: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0)), credits: map[int]int64{},
		last: map[int]int{upTier: -1, backupTier: -1, downTier: -1, downBackupTier: -1}, dials: map[int]int{}}
}

func (s *scan) added(i int) {
	var sum int64
	for _, c := range s.credits {
		sum += c
	}
	s.credits[i] = sum / int64(max(1, len(s.credits)))
	s.dials[i] = 0
}

// tiers returns the indices of each tier in order, with and without room.
func (s *scan) tiers(loads []Load, tried []int) [numTiers][]int {
	var tiers [numTiers][]int
	for i, l := range loads {
		if l.Max == 0 || slices.Contains(tried, i) {
			continue
		}
		at := upTier
		switch {
		case l.Out == 0:
		case l.Out == Down && s.TryDown:
			at = downTier
		default:
			continue
		}
		if l.Backup {
			at++
		}
		tiers[at] = append(tiers[at], i)
	}
	return tiers
}

func (s *scan) pick(loads []Load, c Client, tried []int) (int, error) {
	for at, may := range s.tiers(loads, tried) {
		if len(may) == 0 {
			continue
		}
		room := slices.DeleteFunc(slices.Clone(may), func(i int) bool { return !s.hasRoom(i, &loads[i]) })
		if len(room) == 0 {
			return 0, ErrFull
		}
		return s.choose(at, loads, may, room, c), nil
	}
	return 0, ErrNone
}

func (s *scan) hasRoom(i int, l *Load) bool {
	if l.Slots[Idle] > 0 && l.Active() < l.Bound() {
		return true
	}
	dialing := l.Slots[Dialing] + l.Slots[DialingAhead]
	return l.Open() < l.Bound() && (s.dials[i] == 0 || dialing < s.dials[i])
}

// choose returns the one of those with room; may are those with and without.
func (s *scan) choose(at int, loads []Load, may, room []int, c Client) int {
	weight := func(i int) int64 { return int64(loads[i].Weight) }
	switch s.Strategy {
	case LeastConn:
		return s.turn(leastOf(loads, room), weight)
	case WeightedRoundRobin:
		return s.turn(room, weight)
	case RoundRobin:
		i := room[0]
		if at := slices.IndexFunc(room, func(i int) bool { return i > s.last[at] }); at >= 0 {
			i = room[at]
		}
		s.last[at] = i
		return i
	case Random:
		return room[s.rng.Int64N(int64(len(room)))]
	case WeightedRandom:
		return s.draw(room, weight)
	case RandomTwo:
		one := s.draw(room, weight)
		others := slices.DeleteFunc(slices.Clone(room), func(i int) bool { return i == one })
		if len(others) == 0 {
			return one
		}
		two := s.draw(others, weight)
		if loadOf(&loads[two]).Cmp(loadOf(&loads[one])) < 0 {
			return two
		}
		return one
	case SourceHash:
		return s.sourceHash(at, loads, room, c)
	case ConsistentHash:
		return s.consistentHash(at, loads, may, room, c)
	default: // First
		return room[0]
	}
}

func loadOf(l *Load) *big.Rat { return big.NewRat(int64(l.Active()), int64(l.Bound())) }

func leastOf(loads []Load, room []int) []int {
	var tied []int
	for _, i := range room {
		c := -1
		if len(tied) > 0 {
			c = loadOf(&loads[i]).Cmp(loadOf(&loads[tied[0]]))
		}
		if c < 0 {
			tied = tied[:0]
		}
		if c <= 0 {
			tied = append(tied, i)
		}
	}
	return tied
}

func (s *scan) turn(tied []int, weight func(int) int64) int {
	if len(tied) == 1 {
		return tied[0]
	}
	var sum int64
	for _, i := range tied {
		s.credits[i] += weight(i)
		sum += weight(i)
	}
	winner := tied[0]
	for _, i := range tied {
		if s.credits[i] > s.credits[winner] {
			winner = i
		}
	}
	s.credits[winner] -= sum
	return winner
}

func (s *scan) draw(from []int, weight func(int) int64) int {
	var sum int64
	for _, i := range from {
		sum += weight(i)
	}
	n := s.rng.Int64N(sum)
	for _, i := range from {
		if n -= weight(i); n < 0 {
			return i
		}
	}
	panic("unreachable")
}

// whole is the set of backends that the hashes go by.
func whole(at int, loads []Load) (set []int) {
	for i, l := range loads {
		if l.Max > 0 && l.Backup == (at%2 == 1) {
			set = append(set, i)
		}
	}
	return set
}

func (s *scan) sourceHash(at int, loads []Load, room []int, c Client) int {
	set := whole(at, loads)
	total := new(big.Int)
	for _, i := range set {
		total.Add(total, big.NewInt(int64(loads[i].Weight)))
	}
	place := new(big.Int).SetUint64(mix(uint64(c)))
	place.Mul(place, total).Rsh(place, 64)
	owner, end := -1, new(big.Int)
	for _, i := range set {
		if end.Add(end, big.NewInt(int64(loads[i].Weight))); end.Cmp(place) > 0 {
			owner = i
			break
		}
	}
	for _, i := range room {
		if i >= owner {
			return i
		}
	}
	return room[0]
}

func (s *scan) consistentHash(at int, loads []Load, may, room []int, c Client) int {
	var points []point
	for _, i := range whole(at, loads) {
		seed := mix(uint64(i))
		if loads[i].Name != "" {
			seed = hashName(loads[i].Name)
		}
		for n := range pointsPerWeight * loads[i].Weight {
			points = append(points, point{mix(seed + uint64(n)*golden), int32(i)})
		}
	}
	slices.SortFunc(points, func(x, y point) int { return cmp.Compare(x.at, y.at) })
	var nearest int
	var distance uint64
	probe, step := mix(uint64(c)), mix(^uint64(c))|1
	for p := range probes {
		for i, q := range points {
			if d := q.at - probe; p == 0 && i == 0 || d < distance {
				nearest, distance = i, d
			}
		}
		probe += step
	}
	var active, weight int64
	for _, i := range may {
		active += int64(loads[i].Active())
		weight += int64(loads[i].Weight)
	}
	for _, bounded := range []bool{true, false} {
		for k := range points {
			i := int(points[(nearest+k)%len(points)].owner)
			fair := big.NewRat((active+1)*int64(loads[i].Weight), weight)
			below := big.NewRat(int64(loads[i].Active()), 1).Cmp(fair.Mul(fair, big.NewRat(5, 4))) < 0
			if slices.Contains(room, i) && (below || !bounded) {
				return i
			}
		}
	}
	panic("unreachable")
}

// operator does random things to a Balancer, and asks the scan whenever it picks.
type operator struct {
	*rand.Rand
	t *testing.T
	b *Balancer
	s *scan
	n int // most backends
}

func (o *operator) act(step int) {
	i := o.IntN(len(o.b.members))
	there := o.b.members[i].Max > 0
	switch op := o.IntN(100); {
	case op < 45:
		o.pick(step)
	case op < 85:
		from := []State{Dialing, Dialing, Leased, Leased, Leased, Closing, Idle, Expiring, DialingAhead, Checking}[o.IntN(10)]
		o.b.TryMove(i, from, State(o.IntN(int(numStates))))
	case op < 87:
		o.b.ReserveAhead(i, o.IntN(4), o.IntN(3))
	case op < 90 && there:
		o.b.SetOut(i, Out(1<<o.IntN(3)), o.IntN(2) == 0)
	case op < 92 && there:
		o.b.SetOut(i, Down|Drained|Removed, false)
	case op < 95 && there:
		o.configure(i)
	case op < 97:
		o.empty(i)
		if there && o.b.Remove(i) {
			delete(o.s.credits, i)
		}
	case op < 100 && len(o.s.credits) < o.n:
		o.add()
	}
}

func (o *operator) add() {
	be := Backend{Max: 1 + o.IntN(9), Weight: 1 + o.IntN(4), Backup: o.IntN(5) == 0}
	if o.IntN(2) == 0 {
		be.Name = fmt.Sprint("backend ", o.IntN(1e6))
	}
	i, err := o.b.Add(be)
	if err != nil {
		o.t.Fatal(err)
	}
	o.s.added(i)
}

func (o *operator) empty(i int) {
	for s := Idle; s < numStates; s++ {
		for o.b.TryMove(i, s, Free) {
		}
	}
}

func (o *operator) configure(i int) {
	switch o.IntN(5) {
	case 0:
		o.b.SetWeight(i, 1+o.IntN(4))
	case 1:
		o.b.SetMax(i, 1+o.IntN(9))
	case 2:
		o.b.SetLimit(i, o.IntN(9))
	case 3:
		n := o.IntN(4)
		o.b.LimitDials(i, n)
		o.s.dials[i] = n
	case 4:
		o.b.SetBackup(i, o.IntN(5) == 0)
	}
}

func (o *operator) pick(step int) {
	var tried []int
	for range max(0, o.IntN(8)-5) {
		tried = append(tried, o.IntN(len(o.b.members)))
	}
	client := Client(o.IntN(100))
	want, wantErr := o.s.pick(o.b.Loads(), client, tried)
	got, err := o.b.Pick(client, tried)
	if err != wantErr && !errors.Is(err, wantErr) || err == nil && got.Backend != want {
		o.t.Fatalf("step %d: Pick(%d, %v) = %v, %v; the scan says %v, %v\n%+v", step, client, tried, got, err, want, wantErr, o.b.Loads())
	}
}

// turns reports a credit that is not the scan's.
func (o *operator) credits(step int) {
	var sum int64
	for i, want := range o.s.credits {
		if got := o.b.creditOf(i); got != want {
			o.t.Fatalf("step %d: backend %d has credit %d; the scan says %d", step, i, got, want)
		}
		sum += want
	}
	if o.b.credits != sum {
		o.t.Fatalf("step %d: the credits are said to add up to %d, and do to %d", step, o.b.credits, sum)
	}
}

// Whatever serves the picks must answer as a plain scan does: over a million operations
// on fleets of up to 50 backends.
func TestPicksAreThoseOfAPlainScan(t *testing.T) {
	for _, s := range Strategies {
		for _, tryDown := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/try down %v", s, tryDown), func(t *testing.T) {
				t.Parallel()
				steps := 60_000
				if s == LeastConn {
					steps = 100_000
				}
				if testing.Short() {
					steps /= 10
				}
				for _, n := range []int{1, 3, 12, 50} {
					cfg := Config{Strategy: s, TryDown: tryDown, Seed: uint64(n)}
					o := &operator{Rand: rand.New(rand.NewPCG(uint64(n), 7)), t: t, b: newBy(t, cfg), s: newScan(cfg), n: n}
					o.add()
					for step := range steps / 4 {
						o.act(step)
						if step%64 == 0 {
							o.credits(step)
						}
					}
				}
			})
		}
	}
}
