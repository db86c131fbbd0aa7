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
	backups map[int]bool  // whether it is one
	last    map[int]int   // of each tier
	dials   map[int]int   // limits
}

func newScan(cfg Config) *scan {
	return &scan{Config: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0)), credits: map[int]int64{}, backups: map[int]bool{},
		last: map[int]int{upTier: -1, backupTier: -1, downTier: -1, downBackupTier: -1}, dials: map[int]int{}}
}

// joined gives a newcomer among the backups, or the others, their mean credit.
func (s *scan) joined(i int, backup bool) {
	delete(s.credits, i)
	var sum, n int64
	for j, c := range s.credits {
		if s.backups[j] == backup {
			sum += c
			n++
		}
	}
	s.credits[i], s.backups[i] = sum/max(1, n), backup
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
	var active, weight int64
	for _, i := range may {
		active += int64(loads[i].Active())
		weight += int64(loads[i].Weight)
	}
	for _, bounded := range []bool{true, false} {
		mayBe := map[int]bool{}
		for _, i := range room {
			fair := big.NewRat((active+1)*int64(loads[i].Weight), weight)
			mayBe[i] = !bounded || big.NewRat(int64(loads[i].Active()), 1).Cmp(fair.Mul(fair, big.NewRat(5, 4))) < 0
		}
		points := slices.DeleteFunc(slices.Clone(points), func(q point) bool { return !mayBe[int(q.owner)] })
		nearest, distance := -1, uint64(0)
		probe, step := mix(uint64(c)), mix(^uint64(c))|1
		for range probes {
			for _, q := range points {
				if d := q.at - probe; nearest < 0 || d < distance {
					nearest, distance = int(q.owner), d
				}
			}
			probe += step
		}
		if nearest >= 0 {
			return nearest
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

	max, weight int // of any
}

func (o *operator) act(step int) {
	i := o.IntN(len(o.b.members))
	there := o.b.members[i].Max > 0
	switch op := o.IntN(100); {
	case op < 45:
		o.pick(step)
	case op < 85:
		from := []State{Dialing, Dialing, Leased, Leased, Leased, Closing, Idle, Expiring, DialingAhead, Checking}[o.IntN(10)]
		to := State(o.IntN(int(numStates)))
		for range 1 + o.IntN(1+o.max/20) { // one, or a share that can be seen
			o.b.TryMove(i, from, to)
		}
	case op == 85 && o.max > 9:
		for range o.IntN(o.max) {
			o.b.TryMove(i, Free, Leased)
		}
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
	be := Backend{Max: 1 + o.IntN(o.max), Weight: 1 + o.IntN(o.weight), Backup: o.IntN(5) == 0}
	if o.IntN(2) == 0 {
		be.Name = fmt.Sprint("backend ", o.IntN(1e6))
	}
	i, err := o.b.Add(be)
	if err != nil {
		o.t.Fatal(err)
	}
	o.s.joined(i, be.Backup)
	o.s.dials[i] = 0
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
		o.b.SetWeight(i, 1+o.IntN(o.weight))
	case 1:
		o.b.SetMax(i, 1+o.IntN(o.max))
	case 2:
		o.b.SetLimit(i, o.IntN(o.max))
	case 3:
		n := o.IntN(4)
		o.b.LimitDials(i, n)
		o.s.dials[i] = n
	case 4:
		backup := o.IntN(5) == 0
		if backup != o.s.backups[i] {
			o.s.joined(i, backup)
		}
		o.b.SetBackup(i, backup)
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

// credits reports a credit that is not the scan's, or a sum that is not theirs.
func (o *operator) credits(step int) {
	var kinds [2]kind
	for i, want := range o.s.credits {
		if got := o.b.creditOf(i); got != want {
			o.t.Fatalf("step %d: backend %d has credit %d; the scan says %d", step, i, got, want)
		}
		k := &kinds[0]
		if o.s.backups[i] {
			k = &kinds[1]
		}
		k.members++
		k.credits += want
	}
	if o.b.kinds != kinds {
		o.t.Fatalf("step %d: counted %+v, want %+v", step, o.b.kinds, kinds)
	}
}

// Whatever serves the picks must answer as a plain scan does: over more than a million
// operations, on fleets of up to 50 backends, and on some of large and unequal ones.
func TestPicksAreThoseOfAPlainScan(t *testing.T) {
	fleets := []struct{ steps, n, max, weight int }{
		{15_000, 1, 9, 4}, {15_000, 3, 9, 4}, {15_000, 12, 9, 4}, {15_000, 50, 9, 4},
		{2000, 14, 300, 1_000_000}, {500, 14, 65535, 3},
	}
	for _, s := range Strategies {
		for _, tryDown := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/try down %v", s, tryDown), func(t *testing.T) {
				t.Parallel()
				for _, f := range fleets {
					if s == LeastConn {
						f.steps *= 2
					}
					if s == ConsistentHash {
						f.weight = min(f.weight, 4) // the scan makes all points anew for each pick
					}
					cfg := Config{Strategy: s, TryDown: tryDown, Seed: uint64(f.n)}
					o := &operator{Rand: rand.New(rand.NewPCG(uint64(f.n), uint64(f.max))), t: t,
						b: newBy(t, cfg), s: newScan(cfg), n: f.n, max: f.max, weight: f.weight}
					o.add()
					for step := range f.steps {
						o.act(step)
						if step%64 == 0 {
							o.credits(step)
							wantInvariants(t, o.b)
						}
					}
				}
			})
		}
	}
}
