package pool

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strings"
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

// localFaults are what a dial fails with where this machine lacks something:
// descriptors, memory, ports. EAGAIN is what connecting to a Unix socket fails
// with, at once, while its backlog is full: a burst of clients does that, and
// trying again helps. ENOSPC is what epoll_ctl fails with where a user watches too much
// (fs.epoll.max_user_watches).
var localFaults = []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
	syscall.EADDRNOTAVAIL, syscall.EAGAIN, syscall.ENOSPC}

// IsLocal reports whether a dial failed because of this machine, which says
// nothing about the backend.
func IsLocal(err error) bool {
	if err == nil {
		return false // before anything is allocated
	}
	var dns *net.DNSError // keeps of its cause the text alone
	named := errors.As(err, &dns)
	for _, e := range localFaults {
		if errors.Is(err, e) || named && strings.HasSuffix(dns.Err, e.Error()) {
			return true
		}
	}
	return false
}

// madeKey is where a context has the connection that puddle's constructor is to give:
// it is dialed already, so that puddle, which would wait for the dial, has it at once.
// puddle calls the constructor from Acquire too, where there is none.
type madeKey struct{}

// construct is puddle's constructor.
func construct(ctx context.Context) (*pooled, error) {
	if c, ok := ctx.Value(madeKey{}).(*pooled); ok {
		return c, nil
	}
	return nil, errNoIdle
}

// create dials a connection into puddle's idle set, in a slot that the caller has, and
// tells the authority what that says about the backend; then it calls done, from any
// goroutine. Anybody may have the connection by then: only what never changes and its
// atomics may be looked at.
func (p *Pool) create(ahead bool, done func(*pooled, error)) {
	start := time.Now()
	p.counters.dials.Add(1)
	c := &pooled{generation: p.generation.Load()}
	c.layIdle.Store(ahead)
	p.wg.Add(1)
	p.connect(func(conn Conn, err error) {
		defer p.wg.Done()
		if err == nil {
			err = p.put(c, conn)
		}
		switch {
		case err == nil:
			p.counters.dialed.Add(1)
			p.cfg.Slots.DialSucceeded()
			p.demand.dialed(c.born.Sub(start))
			if ahead {
				p.entered(c, p.firstLook(c.born, c.virginUntil(p.cfg.VirginTimeout)))
			}
		case p.ctx.Err() != nil: // cut at shutdown
		case IsLocal(err):
			p.counters.dialErrors.Add(1)
		default:
			p.counters.dialErrors.Add(1)
			p.cfg.Slots.DialFailed(start, err)
		}
		done(c, err)
	})
}

// connect opens a connection.
func (p *Pool) connect(done func(Conn, error)) {
	if p.cfg.Connect != nil {
		p.cfg.Connect(p.ctx, done)
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(p.ctx, p.cfg.DialTimeout)
		defer cancel()
		done(p.cfg.Dial(ctx))
	}()
}

// put puts a new connection into puddle's idle set. There is always a place.
func (p *Pool) put(c *pooled, conn Conn) error {
	c.conn, c.born = conn, time.Now()
	if life := p.cfg.MaxLifetime; life > 0 {
		c.life = time.Duration(float64(life) * (0.9 + 0.2*rand.Float64()))
	}
	err := p.puddle.CreateResource(context.WithValue(p.ctx, madeKey{}, c))
	if err != nil {
		c.close()
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
		p.dialFor(d)
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
	p.create(false, func(c *pooled, err error) {
		d.mu.Lock()
		d.done, d.err = true, err
		orphaned := d.orphaned
		d.mu.Unlock()
		close(d.donec)
		if !orphaned {
			return
		}
		if err == nil {
			c.layIdle.Store(true)
		}
		p.cfg.Slots.AheadDone(err == nil)
		if err == nil {
			p.entered(c, p.firstLook(c.born, c.virginUntil(p.cfg.VirginTimeout)))
		}
	})
}
