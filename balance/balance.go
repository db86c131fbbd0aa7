// Package balance picks the backend that serves the next client, and keeps the
// account of every backend's slots.
//
// A backend has max slots, each always in exactly one State: a slot is free, or
// stands for one connection that is being dialed, lies idle, is leased or is
// being closed. The states therefore add up to max by construction, and a
// connection that has no slot cannot exist.
//
// The backend with the lowest load wins. Load is active/max, where active
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
	numStates
)

var stateNames = [numStates]string{"free", "idle", "dialing", "dialing ahead", "leased", "closing", "expiring"}

// String returns the name of the state.
func (s State) String() string {
	if s < 0 || s >= numStates {
		return fmt.Sprintf("state %d", int(s))
	}
	return stateNames[s]
}

// Backend is one candidate, as an operator configures it.
type Backend struct {
	Max    int // slots; at least 1
	Weight int // share of ties; at least 1
}

// A Choice is a slot that Pick has reserved.
type Choice struct {
	Backend int // index into the slice given to New

	// Ready tells that an idle connection was reserved (its slot is Leased
	// now). Otherwise a free slot was, for a connection that is yet to be
	// dialed (its slot is Dialing now).
	Ready bool
}

// Load is a snapshot of one backend.
type Load struct {
	Backend
	Slots      [numStates]int // how many slots are in each State; their sum is Max
	PeakLeased int            // the most slots that were Leased at once
	Down       bool
}

// Active returns what counts against the backend: leased, dialing for a client
// and closing after one.
func (l Load) Active() int { return l.Slots[Leased] + l.Slots[Dialing] + l.Slots[Closing] }

// Open returns how many slots are in use, in whatever state.
func (l Load) Open() int { return l.Max - l.Slots[Free] }

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
	b := &Balancer{members: make([]member, len(backends)), tied: make([]int, 0, len(backends))}
	for i, be := range backends {
		if be.Max < 1 || be.Weight < 1 {
			return nil, fmt.Errorf("balance: backend %d has max %d and weight %d; both must be at least 1", i, be.Max, be.Weight)
		}
		b.members[i].Backend = be
		b.members[i].Slots[Free] = be.Max
	}
	return b, nil
}

// Pick reserves a slot of the least loaded backend that is up, has room and is
// not in tried. It returns ErrFull where waiting may help and ErrNone where it
// cannot. It never blocks.
func (b *Balancer) Pick(tried []int) (Choice, error) {
	b.tied = b.tied[:0]
	eligible := false
	for i := range b.members {
		m := &b.members[i]
		if m.Down || slices.Contains(tried, i) {
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
	return cmp.Compare(int64(m.Active())*int64(best.Max), int64(best.Active())*int64(m.Max))
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
func (m *member) hasRoom() bool { return m.Slots[Idle] > 0 || m.mayDial() }

func (m *member) mayDial() bool {
	dialing := m.Slots[Dialing] + m.Slots[DialingAhead]
	return m.Slots[Free] > 0 && (m.dialLimit == 0 || dialing < m.dialLimit)
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
	m.Slots[to]++
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
	if m.Down || ahead >= parallel || m.Slots[Idle]+ahead >= want || !m.mayDial() {
		return false
	}
	b.Move(i, Free, DialingAhead)
	return true
}

// SetDown takes backend i out of the choice, or puts it back. Its slots and its
// credit stay as they are.
func (b *Balancer) SetDown(i int, down bool) { b.members[i].Down = down }

// LimitDials bounds how many connections backend i may have in dialing at once,
// for clients and ahead. Zero lifts the bound.
func (b *Balancer) LimitDials(i, n int) { b.members[i].dialLimit = n }

// IsDown reports whether backend i is out of the choice.
func (b *Balancer) IsDown(i int) bool { return b.members[i].Down }

// Count returns how many slots of backend i are in state s.
func (b *Balancer) Count(i int, s State) int { return b.members[i].Slots[s] }

// Loads returns a snapshot, in the order given to New.
func (b *Balancer) Loads() []Load {
	loads := make([]Load, len(b.members))
	for i := range b.members {
		loads[i] = b.members[i].Load
	}
	return loads
}
