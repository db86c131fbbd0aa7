package pool

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/puddle/v2"
)

// forever is how long Run sleeps when no connection lies idle: until one does.
const forever = time.Hour

// sweepAgain is how soon a sweep comes back for what it had to leave.
const sweepAgain = 10 * time.Millisecond

// watch has the pool told when the backend ends an idle connection, or sends
// bytes that nobody asked for. On a virgin connection bytes are the greeting of
// a server that speaks first (unless Config.Silent): they stay in the kernel for
// its first client.
func (p *Pool) watch(c *pooled) {
	stray := p.stray(c)
	c.ended.Store(false)
	c.stopWatch = c.conn.Watch(func(bytes bool, end error) bool {
		if end == nil && !(bytes && stray) {
			return true
		}
		c.ended.Store(true)
		p.nudge()
		return false
	})
}

// watchAfter is how long a connection lies idle before it is watched. Most are leased
// before that, and looked at then; to begin and to end a watch costs system calls.
const watchAfter = 100 * time.Millisecond

// firstLook returns when a sweep is to look at a connection that has lain idle since
// then, and whose time is up at end: it begins the watch.
func (p *Pool) firstLook(since, end time.Time) time.Time {
	if at := since.Add(watchAfter); at.Before(end) {
		return at
	}
	return end
}

// stray reports whether bytes that come while the connection lies idle belong to
// nobody.
func (p *Pool) stray(c *pooled) bool { return c.used || p.cfg.Silent }

// unfit tells why an idle connection may not serve a client; fit where it may.
func (p *Pool) unfit(c *pooled, now time.Time) Reason {
	if c.generation != p.generation.Load() {
		return Failed
	}
	if at, reason := p.expiry(c); !now.Before(at) {
		return reason
	}
	if c.conn.Clean() { // which costs less than to look
		return fit
	}
	switch bytes, end := c.conn.Peek(); {
	case end != nil:
		return BackendClosed
	case bytes && p.stray(c):
		return StrayBytes
	}
	return fit
}

// expiry returns when the time of a connection is up, and which time that is.
func (p *Pool) expiry(c *pooled) (time.Time, Reason) {
	at, reason := c.born.Add(p.cfg.VirginTimeout), VirginTimeout
	if c.used {
		at, reason = c.idleSince().Add(p.cfg.IdleTimeout), IdleTimeout
	}
	if end := c.end(); !end.IsZero() && end.Before(at) {
		return end, Lifetime
	}
	return at, reason
}

// sweep closes the idle connections that are unfit or surplus, and has the next sweep
// come when the time of one of the others is up.
func (p *Pool) sweep(now time.Time) {
	p.due.reset(now.Add(forever))
	if over := p.rest.over(); !over.IsZero() {
		p.due.lower(over)
	}
	surplus := p.cfg.Slots.Surplus()
	p.closeIdle(func(c *pooled) Reason {
		reason := p.unfit(c, now)
		if reason == fit && surplus > 0 {
			reason = Surplus
		}
		if reason != fit {
			surplus--
			return reason
		}
		at, _ := p.expiry(c)
		p.due.lower(at)
		return fit
	})
}

// sweepAt sees to it that a sweep comes at t, if none comes earlier. Most
// connections are dialed later than one that waits already, so this seldom wakes
// Run. A zero t asks for nothing.
func (p *Pool) sweepAt(t time.Time) {
	if !t.IsZero() && p.due.lower(t) {
		p.wake()
	}
}

// entered is called when a connection has entered the idle set, where its time is
// up at t. What became of it before that, a sweep may have missed.
func (p *Pool) entered(c *pooled, t time.Time) {
	if c.ended.Load() || p.generation.Load() != c.generation {
		p.nudge()
		return
	}
	p.sweepAt(t)
}

// due is a time that can be brought forward. It counts from an epoch so that it
// is one word, and monotonic.
type due struct {
	epoch time.Time
	after atomic.Int64 // nanoseconds
}

func (d *due) at() time.Time     { return d.epoch.Add(time.Duration(d.after.Load())) }
func (d *due) reset(t time.Time) { d.after.Store(int64(t.Sub(d.epoch))) }

// lower brings the time forward to t, and reports whether t was earlier.
func (d *due) lower(t time.Time) bool {
	for want := int64(t.Sub(d.epoch)); ; {
		now := d.after.Load()
		if want >= now {
			return false
		}
		if d.after.CompareAndSwap(now, want) {
			return true
		}
	}
}

// closeIdle closes the idle connections for which verdict gives a reason. Those
// that clients have reserved stay: their clients will look at them, unless they
// leave. So do those that are not counted as idle yet.
func (p *Pool) closeIdle(verdict func(*pooled) Reason) {
	for _, u := range p.takeUnfit(verdict) {
		p.show(u.res.Value(), u.reason)
		p.destroy(u.res, u.reason)
		p.cfg.Slots.Expired()
	}
}

type unfitConn struct {
	res    *puddle.Resource[*pooled]
	reason Reason
}

func (p *Pool) takeUnfit(verdict func(*pooled) Reason) (out []unfitConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// puddle gives the newest first; handing back the oldest first keeps that order.
	for _, res := range slices.Backward(p.puddle.AcquireAllIdle()) {
		c := res.Value()
		if reason := verdict(c); reason != fit {
			if p.cfg.Slots.Expire() {
				out = append(out, unfitConn{res, reason})
				continue
			}
			p.due.lower(time.Now().Add(sweepAgain))
		}
		p.watchIdle(c)
		res.ReleaseUnused()
	}
	return out
}

// watchIdle begins to watch a connection that nobody has come for, or has a sweep do
// that in time.
func (p *Pool) watchIdle(c *pooled) {
	if c.stopWatch != nil {
		return
	}
	if at := c.idleSince().Add(watchAfter); time.Now().Before(at) {
		p.due.lower(at)
		return
	}
	p.watch(c)
}
