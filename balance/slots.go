package balance

import "fmt"

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
	b.settle(i)
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
