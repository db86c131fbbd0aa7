package proxy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"forebay/balance"
)

// model is the dispatcher, written again as plainly as can be: one list of
// sessions, sorted and walked to its end after each change.
type model struct {
	backends []modelBackend
	queue    []*modelSession
	parallel int
	limit    int
	closed   bool
}

type modelBackend struct {
	max, weight, credit int
	slots               map[balance.State]int
	down                bool
	toSucceed           int // dials, before as many as wanted may be under way
}

type modelSession struct {
	ticket   uint64
	tried    []int
	deadline time.Time
	got      string // empty while it waits

	// The same session in the dispatcher.
	w      *waiter
	grantc chan grant
}

// pick returns what a session gets: a backend's letter, "full", "none" or
// "closed".
func (m *model) pick(tried []int) string {
	if m.closed {
		return "closed"
	}
	var best []int
	least, hope := 2.0, false
	for i, b := range m.backends {
		if b.down || slices.Contains(tried, i) {
			continue
		}
		hope = true
		dials := b.slots[balance.Dialing] + b.slots[balance.DialingAhead]
		mayDial := b.slots[balance.Free] > 0 && (b.toSucceed == 0 || dials < m.parallel)
		if b.slots[balance.Idle] == 0 && !mayDial {
			continue
		}
		// Equal fractions have equal quotients: division is exact enough.
		load := float64(b.slots[balance.Leased]+b.slots[balance.Dialing]+b.slots[balance.Closing]) / float64(b.max)
		if load < least {
			least, best = load, nil
		}
		if load == least {
			best = append(best, i)
		}
	}
	switch {
	case !hope:
		return "none"
	case best == nil:
		return "full"
	}
	return m.reserve(m.turn(best))
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

func (m *model) reserve(i int) string {
	if m.backends[i].slots[balance.Idle] > 0 {
		m.move(i, balance.Idle, balance.Leased)
		return string(rune('A' + i))
	}
	m.move(i, balance.Free, balance.Dialing)
	return string(rune('a' + i))
}

func (m *model) move(i int, from, to balance.State) {
	m.backends[i].slots[from]--
	m.backends[i].slots[to]++
}

func (m *model) succeed(i int) {
	if m.backends[i].toSucceed > 0 {
		m.backends[i].toSucceed--
	}
}

// serve gives every session in the queue what it may have, the oldest first.
func (m *model) serve() {
	slices.SortStableFunc(m.queue, func(a, b *modelSession) int { return int(a.ticket) - int(b.ticket) })
	for _, s := range m.queue {
		if got := m.pick(s.tried); got != "full" {
			s.got = got
		}
	}
	m.dropAnswered()
}

// expire ends the waits whose time is up.
func (m *model) expire() {
	for _, s := range m.queue {
		if !time.Now().Before(s.deadline) {
			s.got = errAcquireTimeout.Error()
		}
	}
	m.dropAnswered()
}

func (m *model) dropAnswered() {
	m.queue = slices.DeleteFunc(m.queue, func(s *modelSession) bool { return s.got != "" })
}

func answer(c balance.Choice, err error) string {
	switch {
	case err == nil && c.Ready:
		return string(rune('A' + c.Backend))
	case err == nil:
		return string(rune('a' + c.Backend))
	case errors.Is(err, balance.ErrFull):
		return "full"
	case errors.Is(err, balance.ErrNone):
		return "none"
	case errors.Is(err, errShutdown):
		return "closed"
	}
	return err.Error()
}

// modelRun does the same to a dispatcher and a model.
type modelRun struct {
	t    *testing.T
	rnd  *rand.Rand
	d    *dispatcher
	m    *model
	all  []*modelSession
	next uint64
	log  []string
}

func TestDispatcherDoesAsItsModel(t *testing.T) { synctest.Test(t, doesAsItsModel) }

func doesAsItsModel(t *testing.T) {
	for seed := range uint64(150) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		r := &modelRun{t: t, rnd: rnd, m: &model{parallel: 1 + rnd.IntN(3), limit: rnd.IntN(12)}}
		var backends []balance.Backend
		for range 1 + rnd.IntN(4) {
			b := balance.Backend{Max: 1 + rnd.IntN(4), Weight: 1 + rnd.IntN(3)}
			backends = append(backends, b)
			r.m.backends = append(r.m.backends, modelBackend{max: b.Max, weight: b.Weight, slots: map[balance.State]int{balance.Free: b.Max}})
		}
		bal, err := balance.New(backends)
		if err != nil {
			t.Fatal(err)
		}
		r.d = newDispatcher(bal, len(backends), r.m.parallel, r.m.limit, noEvents{})
		for range 400 {
			r.step()
			if !r.same() {
				t.Fatalf("seed %d, the last steps: %v", seed, r.log[max(0, len(r.log)-12):])
			}
		}
	}
}

// step does one thing, of those that can be done now.
func (r *modelRun) step() {
	i := r.rnd.IntN(len(r.m.backends))
	b := &r.m.backends[i]
	s := slots{r.d, i}
	has := func(st balance.State) bool { return b.slots[st] > r.granted(i, st) }
	did := func(format string, args ...any) { r.log = append(r.log, fmt.Sprintf(format, args...)) }
	move := func(from, to balance.State) {
		did("%v of %d becomes %v", from, i, to)
		r.d.move(i, from, to)
		r.m.move(i, from, to)
		r.m.serve()
	}
	switch op := r.rnd.IntN(20); {
	case op < 3:
		r.newcomer()
	case op < 6:
		r.join()
	case op == 6 || op == 18:
		r.leave()
	case op == 7 && has(balance.Leased):
		move(balance.Leased, balance.Idle)
	case op == 8 && has(balance.Leased):
		move(balance.Leased, balance.Closing)
	case op == 9 && has(balance.Closing):
		move(balance.Closing, balance.Free)
	case op == 10 && has(balance.Leased):
		r.m.move(i, balance.Leased, balance.Dialing) // frees nothing: nobody is served
		r.d.move(i, balance.Leased, balance.Dialing)
		did("the idle connection of %d was unusable", i)
	case op == 11 && has(balance.Dialing):
		did("a dial of %d succeeds", i)
		r.d.dialed(i)
		r.m.move(i, balance.Dialing, balance.Leased)
		r.m.succeed(i)
		r.m.serve()
	case op == 12 && has(balance.Dialing):
		if r.rnd.IntN(2) == 0 {
			move(balance.Dialing, balance.Free)
			return
		}
		did("a dial of %d is orphaned", i)
		s.Orphaned()
		r.m.move(i, balance.Dialing, balance.DialingAhead)
	case op == 13 && has(balance.DialingAhead):
		ok := r.rnd.IntN(3) > 0
		did("a dial ahead of %d ends, %v", i, ok)
		s.AheadDone(ok)
		if ok {
			r.m.move(i, balance.DialingAhead, balance.Idle)
			r.m.succeed(i)
		} else {
			r.m.move(i, balance.DialingAhead, balance.Free)
		}
		r.m.serve()
	case op == 14:
		r.ahead(i, 1+r.rnd.IntN(3))
	case op == 15:
		did("expire one of %d", i)
		if got, want := s.Expire(), has(balance.Idle); got != want {
			r.t.Errorf("Expire = %v, want %v", got, want)
		}
		if has(balance.Idle) {
			r.m.move(i, balance.Idle, balance.Expiring)
		}
	case op == 16 && has(balance.Expiring):
		did("one of %d has expired", i)
		s.Expired()
		r.m.move(i, balance.Expiring, balance.Free)
		r.m.serve()
	case op == 17:
		r.health(i)
	case op == 19:
		d := time.Duration(r.rnd.IntN(300)) * time.Millisecond
		did("%v pass", d)
		time.Sleep(d)
		synctest.Wait()
		r.m.expire()
	}
}

// granted returns how many slots in state s of backend i were granted to sessions
// that have not taken them yet: nobody else moves these.
func (r *modelRun) granted(i int, s balance.State) (n int) {
	letter := map[balance.State]string{balance.Leased: string(rune('A' + i)), balance.Dialing: string(rune('a' + i))}[s]
	for _, o := range r.all {
		if letter != "" && o.got == letter {
			n++
		}
	}
	return n
}

func (r *modelRun) tried() (tried []int) {
	for i := range r.m.backends {
		if r.rnd.IntN(4) == 0 {
			tried = append(tried, i)
		}
	}
	return tried
}

func (r *modelRun) newcomer() {
	tried := r.tried()
	got, want := answer(r.d.pick(claim{tried: tried})), r.m.pick(tried)
	r.log = append(r.log, fmt.Sprintf("a newcomer that tried %v has %s", tried, got))
	if got != want {
		r.t.Errorf("pick(%v) = %s, want %s", tried, got, want)
	}
}

// join has a new session wait, or one with an old ticket.
func (r *modelRun) join() {
	r.next += 2
	s := &modelSession{ticket: r.next, tried: r.tried()}
	if r.rnd.IntN(4) == 0 {
		s.ticket = r.next - 1 - 2*uint64(r.rnd.IntN(10)) // odd: nobody has it, or one that left
		if slices.ContainsFunc(r.all, func(o *modelSession) bool { return o.ticket == s.ticket }) || s.ticket > r.next {
			s.ticket = r.next
		}
	}
	patience := time.Duration(1+r.rnd.IntN(1000)) * time.Millisecond
	s.deadline = time.Now().Add(patience)
	s.w, s.grantc = newWaiter(claim{ticket: s.ticket, tried: s.tried}, patience)
	waits, c, err := r.d.join(s.w)
	r.log = append(r.log, fmt.Sprintf("%d joins, having tried %v", s.ticket, s.tried))
	want := r.m.pick(s.tried)
	if want == "full" && len(r.m.queue) >= r.m.limit {
		want = errQueueFull.Error()
	}
	if want != "full" {
		if waits || answer(c, err) != want {
			r.t.Errorf("join = %v (%v), want %s", answer(c, err), waits, want)
		}
		return
	}
	if !waits {
		r.t.Errorf("join = %s, want a place in the queue", answer(c, err))
		return
	}
	r.m.queue = append(r.m.queue, s)
	r.all = append(r.all, s)
	r.m.serve() // sorts
}

// leave has a session take its grant, or go, with or without one.
func (r *modelRun) leave() {
	if len(r.all) == 0 {
		return
	}
	n := r.rnd.IntN(len(r.all))
	s := r.all[n]
	r.all = slices.Delete(r.all, n, n+1)
	if s.got != "" && r.rnd.IntN(2) == 0 {
		r.log = append(r.log, fmt.Sprintf("%d takes %s", s.ticket, s.got))
		return
	}
	r.log = append(r.log, fmt.Sprintf("%d goes", s.ticket))
	if got, want := r.d.leave(s.w), s.got == ""; got != want {
		r.t.Errorf("leave = %v, want %v", got, want)
	}
	r.m.queue = slices.DeleteFunc(r.m.queue, func(o *modelSession) bool { return o == s })
	if len(s.got) != 1 {
		return // no backend's letter
	}
	r.d.giveBack((<-s.grantc).choice)
	if s.got < "a" {
		r.m.move(int(s.got[0]-'A'), balance.Leased, balance.Idle)
	} else {
		r.m.move(int(s.got[0]-'a'), balance.Dialing, balance.Free)
	}
	r.m.serve()
}

func (r *modelRun) ahead(i, want int) {
	b := &r.m.backends[i]
	ahead, dials := b.slots[balance.DialingAhead], b.slots[balance.Dialing]+b.slots[balance.DialingAhead]
	may := !b.down && len(r.m.queue) == 0 && b.slots[balance.Free] > 0 && b.slots[balance.Idle]+ahead < want &&
		ahead < r.m.parallel && (b.toSucceed == 0 || dials < r.m.parallel)
	r.log = append(r.log, fmt.Sprintf("%d dials ahead, %v", i, may))
	if got := (slots{r.d, i}).Ahead(want); got != may {
		r.t.Errorf("Ahead = %v, want %v", got, may)
	}
	if may {
		r.m.move(i, balance.Free, balance.DialingAhead)
	}
}

// health has a backend go down, come up, or be probed.
func (r *modelRun) health(i int) {
	b, s := &r.m.backends[i], slots{r.d, i}
	switch {
	case !b.down:
		r.log = append(r.log, fmt.Sprintf("%d goes down", i))
		s.Down(errors.New("down"))
		b.down, b.toSucceed = true, 0
		r.m.serve()
	case r.rnd.IntN(2) == 0:
		r.log = append(r.log, fmt.Sprintf("%d is probed", i))
		may := b.slots[balance.Free] > 0
		if got := s.Probe(); got != may {
			r.t.Errorf("Probe = %v, want %v", got, may)
		}
		if may {
			r.m.move(i, balance.Free, balance.DialingAhead)
		}
	default:
		r.log = append(r.log, fmt.Sprintf("%d comes up", i))
		s.Up()
		b.down, b.toSucceed = false, r.m.parallel
		r.m.serve()
	}
}

// same compares what the sessions have got and where the slots are.
func (r *modelRun) same() bool {
	loads, waiting := r.d.loads()
	for i, l := range loads {
		for s, n := range l.Slots {
			if want := r.m.backends[i].slots[balance.State(s)]; n != want {
				r.t.Errorf("backend %d has %d slots %v, want %d", i, n, balance.State(s), want)
			}
		}
	}
	if waiting != len(r.m.queue) {
		r.t.Errorf("%d wait, want %d", waiting, len(r.m.queue))
	}
	for _, s := range r.all {
		got := ""
		select {
		case g := <-s.grantc:
			got = answer(g.choice, g.err)
			s.grantc <- g
		default:
		}
		if got != s.got {
			r.t.Errorf("session %d has got %q, want %q", s.ticket, got, s.got)
		}
	}
	return !r.t.Failed()
}
