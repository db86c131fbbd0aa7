package proxy

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"forebay/balance"
)

// What is wrong with a change that is asked for; the errors of Add, Remove and the others
// wrap one of these.
var (
	ErrNoBackend = errors.New("no such backend")
	ErrNoSession = errors.New("no such session")
	ErrExists    = errors.New("the backend is there already")
	ErrInvalid   = errors.New("invalid value")
)

// wrong is such an error, in words of its own.
type wrong struct {
	kind error
	text string
}

func (w wrong) Error() string        { return w.text }
func (w wrong) Is(target error) bool { return target == w.kind }

func wrongf(kind error, format string, args ...any) error {
	return wrong{kind, fmt.Sprintf(format, args...)}
}

// The numbers that a backend may have, as at start.
const (
	mostMax    = 65535   // the ports that a client has towards one address
	mostWeight = 1000000 // keeps the sums of the turns far from overflow
)

// A State is what the operator wants of a backend. Whether it is up is another matter.
type State uint8

// The states. Leases that run go on in each.
const (
	Ready    State = iota // it takes new work
	Drain                 // it gets no new leases, and its idle connections are closed
	Maintain              // likewise, and nothing looks whether it is up
)

var stateNames = [...]string{"ready", "drain", "maintain"}

// String returns the name of the state.
func (s State) String() string {
	if int(s) >= len(stateNames) {
		return fmt.Sprintf("state %d", int(s))
	}
	return stateNames[s]
}

// Add adds a backend, which takes its share at once. An address that is there already
// is refused, unless it is being removed: then it stays, with max, weight and backup as
// given now, and what it still has open counts towards its max.
func (srv *Server) Add(be Backend) error {
	if err := be.check(); err != nil {
		return err
	}
	b, err := srv.newBackend(be)
	if err != nil {
		return err
	}
	if err := srv.dispatcher.add(b); err != nil {
		return err
	}
	srv.cfg.Log.Info().Str("backend", b.name).Int("max", be.Max).Int("weight", be.Weight).Bool("backup", be.Backup).
		Msg("backend is added")
	srv.resize()
	return nil
}

// Remove takes a backend away. It gets no new leases and its idle connections are
// closed; it is gone when its last lease has ended, and does not wait for that here.
func (srv *Server) Remove(name string) error {
	err := srv.change(name, func(d *dispatcher, b *backend) {
		b.removed = true
		d.bal.SetOut(b.index, balance.Removed, true)
	})
	if err == nil {
		srv.cfg.Log.Info().Str("backend", name).Msg("backend is being removed")
		srv.resize()
	}
	return err
}

// SetState has a backend drained, maintained or ready again.
func (srv *Server) SetState(name string, s State) error {
	if int(s) >= len(stateNames) {
		return wrongf(ErrInvalid, "a backend is ready, drain or maintain, not %v", s)
	}
	err := srv.change(name, func(d *dispatcher, b *backend) { d.setState(b, s) })
	if err == nil {
		srv.cfg.Log.Info().Str("backend", name).Stringer("state", s).Msg("backend has got a state")
	}
	return err
}

// SetWeight changes a backend's share, where the strategy regards it.
func (srv *Server) SetWeight(name string, n int) error {
	if err := inRange("weight", n, 1, mostWeight); err != nil {
		return err
	}
	err := srv.change(name, func(d *dispatcher, b *backend) {
		b.Weight = n
		d.bal.SetWeight(b.index, n)
	})
	if err == nil {
		srv.cfg.Log.Info().Str("backend", name).Int("weight", n).Msg("backend has got a weight")
	}
	return err
}

// SetMax changes how many connections to a backend may be open at once. Where more
// are, no lease begins until enough of them have ended; those that lie idle are closed.
// A higher max serves at once those who wait for it.
func (srv *Server) SetMax(name string, n int) error {
	if err := inRange("max", n, 1, mostMax); err != nil {
		return err
	}
	err := srv.change(name, func(d *dispatcher, b *backend) {
		b.Max = n
		d.bal.SetMax(b.index, n)
	})
	if err == nil {
		srv.cfg.Log.Info().Str("backend", name).Int("max", n).Msg("backend has got a max")
		srv.resize()
	}
	return err
}

func inRange(what string, n, least, most int) error {
	if n < least || n > most {
		return wrongf(ErrInvalid, "%s is a number from %d to %d, not %d", what, least, most, n)
	}
	return nil
}

func (b Backend) check() error {
	switch {
	case b.Network != "tcp" && b.Network != "unix":
		return wrongf(ErrInvalid, "a backend's network is tcp or unix, not %q", b.Network)
	case b.Addr == "":
		return wrongf(ErrInvalid, "a backend needs an address: host:port, or the path of a socket")
	}
	if b.Network == "tcp" {
		if _, _, err := net.SplitHostPort(b.Addr); err != nil {
			return wrongf(ErrInvalid, "%q is no host:port: %v", b.Addr, err)
		}
	}
	if err := inRange("max", b.Max, 1, mostMax); err != nil {
		return err
	}
	return inRange("weight", b.Weight, 1, mostWeight)
}

// change calls f with a backend and the dispatcher's lock, and has all see what follows.
func (srv *Server) change(name string, f func(*dispatcher, *backend)) error {
	d := srv.dispatcher
	d.mu.Lock()
	b, err := d.find(name)
	if err != nil {
		d.unlock()
		return err
	}
	f(d, b)
	d.changed(b)
	d.unlock(b)
	return nil
}

// resize follows a change of how many connections the pools may hold: that many
// descriptors are not for clients.
func (srv *Server) resize() {
	srv.dispatcher.mu.Lock()
	srv.places.most.Store(int64(srv.maxClients(srv.dispatcher.total())))
	srv.dispatcher.mu.Unlock()
	srv.makeRoom()
}

// begin has the pools run: of the backends that are there, and of those that are added.
func (d *dispatcher) begin() {
	d.mu.Lock()
	defer d.unlock()
	d.begun = true
	d.bal.Prepare()
	for _, b := range d.backends {
		if b != nil {
			d.events.backendBegins(b)
		}
	}
}

// add gives the dispatcher one more backend, or what is new about one that is being
// removed.
func (d *dispatcher) add(b *backend) error {
	d.mu.Lock()
	if d.closed {
		d.unlock()
		return ErrServerClosed
	}
	if old := d.named(b.name); old != nil {
		defer d.unlock(old)
		return d.keep(old, b.Backend)
	}
	defer d.unlock() // the pool looks for room as it begins to run
	i, err := d.bal.Add(balance.Backend{Name: b.name, Max: b.Max, Weight: b.Weight, Backup: b.Backup})
	if err != nil {
		return err
	}
	b.index = i
	d.place(i, b)
	if d.begun {
		d.events.backendBegins(b)
	}
	d.changed(b)
	return nil
}

// keep has a backend stay that is being removed.
func (d *dispatcher) keep(b *backend, as Backend) error {
	if !b.removed {
		return wrongf(ErrExists, "there is a backend %s already", b.name)
	}
	b.removed = false
	b.Backend = as
	d.bal.SetOut(b.index, balance.Removed, false)
	d.bal.SetMax(b.index, as.Max)
	d.bal.SetWeight(b.index, as.Weight)
	d.bal.SetBackup(b.index, as.Backup)
	d.setState(b, Ready)
	d.changed(b)
	return nil
}

func (d *dispatcher) setState(b *backend, s State) {
	b.state = s
	d.bal.SetOut(b.index, balance.Drained, s != Ready)
}

// changed is called with the lock held after a change of what b may be used for: a check
// has a slot that there is now; who waits is served by it, or has lost hope; connections
// may lie idle for nobody; and it may be gone.
func (d *dispatcher) changed(b *backend) {
	d.grantCheck(b)
	d.answerAll()
	d.tidy(b)
}

// tidy has b's pool close what lies idle for nobody, and forgets b when it has been
// removed and its last slot is free. It is called with the lock held, after a slot of b
// has become idle or free.
func (d *dispatcher) tidy(b *backend) {
	if !b.checked() {
		d.endCheck(b)
	}
	if d.surplus(b) > 0 {
		d.events.backendHasSurplus(b)
	}
	if b.removed && !b.gone && d.bal.Remove(b.index) {
		b.gone = true
		d.place(b.index, nil)
		if b.stop != nil {
			b.stop()
		}
	}
}

// place puts a backend, or nil, where index i is.
func (d *dispatcher) place(i int, b *backend) {
	all := make([]*backend, max(len(d.backends), i+1))
	copy(all, d.backends)
	all[i] = b
	d.backends = all
}

// named returns the backend of a name, nil where there is none.
func (d *dispatcher) named(name string) *backend {
	for _, b := range d.backends {
		if b != nil && b.name == name {
			return b
		}
	}
	return nil
}

// find returns the backend of a name, if it is one to be changed.
func (d *dispatcher) find(name string) (*backend, error) {
	b := d.named(name)
	switch {
	case b == nil:
		return nil, wrongf(ErrNoBackend, "there is no backend %q; %s", name, d.list())
	case b.removed:
		l := d.bal.Load(b.index)
		return nil, wrongf(ErrNoBackend, "backend %s is being removed, when its %d open connections have ended; add it again to keep it", name, l.Open())
	}
	return b, nil
}

// list names the backends that there are.
func (d *dispatcher) list() string {
	var names []string
	for _, b := range d.backends {
		if b != nil {
			names = append(names, b.name)
		}
	}
	if names == nil {
		return "there is none"
	}
	return "there is " + strings.Join(names, ", ")
}

// total returns how many connections the backends may have.
func (d *dispatcher) total() (n int) {
	for _, b := range d.backends {
		if b != nil {
			n += b.Max
		}
	}
	return n
}
