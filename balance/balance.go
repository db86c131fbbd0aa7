// Package balance picks the backend that serves the next client, and keeps the
// account of every backend's slots.
//
// # The account
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
// # The choice
//
// A backend may be picked that is up, has room and has not been tried. Of these a
// Strategy takes one. Backups are there only for a client that may use no other
// backend: each of those is out of the choice, or has failed this client. A backend
// that is full keeps its clients, who wait for it.
//
// By the default, LeastConn, the backend with the lowest load wins. Load is
// active/bound, where active counts the slots that work for a client: leased,
// dialing for one, closing after one. Loads are compared by multiplying across, so
// 1/3 and 2/6 are equal. Backends with equal load take turns in proportion to
// weight, by nginx's smooth weighted round robin among the tied backends only: the
// credit of each grows by its weight, the highest credit wins (the first of equals),
// and the winner pays the sum of the tied weights. A pick that is no tie leaves
// the credits alone.
//
// A pick is the reservation: it moves a slot before it returns, so clients that
// arrive together cannot all choose the same backend.
//
// # How it is built
//
// A rule is what a strategy knows: it holds the backends of one tier that have room,
// and is told of each change of one (settle), so that a pick need not look at all.
// There is a tier for the backends that are up, and one for backups; two more for
// those of both that are down, where these are better than none. A pick takes the
// first tier that has a backend for the client, whether it has room or not.
//
// The package does arithmetic only. It opens no connection, reads no clock,
// starts no goroutine and takes no lock (its owner does), so that a test can
// replay any decision it makes.
package balance

import (
	"errors"
	"fmt"
	"slices"
)

var (
	// ErrFull means that no backend that may serve the client has room now: the client
	// should wait.
	ErrFull = errors.New("balance: every backend is full")

	// ErrNone means that no backend may serve the client: each is down, or has
	// been tried. Waiting for room would not help.
	ErrNone = errors.New("balance: no backend")
)

// An Out is a set of reasons for which a backend is out of the choice. They come
// and go independently.
type Out uint8

// The reasons.
const (
	Down    Out = 1 << iota // it does not answer
	Drained                 // its operator wants no new work on it
	Removed                 // it is to be removed, once its slots are free
)

// Config is how backends are chosen.
type Config struct {
	Strategy Strategy // "": LeastConn
	Seed     uint64   // of the strategies that draw: the same seed draws the same

	// TryDown has backends that are down picked for a client that may use no other.
	TryDown bool
}

// Backend is one candidate, as an operator configures it.
type Backend struct {
	Name   string // places it on the ring of ConsistentHash, and must be its own; "": its index does
	Max    int    // slots, 1 to 2^31-1
	Weight int    // its share, where the strategy regards it: 1 to a million, so that sums of many are exact
	Backup bool   // picked only where no other may be
}

// member is a backend and its state in the choice.
type member struct {
	Load
	dialLimit int   // most dials at once; 0: no limit besides max
	credit    int64 // of its turns, while no rule holds it: see turns

	tier   int // where it is counted; noTier: nowhere
	held   bool
	active int // as its tier has counted it
	weight int // likewise
}

// Balancer accounts for the slots of the backends and picks one for each client. It is
// not safe for concurrent use: its owner holds a lock.
type Balancer struct {
	tryDown bool
	members []member
	tiers   [numTiers]tier
	kinds   [2]kind // those that are no backups, and those that are
	layouts []layout
}

// New returns a Balancer that has no backends yet. It returns an error where there is
// no such strategy.
func New(cfg Config) (*Balancer, error) {
	b := &Balancer{tryDown: cfg.TryDown}
	rules, err := newRules(cfg, b)
	if err != nil {
		return nil, err
	}
	for t := range b.tiers {
		b.tiers[t].rule = rules[t]
	}
	return b, nil
}

// Prepare does at once what the next pick would have to: ConsistentHash builds its ring,
// which takes 0.1 s for 10,000 backends. A pick after a change of one takes 15 ms there.
func (b *Balancer) Prepare() {
	for _, l := range b.layouts {
		l.build()
	}
}

// Add adds a backend that is up, with every slot free, and returns its index: the
// first that is nobody's. The error says what of it cannot be.
func (b *Balancer) Add(be Backend) (int, error) {
	if be.Max < 1 || be.Weight < 1 {
		return 0, fmt.Errorf("balance: the new backend has max %d and weight %d; both must be at least 1", be.Max, be.Weight)
	}
	i := len(b.members)
	if b.kinds[0].members+b.kinds[1].members < i {
		i = slices.IndexFunc(b.members, func(m member) bool { return m.Max == 0 })
	} else {
		b.members = append(b.members, member{})
	}
	m := &b.members[i]
	*m = member{Load: Load{Backend: be}, tier: noTier}
	m.Slots[Free] = be.Max
	b.join(m)
	b.reformed(i)
	b.settle(i)
	return i, nil
}

// kind is all backups, or all others, whether they are up or not: a backend is only ever
// tied with those of its kind.
type kind struct {
	members int
	credits int64 // the sum of theirs
}

func (b *Balancer) kindOf(be Backend) *kind {
	if be.Backup {
		return &b.kinds[1]
	}
	return &b.kinds[0]
}

// join counts a newcomer among those of its kind, with their mean credit. The credits add
// up to 0 until a backend takes its own away; what is left then lies around another mean,
// and a newcomer far from that would have all ties, or none, for a long time.
func (b *Balancer) join(m *member) {
	k := b.kindOf(m.Backend)
	m.credit = 0
	if k.members > 0 {
		m.credit = k.credits / int64(k.members)
	}
	k.members++
	k.credits += m.credit
}

// part undoes join, for one that is in no tier.
func (b *Balancer) part(m *member) {
	k := b.kindOf(m.Backend)
	k.members--
	k.credits -= m.credit
}

// Remove removes backend i, whose index may then be another's. It reports false,
// and changes nothing, while a slot is in use.
func (b *Balancer) Remove(i int) bool {
	m := &b.members[i]
	if m.Open() > 0 {
		return false
	}
	if m.Max > 0 { // else it is nobody's
		b.leave(i)
		b.part(m)
		*m = member{Load: Load{Out: Removed}, tier: noTier}
		b.reformed(i)
	}
	return true
}

// SetWeight changes the share of backend i; its credit stays. It panics where n is
// below 1, as SetMax does: the caller has checked it.
func (b *Balancer) SetWeight(i, n int) {
	atLeastOne(i, "weight", n)
	if m := &b.members[i]; m.Weight != n {
		m.Weight = n
		b.reformed(i)
		b.settle(i)
	}
}

// SetMax changes how many slots backend i has. Those that are in use stay so; see
// Surplus.
func (b *Balancer) SetMax(i, n int) {
	atLeastOne(i, "max", n)
	m := &b.members[i]
	m.Max = n
	m.Slots[Free] = max(0, n-m.Open())
	b.settle(i)
}

func atLeastOne(i int, what string, n int) {
	if n < 1 {
		panic(fmt.Sprintf("balance: %s %d of backend %d; it must be at least 1", what, n, i))
	}
}

// SetBackup changes whether backend i is a backup. It is a newcomer among those.
func (b *Balancer) SetBackup(i int, backup bool) {
	m := &b.members[i]
	if m.Max == 0 || m.Backup == backup {
		return
	}
	b.leave(i)
	b.part(m)
	m.Backup = backup
	b.join(m)
	b.reformed(i)
	b.settle(i)
}

// SetLimit bounds what is taken of the slots of backend i below its max, as while
// it starts slowly. Zero lifts the bound.
func (b *Balancer) SetLimit(i, n int) {
	b.members[i].Limit = n
	b.settle(i)
}

// SetOut adds or takes back a reason for which backend i is out of the choice. Its
// slots and its credit stay as they are.
func (b *Balancer) SetOut(i int, why Out, out bool) {
	if out {
		b.members[i].Out |= why
	} else {
		b.members[i].Out &^= why
	}
	b.settle(i)
}

// LimitDials bounds how many connections backend i may have in dialing at once,
// for clients and ahead. Zero lifts the bound.
func (b *Balancer) LimitDials(i, n int) {
	b.members[i].dialLimit = n
	b.settle(i)
}
