package balance

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

// newBalancer returns a Balancer over backends with these max, of weight 1.
func newBalancer(t testing.TB, maxes ...int) *Balancer {
	t.Helper()
	backends := make([]Backend, len(maxes))
	for i, m := range maxes {
		backends[i] = Backend{Max: m, Weight: 1}
	}
	return newWeighted(t, backends...)
}

func newWeighted(t testing.TB, backends ...Backend) *Balancer {
	t.Helper()
	return newBy(t, Config{}, backends...)
}

// newBy returns a Balancer with a choice of its own.
func newBy(t testing.TB, cfg Config, backends ...Backend) *Balancer {
	t.Helper()
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, be := range backends {
		if _, err := b.Add(be); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// put moves n free slots of backend i to a state.
func put(b *Balancer, i int, to State, n int) {
	for range n {
		b.Move(i, Free, to)
	}
}

// pick is Pick where it must succeed.
func pick(t testing.TB, b *Balancer, tried ...int) int {
	t.Helper()
	c, err := b.Pick(0, tried)
	if err != nil {
		t.Fatalf("Pick(%v): %v", tried, err)
	}
	return c.Backend
}

// pickFor is Pick for a client, where it must succeed.
func pickFor(t testing.TB, b *Balancer, c Client) int {
	choice, err := b.Pick(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return choice.Backend
}

// letter names a backend so that a row of picks can be read.
func letter(i int) string { return string(rune('a' + i)) }

// creditOf returns what backend i has, wherever that is kept.
func (b *Balancer) creditOf(i int) int64 {
	m := &b.members[i]
	if !m.held {
		return m.credit
	}
	held := turnsOf(b.tiers[m.tier].rule)
	if held == nil {
		return m.credit
	}
	x := held.nodes[i]
	return x.credit + held.classes[x.class].buckets[x.bucket].growth
}

func credits(b *Balancer) []int64 {
	var out []int64
	for i := range b.members {
		out = append(out, b.creditOf(i))
	}
	return out
}

func TestPickBreaksTiesByWeight(t *testing.T) {
	tests := []struct {
		name    string
		weights []int
		want    string // backends in the order picked
	}{
		{name: "one backend takes all", weights: []int{3}, want: "aaa"},
		{name: "equal weights alternate", weights: []int{1, 1}, want: "abab"},
		{name: "the first in order begins", weights: []int{1, 1, 1}, want: "abcabc"},
		{name: "5 1 1 spreads the heavy one", weights: []int{5, 1, 1}, want: "aabacaaaabacaa"},
		{name: "the heavy one may come last", weights: []int{1, 2}, want: "babbab"},
		{name: "only the ratio counts", weights: []int{500, 100, 100}, want: "aabacaa"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var backends []Backend
			for _, w := range tt.weights {
				backends = append(backends, Backend{Max: 3, Weight: w})
			}
			b := newWeighted(t, backends...)
			var got strings.Builder
			for range tt.want {
				i := pick(t, b)
				b.Move(i, Dialing, Free) // every load is 0 again, so each pick is a tie
				got.WriteString(letter(i))
			}
			if got.String() != tt.want {
				t.Errorf("picks = %s, want %s", got.String(), tt.want)
			}
		})
	}
}

func TestPickTakesTheLeastLoaded(t *testing.T) {
	tests := []struct {
		name   string
		max    []int
		active []int
		want   string // in the order picked, none of them given back
	}{
		{name: "fewer sessions of the same max", max: []int{4, 4}, active: []int{2, 1}, want: "b"},
		{name: "load is a share of max, not a number", max: []int{2, 8}, active: []int{1, 3}, want: "b"},
		{name: "1/3 and 2/6 tie: the first", max: []int{3, 6}, active: []int{1, 2}, want: "a"},
		{name: "2/6 and 1/3 tie: the first", max: []int{6, 3}, active: []int{2, 1}, want: "a"},
		{name: "3/6 is more than 1/3", max: []int{6, 3}, active: []int{3, 1}, want: "b"},
		{name: "65534/65535 is more than 65533/65534", max: []int{65535, 65534}, active: []int{65534, 65533}, want: "b"},
		{name: "65533/65534 is less than 65534/65535", max: []int{65534, 65535}, active: []int{65533, 65534}, want: "a"},
		{name: "21845/65535 and 1/3 tie", max: []int{65535, 3}, active: []int{21845, 1}, want: "a"},
		{name: "21846/65535 is more than 1/3", max: []int{65535, 3}, active: []int{21846, 1}, want: "b"},
		{name: "2 and 8 fill in proportion", max: []int{2, 8}, active: []int{0, 0}, want: "abbbbbabbb"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBalancer(t, tt.max...)
			for i, n := range tt.active {
				put(b, i, Leased, n)
			}
			var got strings.Builder
			for range tt.want {
				got.WriteString(letter(pick(t, b)))
			}
			if got.String() != tt.want {
				t.Errorf("picks = %s, want %s", got.String(), tt.want)
			}
		})
	}
}

func TestSteadySessionsSitInProportionToMax(t *testing.T) {
	b := newBalancer(t, 2, 8)
	var sessions []int
	for range 5 { // half of the capacity
		sessions = append(sessions, pick(t, b))
	}
	for range 1000 {
		b.Move(sessions[0], Dialing, Free)
		sessions = append(sessions[1:], pick(t, b))
		if a, c := b.Count(0, Dialing), b.Count(1, Dialing); a != 1 || c != 4 {
			t.Fatalf("5 sessions sit %d and %d, want 1 and 4", a, c)
		}
	}
	for range 5 {
		sessions = append(sessions, pick(t, b))
	}
	if a, c := b.Count(0, Dialing), b.Count(1, Dialing); a != 2 || c != 8 {
		t.Errorf("10 sessions sit %d and %d, want 2 and 8", a, c)
	}
	if _, err := b.Pick(0, nil); !errors.Is(err, ErrFull) {
		t.Errorf("the 11th: %v, want %v", err, ErrFull)
	}
}

// Each state other than Free must count as load where it works for a client, and
// only there.
func TestWhatCountsAsLoad(t *testing.T) {
	tests := []struct {
		state State
		want  int
	}{
		{Idle, 0}, {Dialing, 1}, {DialingAhead, 0}, {Leased, 1}, {Closing, 1}, {Expiring, 0}, {Checking, 0},
	}
	for _, tt := range tests {
		t.Run(tt.state.String(), func(t *testing.T) {
			b := newBalancer(t, 3, 3)
			put(b, 0, tt.state, 1)
			if got := b.Loads()[0].Active(); got != tt.want {
				t.Errorf("Active() = %d, want %d", got, tt.want)
			}
			if got := b.Loads()[0].Open(); got != 1 {
				t.Errorf("Open() = %d, want 1", got)
			}
			if got := pick(t, b); got != tt.want {
				t.Errorf("Pick chose %d, want %d", got, tt.want)
			}
		})
	}
}

func TestOnlyTiesTouchTheCredits(t *testing.T) {
	b := newWeighted(t, Backend{Max: 4, Weight: 5}, Backend{Max: 4, Weight: 1}, Backend{Max: 4, Weight: 1})
	put(b, 0, Leased, 1)
	put(b, 1, Leased, 2)
	if i := pick(t, b); i != 2 {
		t.Fatalf("picked %d, want the only empty backend", i)
	}
	if got := credits(b); !slices.Equal(got, []int64{0, 0, 0}) {
		t.Errorf("credits = %v after a pick that was no tie, want zeros", got)
	}
	if i := pick(t, b); i != 0 { // a and c have 1/4 each
		t.Fatalf("picked %d of the tied, want the heavy one", i)
	}
	if got := credits(b); !slices.Equal(got, []int64{-1, 0, 1}) {
		t.Errorf("credits = %v, want -1 0 1: only the tied take part", got)
	}
	b.Pick(0, []int{0, 1, 2})
	if got := credits(b); !slices.Equal(got, []int64{-1, 0, 1}) {
		t.Errorf("credits = %v after a pick in vain, want no change", got)
	}
}

func TestPickPrefersAnIdleConnectionOfItsBackend(t *testing.T) {
	b := newBalancer(t, 2)
	put(b, 0, Idle, 1)
	if c, err := b.Pick(0, nil); err != nil || c != (Choice{0, true}) {
		t.Errorf("first pick = %v, %v; want the idle connection", c, err)
	}
	if c, err := b.Pick(0, nil); err != nil || c != (Choice{0, false}) {
		t.Errorf("second pick = %v, %v; want a free slot", c, err)
	}
	if l := b.Loads()[0]; l.Slots[Leased] != 1 || l.Slots[Dialing] != 1 {
		t.Errorf("slots = %v, want one leased, one dialing", l.Slots)
	}
}

func TestFullAndNone(t *testing.T) {
	// Each letter is a backend: r has room, f is full, d is down with room, D is
	// down and full; after a ! it has been tried. The order must not matter.
	tests := []struct {
		backends string
		want     error
	}{
		{"r", nil}, {"f", ErrFull}, {"d", ErrNone}, {"D", ErrNone},
		{"!r", ErrNone}, {"!f", ErrNone}, {"!d", ErrNone}, {"!D", ErrNone},
		{"r r", nil}, {"r f", nil}, {"r d", nil}, {"r !r", nil}, {"r !f", nil},
		{"f f", ErrFull}, {"f d", ErrFull}, {"f D", ErrFull}, {"f !r", ErrFull}, {"f !f", ErrFull}, {"f !d", ErrFull},
		{"d d", ErrNone}, {"d D", ErrNone}, {"d !r", ErrNone}, {"d !f", ErrNone}, {"D !d", ErrNone},
		{"!r !r", ErrNone}, {"!r !f", ErrNone}, {"!f !f", ErrNone},
		{"d !r f", ErrFull}, {"d !f r", nil}, {"D !r !f", ErrNone},
	}
	for _, tt := range tests {
		for _, turned := range []bool{false, true} {
			kinds := strings.Fields(tt.backends)
			if turned {
				slices.Reverse(kinds)
			}
			t.Run(strings.Join(kinds, " "), func(t *testing.T) {
				b := newBalancer(t, slices.Repeat([]int{1}, len(kinds))...)
				var tried []int
				for i, kind := range kinds {
					if strings.HasPrefix(kind, "!") {
						tried = append(tried, i)
					}
					if strings.ContainsAny(kind, "fD") {
						put(b, i, Leased, 1)
					}
					b.SetOut(i, Down, strings.ContainsAny(kind, "dD"))
				}
				if _, err := b.Pick(0, tried); !errors.Is(err, tt.want) {
					t.Errorf("Pick = %v, want %v", err, tt.want)
				}
			})
		}
	}
}

func TestRoom(t *testing.T) {
	tests := []struct {
		name  string
		max   int
		slots map[State]int
		limit int
		want  error
	}{
		{name: "a free slot", max: 1, want: nil},
		{name: "an idle connection, nothing free", max: 1, slots: map[State]int{Idle: 1}, want: nil},
		{name: "dialing ahead is not for taking", max: 1, slots: map[State]int{DialingAhead: 1}, want: ErrFull},
		{name: "a connection that is being closed still counts", max: 1, slots: map[State]int{Closing: 1}, want: ErrFull},
		{name: "an expiring one too", max: 1, slots: map[State]int{Expiring: 1}, want: ErrFull},
		{name: "below the dial limit", max: 9, slots: map[State]int{Dialing: 1}, limit: 2, want: nil},
		{name: "at the dial limit", max: 9, slots: map[State]int{Dialing: 2}, limit: 2, want: ErrFull},
		{name: "the dial limit counts those ahead", max: 9, slots: map[State]int{Dialing: 1, DialingAhead: 1}, limit: 2, want: ErrFull},
		{name: "the dial limit does not bind an idle connection", max: 9, slots: map[State]int{Dialing: 2, Idle: 1}, limit: 2, want: nil},
		{name: "no dial limit", max: 9, slots: map[State]int{Dialing: 8}, want: nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBalancer(t, tt.max)
			for s, n := range tt.slots {
				put(b, 0, s, n)
			}
			b.LimitDials(0, tt.limit)
			if _, err := b.Pick(0, nil); !errors.Is(err, tt.want) {
				t.Errorf("Pick = %v, want %v", err, tt.want)
			}
		})
	}
}

func TestReserveAhead(t *testing.T) {
	tests := []struct {
		name           string
		slots          map[State]int // of 6
		down           bool
		limit          int
		want, parallel int
		ok             bool
	}{
		{name: "none there", want: 1, parallel: 1, ok: true},
		{name: "none wanted", want: 0, parallel: 1},
		{name: "fewer idle than wanted", slots: map[State]int{Idle: 1}, want: 2, parallel: 1, ok: true},
		{name: "enough idle", slots: map[State]int{Idle: 2}, want: 2, parallel: 1},
		{name: "idle and on their way suffice together", slots: map[State]int{Idle: 1, DialingAhead: 1}, want: 2, parallel: 9},
		{name: "one short, idle and on their way", slots: map[State]int{Idle: 1, DialingAhead: 1}, want: 3, parallel: 9, ok: true},
		{name: "as many on their way as may be", slots: map[State]int{DialingAhead: 2}, want: 6, parallel: 2},
		{name: "dials for clients are not ahead", slots: map[State]int{Dialing: 2}, want: 1, parallel: 1, ok: true},
		{name: "leased ones are not wanted ones", slots: map[State]int{Leased: 5}, want: 1, parallel: 1, ok: true},
		{name: "no room", slots: map[State]int{Leased: 6}, want: 1, parallel: 1},
		{name: "no room though idle ones are short", slots: map[State]int{Leased: 5, Idle: 1}, want: 2, parallel: 1},
		{name: "down", down: true, want: 1, parallel: 1},
		{name: "at the dial limit", slots: map[State]int{Dialing: 2}, limit: 2, want: 1, parallel: 1},
		{name: "below the dial limit", slots: map[State]int{Dialing: 1}, limit: 2, want: 1, parallel: 1, ok: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBalancer(t, 6)
			for s, n := range tt.slots {
				put(b, 0, s, n)
			}
			b.SetOut(0, Down, tt.down)
			b.LimitDials(0, tt.limit)
			before := b.Count(0, DialingAhead)
			if got := b.ReserveAhead(0, tt.want, tt.parallel); got != tt.ok {
				t.Errorf("ReserveAhead(%d, %d) = %v, want %v", tt.want, tt.parallel, got, tt.ok)
			}
			if took := b.Count(0, DialingAhead) - before; (took == 1) != tt.ok || took > 1 {
				t.Errorf("it took %d slots", took)
			}
		})
	}
}

func TestMoveOfALostSlotPanicsAndChangesNothing(t *testing.T) {
	for from := Free; from < numStates; from++ {
		t.Run(from.String(), func(t *testing.T) {
			b := newBalancer(t, 1, 1)
			other := Leased
			if from == Leased {
				other = Idle
			}
			put(b, 1, other, 1)
			if from != Free {
				b.Move(1, other, other) // from one state to the same is legal
			}
			want := b.Loads()
			if b.TryMove(1, from, Closing) {
				t.Errorf("TryMove of a slot that is not there succeeded")
			}
			defer func() {
				if recover() == nil {
					t.Error("Move did not panic")
				}
				if got := b.Loads(); !slices.Equal(got, want) {
					t.Errorf("loads = %v, want %v as before", got, want)
				}
			}()
			b.Move(1, from, Closing)
		})
	}
}

func TestPeakLeasedIsTheMostAtOnce(t *testing.T) {
	b := newBalancer(t, 5)
	put(b, 0, Leased, 2)
	b.Move(0, Leased, Closing)
	b.Move(0, Closing, Free)
	put(b, 0, Dialing, 3) // no leases yet
	if got := b.Loads()[0].PeakLeased; got != 2 {
		t.Errorf("PeakLeased = %d, want 2", got)
	}
	b.Move(0, Dialing, Leased)
	b.Move(0, Dialing, Leased)
	if got := b.Loads()[0].PeakLeased; got != 3 {
		t.Errorf("PeakLeased = %d, want 3", got)
	}
}

func TestABackendThatComesBackIsPickedAgain(t *testing.T) {
	b := newBalancer(t, 9, 9)
	b.SetOut(0, Down, true)
	if b.Load(0).Out != Down || b.Loads()[0].Out != Down || b.Load(1).Out != 0 {
		t.Error("backend a should be down, b up")
	}
	if i := pick(t, b); i != 1 {
		t.Errorf("picked the one that is down")
	}
	b.SetOut(0, Down, false)
	if i := pick(t, b); i != 0 {
		t.Errorf("picked %d, want the empty one that is up again", i)
	}
}

func TestLoadsIsASnapshot(t *testing.T) {
	b := newBalancer(t, 2)
	before := b.Loads()
	pick(t, b)
	if before[0].Open() != 0 {
		t.Error("an old snapshot has changed")
	}
}

func TestNewRefusesAnUnknownStrategy(t *testing.T) {
	_, err := New(Config{Strategy: "least-con"})
	if want := `no strategy "least-con"; there is least-conn, round-robin, `; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("New = %v, want an error with %q", err, want)
	}
	if len(Strategies) != 9 {
		t.Errorf("%d strategies, want 9", len(Strategies))
	}
	for _, s := range Strategies {
		newBy(t, Config{Strategy: s}, Backend{Max: 1, Weight: 1})
	}
}

func TestStatesHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for s := Free; s < numStates; s++ {
		if name := s.String(); name == "" || seen[name] {
			t.Errorf("state %d is called %q", int(s), name)
		} else {
			seen[name] = true
		}
	}
	if got := numStates.String(); got != "state 8" {
		t.Errorf("an unknown state is called %q", got)
	}
	if got := State(-1).String(); got != "state -1" {
		t.Errorf("an unknown state is called %q", got)
	}
}

func TestPickDoesNotAllocate(t *testing.T) {
	for _, s := range Strategies {
		for _, n := range []int{16, 1000} {
			b := newBy(t, Config{Strategy: s}, fleet(n)...)
			tried, client := []int{3}, Client(0)
			leased := load(b)
			one := func() {
				at := int(client) % len(leased)
				b.Move(leased[at], Leased, Free)
				leased[at] = pickUntried(t, b, client, tried)
				b.Move(leased[at], Dialing, Leased)
				client++
			}
			for range len(leased) {
				one() // what grows has grown
			}
			if n := testing.AllocsPerRun(1000, one); n != 0 {
				t.Errorf("%s of %d: a pick allocates %v times, want 0", s, len(b.members), n)
			}
		}
	}
}

func TestMaxLoweredBelowWhatIsOpen(t *testing.T) {
	b := newBalancer(t, 5)
	put(b, 0, Leased, 3)
	put(b, 0, Idle, 2)
	b.SetMax(0, 2)
	if n := b.Surplus(0); n != 2 {
		t.Errorf("a surplus of %d, want both idle ones", n)
	}
	for open := 5; open > 2; open-- {
		if _, err := b.Pick(0, nil); !errors.Is(err, ErrFull) {
			t.Errorf("Pick = %v with %d open, want ErrFull", err, open)
		}
		if !b.TryMove(0, Idle, Free) {
			b.Move(0, Leased, Free)
		}
	}
	if n := b.Count(0, Free); n != 0 {
		t.Errorf("%d slots are free as many as max are leased", n)
	}
	b.Move(0, Leased, Free)
	pick(t, b)
	if _, err := b.Pick(0, nil); !errors.Is(err, ErrFull) {
		t.Errorf("Pick = %v at the new max, want ErrFull", err)
	}
	b.SetMax(0, 3)
	pick(t, b)
}

func TestLimit(t *testing.T) {
	tests := []struct {
		name    string
		slots   map[State]int // of 6
		want    error
		surplus int
	}{
		{name: "below it", slots: map[State]int{Leased: 1}},
		{name: "at it", slots: map[State]int{Leased: 2}, want: ErrFull},
		{name: "what lies idle is open", slots: map[State]int{Leased: 1, Idle: 1}},
		{name: "one idle too many, which a client may take", slots: map[State]int{Leased: 1, Idle: 2}, surplus: 1},
		{name: "or not", slots: map[State]int{Leased: 2, Idle: 1}, want: ErrFull, surplus: 1},
		{name: "dials ahead count", slots: map[State]int{DialingAhead: 2}, want: ErrFull},
		{name: "what is closed already is no surplus", slots: map[State]int{Expiring: 1, Idle: 2}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBalancer(t, 6)
			for s, n := range tt.slots {
				put(b, 0, s, n)
			}
			b.SetLimit(0, 2)
			if n := b.Surplus(0); n != tt.surplus {
				t.Errorf("Surplus = %d, want %d", n, tt.surplus)
			}
			l := b.Load(0)
			if got, want := b.ReserveAhead(0, 9, 9), l.Open() < 2; got != want {
				t.Errorf("ReserveAhead = %v, want %v", got, want)
			} else if got {
				b.Move(0, DialingAhead, Free)
			}
			if _, err := b.Pick(0, nil); !errors.Is(err, tt.want) {
				t.Errorf("Pick = %v, want %v", err, tt.want)
			}
			b.SetLimit(0, 0)
			pick(t, b)
		})
	}
}

// The load is what is active of the bound, not of max.
func TestLoadGoesByTheLimit(t *testing.T) {
	b := newBalancer(t, 100, 10)
	put(b, 0, Leased, 2)
	put(b, 1, Leased, 1)
	b.SetLimit(0, 10)
	if i := pick(t, b); i != 1 {
		t.Errorf("picked the one of which 2 of 10 are active, not the one with 1 of 10")
	}
	b.SetLimit(0, 0)
	if i := pick(t, b); i != 0 {
		t.Errorf("picked the one of which 2 of 10 are active, not the one with 2 of 100")
	}
}

func TestReasonsToBeOutAreApart(t *testing.T) {
	b := newBalancer(t, 9)
	put(b, 0, Idle, 2)
	want := func(when string, err error, surplus int) {
		t.Helper()
		if n := b.Surplus(0); n != surplus {
			t.Errorf("%s: a surplus of %d, want %d", when, n, surplus)
		}
		c, got := b.Pick(0, nil)
		if !errors.Is(got, err) {
			t.Errorf("%s: Pick = %v, want %v", when, got, err)
		}
		if got == nil && c.Ready {
			b.Move(0, Leased, Idle)
		}
	}
	b.SetOut(0, Down, true)
	want("down", ErrNone, 0) // its pool knows what to do with them
	b.SetOut(0, Drained, true)
	want("down and drained", ErrNone, 2)
	b.SetOut(0, Down, false)
	want("up, and drained", ErrNone, 2)
	b.SetOut(0, Removed, true)
	b.SetOut(0, Drained, false)
	want("to be removed", ErrNone, 2)
	b.SetOut(0, Removed, false)
	want("back", nil, 0)
}

func TestRemove(t *testing.T) {
	b := newBalancer(t, 2, 2, 2)
	for range 4 { // one of b's slots at least
		pick(t, b)
	}
	before := credits(b)
	if b.Remove(1) {
		t.Error("removed a backend with open slots")
	}
	for s := Idle; s < numStates; s++ {
		for b.TryMove(1, s, Free) {
		}
	}
	if !b.Remove(1) {
		t.Error("an empty backend is not removed")
	}
	if after := credits(b); after[0] != before[0] || after[2] != before[2] {
		t.Errorf("credits = %v, were %v", after, before)
	}
	if l := b.Load(1); l.Max != 0 || l.Out != Removed {
		t.Errorf("what is nobody's is %+v", l)
	}
	if _, err := b.Pick(0, []int{0, 2}); !errors.Is(err, ErrNone) {
		t.Errorf("Pick = %v, want ErrNone: it is gone", err)
	}
	i, err := b.Add(Backend{Max: 7, Weight: 3})
	if err != nil || i != 1 {
		t.Errorf("Add = %d, %v; want the place that is free", i, err)
	}
	if i, _ := b.Add(Backend{Max: 1, Weight: 1}); i != 3 {
		t.Errorf("Add = %d, want one more", i)
	}
	if i := pick(t, b, 0, 2, 3); i != 1 {
		t.Errorf("picked %d, want the new one", i)
	}
}

func TestAddRefusesWhatCannotServe(t *testing.T) {
	tests := []struct {
		backend Backend
		want    string // part of the error
	}{
		{Backend{Max: 0, Weight: 1}, "max 0"}, {Backend{Max: -1, Weight: 1}, "max -1"},
		{Backend{Max: 1, Weight: 0}, "weight 0"}, {Backend{Max: 1, Weight: -5}, "weight -5"},
	}
	b := newBalancer(t, 1)
	for _, tt := range tests {
		if _, err := b.Add(tt.backend); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Add(%+v) = %v, want an error with %q", tt.backend, err, tt.want)
		}
	}
	if n := len(b.Loads()); n != 1 {
		t.Errorf("%d backends, want the one", n)
	}
}

// Backends that take their debts away leave the others with credit. A newcomer must
// not have to wait until they have spent it, nor have all turns until it has their credit.
func TestNewcomerTakesItsTurnAfterManyHaveGone(t *testing.T) {
	tests := []struct {
		name  string
		comes func(b *Balancer) int // returns who
	}{
		{"one is added", func(b *Balancer) int { i, _ := b.Add(Backend{Max: 9, Weight: 1}); return i }},
		{"a backup is one no more", func(b *Balancer) int { b.SetBackup(2, false); return 2 }},
		{"another becomes a backup, and then the only kind that is up", func(b *Balancer) int {
			b.SetBackup(0, true)
			b.SetOut(1, Down, true)
			return 0
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newWeighted(t, Backend{Max: 9, Weight: 1}, Backend{Max: 9, Weight: 1},
				Backend{Max: 9, Weight: 1, Backup: true}, Backend{Max: 9, Weight: 1, Backup: true})
			for range 1000 {
				i, err := b.Add(Backend{Max: 1, Weight: 1000})
				if err != nil {
					t.Fatal(err)
				}
				b.Move(pick(t, b), Dialing, Free)
				b.Remove(i)
			}
			newcomer := tt.comes(b)
			turns := 0
			for range 6 {
				i := pick(t, b)
				if b.Move(i, Dialing, Free); i == newcomer {
					turns++
				}
			}
			if turns < 1 || turns > 3 {
				t.Errorf("the newcomer had %d turns of 6, with credits %v", turns, credits(b))
			}
		})
	}
}

// The growth of a bucket that is never empty has no end: of weight 1,000,000 it passes
// that of an int64 in three years of 100,000 picks a second.
func TestTurnsGoOnWhereGrowthWraps(t *testing.T) {
	play := func(grown int64) (got string) {
		b := newBy(t, Config{Strategy: WeightedRoundRobin}, weighing(1_000_000, 1_000_000, 1_000_000, 999_999)...)
		x := turnsOf(b.tiers[upTier].rule)
		for c := range x.classes {
			x.classes[c].buckets[0].growth = grown
		}
		for i := range x.nodes {
			x.nodes[i].credit -= grown
		}
		for range 40 {
			i := pick(t, b)
			b.Move(i, Dialing, Free)
			got += letter(i)
		}
		return got
	}
	want := play(0)
	if got := play(math.MaxInt64 - 10_000_000); got != want {
		t.Errorf("near the end the turns are\n%s, want\n%s", got, want)
	}
}

func TestAddsAndRemovesNeedNoMemory(t *testing.T) {
	b := newBalancer(t, 1)
	for range 10_000 {
		i, err := b.Add(Backend{Max: 5, Weight: 2})
		if err != nil || i != 1 || !b.Remove(i) {
			t.Fatalf("Add = %d, %v", i, err)
		}
	}
	if n := cap(b.members); n > 8 {
		t.Errorf("room for %d backends, want a few", n)
	}
}
