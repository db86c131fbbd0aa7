package proxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"forebay/balance"
)

// place is a session in the queue of a test.
type place struct {
	cancel context.CancelCauseFunc
	grantc chan grant
}

// queue has a session wait, in a synctest bubble.
func (p *place) wait(d *dispatcher, ticket uint64, tried ...int) *place {
	ctx, cancel := context.WithCancelCause(context.Background())
	p.cancel, p.grantc = cancel, make(chan grant, 1)
	go func() {
		c, err := d.wait(ctx, claim{ticket: ticket, tried: d.these(tried...)})
		p.grantc <- grant{c, err}
	}()
	synctest.Wait()
	return p
}

// String tells what has become of the session: a letter for the backend, in
// capitals where its connection is ready, "-" for one that waits.
func (p *place) String() string {
	synctest.Wait()
	select {
	case g := <-p.grantc:
		p.grantc <- g
		switch {
		case g.err == nil && g.choice.ready:
			return string(rune('A' + g.choice.backend.index))
		case g.err == nil:
			return string(rune('a' + g.choice.backend.index))
		case errors.Is(g.err, balance.ErrNone):
			return "none"
		}
		return g.err.Error()
	default:
		return "-"
	}
}

func wait(d *dispatcher, ticket uint64, tried ...int) *place {
	return new(place).wait(d, ticket, tried...)
}

func wantPlaces(t *testing.T, when, want string, places ...*place) {
	t.Helper()
	if got := strings.Trim(fmt.Sprint(places), "[]"); got != want {
		t.Errorf("%s: the sessions have %q, want %q", when, got, want)
	}
}

// fill leases every slot.
func fill(t testing.TB, d *dispatcher) {
	t.Helper()
	for {
		c, err := d.pick(claim{})
		if errors.Is(err, balance.ErrFull) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if !c.ready {
			d.dialed(c.backend)
		}
	}
}

func wantSlots(t testing.TB, d *dispatcher, i int, want map[balance.State]int) {
	t.Helper()
	loads, _ := d.loads()
	for s, n := range loads[i].Slots {
		if n != want[balance.State(s)] {
			t.Errorf("backend %d has %d slots %v, want %d", i, n, balance.State(s), want[balance.State(s)])
		}
	}
}

func TestQueueServesTheOldestThatMayUseWhatFrees(t *testing.T) {
	type session struct {
		ticket uint64
		tried  []int
	}
	tests := []struct {
		name     string
		sessions []session // in the order in which they come
		free     []int     // backends, one slot after the other
		down     []int     // before that
		want     string
	}{
		{name: "first come first served", sessions: []session{{1, nil}, {2, nil}, {3, nil}}, free: []int{0, 0}, want: "a a -"},
		{name: "over all backends", sessions: []session{{1, nil}, {2, nil}, {3, nil}}, free: []int{1, 0}, want: "b a -"},
		{name: "a session that comes back has its old place", sessions: []session{{2, nil}, {3, nil}, {1, nil}}, free: []int{0}, want: "- - a"},
		{name: "and between two", sessions: []session{{1, nil}, {3, nil}, {2, nil}}, free: []int{0, 1}, want: "a - b"},
		{name: "who has tried a backend lets others have it", sessions: []session{{1, []int{0}}, {2, nil}}, free: []int{0}, want: "- a"},
		{name: "and gets the next of another", sessions: []session{{1, []int{0}}, {2, []int{0}}, {3, nil}}, free: []int{0, 1}, want: "b - a"},
		{name: "behind one who may use all", sessions: []session{{1, nil}, {2, []int{0}}}, free: []int{1, 1}, want: "b b"},
		{name: "a slot of a backend that is down serves nobody", sessions: []session{{1, nil}, {2, nil}}, down: []int{0}, free: []int{0, 1}, want: "b -"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newTestDispatcher(t, 4, 10, 2, 2)
				fill(t, d)
				var places []*place
				for _, s := range tt.sessions {
					places = append(places, wait(d, s.ticket, s.tried...))
				}
				for _, i := range tt.down {
					d.down(d.at(i), errors.New("down"))
				}
				for _, i := range tt.free {
					d.move(d.at(i), balance.Leased, balance.Free)
				}
				wantPlaces(t, "after the slots were freed", tt.want, places...)
				d.close()
			})
		})
	}
}

func TestEverythingThatFreesCapacityServesTheQueue(t *testing.T) {
	ahead := func(d *dispatcher) { // the one free slot is dialed ahead when the waiter comes
		d.move(d.at(0), balance.Leased, balance.Free)
		if !d.slots(0).Ahead(1) {
			panic("no slot to dial ahead")
		}
	}
	tests := []struct {
		name   string
		before func(d *dispatcher) // with every slot leased
		frees  func(d *dispatcher)
		want   string
	}{
		{name: "a lease whose connection is closed", frees: func(d *dispatcher) {
			d.move(d.at(0), balance.Leased, balance.Closing)
			d.move(d.at(0), balance.Closing, balance.Free)
		}, want: "a"},
		{name: "but not before it is closed", frees: func(d *dispatcher) { d.move(d.at(0), balance.Leased, balance.Closing) }, want: "-"},
		{name: "a lease whose connection is kept", frees: func(d *dispatcher) { d.move(d.at(0), balance.Leased, balance.Idle) }, want: "A"},
		{name: "a dial ahead that succeeds", before: ahead, frees: func(d *dispatcher) { d.slots(0).AheadDone(true) }, want: "A"},
		{name: "a dial ahead that fails", before: ahead, frees: func(d *dispatcher) { d.slots(0).AheadDone(false) }, want: "a"},
		{name: "a dial whose client left", before: func(d *dispatcher) { d.move(d.at(0), balance.Leased, balance.Dialing) },
			frees: func(d *dispatcher) { d.slots(0).Orphaned(); d.slots(0).AheadDone(true) }, want: "A"},
		{name: "a dial whose client left, beside a connection above max", before: func(d *dispatcher) {
			d.bal.SetMax(0, 2)
			d.move(d.at(0), balance.Leased, balance.Dialing)
			d.slots(0).Ahead(1)
			d.slots(0).AheadDone(true)
			d.bal.SetMax(0, 1)
		}, frees: func(d *dispatcher) { d.slots(0).Orphaned() }, want: "A"},
		{name: "an idle connection that has expired", before: func(d *dispatcher) {
			d.move(d.at(0), balance.Leased, balance.Idle)
			d.slots(0).Expire()
		}, frees: func(d *dispatcher) { d.slots(0).Expired() }, want: "a"},
		{name: "a backend that comes up", before: func(d *dispatcher) {
			d.down(d.at(0), errors.New("down"))
			d.move(d.at(0), balance.Leased, balance.Free)
		}, frees: func(d *dispatcher) { d.up(d.at(0)) }, want: "a"},
		{name: "a backend that comes up with a connection", before: func(d *dispatcher) {
			d.down(d.at(0), errors.New("down"))
			d.move(d.at(0), balance.Leased, balance.Idle)
		}, frees: func(d *dispatcher) { d.up(d.at(0)) }, want: "A"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newTestDispatcher(t, 4, 10, 1, 1)
				fill(t, d)
				if tt.before != nil {
					tt.before(d)
				}
				w := wait(d, 1)
				wantPlaces(t, "before", "-", w)
				tt.frees(d)
				wantPlaces(t, "after", tt.want, w)
				d.close()
			})
		})
	}
}

func TestDownRefusesExactlyThoseWithNoOtherHope(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newTestDispatcher(t, 4, 10, 1, 1, 1)
		fill(t, d)
		places := []*place{wait(d, 1), wait(d, 2, 0), wait(d, 3, 0, 1), wait(d, 4, 0, 2), wait(d, 5, 0, 1), wait(d, 6, 1)}
		d.down(d.at(2), errors.New("no route"))
		wantPlaces(t, "c is down", "- - none - none -", places...)
		d.down(d.at(1), errors.New("no route"))
		wantPlaces(t, "b is down too", "- none none none none -", places...)
		d.down(d.at(0), errors.New("no route"))
		wantPlaces(t, "all are down", "none none none none none none", places...)
		if _, err := d.pick(claim{}); !errors.Is(err, balance.ErrNone) || !strings.Contains(err.Error(), "no route") {
			t.Errorf("pick = %v, want ErrNone with the cause", err)
		}
		d.up(d.at(1))
		wantPlaces(t, "b is up again", "-", wait(d, 7))
		d.close()
	})
}

func TestRecoveringBackendDialsFewAtOnceUntilItIsWell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newTestDispatcher(t, 2, 10, 8)
		d.down(d.at(0), errors.New("down"))
		d.up(d.at(0))
		places := []*place{wait(d, 1), wait(d, 2), wait(d, 3), wait(d, 4), wait(d, 5), wait(d, 6), wait(d, 7)}
		wantPlaces(t, "up", "a a - - - - -", places...)
		d.dialed(d.at(0))
		wantPlaces(t, "one success", "a a a - - - -", places...)
		d.move(d.at(0), balance.Dialing, balance.Free)
		wantPlaces(t, "a failure makes room for one", "a a a a - - -", places...)
		d.dialed(d.at(0))
		wantPlaces(t, "as many successes as dials at once", "a a a a a a a", places...)
	})
}

func TestDialsAheadCountTowardsRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newTestDispatcher(t, 2, 10, 8)
		d.down(d.at(0), errors.New("down"))
		d.up(d.at(0))
		for range 2 {
			if !d.slots(0).Ahead(8) {
				t.Fatal("no dial ahead while the backend recovers")
			}
		}
		places := []*place{wait(d, 1), wait(d, 2), wait(d, 3)}
		wantPlaces(t, "both dials are ahead", "- - -", places...)
		d.slots(0).AheadDone(true)
		wantPlaces(t, "the first has its connection, the second the dial", "A a -", places...)
		d.slots(0).AheadDone(true)
		wantPlaces(t, "well", "A a A", places...)
		wantPlaces(t, "no limit", "a", wait(d, 4))
	})
}

func TestNoNewcomerOvertakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newTestDispatcher(t, 4, 10, 1, 1)
		fill(t, d)
		old := wait(d, 1)
		d.move(d.at(1), balance.Leased, balance.Free)
		if c, err := d.pick(claim{}); !errors.Is(err, balance.ErrFull) {
			t.Errorf("a newcomer has %v, %v; want ErrFull", c, err)
		}
		wantPlaces(t, "the oldest", "b", old)
		d.close()
	})
}

func TestAheadTakesNothingWhileAnyoneWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newTestDispatcher(t, 4, 10, 1, 1)
		fill(t, d)
		w := wait(d, 1, 0) // for b only
		d.move(d.at(0), balance.Leased, balance.Free)
		if d.slots(0).Ahead(1) {
			t.Error("Ahead took a slot while a client waited")
		}
		w.cancel(errClientLeft)
		wantPlaces(t, "it left", errClientLeft.Error(), w)
		if !d.slots(0).Ahead(1) {
			t.Error("Ahead got no slot, and nobody waits")
		}
		d.slots(0).AheadDone(true)
		d.close()
		if d.slots(0).Ahead(2) {
			t.Error("Ahead took a slot after close")
		}
	})
}

func TestQueueIsBounded(t *testing.T) {
	for _, limit := range []int{0, 1, 3} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newTestDispatcher(t, 4, limit, 1)
				fill(t, d)
				var places []*place
				want := strings.Repeat("- ", limit) + errQueueFull.Error()
				for i := range limit + 1 {
					places = append(places, wait(d, uint64(i)))
				}
				wantPlaces(t, "one more than the queue holds", want, places...)
				d.move(d.at(0), balance.Leased, balance.Free)
				if limit > 0 {
					wantPlaces(t, "one was served", "-", wait(d, 9))
				} else {
					wantPlaces(t, "a free slot needs no queue", "a", wait(d, 9))
				}
				d.close()
			})
		})
	}
}

func TestCloseRefusesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newTestDispatcher(t, 4, 10, 1, 2)
		fill(t, d)
		d.move(d.at(1), balance.Leased, balance.Free) // room for one who has not tried b
		places := []*place{wait(d, 1, 1), wait(d, 2, 1)}
		d.close()
		shut := errShutdown.Error()
		wantPlaces(t, "those who waited", shut+" "+shut, places...)
		wantPlaces(t, "one who comes later", shut, wait(d, 3))
		if _, err := d.pick(claim{}); err != errShutdown {
			t.Errorf("pick = %v, want errShutdown", err)
		}
		d.move(d.at(0), balance.Leased, balance.Free)
		wantSlots(t, d, 0, map[balance.State]int{balance.Free: 1})
	})
}

// A session that leaves at the very moment at which it is granted a slot gives it on.
func TestLeaveGivesTheGrantOn(t *testing.T) {
	for _, state := range []balance.State{balance.Free, balance.Idle} {
		t.Run(state.String(), func(t *testing.T) {
			d := newTestDispatcher(t, 4, 10, 1)
			fill(t, d)
			first, firstc := newWaiter(claim{ticket: 1}, longWait)
			second, secondc := newWaiter(claim{ticket: 2}, longWait)
			d.join(first)
			d.join(second)
			d.move(d.at(0), balance.Leased, state)
			if d.leave(first) {
				t.Error("a session that was granted a slot still waits")
			}
			d.giveBack((<-firstc).choice)
			select {
			case g := <-secondc:
				if g.err != nil || g.choice.ready != (state == balance.Idle) {
					t.Errorf("the next waiter has %+v", g)
				}
				d.giveBack(g.choice)
			default:
				t.Error("the next waiter has not got the slot")
			}
			wantSlots(t, d, 0, map[balance.State]int{state: 1})
			if _, waiting := d.loads(); waiting != 0 {
				t.Errorf("%d wait, want none", waiting)
			}
		})
	}
}

func TestWaiterWhoseTimeIsUpIsSkipped(t *testing.T) {
	d := newTestDispatcher(t, 4, 10, 1)
	fill(t, d)
	late, latec := newWaiter(claim{ticket: 1}, 0)
	next, nextc := newWaiter(claim{ticket: 2}, longWait)
	d.join(late)
	d.join(next)
	d.move(d.at(0), balance.Leased, balance.Free)
	if g := <-latec; g.err != errAcquireTimeout {
		t.Errorf("the one whose time is up has %+v", g)
	}
	if g := <-nextc; g.err != nil {
		t.Errorf("the next has %+v", g)
	}
	wantSlots(t, d, 0, map[balance.State]int{balance.Dialing: 1})
}

// TestExpiryOfManyAtOnceLosesNothing frees slots in the very moment, of fake
// time, at which the acquire timeout of a hundred sessions passes.
func TestExpiryOfManyAtOnceLosesNothing(t *testing.T) {
	const timeout = 3 * time.Second
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			d := newTestDispatcher(t, 4, 200, 3, 2)
			fill(t, d)
			var served, expired atomic.Int64
			var wg sync.WaitGroup
			for i := range 100 {
				wg.Go(func() {
					w, grantc := newWaiter(claim{ticket: uint64(i)}, timeout)
					d.join(w)
					switch g := <-grantc; {
					case g.err == nil:
						served.Add(1)
						d.dialed(g.choice.backend)
						d.move(g.choice.backend, balance.Leased, balance.Free)
					case g.err == errAcquireTimeout:
						expired.Add(1)
					default:
						t.Error(g.err)
					}
				})
			}
			time.Sleep(timeout - time.Nanosecond)
			synctest.Wait()
			for i, n := range []int{3, 2} {
				for range n {
					wg.Go(func() {
						time.Sleep(time.Nanosecond)
						d.move(d.at(i), balance.Leased, balance.Free)
					})
				}
			}
			wg.Wait()
			wantSlots(t, d, 0, map[balance.State]int{balance.Free: 3})
			wantSlots(t, d, 1, map[balance.State]int{balance.Free: 2})
			if _, waiting := d.loads(); waiting != 0 || served.Load()+expired.Load() != 100 {
				t.Errorf("%d served, %d expired, %d still wait; want 100 and none", served.Load(), expired.Load(), waiting)
			}
		})
	}
}

// TestConcurrentSessionsLoseNoSlot has sessions come, be served, fail and leave
// at random, by each strategy. Those who do not leave must all be served, no backend may have more
// than max, and all slots are free at the end.
func TestConcurrentSessionsLoseNoSlot(t *testing.T) {
	for n, strategy := range balance.Strategies {
		t.Run(string(strategy), func(t *testing.T) { testConcurrentSessionsLoseNoSlot(t, strategy, uint64(n)) })
	}
}

func testConcurrentSessionsLoseNoSlot(t *testing.T, strategy balance.Strategy, seed uint64) {
	maxes := []int{1, 2, 4, 2}
	d := newBalancedDispatcher(t, balance.Config{Strategy: strategy, Seed: seed}, 2, 10000, maxes[:3]...)
	addTo(t, d, Backend{Max: maxes[3], Weight: 2, Backup: true}) // for those who have tried all others
	var used [4]atomic.Int64
	var tickets atomic.Uint64
	var wg sync.WaitGroup
	for worker := range 64 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(worker)))
			for range 20 {
				ctx, cancel := context.WithCancelCause(t.Context())
				patient := rnd.IntN(3) > 0
				if !patient {
					time.AfterFunc(rand.N(200*time.Microsecond), func() { cancel(errClientLeft) })
				}
				tried := [][]int{nil, nil, nil, nil, {0}, {1}, {2}, {0, 1, 2}}[rnd.IntN(8)]
				c, err := d.wait(ctx, claim{ticket: tickets.Add(1), client: balance.Client(rnd.Uint64()), tried: d.these(tried...)})
				switch {
				case err == nil:
					if n := used[c.backend.index].Add(1); n > int64(maxes[c.backend.index]) {
						t.Errorf("backend %d has %d slots in use, max is %d", c.backend.index, n, maxes[c.backend.index])
					}
					useSlot(d, c, rnd, &used[c.backend.index])
				case patient:
					t.Errorf("a session that would wait for ever got %v", err)
				}
				cancel(nil)
			}
		})
	}
	stopAhead := keepAhead(d, len(maxes))
	wg.Wait()
	stopAhead()
	for i, m := range maxes {
		for d.slots(i).Expire() {
			d.slots(i).Expired()
		}
		wantSlots(t, d, i, map[balance.State]int{balance.Free: m})
	}
}

// useSlot does with a granted slot what sessions do.
func useSlot(d *dispatcher, c choice, rnd *rand.Rand, used *atomic.Int64) {
	i := c.backend.index
	if c.ready && rnd.IntN(4) == 0 {
		d.move(d.at(i), balance.Leased, balance.Dialing) // the connection was unusable
		c.ready = false
	}
	if !c.ready {
		switch rnd.IntN(4) {
		case 0: // the dial fails
			used.Add(-1)
			d.move(d.at(i), balance.Dialing, balance.Free)
			return
		case 1: // the client leaves
			used.Add(-1)
			d.slots(i).Orphaned()
			d.slots(i).AheadDone(rnd.IntN(2) == 0)
			return
		}
		d.dialed(d.at(i))
	}
	used.Add(-1)
	switch rnd.IntN(3) {
	case 0:
		d.move(d.at(i), balance.Leased, balance.Idle)
	case 1:
		d.move(d.at(i), balance.Leased, balance.Closing)
		d.move(d.at(i), balance.Closing, balance.Free)
	default:
		d.move(d.at(i), balance.Leased, balance.Free)
	}
}

// keepAhead dials ahead and expires for all backends, until stop is called.
func keepAhead(d *dispatcher, backends int) (stop func()) {
	var wg sync.WaitGroup
	stopc := make(chan struct{})
	for i := range backends {
		s := d.slots(i)
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stopc:
					return
				default:
				}
				if s.Ahead(2) {
					s.AheadDone(n%3 > 0)
				}
				if s.Expire() {
					s.Expired()
				}
			}
		})
	}
	return func() { close(stopc); wg.Wait() }
}

// What could not be dialed ahead while clients waited is, once they have gone.
func TestPoolsHearOfRoomOnceNobodyWaits(t *testing.T) {
	tests := []struct {
		name    string
		waits   bool // somebody does, as the thing happens
		happens func(t *testing.T, d *dispatcher, leave func())
		want    []int
	}{
		{name: "a slot is freed", happens: func(_ *testing.T, d *dispatcher, _ func()) {
			d.move(d.at(0), balance.Leased, balance.Free)
		}, want: []int{0}},
		{name: "a slot is freed for a waiter", waits: true, happens: func(_ *testing.T, d *dispatcher, _ func()) {
			d.move(d.at(0), balance.Leased, balance.Closing)
		}},
		{name: "the last waiter leaves", waits: true, happens: func(_ *testing.T, _ *dispatcher, leave func()) {
			leave()
		}},
		{name: "the last waiter leaves, and one pool has asked meanwhile", waits: true, happens: func(t *testing.T, d *dispatcher, leave func()) {
			for range 2 {
				if d.slots(1).Ahead(1) {
					t.Error("it was given a slot")
				}
			}
			leave()
		}, want: []int{1}},
		{name: "the last waiter leaves, and a backend came up meanwhile", waits: true, happens: func(_ *testing.T, d *dispatcher, leave func()) {
			d.up(d.at(0)) // as full as it was
			leave()
		}, want: []int{0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newTestDispatcher(t, 4, 10, 1, 1)
				heard := &roomEvents{}
				d.events = heard
				for range 2 { // both are full, with leases
					c, err := d.pick(claim{})
					if err != nil {
						t.Fatal(err)
					}
					d.dialed(c.backend)
				}
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				if tt.waits {
					go d.wait(ctx, claim{ticket: 1})
					synctest.Wait()
				}
				heard.backends = nil
				tt.happens(t, d, leave)
				synctest.Wait()
				if !slices.Equal(heard.backends, tt.want) {
					t.Errorf("heard of room at %v, want %v", heard.backends, tt.want)
				}
			})
		})
	}
}

type roomEvents struct {
	noEvents
	backends []int
}

func (r *roomEvents) backendHasRoom(b *backend) { r.backends = append(r.backends, b.index) }

// While the last waiter stood in the queue every backend was refused its dials
// ahead, not only the one that has served it.
func TestAllPoolsHearOfRoomOnceTheLastWaiterIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newTestDispatcher(t, 4, 10, 1, 1)
		heard := &roomEvents{}
		d.events = heard
		d.bal.Move(1, balance.Free, balance.Leased)
		go d.wait(t.Context(), claim{ticket: 1, tried: d.these(0)})
		synctest.Wait()
		if d.slots(0).Ahead(1) {
			t.Error("dialed ahead while somebody waits")
		}
		d.move(d.at(1), balance.Leased, balance.Idle)
		if !slices.Contains(heard.backends, 0) {
			t.Errorf("heard of room at %v, want 0 among them", heard.backends)
		}
	})
}
