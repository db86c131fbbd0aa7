package balance

import (
	"errors"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
)

// model does what the package's doc says, slowly: each slot is an element of a
// list, and whatever is asked is counted anew.
type model []*modelBackend

type modelBackend struct {
	Backend
	gone   bool
	slots  []State
	credit int64
	out    map[Out]bool
	dials  int // at once
	limit  int
	peak   int
}

func newModel(backends []Backend) model {
	var m model
	for _, be := range backends {
		m.add(be)
	}
	return m
}

// add puts a backend where one is gone, or at the end.
func (m *model) add(be Backend) int {
	n, sum, at := int64(0), int64(0), len(*m)
	for i, old := range slices.Backward(*m) {
		if old.gone {
			at = i
			continue
		}
		n, sum = n+1, sum+old.credit
	}
	made := &modelBackend{Backend: be, slots: slices.Repeat([]State{Free}, be.Max), out: map[Out]bool{}}
	if n > 0 {
		made.credit = sum / n
	}
	if at == len(*m) {
		*m = append(*m, nil)
	}
	(*m)[at] = made
	return at
}

func (m *modelBackend) remove() bool {
	if len(m.slots) > m.count(Free) {
		return false
	}
	*m = modelBackend{gone: true, out: map[Out]bool{Removed: true}}
	return true
}

// setMax adds free slots, or takes as many as there are.
func (m *modelBackend) setMax(n int) {
	m.Max = n
	for len(m.slots) < n {
		m.slots = append(m.slots, Free)
	}
	m.shrink()
}

func (m *modelBackend) shrink() {
	for len(m.slots) > m.Max && m.count(Free) > 0 {
		i := slices.Index(m.slots, Free)
		m.slots = slices.Delete(m.slots, i, i+1)
	}
}

func (m *modelBackend) isOut() bool { return m.out[Down] || m.out[Drained] || m.out[Removed] }

func (m *modelBackend) bound() int {
	if m.limit == 0 {
		return m.Max
	}
	return min(m.limit, m.Max)
}

// surplus closes idle connections one by one, until there are no more than may be.
func (m *modelBackend) surplus() (n int) {
	idle, others := m.count(Idle), m.count(Leased, Dialing, DialingAhead)
	for idle > 0 && (idle+others > m.bound() || m.out[Drained] || m.out[Removed]) {
		idle--
		n++
	}
	return n
}

func (m *modelBackend) count(states ...State) (n int) {
	for _, s := range m.slots {
		if slices.Contains(states, s) {
			n++
		}
	}
	return n
}

func (m *modelBackend) load() *big.Rat {
	return big.NewRat(int64(m.count(Leased, Dialing, Closing)), int64(m.bound()))
}

func (m *modelBackend) mayTake() bool {
	return m.count(Idle) > 0 && m.count(Leased, Dialing, Closing) < m.bound()
}

func (m *modelBackend) mayDial() bool {
	open := len(m.slots) - m.count(Free)
	return open < m.bound() && (m.dials == 0 || m.count(Dialing, DialingAhead) < m.dials)
}

func (m *modelBackend) move(from, to State) bool {
	i := slices.Index(m.slots, from)
	if i < 0 {
		return false
	}
	m.slots[i] = to
	m.shrink()
	m.peak = max(m.peak, m.count(Leased))
	return true
}

func (m *modelBackend) reserveAhead(want, parallel int) bool {
	switch {
	case m.isOut(), !m.mayDial():
		return false
	case m.count(DialingAhead) >= parallel:
		return false
	case m.count(Idle, DialingAhead) >= want:
		return false
	}
	return m.move(Free, DialingAhead)
}

func (m model) pick(tried []int) (Choice, error) {
	var may, room []int
	for i, be := range m {
		if be.isOut() || slices.Contains(tried, i) {
			continue
		}
		may = append(may, i)
		if be.mayTake() || be.mayDial() {
			room = append(room, i)
		}
	}
	if len(may) == 0 {
		return Choice{}, ErrNone
	}
	if len(room) == 0 {
		return Choice{}, ErrFull
	}
	least := m[room[0]].load()
	for _, i := range room {
		if m[i].load().Cmp(least) < 0 {
			least = m[i].load()
		}
	}
	tied := slices.DeleteFunc(room, func(i int) bool { return m[i].load().Cmp(least) != 0 })
	i := m.turn(tied)
	ready := m[i].move(Idle, Leased)
	if !ready {
		m[i].move(Free, Dialing)
	}
	return Choice{i, ready}, nil
}

func (m model) turn(tied []int) int {
	if len(tied) == 1 {
		return tied[0]
	}
	var sum int64
	for _, i := range tied {
		m[i].credit += int64(m[i].Weight)
		sum += int64(m[i].Weight)
	}
	winner := slices.MaxFunc(tied, func(x, y int) int { // the first of equals
		return big.NewInt(m[x].credit).Cmp(big.NewInt(m[y].credit))
	})
	m[winner].credit -= sum
	return winner
}

func (m model) loads() (out []Load) {
	for _, be := range m {
		l := Load{Backend: be.Backend, Limit: be.limit, PeakLeased: be.peak}
		for why, out := range be.out {
			if out {
				l.Out |= why
			}
		}
		for _, s := range be.slots {
			l.Slots[s]++
		}
		out = append(out, l)
	}
	return out
}

// replay decodes backends and then operations from data, and has the Balancer
// and the model do them side by side.
func replay(t *testing.T, data []byte) {
	next := func(below int) int {
		if len(data) == 0 {
			return 0
		}
		v := int(data[0])
		data = data[1:]
		return v % below
	}
	var backends []Backend
	for range 1 + next(5) {
		backends = append(backends, Backend{Max: 1 + next(9), Weight: 1 + next(6)})
	}
	b := newWeighted(t, backends...)
	m := newModel(backends)
	for step := 0; len(data) > 0; step++ {
		i := next(len(m))
		switch op := next(10); {
		case op < 3:
			var tried []int
			for set := next(64); set > 0; set >>= 2 { // few are tried
				if set&3 == 3 {
					tried = append(tried, next(len(m)))
				}
			}
			got, gotErr := b.Pick(0, tried)
			want, wantErr := m.pick(tried)
			if got != want || !errors.Is(gotErr, wantErr) {
				t.Fatalf("step %d: Pick(%v) = %v, %v; want %v, %v\n%+v", step, tried, got, gotErr, want, wantErr, b.members)
			}
		case op < 6:
			from, to := State(next(int(numStates))), State(next(int(numStates)))
			if got, want := b.TryMove(i, from, to), m[i].move(from, to); got != want {
				t.Fatalf("step %d: TryMove(%d, %v, %v) = %v, want %v", step, i, from, to, got, want)
			}
		case op == 6:
			want, parallel := next(6), next(4)
			if got, ok := b.ReserveAhead(i, want, parallel), m[i].reserveAhead(want, parallel); got != ok {
				t.Fatalf("step %d: ReserveAhead(%d, %d, %d) = %v, want %v", step, i, want, parallel, got, ok)
			}
		case op == 7 && !m[i].gone:
			why, out := Out(1<<next(3)), next(2) == 0
			b.SetOut(i, why, out)
			m[i].out[why] = out
		case op == 8 && !m[i].gone:
			change(b, m[i], i, next)
		case op == 9:
			changeSet(t, b, &m, i, next)
		}
		compare(t, step, b, m)
	}
}

// change sets one of the numbers of backend i.
func change(b *Balancer, m *modelBackend, i int, next func(int) int) {
	switch n := next(9); next(4) {
	case 0:
		b.LimitDials(i, n)
		m.dials = n
	case 1:
		b.SetLimit(i, n)
		m.limit = n
	case 2:
		b.SetWeight(i, 1+n)
		m.Weight = 1 + n
	case 3:
		b.SetMax(i, 1+n)
		m.setMax(1 + n)
	}
}

// changeSet removes backend i, if it is empty, or adds one, if there are few.
func changeSet(t *testing.T, b *Balancer, m *model, i int, next func(int) int) {
	if next(3) > 0 {
		if got, want := b.Remove(i), (*m)[i].remove(); got != want {
			t.Fatalf("Remove(%d) = %v, want %v", i, got, want)
		}
		return
	}
	be := Backend{Max: 1 + next(9), Weight: 1 + next(6)}
	if len(*m) > 6 && !slices.ContainsFunc(*m, func(m *modelBackend) bool { return m.gone }) {
		return
	}
	got, err := b.Add(be)
	if want := m.add(be); err != nil || got != want {
		t.Fatalf("Add = %d, %v; want %d", got, err, want)
	}
}

func compare(t *testing.T, step int, b *Balancer, m model) {
	t.Helper()
	got := b.Loads()
	if want := m.loads(); !slices.Equal(got, want) {
		t.Fatalf("step %d: loads = %v, want %v", step, got, want)
	}
	for i, l := range got {
		sum := 0
		for s, n := range l.Slots {
			if n < 0 || n != b.Count(i, State(s)) {
				t.Fatalf("step %d: backend %d has %d slots %v", step, i, n, State(s))
			}
			sum += n
		}
		if sum != max(l.Max, l.Open()) {
			t.Fatalf("step %d: the states of backend %d add up to %d with %d open, want its max %d", step, i, sum, l.Open(), l.Max)
		}
		if got, want := b.Surplus(i), m[i].surplus(); got != want {
			t.Fatalf("step %d: backend %d has a surplus of %d, want %d", step, i, got, want)
		}
		if b.creditOf(i) != m[i].credit {
			t.Fatalf("step %d: backend %d has credit %d, want %d", step, i, b.creditOf(i), m[i].credit)
		}
	}
}

func TestBalancerDoesAsTheModel(t *testing.T) {
	for range 100 {
		seed := rand.Uint64()
		t.Logf("seed %d", seed) // the last one shown is the one that fails
		rng := rand.New(rand.NewPCG(seed, 0))
		data := make([]byte, 4000) // about 1,100 operations
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		replay(t, data)
	}
}

func FuzzBalancer(f *testing.F) {
	f.Add([]byte(nil))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0})                                  // one slot, picked twice
	f.Add([]byte{1, 1, 4, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})             // ties of 5 and 1, then full
	f.Add([]byte{1, 2, 0, 5, 0, 0, 6, 3, 1, 1, 3, 3, 1, 0, 0, 0, 0, 7, 0, 0}) // ahead, idle, down
	f.Add([]byte{0, 8, 0, 0, 8, 1, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0})             // a dial limit, set and lifted
	f.Add([]byte{0, 8, 0, 0, 0, 0, 0, 0, 0, 8, 0, 3, 0, 3, 4, 0, 0, 0, 0})    // max lowered below what is open
	f.Add([]byte{1, 0, 0, 0, 0, 1, 9, 1, 0, 9, 0, 4, 2, 0, 0, 0})             // one removed, another in its place
	f.Fuzz(replay)
}
