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
	slots  []State
	credit int64
	down   bool
	limit  int
	peak   int
}

func newModel(backends []Backend) model {
	var m model
	for _, be := range backends {
		m = append(m, &modelBackend{Backend: be, slots: slices.Repeat([]State{Free}, be.Max)})
	}
	return m
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
	return big.NewRat(int64(m.count(Leased, Dialing, Closing)), int64(m.Max))
}

func (m *modelBackend) mayDial() bool {
	return m.count(Free) > 0 && (m.limit == 0 || m.count(Dialing, DialingAhead) < m.limit)
}

func (m *modelBackend) move(from, to State) bool {
	i := slices.Index(m.slots, from)
	if i < 0 {
		return false
	}
	m.slots[i] = to
	m.peak = max(m.peak, m.count(Leased))
	return true
}

func (m *modelBackend) reserveAhead(want, parallel int) bool {
	switch {
	case m.down, !m.mayDial():
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
		if be.down || slices.Contains(tried, i) {
			continue
		}
		may = append(may, i)
		if be.count(Idle) > 0 || be.mayDial() {
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
		l := Load{Backend: be.Backend, PeakLeased: be.peak, Down: be.down}
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
	b, err := New(backends)
	if err != nil {
		t.Fatal(err)
	}
	m := newModel(backends)
	for step := 0; len(data) > 0; step++ {
		i := next(len(backends))
		switch next(8) {
		case 0, 1, 2:
			var tried []int
			for set := next(64); set > 0; set >>= 2 { // few are tried
				if set&3 == 3 {
					tried = append(tried, next(len(backends)))
				}
			}
			got, gotErr := b.Pick(tried)
			want, wantErr := m.pick(tried)
			if got != want || !errors.Is(gotErr, wantErr) {
				t.Fatalf("step %d: Pick(%v) = %v, %v; want %v, %v\n%+v", step, tried, got, gotErr, want, wantErr, b.members)
			}
		case 3, 4, 5:
			from, to := State(next(int(numStates))), State(next(int(numStates)))
			if got, want := b.TryMove(i, from, to), m[i].move(from, to); got != want {
				t.Fatalf("step %d: TryMove(%d, %v, %v) = %v, want %v", step, i, from, to, got, want)
			}
		case 6:
			want, parallel := next(6), next(4)
			if got, ok := b.ReserveAhead(i, want, parallel), m[i].reserveAhead(want, parallel); got != ok {
				t.Fatalf("step %d: ReserveAhead(%d, %d, %d) = %v, want %v", step, i, want, parallel, got, ok)
			}
		case 7:
			if v := next(8); v < 4 {
				b.SetDown(i, v == 0)
				m[i].down = v == 0
			} else {
				b.LimitDials(i, v-4)
				m[i].limit = v - 4
			}
		}
		compare(t, step, b, m)
	}
}

func compare(t *testing.T, step int, b *Balancer, m model) {
	t.Helper()
	got := b.Loads()
	if want := m.loads(); !slices.Equal(got, want) {
		t.Fatalf("step %d: loads = %v, want %v", step, got, want)
	}
	var credit int64
	for i, l := range got {
		sum := 0
		for s, n := range l.Slots {
			if n < 0 || n != b.Count(i, State(s)) {
				t.Fatalf("step %d: backend %d has %d slots %v", step, i, n, State(s))
			}
			sum += n
		}
		if sum != l.Max {
			t.Fatalf("step %d: the states of backend %d add up to %d, want its max %d", step, i, sum, l.Max)
		}
		if b.members[i].credit != m[i].credit {
			t.Fatalf("step %d: backend %d has credit %d, want %d", step, i, b.members[i].credit, m[i].credit)
		}
		credit += m[i].credit
	}
	if credit != 0 {
		t.Fatalf("step %d: the credits add up to %d, want 0", step, credit)
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
	f.Add([]byte{0, 8, 0, 0, 7, 5, 0, 0, 0, 0, 0, 0, 0, 7, 4, 0, 0, 0})       // a dial limit, set and lifted
	f.Fuzz(replay)
}
