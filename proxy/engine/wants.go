package engine

import (
	"errors"
	"os"
	"sync"
	"time"
)

// A want is one of the things that a step may want. Each has a deadline of its own:
// one side's for reading or for writing.
type want uint8

const (
	nothing want = iota
	toBackend
	fromBackend
	toClient
	fromClient
)

func (w want) isWrite() bool { return w == toBackend || w == toClient }

// outcome is what an attempt brought.
type outcome struct {
	n   int
	buf *buffer // the bytes of a read
	err error
}

func (o outcome) happened() bool { return o.n > 0 || o.err != nil && !isTimeup(o.err) }

// isTimeup reports whether err comes from a deadline: the time is up, or the wait
// was interrupted.
func isTimeup(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

func (d *drive) conn(w want) *netConn {
	if w == toBackend || w == fromBackend {
		return d.backend
	}
	return d.client
}

// wait does the work of OpWait.
func (d *drive) wait(s *Step, now time.Time) {
	d.leaveOut(s, d.backend != nil)
	if d.beginsBatch(s) {
		d.mark = d.backend.written
	}
	if d.writeErr != nil && d.drain(s, now) {
		return
	}
	if d.tryAll(s) {
		return
	}
	ws, n := d.wanted(s)
	if n == 0 {
		d.sleep(s.Until)
		return
	}
	if d.isBrief(ws[:n], s, now) && d.waitBriefly(ws[0], s) {
		return
	}
	if n == 1 {
		d.waitFor(ws[0], s, s.Until, now)
		return
	}
	if d.seconded(ws[:n]) && !d.second.isWrite() && d.try(d.second, s) {
		return
	}
	d.waitTogether(ws[:n], *s)
}

// isBrief reports whether to wait for the likeliest first. It costs the less the
// sooner that comes: so not where something else came last time. A client is waited
// for alone, with a time limit that is seldom set (limit).
func (d *drive) isBrief(ws []want, s *Step, now time.Time) bool {
	alone := len(ws) == 1
	switch {
	case alone && (ws[0] == fromClient || s.Until.IsZero()):
		return false
	case !s.Until.IsZero() && s.Until.Sub(now) < 2*grace:
		return false
	}
	return !d.seconded(ws)
}

// drainTime bounds the reading of what is left on a connection to which a write
// failed. The kernel, which has given it up, does not let a reader wait.
const drainTime = time.Second

// drain does what is left to do with a backend to which a write failed: what it sent
// before is read, as the machine wants it, and then it has ended. It reports whether
// the machine is to be asked again.
func (d *drive) drain(s *Step, now time.Time) bool {
	switch {
	case d.backendOver:
		return false
	case s.FromBackend > 0:
		if !d.waitFor(fromBackend, s, now.Add(drainTime), now) {
			d.backendEnded(d.writeErr)
		}
		return true
	case len(s.ToBackend) > 0 && len(s.ToClient) == 0: // it makes no room to read
		d.backendEnded(d.unreadEnd(d.backend))
		return true
	default:
		s.ToBackend = nil
		return false
	}
}

// tryAll tries what may go at once, and reports whether any of it did.
func (d *drive) tryAll(s *Step) bool {
	if s.FromClient > 0 && len(d.client.unread) > 0 {
		d.takeUnread(s.FromClient)
		return true
	}
	if len(s.ToBackend) > 0 {
		// Between two writes it is looked whether the reply has come: where the
		// backend does not want the rest of a request it says so.
		if s.FromBackend > 0 && d.wroteLast && d.try(fromBackend, s) {
			return true
		}
		if d.try(toBackend, s) {
			return true
		}
	}
	return len(s.ToClient) > 0 && d.try(toClient, s)
}

// takeUnread gives the machine what was read from the client before the drive.
func (d *drive) takeUnread(limit int) {
	p := d.client.unread
	n := min(len(p), limit)
	d.client.unread = p[n:]
	if n == len(p) {
		d.client.unread = nil
	}
	d.machine.ReadClient(p[:n])
}

// wanted returns what s wants, what is likeliest to come first in front. A write is
// that, unless it was just tried in vain.
func (d *drive) wanted(s *Step) (ws [4]want, n int) {
	add := func(w want, wanted bool) {
		if wanted {
			ws[n] = w
			n++
		}
	}
	tried := d.client.raw != nil
	add(toBackend, len(s.ToBackend) > 0)
	add(toClient, len(s.ToClient) > 0 && !tried)
	add(fromClient, s.FromClient > 0 && s.ClientFirst)
	add(fromBackend, s.FromBackend > 0)
	add(toClient, len(s.ToClient) > 0 && tried)
	add(fromClient, s.FromClient > 0 && !s.ClientFirst)
	return ws, n
}

// try does w if it can be done at once, and reports whether something happened.
func (d *drive) try(w want, s *Step) bool {
	var o outcome
	switch w {
	case toBackend:
		o.n, o.err = d.backend.writeReady(s.ToBackend)
	case toClient:
		o.n, o.err = d.client.writeReady(s.ToClient)
	case fromBackend:
		o.buf, o.n, o.err = d.backend.readReady(d.down.limit(s.FromBackend))
		d.wroteLast = false
	case fromClient:
		o.buf, o.n, o.err = d.client.readReady(d.up.limit(s.FromClient))
	}
	d.report(w, o)
	return o.happened()
}

// waitFor waits for w, and reports false if nothing happened until by.
func (d *drive) waitFor(w want, s *Step, by, now time.Time) bool {
	for {
		d.limit(w, by, now)
		if o := d.attempt(w, s); o.happened() {
			d.report(w, o)
			return true
		}
		if d.pending.Load() != 0 {
			return true
		}
		now = time.Now()
		if !by.IsZero() && !now.Before(by) {
			return false
		}
		// The deadline was that of an earlier wait.
	}
}

// limit sets the deadline of w, unless one is set that comes before: when it has
// come, waitFor looks again. So a time limit that moves on with each request costs
// nothing.
func (d *drive) limit(w want, by, now time.Time) {
	c := d.conn(w)
	set := c.deadline(w.isWrite())
	switch {
	case set.IsZero() && by.IsZero():
		return
	case set.After(now) && (by.IsZero() || !set.After(by)):
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pending.Load() == 0 {
		c.setDeadline(w.isWrite(), by)
	}
}

// seconded reports whether what ended the last wait for several things is wanted
// again, and not the likeliest.
func (d *drive) seconded(ws []want) bool {
	for _, w := range ws[1:] {
		if w == d.second {
			return true
		}
	}
	return false
}

// waitTogether waits for several things at once: for the first in this goroutine,
// for each other in one of its own, all of which have ended when it returns. What
// happens to one ends the wait for all.
func (d *drive) waitTogether(wanted []want, s Step) {
	ws := append([]want(nil), wanted...) // the caller's stays on its stack
	if !d.limitTogether(ws, s.Until) {
		return
	}
	end := func(w want) { d.conn(w).endWait(w.isWrite()) }
	outcomes := make([]outcome, len(ws))
	var wg sync.WaitGroup
	for i, w := range ws[1:] {
		wg.Go(func() {
			outcomes[i+1] = d.attempt(w, &s)
			if outcomes[i+1].happened() {
				end(ws[0])
			}
		})
	}
	outcomes[0] = d.attempt(ws[0], &s)
	for _, w := range ws[1:] {
		end(w)
	}
	wg.Wait()
	d.unlimit(ws)
	d.reportTogether(ws, outcomes)
}

// limitTogether sets the deadlines of a wait for several things. It reports false if
// an interrupt came first.
func (d *drive) limitTogether(ws []want, until time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pending.Load() != 0 {
		return false
	}
	for i, w := range ws {
		by := time.Time{}
		if i == 0 {
			by = until
		}
		if c := d.conn(w); c.deadline(w.isWrite()) != by {
			c.setDeadline(w.isWrite(), by)
		}
	}
	return true
}

func (d *drive) unlimit(ws []want) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pending.Load() != 0 {
		return // heed does it
	}
	for _, w := range ws {
		d.conn(w).setDeadline(w.isWrite(), time.Time{})
	}
}

// reportTogether tells the machine of all that happened, the ends last: what was
// read before comes before.
func (d *drive) reportTogether(ws []want, outcomes []outcome) {
	d.second = nothing
	for i, w := range ws {
		if !outcomes[i].happened() {
			continue
		}
		if i > 0 && !outcomes[0].happened() {
			d.second = w
		}
		if outcomes[i].n > 0 {
			d.report(w, outcomes[i])
		}
	}
	for i, w := range ws {
		if outcomes[i].n == 0 {
			d.report(w, outcomes[i])
		}
	}
}

// attempt reads or writes some of what w is about, and waits for it until the
// deadline.
func (d *drive) attempt(w want, s *Step) (o outcome) {
	switch w {
	case toBackend:
		o.n, o.err = d.backend.writeSome(s.ToBackend)
	case toClient:
		o.n, o.err = d.client.writeSome(s.ToClient)
	case fromBackend:
		o.buf, o.n, o.err = d.backend.read(d.down.limit(s.FromBackend), nil)
	case fromClient:
		o.buf, o.n, o.err = d.client.read(d.up.limit(s.FromClient), nil)
	}
	return o
}

// report tells the machine what happened.
func (d *drive) report(w want, o outcome) {
	switch {
	case o.n > 0:
		d.moved(w, o)
	case o.err != nil && !isTimeup(o.err):
		d.ended(w, o.err)
	}
}

func (d *drive) moved(w want, o outcome) {
	switch w {
	case toBackend:
		d.wroteLast = true
		d.machine.WroteBackend(o.n)
	case toClient:
		d.machine.WroteClient(o.n)
	case fromBackend:
		d.wroteLast, d.answered = false, true
		d.down.next(o.n)
		d.machine.ReadBackend(o.buf.data[:o.n])
		o.buf.put()
	case fromClient:
		d.up.next(o.n)
		d.machine.ReadClient(o.buf.data[:o.n])
		o.buf.put()
	}
}

func (d *drive) ended(w want, err error) {
	switch {
	case w == toBackend:
		d.writeErr = err // drain goes on
	case w == fromBackend:
		d.backendEnded(err)
	default:
		d.clientEnded(d.machine, err)
	}
}
