package pool

import (
	"sync/atomic"
	"time"

	"github.com/jackc/puddle/v2"
)

// pooled is a connection and what the pool knows of it. Whoever has it out of
// puddle's idle set owns it. There is one for each session, and it is kept small.
type pooled struct {
	conn       Conn
	born       time.Time
	life       time.Duration // 0: no limit
	keptAt     time.Duration // of its life; 0: no client has given it back
	generation int64
	stopWatch  func()      // nil while nobody watches
	used       bool        // a byte of a client has passed
	layIdle    atomic.Bool // it was not leased straight from its dial
	ended      atomic.Bool // the watch has seen that its time in the pool is up
	closed     atomic.Bool
}

// end returns the end of its life; zero: no limit.
func (c *pooled) end() time.Time {
	if c.life == 0 {
		return time.Time{}
	}
	return c.born.Add(c.life)
}

func (c *pooled) idleSince() time.Time { return c.born.Add(c.keptAt) }

// virginUntil returns when its time is up, if no client uses it.
func (c *pooled) virginUntil(timeout time.Duration) time.Time {
	at := c.born.Add(timeout)
	if end := c.end(); !end.IsZero() && end.Before(at) {
		return end
	}
	return at
}

func (c *pooled) unwatch() {
	if c.stopWatch != nil {
		c.stopWatch()
		c.stopWatch = nil
	}
}

func (c *pooled) close() {
	if !c.closed.Swap(true) {
		c.unwatch()
		c.conn.Close() // its error tells nothing that the session has not seen
	}
}

// A Lease is the exclusive use of one connection, until Keep or Close.
type Lease struct {
	pool *Pool
	res  *puddle.Resource[*pooled]

	// Ready tells that the connection was there before its client: its backend
	// may have ended it meanwhile without anybody having seen it yet.
	Ready bool
}

// Conn returns the leased connection, as Config.Dial made it.
func (l *Lease) Conn() Conn { return l.res.Value().conn }

// Used reports whether a byte of a client has passed on the connection.
func (l *Lease) Used() bool { return l.res.Value().used }

// Outdated reports whether the backend has gone down since the dial of the connection
// began.
func (l *Lease) Outdated() bool { return l.res.Value().generation != l.pool.generation.Load() }

// Keep gives the connection back, for another client. used tells that a byte of
// this client's session has passed on it. Keep reports false where the
// connection is not fit to be kept (its time is up, its backend has ended it):
// then it has been closed. The slot is the caller's to count, as idle or free.
func (l *Lease) Keep(used bool) bool {
	p, c := l.pool, l.res.Value()
	now := time.Now()
	c.used = c.used || used
	c.keptAt = now.Sub(c.born)
	if p.ctx.Err() != nil {
		l.Close(Shutdown)
		return false
	}
	if reason := p.unfit(c, now); reason != fit {
		p.show(c, reason)
		l.Close(reason)
		return false
	}
	c.layIdle.Store(true)
	c.ended.Store(false)
	at, _ := p.expiry(c)
	l.res.Release()
	p.entered(c, p.firstLook(now, at))
	return true
}

// Close closes the connection and frees its place in the pool; the slot is the
// caller's to free after that.
func (l *Lease) Close(reason Reason) { l.pool.destroy(l.res, reason) }
