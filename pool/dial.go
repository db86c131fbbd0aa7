package pool

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"
)

// errNoIdle means that puddle had no idle connection for a caller that had
// reserved one: the account and the pool have come apart.
var errNoIdle = errors.New("pool: no idle connection where one was reserved")

// ErrOrphaned means that the client's wait ended before its dial did. The dial
// goes on, and its slot is the pool's.
var ErrOrphaned = errors.New("pool: the wait ended before the dial")

// IsLocal reports whether a dial failed because of this machine (descriptors,
// ports or memory have run out), which says nothing about the backend.
func IsLocal(err error) bool {
	for _, e := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// NetDial returns a function that dials addr on network ("tcp" or "unix") and
// leaves keep-alive to the owner of the connection. A name is resolved at each
// dial.
func NetDial(network, addr string) func(context.Context) (net.Conn, error) {
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: false}, KeepAlive: -1}
	return func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, network, addr) }
}

// dialKey marks the contexts in which the constructor may dial; its value tells
// whether the connection is dialed ahead. puddle calls the constructor from
// Acquire too, where it must not.
type dialKey struct{}

// construct is puddle's constructor.
func (p *Pool) construct(ctx context.Context) (*pooled, error) {
	ahead, may := ctx.Value(dialKey{}).(bool)
	if !may {
		return nil, errNoIdle
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.DialTimeout)
	defer cancel()
	c := &pooled{generation: p.generation.Load(), layIdle: ahead}
	conn, err := p.cfg.Dial(ctx)
	if err != nil {
		return nil, err
	}
	c.conn, c.born = conn, time.Now()
	c.idleSince = c.born
	if life := p.cfg.MaxLifetime; life > 0 {
		c.end = c.born.Add(time.Duration(float64(life) * (0.9 + 0.2*rand.Float64())))
	}
	if ahead {
		p.watch(c)
	}
	return c, nil
}

// create dials a connection into puddle's idle set, in a slot that the caller
// has, and draws the conclusions about the backend's health.
func (p *Pool) create(ahead bool) error {
	generation, start := p.generation.Load(), time.Now()
	p.counters.dials.Add(1)
	err := p.puddle.CreateResource(context.WithValue(p.ctx, dialKey{}, ahead))
	switch {
	case err == nil:
		p.demand.dialed(time.Since(start))
		if ahead {
			p.entered(generation, time.Now().Add(p.cfg.VirginTimeout))
		}
	case p.ctx.Err() != nil: // cut at shutdown
	case IsLocal(err):
		p.counters.dialErrors.Add(1)
	default:
		p.counters.dialErrors.Add(1)
		p.down(generation, err)
	}
	return err
}

// Dial leases a newly dialed connection, for a caller that has reserved a free
// slot. When ctx ends first it returns ErrOrphaned. After any other error the slot
// is still the caller's, to free.
func (p *Pool) Dial(ctx context.Context) (*Lease, error) {
	p.demand.note(time.Now())
	for {
		d := &dial{donec: make(chan struct{})}
		p.wg.Go(func() { p.dialFor(d) })
		p.TopUp()
		if gone := d.wait(ctx, p.cfg.Slots.Orphaned); gone {
			return nil, ErrOrphaned
		}
		if d.err != nil {
			return nil, d.err
		}
		if l := p.pop(true); l != nil {
			return l, nil
		}
		if p.ctx.Err() != nil {
			return nil, p.ctx.Err()
		}
	}
}

// dial is one dial for a client, who may leave before it ends.
type dial struct {
	mu       sync.Mutex // orders the end of the dial and the client's leaving
	done     bool
	orphaned bool
	err      error         // set when done
	donec    chan struct{} // closed when done
}

// wait reports false once the dial is done, and true where ctx ended first, when
// it has called orphan.
func (d *dial) wait(ctx context.Context, orphan func()) bool {
	select {
	case <-d.donec:
		return false
	case <-ctx.Done():
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.done {
		return false
	}
	d.orphaned = true
	orphan() // under the lock: before the end of the dial can be told to the authority
	return true
}

// dialFor dials for a client. Where the client has left meanwhile, the
// connection is as one dialed ahead.
func (p *Pool) dialFor(d *dial) {
	err := p.create(false)
	d.mu.Lock()
	d.done, d.err = true, err
	orphaned := d.orphaned
	d.mu.Unlock()
	close(d.donec)
	if orphaned {
		p.cfg.Slots.AheadDone(err == nil)
		p.nudge() // the sweep begins to watch it
	}
}
