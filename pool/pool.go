// Package pool keeps the connections to one backend, on puddle.
//
// puddle stores the connections; what it lacks is here: dialing ahead, limits of age and
// of lying idle, a look at a connection before it is leased, and a reason for every
// close. Nobody waits inside the pool. Whether there is room, and for whom, and whether
// the backend is up, is the business of an authority over the slots (Slots), which also
// runs the queue; a caller comes with a slot that it has reserved there:
//
//   - with the slot of an idle connection, it calls Take;
//   - with a free slot, it calls Dial.
//
// # Who owns what
//
// A connection in puddle's idle set belongs to the pool, which watches it and
// closes it when its time is up or its backend has ended it. A leased one
// belongs to the holder of the Lease until Keep or Close. Every change of a slot
// follows one rule, so that puddle never holds fewer idle connections than the
// authority has counted as idle: a connection enters puddle's idle set before it
// is counted there, and is taken out of the count before it leaves the set.
// Because of it puddle's Acquire, which is called only with such a count in
// hand, always finds a connection and never dials or waits. Which idle
// connection it finds does not matter: they are alike, and what is said of one
// (that it lay idle, that a client used it) is kept with the connection. Who can do
// with an unused one only asks the lease, also after Dial: another may have come into
// the set behind the one that was dialed.
//
// A slot is given back when its connection is closed, not before: a closed
// connection leaves puddle by Hijack, which frees puddle's place at once
// (Destroy would free it later, from a goroutine), and then frees the slot.
//
// # What happens when
//
//   - A client leaves during its dial: the dial goes on and its connection lies
//     idle for the next one.
//   - A backend ends an idle connection: the watch sees it, the pool closes it
//     and dials another, if one is wanted. The watch begins when the connection has
//     lain idle for a moment (watchAfter). Between the end and the watch, Take sees it.
//   - The authority finds that more lie idle than there may be (Slots.Surplus), as when
//     the backend is drained or its max is lowered, and calls Trim: Run closes them.
//   - A dial fails: the authority is told, unless it was a fault of this machine
//     (IsLocal), which says nothing about the backend.
//   - The authority finds the backend down, and calls Flush: what lies idle is closed,
//     and no connection is kept whose dial began before that.
//   - Shutdown: the context of Run ends after the last lease has; dials under way
//     are cut, idle connections closed, and Run returns when all are gone.
//
// The pool does not choose between backends, queues nobody and moves no bytes.
package pool

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/puddle/v2"
)

// A Conn is a connection as the pool sees it.
type Conn interface {
	// Peek tells, without waiting and without taking anything, whether bytes
	// can be read, and whether the peer has ended the connection: end is nil
	// while it has not, io.EOF after a FIN, another error after a failure.
	Peek() (bytes bool, end error)

	// Clean reports that nothing has happened, as far as that is known: Peek would tell
	// of no bytes and no end.
	Clean() bool

	// Watch calls f with what Peek would say, from another goroutine: once soon
	// and then whenever it changes, until f returns false or stop is called.
	// stop returns when no call of f is under way or will come; it is not called from f.
	Watch(f func(bytes bool, end error) (more bool)) (stop func())

	// Close closes the connection.
	Close() error
}

// Slots is the authority over how many connections the pool may have: each of
// its methods speaks of one slot of this pool's backend.
type Slots interface {
	// Ahead reserves a free slot for a connection to be dialed ahead, where
	// fewer than want lie idle or are on their way and no client needs the slot.
	Ahead(want int) bool

	// AheadDone ends what Ahead or Orphaned began: the connection lies
	// idle now, or there is none and the slot is free.
	AheadDone(ok bool)

	// Orphaned says that the client has left for whom a dial is under way.
	Orphaned()

	// Expire takes an idle connection out of the count, to be closed. It
	// reports false where all are reserved by clients.
	Expire() bool

	// Expired ends what Expire began: the slot is free.
	Expired()

	// Surplus returns how many idle connections are more than there may be. The
	// pool closes as many; see Trim.
	Surplus() int

	// DialFailed tells of a dial, begun at began, that failed because of the backend,
	// before its slot is given back; DialSucceeded of one that succeeded.
	DialFailed(began time.Time, err error)
	DialSucceeded()
}

// Config describes a Pool. Dial and Slots are required; durations must be
// above 0 where nothing else is said.
type Config struct {
	// MinIdle is how many connections are kept dialed ahead. Negative means as
	// many as the recent arrivals and the time of a dial call for: at least one
	// while clients come, none once none came for VirginTimeout.
	MinIdle int

	// VirginTimeout is the longest that a connection which no client has used
	// stays open; servers time out silent clients.
	VirginTimeout time.Duration

	// IdleTimeout is the longest that a used connection lies idle.
	IdleTimeout time.Duration

	// MaxLifetime is the longest that a connection is kept for another client,
	// within ±10 % that are drawn when it is dialed. Zero means no limit.
	MaxLifetime time.Duration

	// DialTimeout bounds one dial. It is the only limit on a dial: a client that
	// stops waiting does not cancel it.
	DialTimeout time.Duration

	// Silent tells that backends never speak first: bytes on a connection that
	// lies idle are then stray on a virgin one too.
	Silent bool

	// Stray, if not nil, is shown a connection on which stray bytes have come, before
	// it is closed.
	Stray func(Conn)

	// Dial opens a connection.
	Dial func(ctx context.Context) (Conn, error)

	// Connect, if not nil, does so in place of Dial without waiting, within DialTimeout:
	// it calls done once, later, from any goroutine.
	Connect func(ctx context.Context, done func(Conn, error))

	// Slots is asked before the pool opens a connection of its own accord, and
	// told of what it closes.
	Slots Slots
}

// Pool keeps the connections to one backend. Create it with New.
type Pool struct {
	cfg    Config
	puddle *puddle.Pool[*pooled]
	demand demand

	// mu keeps a sweep, which takes every idle connection for a moment, apart
	// from those who come for one. Nothing slow runs under it.
	mu sync.Mutex

	// ctx is the life of dials and watches; it ends in Run.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // dials

	nudgec     chan struct{} // buffered(1): Run shall look
	urgent     atomic.Bool   // a sweep is due now, whatever due says
	due        due           // when the next sweep is
	generation atomic.Int64  // raised when the backend goes down: older connections are not trusted
	rest       rest          // of dialing ahead
	counters   counters
}

// New returns a Pool. It dials nothing before Run or Dial.
func New(cfg Config) (*Pool, error) {
	if cfg.Dial == nil || cfg.Slots == nil {
		return nil, errors.New("pool: Dial and Slots are required")
	}
	if cfg.VirginTimeout <= 0 || cfg.IdleTimeout <= 0 || cfg.DialTimeout <= 0 {
		return nil, errors.New("pool: VirginTimeout, IdleTimeout and DialTimeout must be above 0")
	}
	p := &Pool{cfg: cfg, nudgec: make(chan struct{}, 1), due: due{epoch: time.Now()}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	var err error
	p.puddle, err = puddle.NewPool(&puddle.Config[*pooled]{
		Constructor: construct,
		Destructor:  func(c *pooled) { c.close() },
		MaxSize:     math.MaxInt32, // the slots are the bound, and their number may change
	})
	if err != nil {
		p.cancel()
		return nil, err
	}
	return p, nil
}

// Run keeps connections dialed ahead and closes those whose time is up, until
// ctx ends. Every lease must have ended by then. It returns when no connection
// and no goroutine of the pool is left.
func (p *Pool) Run(ctx context.Context) {
	defer p.close()
	p.demand.note(time.Now()) // the start counts as traffic: the first client finds a connection
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.nudgec:
		case <-timer.C:
		}
		if now := time.Now(); p.urgent.Swap(false) || !now.Before(p.due.at()) {
			p.sweep(now)
			p.TopUp()
		}
		timer.Reset(time.Until(p.due.at()))
	}
}

func (p *Pool) close() {
	p.cancel()
	p.wg.Wait()
	p.closeIdle(func(*pooled) Reason { return Shutdown })
	p.puddle.Close()
}

// Flush has Run close what lies idle, since the backend is down. A connection whose dial
// began before this is not kept.
func (p *Pool) Flush() {
	p.generation.Add(1)
	p.nudge()
}

// Trim has Run close what is surplus now, and whatever else is unfit. It takes no
// lock and does not wait.
func (p *Pool) Trim() { p.nudge() }

// nudge has Run sweep now.
func (p *Pool) nudge() {
	p.urgent.Store(true)
	p.wake()
}

// wake has Run look at when the next sweep is due.
func (p *Pool) wake() {
	select {
	case p.nudgec <- struct{}{}:
	default: // it will
	}
}

// Take leases an idle connection, for a caller that has reserved its slot. It
// returns nil where the connection turned out to be unusable and was closed: the
// slot is still the caller's, who may Dial in it.
func (p *Pool) Take() *Lease {
	l := p.pop(false)
	if l != nil {
		l.Ready = true
		p.counters.ready.Add(1)
		if l.Used() { // it comes back: none need be dialed ahead in its place
			return l
		}
		p.rest.ended(false)
	}
	p.demand.note(time.Now())
	p.TopUp()
	return l
}

// pop leases whatever connection puddle gives, if it is fit for a client. After a
// dial for the client, one that comes straight from a dial is: what its backend
// has done with it since is the answer that the client gets.
func (p *Pool) pop(dialed bool) *Lease {
	p.mu.Lock()
	res, err := p.puddle.Acquire(p.ctx)
	p.mu.Unlock()
	if err != nil {
		return nil // closed
	}
	c := res.Value()
	c.unwatch()
	if reason := p.unfit(c, time.Now()); reason != fit && (c.layIdle.Load() || !dialed) {
		p.show(c, reason)
		p.destroy(res, reason)
		return nil
	}
	return &Lease{pool: p, res: res, Ready: c.layIdle.Load()}
}

// show shows a connection on which bytes came while it lay idle.
func (p *Pool) show(c *pooled, reason Reason) {
	if reason == StrayBytes && p.cfg.Stray != nil {
		p.cfg.Stray(c.conn)
	}
}

// destroy closes a connection that is out of the idle set, and frees its place
// in puddle. The slot is the caller's to free.
func (p *Pool) destroy(res *puddle.Resource[*pooled], reason Reason) {
	c := res.Value()
	if c.layIdle.Load() && !c.used {
		p.rest.ended(reason == BackendClosed && time.Since(c.born) < earlyEnd)
		p.sweepAt(p.rest.over())
	}
	c.close()
	res.Hijack()
	p.counters.closed[reason].Add(1)
}
