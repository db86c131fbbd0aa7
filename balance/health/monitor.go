package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// An Owner is told of each change of its backend, in order and never twice at once, by
// whoever brought the change about: Run, or the caller of DialFailed. It may call the
// Monitor; what changes by that is told after it has returned.
type Owner interface {
	// Down says that the backend is down, and why.
	Down(why error)

	// Up says that it is up again. A Monitor begins with its backend up, and does
	// not say so.
	Up()
}

// Config describes a Monitor. Addr and Owner are required; the zero value of every
// other field is a working default.
type Config struct {
	// Network and Addr are where the backend is: "tcp" (also the zero value) and
	// "host:port", or "unix" and a path.
	Network, Addr string

	// Owner is told of changes.
	Owner Owner

	// Interval is how often the backend is checked. Zero means not while it is up,
	// with the consequences that the package's text tells.
	Interval time.Duration

	// Timeout bounds one check, from the dial to the answer. Zero means 1 second.
	Timeout time.Duration

	// Fall is how many failures in a row take the backend down, Rise how many
	// checks that succeed in a row bring it up again. Zero means 3 and 2. Without
	// an Interval both are 1, whatever stands here.
	Fall, Rise int

	// Talk asks the backend for an answer, over the connection of a check. Nil
	// means that a check connects, and no more. Without an Interval it is not used.
	Talk Talk

	// Reserve takes a slot for a check, for which there is none when ok is false.
	// release gives it back, when the connection has been closed. It must not wait. A
	// check that had no slot is tried again soon, and at once after SlotFree.
	// Nil means that checks need no slot.
	Reserve func() (release func(), ok bool)

	// IsLocal reports whether a check failed because of this machine, which says
	// nothing about the backend. Nil means that none does.
	IsLocal func(error) bool

	// Dial opens the connection of a check. Nil means a net.Dialer without
	// keep-alive probes.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// withDefaults returns cfg with a value in every field but Talk, or what is wrong with it.
func (cfg Config) withDefaults() (Config, error) {
	switch {
	case cfg.Addr == "":
		return cfg, errors.New("health: no address")
	case cfg.Owner == nil:
		return cfg, errors.New("health: no owner")
	case cfg.Interval < 0 || cfg.Timeout < 0 || cfg.Fall < 0 || cfg.Rise < 0:
		return cfg, fmt.Errorf("health: interval %v, timeout %v, fall %d and rise %d: none may be negative",
			cfg.Interval, cfg.Timeout, cfg.Fall, cfg.Rise)
	}
	setDefault(&cfg.Network, "tcp")
	setDefault(&cfg.Timeout, time.Second)
	setDefault(&cfg.Fall, 3)
	setDefault(&cfg.Rise, 2)
	if cfg.Interval == 0 {
		cfg.Fall, cfg.Rise, cfg.Talk = 1, 1, nil
	}
	if cfg.Reserve == nil {
		cfg.Reserve = func() (func(), bool) { return func() {}, true }
	}
	if cfg.IsLocal == nil {
		cfg.IsLocal = func(error) bool { return false }
	}
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{KeepAlive: -1, FallbackDelay: -1}).DialContext // one address at a time: a check has one slot
	}
	return cfg, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// A Monitor watches one backend. It is safe for concurrent use.
type Monitor struct {
	cfg   Config
	quiet atomic.Bool   // of the machine, for who has a success to tell
	slot  atomic.Bool   // there is a slot for the check that had none
	wake  chan struct{} // holds a value when Run has a reason to look again

	mu      sync.Mutex
	machine machine
	record  record
	untold  []error // changes that the owner has yet to be told of; nil: up
	telling bool    // somebody tells it
}

// New returns a Monitor of a backend that is up. Nothing is checked before Run.
func New(cfg Config) (*Monitor, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	m := &Monitor{cfg: cfg, wake: make(chan struct{}, 1)}
	m.machine = machine{rise: cfg.Rise, fall: cfg.Fall, mostRise: cfg.Rise, answers: cfg.Talk != nil, since: time.Now()}
	if cfg.Interval > 0 {
		m.machine.mostRise = max(cfg.Rise, int(calm/cfg.Interval))
	}
	m.quiet.Store(true)
	return m, nil
}

// DialFailed tells of a dial, begun at began, that failed because of the backend: one
// that this machine failed, or that was given up, must not be told.
func (m *Monitor) DialFailed(began time.Time, err error) {
	m.mu.Lock()
	defer m.unlock()
	now := time.Now()
	m.record.failedDial(now, err)
	if m.machine.dialFailed(began, now, err) {
		m.changed()
	}
	m.hurry()
}

// DialSucceeded tells of a dial that succeeded. It costs one atomic load, as a rule.
func (m *Monitor) DialSucceeded() {
	if m.quiet.Load() {
		return
	}
	m.mu.Lock()
	defer m.unlock()
	m.machine.dialed()
}

// ClientFault tells that a client, whose address may be the zero Addr, was not served
// by the backend to which it was connected.
func (m *Monitor) ClientFault(client netip.Addr, f Fault) {
	m.mu.Lock()
	defer m.unlock()
	m.record.ClientFaults++
	m.machine.unservedClient(time.Now(), client, f)
	m.hurry()
}

// Served tells that a client got what it came for: the first byte of a reply. It costs
// one atomic load, as a rule.
func (m *Monitor) Served() {
	if m.quiet.Load() {
		return
	}
	m.mu.Lock()
	defer m.unlock()
	m.machine.served()
}

// SlotFree tells that there is a slot now, which Reserve did not have. It does not wait.
func (m *Monitor) SlotFree() {
	m.slot.Store(true)
	m.hurry()
}

// checked takes the end of a check.
func (m *Monitor) checked(began time.Time, err error) {
	m.mu.Lock()
	defer m.unlock()
	now := time.Now()
	m.record.checked(began, now, err)
	if m.machine.checked(began, now, err) {
		m.changed()
	}
}

// skipped takes a check that told nothing, err saying why.
func (m *Monitor) skipped(err error) {
	m.mu.Lock()
	defer m.unlock()
	m.record.skipped(err)
}

// changed notes a change, for operators and to tell the owner.
func (m *Monitor) changed() {
	m.record.changed(Transition{At: m.machine.since, Up: !m.machine.down, Why: text(m.machine.why)})
	m.untold = append(m.untold, m.machine.why)
}

// unlock gives the lock back, after telling the owner what there is to tell; while
// somebody else does that it is left to him, and a call from within the owner leaves it
// to its caller.
func (m *Monitor) unlock() {
	m.quiet.Store(m.machine.quiet())
	for !m.telling && len(m.untold) > 0 {
		why := m.untold[0]
		m.untold = m.untold[1:]
		m.telling = true
		m.mu.Unlock()
		m.tell(why)
		m.mu.Lock()
		m.telling = false
	}
	m.mu.Unlock()
}

func (m *Monitor) tell(why error) {
	if why == nil {
		m.cfg.Owner.Up()
	} else {
		m.cfg.Owner.Down(why)
	}
}

// hurry has Run look again at when the next check is due.
func (m *Monitor) hurry() {
	select {
	case m.wake <- struct{}{}:
	default: // it is about to
	}
}

// isDown reports whether the backend is down.
func (m *Monitor) isDown() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.machine.down
}
