// Package balance picks the backend that serves the next client, and keeps the
// account of every backend's slots.
//
// A backend has max slots, each always in exactly one State: a slot is free, or
// stands for one connection that is being dialed, lies idle, is leased or is
// being closed. The states therefore add up to max by construction, and a
// connection that has no slot cannot exist.
//
// The set may change. A backend that is added or removed leaves the others'
// indices and credits alone; one can only be removed when all its slots are
// free, and its index may then be another's. Where max is lowered below what is
// open, a slot that becomes free above it is gone, and until then there is no
// free one. A limit below max bounds what is taken without giving up slots; the
// lower of both is the bound. Any of several reasons takes a backend out of the
// choice (Out), and it is back when none is left.
//
// The backend with the lowest load wins. Load is active/bound, where active
// counts the slots that work for a client: leased, dialing for one, closing
// after one. Loads are compared by multiplying across, so 1/3 and 2/6 are
// equal. Backends with equal load take turns in proportion to weight, by
// nginx's smooth weighted round robin among the tied backends only: the credit
// of each grows by its weight, the highest credit wins (the first of equals),
// and the winner pays the sum of the tied weights. A pick that is no tie leaves
// the credits alone.
//
// A pick is the reservation: it moves a slot before it returns, so clients that
// arrive together cannot all choose the same backend.
//
// The package does arithmetic only. It opens no connection, reads no clock,
// starts no goroutine and takes no lock (its owner does), so that a test can
// replay any decision it makes.
package balance

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

var (
	// ErrFull means that every backend that may serve the client is up and has
	// no room now: the client should wait.
	ErrFull = errors.New("balance: every backend is full")

	// ErrNone means that no backend may serve the client: each is down, or has
	// been tried. Waiting for room would not help.
	ErrNone = errors.New("balance: no backend")
)

// A State is what a slot of a backend is used for.
type State int

// The states of a slot. Free is the zero value.
const (
	Free         State = iota
	Idle               // holds a connection that waits for a client
	Dialing            // a connection is being dialed for a client
	DialingAhead       // a connection is being dialed for whoever comes next
	Leased             // a client uses the connection
	Closing            // the connection is being closed after a lease
	Expiring           // the connection is being closed after it lay idle
	Checking           // a connection checks whether the backend is up
	numStates
)

var stateNames = [numStates]string{"free", "idle", "dialing", "dialing ahead", "leased", "closing", "expiring", "checking"}

// String returns the name of the state.
func (s State) String() string {
	if s < 0 || s >= numStates {
		return fmt.Sprintf("state %d", int(s))
	}
	return stateNames[s]
}

// An Out is a set of reasons for which a backend is out of the choice. They come
// and go independently.
type Out uint8

// The reasons.
const (
	Down    Out = 1 << iota // it does not answer
	Drained                 // its operator wants no new work on it
	Removed                 // it is to be removed, once its slots are free
)

// Backend is one candidate, as an operator configures it.
type Backend struct {
	Max    int // slots; at least 1
	Weight int // share of ties; at least 1
}

func (be Backend) check() error {
	if be.Max < 1 || be.Weight < 1 {
		return fmt.Errorf("has max %d and weight %d; both must be at least 1", be.Max, be.Weight)
	}
	return nil
}

// A Choice is a slot that Pick has reserved.
type Choice struct {
	Backend int // its index: see Add

	// Ready tells that an idle connection was reserved (its slot is Leased
	// now). Otherwise a free slot was, for a connection that is yet to be
	// dialed (its slot is Dialing now).
	Ready bool
}

// Load is a snapshot of one backend. Max is 0 where an index is nobody's.
type Load struct {
	Backend
	Limit      int            // bounds what is taken below Max; 0: it does not
	Slots      [numStates]int // how many slots are in each State; their sum is Max, or what is open where that is more
	PeakLeased int            // the most slots that were Leased at once
	Out        Out            // why it is out of the choice; 0: it is not
}

// Active returns what counts against the backend: leased, dialing for a client
// and closing after one.
func (l *Load) Active() int { return l.Slots[Leased] + l.Slots[Dialing] + l.Slots[Closing] }

// Open returns how many slots are in use, in whatever state.
func (l *Load) Open() int {
	return l.Active() + l.Slots[Idle] + l.Slots[DialingAhead] + l.Slots[Expiring] + l.Slots[Checking]
}

// Bound returns the effective max: the lower of max and limit.
func (l *Load) Bound() int {
	if l.Limit > 0 && l.Limit < l.Max {
		return l.Limit
	}
	return l.Max
}

// member is a backend and its state in the choice.
type member struct {
	Load
	credit    int64
	dialLimit int // most dials at once; 0: no limit besides max
}

// Balancer accounts for the slots of the backends and picks the least loaded
// one. It is not safe for concurrent use: its owner holds a lock.
type Balancer struct {
	members []member
	tied    []int // scratch of Pick, kept to save the allocation
}

// New returns a Balancer over backends, all of them up and every slot free. It
// returns an error where there is none, or where a max or weight is below 1.
func New(backends []Backend) (*Balancer, error) {
	if len(backends) == 0 {
		return nil, errors.New("balance: no backends given")
	}
	b := new(Balancer)
	for i, be := range backends {
		if err := be.check(); err != nil {
			return nil, fmt.Errorf("balance: backend %d %w", i, err)
		}
		b.add(be)
	}
	return b, nil
}

// Add adds a backend that is up, with every slot free, and returns its index. It
// is the first that is nobody's: with New, its place in the slice.
func (b *Balancer) Add(be Backend) (int, error) {
	if err := be.check(); err != nil {
		return 0, fmt.Errorf("balance: the new backend %w", err)
	}
	return b.add(be), nil
}

func (b *Balancer) add(be Backend) int {
	m := member{Load: Load{Backend: be}, credit: b.meanCredit()}
	m.Slots[Free] = be.Max
	i := slices.IndexFunc(b.members, func(m member) bool { return m.Max == 0 })
	if i < 0 {
		i, b.members = len(b.members), append(b.members, member{})
	}
	b.members[i] = m
	return i
}

// meanCredit is what a newcomer begins with. The credits add up to 0 until a
// backend takes its own away; what is left then lies around another mean, and a
// newcomer far from that would have all ties, or none, for a long time.
func (b *Balancer) meanCredit() int64 {
	var sum, n int64
	for i := range b.members {
		if b.members[i].Max > 0 {
			sum += b.members[i].credit
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return sum / n
}

// Remove removes backend i, whose index may then be another's. It reports false,
// and changes nothing, while a slot is in use.
func (b *Balancer) Remove(i int) bool {
	m := &b.members[i]
	if m.Open() > 0 {
		return false
	}
	*m = member{Load: Load{Out: Removed}}
	return true
}

// SetWeight changes the share of ties of backend i; its credit stays. It panics
// where n is below 1, as SetMax does: the caller has checked it.
func (b *Balancer) SetWeight(i, n int) { b.set(i, Backend{b.members[i].Max, n}) }

// SetMax changes how many slots backend i has. Those that are in use stay so; see
// Surplus.
func (b *Balancer) SetMax(i, n int) {
	b.set(i, Backend{n, b.members[i].Weight})
	m := &b.members[i]
	m.Slots[Free] = max(0, n-m.Open())
}

func (b *Balancer) set(i int, be Backend) {
	if err := be.check(); err != nil {
		panic(fmt.Sprintf("balance: backend %d %v", i, err))
	}
	b.members[i].Backend = be
}

// SetLimit bounds what is taken of the slots of backend i below its max, as while
// it starts slowly. Zero lifts the bound.
func (b *Balancer) SetLimit(i, n int) { b.members[i].Limit = n }

// Surplus returns how many idle connections of backend i are more than there may
// be: those above the bound, and all where no client may come for them.
func (b *Balancer) Surplus(i int) int {
	m := &b.members[i]
	if m.Out&(Drained|Removed) != 0 {
		return m.Slots[Idle]
	}
	stay := m.Open() - m.Slots[Closing] - m.Slots[Expiring] - m.Slots[Checking]
	return max(0, min(m.Slots[Idle], stay-m.Bound()))
}

// Pick reserves a slot of the least loaded backend that is up, has room and is
// not in tried. It returns ErrFull where waiting may help and ErrNone where it
// cannot. It never blocks.
func (b *Balancer) Pick(tried []int) (Choice, error) { return b.pick(tried, 0) }

// PickDown is Pick as if no backend were down.
func (b *Balancer) PickDown(tried []int) (Choice, error) { return b.pick(tried, Down) }

// pick is Pick where some reasons do not count.
func (b *Balancer) pick(tried []int, ignored Out) (Choice, error) {
	b.tied = b.tied[:0]
	eligible := false
	for i := range b.members {
		m := &b.members[i]
		if m.Out&^ignored != 0 || slices.Contains(tried, i) {
			continue
		}
		eligible = true
		if !m.hasRoom() {
			continue
		}
		switch c := b.compareToTied(m); {
		case c < 0:
			b.tied = append(b.tied[:0], i)
		case c == 0:
			b.tied = append(b.tied, i)
		}
	}
	switch {
	case len(b.tied) > 0:
		return b.reserve(b.takeTurn()), nil
	case eligible:
		return Choice{}, ErrFull
	default:
		return Choice{}, ErrNone
	}
}

// compareToTied orders m against the backends that lead so far. Where none does,
// m leads.
func (b *Balancer) compareToTied(m *member) int {
	if len(b.tied) == 0 {
		return -1
	}
	best := &b.members[b.tied[0]]
	return cmp.Compare(int64(m.Active())*int64(best.Bound()), int64(best.Active())*int64(m.Bound()))
}

// takeTurn returns the index of the tied backend whose turn it is.
func (b *Balancer) takeTurn() int {
	if len(b.tied) == 1 {
		return b.tied[0] // no tie: the credits stay as they are
	}
	var total int64
	best := -1
	for _, i := range b.tied {
		m := &b.members[i]
		m.credit += int64(m.Weight)
		total += int64(m.Weight)
		if best < 0 || m.credit > b.members[best].credit {
			best = i
		}
	}
	b.members[best].credit -= total
	return best
}

func (b *Balancer) reserve(i int) Choice {
	if b.members[i].Slots[Idle] > 0 {
		b.Move(i, Idle, Leased)
		return Choice{Backend: i, Ready: true}
	}
	b.Move(i, Free, Dialing)
	return Choice{Backend: i}
}

// hasRoom reports whether a client can be served now, by an idle connection or
// by a dial.
func (m *member) hasRoom() bool {
	return m.Slots[Idle] > 0 && m.Active() < m.Bound() || m.mayDial()
}

// mayDial reports whether one more may be open: less are than the bound (of max,
// less than max are open by as many as are free).
func (m *member) mayDial() bool {
	dialing := m.Slots[Dialing] + m.Slots[DialingAhead]
	return m.Slots[Free] > m.Max-m.Bound() && (m.dialLimit == 0 || dialing < m.dialLimit)
}

// Move changes the state of one slot of backend i. It panics where no slot is
// in state from: its caller has lost count, and going on would break the bound.
func (b *Balancer) Move(i int, from, to State) {
	if !b.TryMove(i, from, to) {
		panic(fmt.Sprintf("balance: no slot of backend %d is %v, to become %v", i, from, to))
	}
}

// TryMove is Move for a caller that may come too late: it reports false, and
// changes nothing, where no slot is in state from.
func (b *Balancer) TryMove(i int, from, to State) bool {
	m := &b.members[i]
	if m.Slots[from] == 0 {
		return false
	}
	m.Slots[from]--
	if to != Free || m.Open() < m.Max { // else max was lowered, and the slot is gone
		m.Slots[to]++
	}
	m.PeakLeased = max(m.PeakLeased, m.Slots[Leased])
	return true
}

// ReserveAhead takes a free slot of backend i to dial a connection ahead, so
// that want lie idle or are on their way, with at most parallel of these dials
// at once. It reports false where there are enough, or no room, or the backend
// is down.
func (b *Balancer) ReserveAhead(i, want, parallel int) bool {
	m := &b.members[i]
	ahead := m.Slots[DialingAhead]
	if m.Out != 0 || ahead >= parallel || m.Slots[Idle]+ahead >= want || !m.mayDial() {
		return false
	}
	b.Move(i, Free, DialingAhead)
	return true
}

// SetOut adds or takes back a reason for which backend i is out of the choice. Its
// slots and its credit stay as they are.
func (b *Balancer) SetOut(i int, why Out, out bool) {
	if out {
		b.members[i].Out |= why
	} else {
		b.members[i].Out &^= why
	}
}

// LimitDials bounds how many connections backend i may have in dialing at once,
// for clients and ahead. Zero lifts the bound.
func (b *Balancer) LimitDials(i, n int) { b.members[i].dialLimit = n }

// Count returns how many slots of backend i are in state s.
func (b *Balancer) Count(i int, s State) int { return b.members[i].Slots[s] }

// Load returns a snapshot of backend i.
func (b *Balancer) Load(i int) Load { return b.members[i].Load }

// Loads returns a snapshot of each, by index.
func (b *Balancer) Loads() []Load {
	loads := make([]Load, len(b.members))
	for i := range b.members {
		loads[i] = b.members[i].Load
	}
	return loads
}
