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
	paused   bool
	choice   modelChoice
}

type modelBackend struct {
	gone                bool
	backup              bool
	max, weight, credit int
	least               int // the limit; 0: none
	slots               map[balance.State]int
	down                bool
	state               State
	removed             bool
	toSucceed           int // dials, before as many as wanted may be under way
}

type modelSession struct {
	ticket   uint64
	client   balance.Client
	tried    []int
	patience time.Duration // how long it still waits
	standing time.Duration // and how long its time may still stand, while all is paused
	got      string        // empty while it waits

	// The same session in the dispatcher.
	w      *waiter
	grantc chan grant
}

// pick returns what a session gets: a backend's letter, "full", "none" or
// "closed".
func (m *model) pick(client balance.Client, tried []int) string {
	if m.closed {
		return "closed"
	}
	if m.paused {
		return "full"
	}
	for tier := range m.choice.last {
		var hope, room []int
		for i := range m.backends {
			b := &m.backends[i]
			if m.tier(b) != tier || slices.Contains(tried, i) {
				continue
			}
			hope = append(hope, i)
			if b.slots[balance.Idle] > 0 && b.active() < b.bound() || m.mayDial(b) {
				room = append(room, i)
			}
		}
		switch {
		case room != nil:
			return m.reserve(m.choose(tier, client, room))
		case hope != nil:
			return "full"
		}
	}
	return "none"
}

func (b *modelBackend) isOut() bool { return b.gone || b.down || b.state != Ready || b.removed }

func (b *modelBackend) bound() int {
	if b.least == 0 {
		return b.max
	}
	return min(b.least, b.max)
}

func (b *modelBackend) active() int {
	return b.slots[balance.Leased] + b.slots[balance.Dialing] + b.slots[balance.Closing]
}

func (b *modelBackend) open() (n int) {
	for s, count := range b.slots {
		if s != balance.Free {
			n += count
		}
	}
	return n
}

func (m *model) mayDial(b *modelBackend) bool {
	dials := b.slots[balance.Dialing] + b.slots[balance.DialingAhead]
	return b.open() < b.bound() && (b.toSucceed == 0 || dials < m.parallel)
}

// surplus is what lies idle and should not.
func (m *model) surplus(b *modelBackend) int {
	stay := b.slots[balance.Idle] + b.slots[balance.Leased] + b.slots[balance.Dialing] + b.slots[balance.DialingAhead]
	switch {
	case m.paused || b.removed || b.state != Ready:
		return b.slots[balance.Idle]
	case stay > b.bound():
		return min(stay-b.bound(), b.slots[balance.Idle])
	}
	return 0
}

// resized gives a backend as many free slots as its max leaves.
func (b *modelBackend) resized() {
	b.slots[balance.Free] = max(0, b.max-b.open())
}

// meanCredit is what a newcomer among the backups, or the others, has.
func (m *model) meanCredit(backup bool) int {
	sum, n := 0, 0
	for _, b := range m.backends {
		if !b.gone && b.backup == backup {
			sum, n = sum+b.credit, n+1
		}
	}
	if n == 0 {
		return 0
	}
	return sum / n
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
	b := &m.backends[i]
	b.slots[from]--
	b.slots[to]++
	b.resized()
	m.sweepUp(i)
}

// sweepUp forgets a backend that was removed, when nothing of it is open.
func (m *model) sweepUp(i int) {
	b := &m.backends[i]
	if !b.removed || b.open() > 0 {
		return
	}
	*b = modelBackend{gone: true, slots: map[balance.State]int{}}
	for _, s := range m.queue { // whoever comes in its place has not been tried
		s.tried = slices.DeleteFunc(s.tried, func(t int) bool { return t == i })
	}
}

func (m *model) succeed(i int) {
	if m.backends[i].toSucceed > 0 {
		m.backends[i].toSucceed--
	}
}

// serve gives every session in the queue what it may have, the oldest first.
func (m *model) serve() {
	defer m.dropAnswered()
	slices.SortStableFunc(m.queue, func(a, b *modelSession) int { return int(a.ticket) - int(b.ticket) })
	for _, s := range m.queue {
		if got := m.pick(s.client, s.tried); got != "full" {
			s.got = got
		}
	}
}

// pass has time pass, and ends the waits whose time is up.
func (m *model) pass(d time.Duration) {
	for _, s := range m.queue {
		left := d
		if m.paused {
			stands := min(left, s.standing)
			s.standing -= stands
			left -= stands
		}
		if s.patience -= left; s.patience <= 0 {
			s.got = errAcquireTimeout.Error()
		}
	}
	m.dropAnswered()
}

func (m *model) dropAnswered() {
	m.queue = slices.DeleteFunc(m.queue, func(s *modelSession) bool { return s.got != "" })
}

func answer(c choice, err error) string {
	switch {
	case err == nil && c.ready:
		return string(rune('A' + c.backend.index))
	case err == nil:
		return string(rune('a' + c.backend.index))
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
	srv  *Server
	m    *model
	all  []*modelSession
	next uint64
	log  []string
}

func TestDispatcherDoesAsItsModel(t *testing.T) { synctest.Test(t, doesAsItsModel) }

func doesAsItsModel(t *testing.T) {
	for seed := range uint64(400) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		cfg := balance.Config{Strategy: modelled[seed%uint64(len(modelled))], Seed: seed, TryDown: rnd.IntN(2) == 0}
		r := &modelRun{t: t, rnd: rnd, m: &model{parallel: 1 + rnd.IntN(3), limit: rnd.IntN(12), choice: newModelChoice(cfg)}}
		r.d = newBalancedDispatcher(t, cfg, r.m.parallel, r.m.limit)
		r.srv = &Server{dispatcher: r.d}
		for range 1 + rnd.IntN(4) {
			b := Backend{Max: 1 + rnd.IntN(4), Weight: 1 + rnd.IntN(3), Backup: rnd.IntN(3) == 0}
			addTo(t, r.d, b)
			r.m.backends = append(r.m.backends, modelBackend{backup: b.Backup, max: b.Max, weight: b.Weight, slots: map[balance.State]int{balance.Free: b.Max}})
		}
		for range 400 {
			r.step()
			if !r.same() {
				t.Fatalf("%s, seed %d, the last steps: %v", cfg.Strategy, seed, r.log[max(0, len(r.log)-12):])
			}
		}
	}
}

// step does one thing, of those that can be done now.
func (r *modelRun) step() {
	i := r.rnd.IntN(len(r.m.backends))
	b := &r.m.backends[i]
	s := r.d.slots(i)
	has := func(st balance.State) bool { return b.slots[st] > r.granted(i, st) }
	did := func(format string, args ...any) { r.log = append(r.log, fmt.Sprintf(format, args...)) }
	move := func(from, to balance.State) {
		did("%v of %d becomes %v", from, i, to)
		r.d.move(r.d.at(i), from, to)
		r.m.move(i, from, to)
		r.m.serve()
	}
	switch op := r.rnd.IntN(24); {
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
		r.d.move(r.d.at(i), balance.Leased, balance.Dialing)
		did("the idle connection of %d was unusable", i)
	case op == 11 && has(balance.Dialing):
		did("a dial of %d succeeds", i)
		r.d.dialed(r.d.at(i))
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
		r.m.serve()
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
	case op == 14 && !b.gone:
		r.ahead(i, 1+r.rnd.IntN(3))
	case op == 15 && !b.gone:
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
	case op == 17 && !b.gone:
		r.health(i)
	case op == 19:
		d := time.Duration(r.rnd.IntN(300)) * time.Millisecond
		did("%v pass", d)
		time.Sleep(d)
		synctest.Wait()
		r.m.pass(d)
	case op == 20:
		r.pause()
	case op >= 21:
		r.control(i)
	}
}

func (r *modelRun) pause() {
	r.log = append(r.log, fmt.Sprintf("paused: %v", !r.m.paused))
	if r.m.paused {
		r.d.resume()
	} else if begun, err := r.d.pause(); !begun || err != nil {
		r.t.Errorf("pause = %v, %v", begun, err)
	}
	r.m.paused = !r.m.paused
	r.m.serve()
}

// control changes the set of backends, or one of them.
func (r *modelRun) control(i int) {
	b := &r.m.backends[i]
	n := 1 + r.rnd.IntN(4)
	what := [...]string{"max", "limit", "weight", "state", "removed", "added"}[r.rnd.IntN(6)]
	if b.gone || what == "added" {
		r.added(n)
		return
	}
	r.log = append(r.log, fmt.Sprintf("%s of %d, %d", what, i, n))
	going := b.removed
	err := r.srv.change(r.d.at(i).name, func(d *dispatcher, at *backend) {
		switch what {
		case "max":
			b.max, at.Max = n, n
			d.bal.SetMax(i, n)
		case "limit":
			b.least = n - 1
			d.bal.SetLimit(i, n-1)
		case "weight":
			b.weight = n
			d.bal.SetWeight(i, n)
		case "state":
			b.state = []State{Ready, Ready, Drain, Maintain}[n-1]
			d.setState(at, b.state)
		case "removed":
			b.removed, at.removed = true, true
			d.bal.SetOut(i, balance.Removed, true)
		}
	})
	if (err != nil) != going {
		r.t.Errorf("change = %v, of a backend that is being removed: %v", err, going)
	}
	b.resized()
	r.m.serve()
	r.m.sweepUp(i)
}

// added adds a backend, or keeps one that is being removed.
func (r *modelRun) added(n int) {
	be := Backend{Network: "tcp", Addr: fmt.Sprint("added:", len(r.log)), Max: n, Weight: 1 + r.rnd.IntN(3), Backup: r.rnd.IntN(3) == 0}
	i := slices.IndexFunc(r.m.backends, func(b modelBackend) bool { return b.removed })
	switch {
	case i >= 0 && r.rnd.IntN(2) == 0:
		kept := &r.m.backends[i]
		be.Addr = r.d.at(i).Addr
		if kept.backup != be.Backup {
			kept.credit = r.m.meanCredit(be.Backup)
		}
		kept.removed, kept.state, kept.max, kept.weight, kept.backup = false, Ready, n, be.Weight, be.Backup
		kept.resized()
	default:
		made := modelBackend{backup: be.Backup, max: n, weight: be.Weight, credit: r.m.meanCredit(be.Backup), slots: map[balance.State]int{balance.Free: n}}
		if i = slices.IndexFunc(r.m.backends, func(b modelBackend) bool { return b.gone }); i >= 0 {
			r.m.backends[i] = made
		} else if i = len(r.m.backends); i < 6 {
			r.m.backends = append(r.m.backends, made)
		} else {
			return
		}
	}
	r.log = append(r.log, fmt.Sprintf("%d is added, max %d, a backup: %v", i, n, be.Backup))
	if err := r.d.add(&backend{name: be.String(), dispatched: dispatched{Backend: be}}); err != nil {
		r.t.Error(err)
	}
	r.m.serve()
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
		if r.rnd.IntN(4) == 0 && !r.m.backends[i].gone {
			tried = append(tried, i)
		}
	}
	return tried
}

func (r *modelRun) newcomer() {
	tried, client := r.tried(), balance.Client(r.rnd.Uint64())
	got, want := answer(r.d.pick(claim{client: client, tried: r.d.these(tried...)})), r.m.pick(client, tried)
	r.log = append(r.log, fmt.Sprintf("a newcomer that tried %v has %s", tried, got))
	if got != want {
		r.t.Errorf("pick(%v) = %s, want %s", tried, got, want)
	}
}

// join has a new session wait, or one with an old ticket.
func (r *modelRun) join() {
	r.next += 2
	s := &modelSession{ticket: r.next, client: balance.Client(r.rnd.Uint64()), tried: r.tried()}
	if r.rnd.IntN(4) == 0 {
		s.ticket = r.next - 1 - 2*uint64(r.rnd.IntN(10)) // odd: nobody has it, or one that left
		if slices.ContainsFunc(r.all, func(o *modelSession) bool { return o.ticket == s.ticket }) || s.ticket > r.next {
			s.ticket = r.next
		}
	}
	patience := time.Duration(1+r.rnd.IntN(1000)) * time.Millisecond
	s.patience, s.standing = patience, time.Duration(r.rnd.IntN(600))*time.Millisecond
	s.w, s.grantc = newWaiter(claim{ticket: s.ticket, client: s.client, tried: r.d.these(s.tried...)}, patience)
	s.w.standing.left = s.standing
	waits, c, err := r.d.join(s.w)
	r.log = append(r.log, fmt.Sprintf("%d joins, having tried %v", s.ticket, s.tried))
	want := r.m.pick(s.client, s.tried)
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
	ahead := b.slots[balance.DialingAhead]
	may := !b.isOut() && !r.m.paused && len(r.m.queue) == 0 && r.m.mayDial(b) && b.slots[balance.Idle]+ahead < want &&
		ahead < r.m.parallel
	r.log = append(r.log, fmt.Sprintf("%d dials ahead, %v", i, may))
	if got := r.d.slots(i).Ahead(want); got != may {
		r.t.Errorf("Ahead = %v, want %v", got, may)
	}
	if may {
		r.m.move(i, balance.Free, balance.DialingAhead)
	}
}

// health has a backend go down, come up, or be checked.
func (r *modelRun) health(i int) {
	b, s := &r.m.backends[i], r.d.slots(i)
	switch {
	case !b.down:
		r.log = append(r.log, fmt.Sprintf("%d goes down", i))
		r.d.down(r.d.at(i), errors.New("down"))
		b.down, b.toSucceed, b.least = true, 0, 0
		r.m.serve()
	case r.rnd.IntN(2) == 0:
		r.log = append(r.log, fmt.Sprintf("%d is checked", i))
		may := b.slots[balance.Free] > 0 && b.state != Maintain && !b.removed
		release, got := s.check()
		if got != may {
			r.t.Errorf("check = %v, want %v", got, may)
		}
		if got {
			release()
		}
	default:
		r.log = append(r.log, fmt.Sprintf("%d comes up", i))
		r.d.up(r.d.at(i))
		b.down, b.toSucceed = false, r.m.parallel
		r.m.serve()
	}
}

func (r *modelRun) surplus(b *backend) int {
	if b == nil {
		return 0
	}
	return slots{r.d, b}.Surplus()
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
		if b := &r.m.backends[i]; l.Max != b.max {
			r.t.Errorf("backend %d has max %d, want %d", i, l.Max, b.max)
		} else if at := r.d.at(i); (at == nil) != b.gone {
			r.t.Errorf("backend %d is gone: %v, want %v", i, at == nil, b.gone)
		} else if got, want := r.surplus(at), r.m.surplus(b); at != nil && got != want {
			r.t.Errorf("backend %d has a surplus of %d, want %d", i, got, want)
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
