package exchange

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"forebay/proxy/frame"
)

// A simRequest is one of a client's script.
type simRequest struct {
	key      string
	id       uint64
	begin    int // where it is in the script
	end      int
	twoWay   bool // the client waits for an answer
	silent   bool // the client does not wait, but the message is typed as a call
	answered bool
}

type simClient struct {
	*world
	number   int
	m        *Machine
	script   []byte
	requests []simRequest
	sent     int   // of the script
	last     error // how it ends
	ended    bool
	pause    time.Time // it neither reads nor sends until then
	replies  frame.Scanner
	partial  []byte // of a reply
	conn     *simConn
	over     bool // the machine knows that conn has ended
	until    time.Time
	leasing  bool
	done     bool
}

func (w *world) newClient(number int) *simClient {
	c := &simClient{world: w, number: number, m: New(w.cfg), replies: w.cfg.Codec.Replies(), last: io.EOF}
	for n := range w.rng.IntN(12) {
		c.add(n)
	}
	switch {
	case w.chance(15):
		c.last = errReset
		c.script = c.script[:w.rng.IntN(len(c.script)+1)]
	case w.chance(10):
		c.script = append(c.script, bytes.Repeat([]byte{0}, 4+w.rng.IntN(100))...)
	case w.chance(10):
		c.script = c.script[:w.rng.IntN(len(c.script)+1)]
	}
	return c
}

func (c *simClient) add(n int) {
	r := simRequest{id: uint64(n*100 + c.rng.IntN(100)), begin: len(c.script)}
	typ, name := frame.Call, "echo"
	switch k := c.rng.IntN(10); {
	case k == 0:
		typ = frame.Oneway
	case k == 1:
		typ, name = frame.Oneway, "fire"
	case k == 2:
		name = "listed"
	case k < 5 && c.learn:
		name = fmt.Sprint("fire", c.rng.IntN(2)) // typed as a call
		r.silent = true
	case k < 7:
		name = "get"
	}
	r.twoWay = typ == frame.Call && name != "listed" && !r.silent
	r.key = fmt.Sprintf("%s of %d, %d;", name, c.number, n)
	size := c.rng.IntN(50)
	if c.chance(8) {
		size = c.rng.IntN(200 << 10)
	}
	c.script = append(c.script, framed(typ, name, r.id, r.key+big(size))...)
	r.end = len(c.script)
	c.requests = append(c.requests, r)
}

// step does one thing that the machine wants, and reports whether there was one
// that could be done.
func (c *simClient) step() (bool, error) {
	if c.leasing {
		return c.lease(), nil
	}
	switch c.rng.IntN(3000) {
	case 0:
		c.m.Drain()
	case 1:
		c.m.Cut()
	}
	s := c.m.Next(c.now)
	if err := invariants(c.m, s, c.now); err != nil {
		return false, err
	}
	c.until = s.Until
	switch s.Op {
	case Lease:
		c.leasing = true
		return true, nil
	case Release:
		return true, c.release()
	case Done:
		return true, c.finish()
	case FinishClient:
		return true, nil
	}
	for _, k := range c.rng.Perm(4) {
		ok, err := c.try(k, s)
		if ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

func (c *simClient) try(k int, s Step) (bool, error) {
	b := c.conn
	if b != nil && b.answered && len(s.ToBackend) > 0 {
		b.mark, b.answered = b.written, false
	}
	asleep := c.now.Before(c.pause)
	switch {
	case k == 0 && len(s.ToBackend) > 0 && b != nil && !c.over:
		return c.writeBackend(s), nil
	case k == 1 && len(s.ToClient) > 0 && c.ended && c.last == errReset:
		return false, errors.New("it writes to a client that is gone")
	case k == 1 && len(s.ToClient) > 0 && !asleep:
		return true, c.writeClient(s)
	case k == 2 && s.FromClient > 0 && !asleep && !c.ended:
		c.send(s.FromClient)
		return true, nil
	case k == 3 && s.FromBackend > 0 && b != nil && !c.over:
		return c.readBackend(s), nil
	}
	return false, nil
}

func (c *simClient) send(limit int) {
	if c.chance(3) {
		c.pause = c.now.Add(time.Duration(c.rng.IntN(20000)) * time.Millisecond)
		return
	}
	n := c.some(min(limit, len(c.script)-c.sent))
	if n > 0 {
		c.m.ReadClient(c.script[c.sent : c.sent+n])
		c.sent += n
	}
	if n == 0 || c.sent == len(c.script) && c.chance(50) {
		c.ended = true
		c.m.ClientEnded(c.last)
	}
}

func (c *simClient) writeBackend(s Step) bool {
	b := c.conn
	if b.eof {
		c.backendEnded(errReset)
		return true
	}
	if len(b.in) > 64<<10 {
		return false
	}
	n := c.some(len(s.ToBackend))
	b.in = append(b.in, s.ToBackend[:n]...)
	b.written += n
	c.m.WroteBackend(n)
	return true
}

func (c *simClient) readBackend(s Step) bool {
	b := c.conn
	if n := c.some(min(s.FromBackend, len(b.out))); n > 0 {
		b.answered = true
		p := b.out[:n]
		b.out = b.out[n:]
		b.read += n
		c.m.ReadBackend(p)
		return true
	}
	if b.eof {
		c.backendEnded(io.EOF)
	}
	return b.eof
}

func (c *simClient) backendEnded(err error) {
	c.over = true
	c.m.BackendEnded(err, c.conn.consumed <= c.conn.mark)
}

func (c *simClient) writeClient(s Step) error {
	if c.chance(2) {
		c.pause = c.now.Add(time.Duration(c.rng.IntN(20000)) * time.Millisecond)
		return nil
	}
	n := c.some(len(s.ToClient))
	p := append([]byte(nil), s.ToClient[:n]...)
	c.m.WroteClient(n)
	for len(p) > 0 {
		n, err := c.replies.Scan(p)
		if err != nil {
			return fmt.Errorf("it got what is no reply: %w", err)
		}
		c.partial = append(c.partial, p[:n]...)
		p = p[n:]
		if !c.replies.Done() {
			break
		}
		if err := c.receive(message{*c.replies.Head(), c.partial}); err != nil {
			return err
		}
		c.partial = nil
		c.replies.Next()
	}
	return nil
}

// receive checks that a message is the answer that is due.
func (c *simClient) receive(m message) error {
	for i := range c.requests {
		r := &c.requests[i]
		switch {
		case r.answered:
			continue
		case r.id == m.head.ID.Seq && (r.twoWay || r.silent):
			r.answered = true
			return c.check(r, m)
		case r.twoWay && !c.learn:
			return fmt.Errorf("it got %q before the answer to %q", m.body(), r.key)
		}
	}
	return fmt.Errorf("it got %.60q, an answer to nothing", m.body())
}

func (c *simClient) check(r *simRequest, m message) error {
	if r.begin >= c.sent {
		return fmt.Errorf("%s was answered before it was sent", r.key)
	}
	if m.head.Type == frame.Exception {
		c.seen["exception"]++
		return nil
	}
	c.seen["reply"]++
	if !strings.HasPrefix(m.body(), "re "+r.key) {
		return fmt.Errorf("it got %.60q as the answer to %q", m.body(), r.key)
	}
	return nil
}

// finish checks that nothing was left out.
func (c *simClient) finish() error {
	c.done = true
	end, _ := c.m.End()
	c.seen["end "+[]string{"", "finished", "gone", "idle", "malformed", "broken", "unserved", "closed", "drained", "cut", "pinned"}[end]]++
	c.seen["stale"] += int(c.m.Stats.Stale)
	c.seen["repeat"] += int(c.m.Stats.Repeats)
	c.seen["oneway"] += int(c.m.Stats.Oneways)
	if c.conn != nil {
		return errors.New("it has ended with a lease")
	}
	if len(c.partial) > 0 && !c.m.Abrupt() && end != ClientGone {
		return errors.New("part of a reply, and no reset")
	}
	if end != Finished && end != Malformed || c.m.gone != nil || c.m.Abrupt() {
		return nil
	}
	for _, r := range c.requests {
		if r.twoWay && !r.answered && r.end <= len(c.script) && !c.overtaken(r) {
			return fmt.Errorf("%s was not answered: end %d", r.key, end)
		}
	}
	return nil
}

// overtaken reports whether a request may go without an answer: where there is
// learning, one that a later one's answer came before.
func (c *simClient) overtaken(r simRequest) bool {
	for _, later := range c.requests {
		if c.learn && later.answered && later.end > r.end {
			return true
		}
	}
	return false
}

func (c *simClient) lease() bool {
	if c.chance(3) {
		c.leasing = false
		c.m.Refused(errors.New("full"), "full")
		return true
	}
	b := c.take()
	if b == nil {
		return c.chance(5) // or nothing moves, ever
	}
	c.leasing, c.over = false, false
	c.conn = b
	b.mark, b.answered = b.written, false
	c.m.Leased(b.exchange)
	return true
}

func (c *simClient) release() error {
	f := c.m.Facts()
	b := c.conn
	c.conn = nil
	c.m.Released()
	c.seen["fault "+f.Fault.String()]++
	if !reusable(f) {
		c.close(b)
		return nil
	}
	if err := b.unclean(); err != nil {
		return err
	}
	c.idle = append(c.idle, b)
	return nil
}
