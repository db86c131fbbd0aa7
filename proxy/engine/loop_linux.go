package engine

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// loop is one goroutine that runs the relays and drives of its connections. What it
// does with the kernel is its kernel's business (epoll_linux.go, uring_linux.go).
// All but what is under mu belongs to the goroutine.
type loop struct {
	engine *Loops
	kernel kernel
	epoch  time.Time
	now    time.Duration // after epoch; as of the end of the last wait
	at     time.Time     // the same
	wheel  wheel
	todo   []task // to be run before the next wait
	cuts   map[context.Context]*cutGroup

	mu      sync.Mutex
	posted  []task
	spare   []task      // what posted was before
	waiting atomic.Bool // the loop waits, or is about to, and must be poked
	stopped bool
	donec   chan struct{}
}

// task is something that a loop runs.
type task interface{ run() }

// taskFunc is a task of one function.
type taskFunc func()

func (f taskFunc) run() { f() }

// kernel is how a loop asks the kernel. Its methods are called by the loop, where nothing
// else is said.
type kernel interface {
	// own begins to tell c's user of events. release ends it; release may be called
	// by another loop.
	own(c *loopConn) error
	release(c *loopConn)

	// take returns bytes that came on c, at most limit, or how reading ended.
	// errAgain means that there is nothing now, and that there will be an event.
	take(c *loopConn, limit int) (chunk, error)
	drop(ch chunk)

	// send has the kernel take ch for c, now or later. c.written and c.sendErr tell
	// how far it came, c.owed what is left; events tell when that changes.
	send(c *loopConn, ch chunk)

	// write gives the kernel what it takes of p. errAgain: nothing now; there will be an
	// event when there is room. errPending: p has been copied, and there will be an event
	// when it is known, by c.written and c.sendErr, what was taken; until then writing.
	write(c *loopConn, p []byte) (int, error)

	// expect tells that at most limit bytes of c will soon be taken.
	expect(c *loopConn, limit int)

	// flush makes the writes that wait for those of other connections; see epoll.
	flush()
	unflushed() bool // it had more to do

	// awaitRoom sees to it that there is an event when c can be written to.
	awaitRoom(c *loopConn)

	// asked and heard order writes and reads: what was taken from c last was read after a
	// write had ended where heard is not below what asked returned then.
	asked() uint64
	heard(c *loopConn) uint64

	// writing tells whether it is not known yet how much the kernel has taken of what
	// was sent.
	writing(c *loopConn) bool

	// stream tells that all that comes on c is wanted, as it comes.
	stream(c *loopConn)

	// watch begins to tell of c, which has no user that reads; unwatch, which may be
	// called by any goroutine, ends it. glance is Peek, from what is known of c.
	watch(c *loopConn)
	unwatch(c *loopConn)
	glance(c *loopConn) (bytes bool, end error)

	// knowsClean reports that nothing has come on c that has not been taken, as was known
	// in this turn of the loop or the last. Any goroutine may ask.
	knowsClean(c *loopConn) bool

	// settle ends what the kernel is still doing with c for its user. It reports
	// false where that takes time: there will be an event.
	settle(c *loopConn) bool

	// listen begins to accept from a listener, pause stops that.
	listen(l *loopListener)
	pause(l *loopListener)

	// wait waits for events, at most for limit (negative: for any time), says that the
	// loop woke, and hands them out.
	wait(limit time.Duration) error
	// poke ends a wait that is under way or about to begin. Any goroutine may call it.
	poke()
	close()
}

// loopBuffer is the size of the buffer of a loop. It is a little more than a power of
// two: the read of a message of that size then tells by being short that there is no more.
const loopBuffer = maxBuffer + 64

// chunk is bytes that came from a connection. They are the loop's until the next take,
// or lie in a buffer of the kernel's that send, or drop, gives back.
type chunk struct {
	p  []byte
	id int32 // of the buffer, or noBuffer
}

const noBuffer = -1

// post has the loop run t, from any goroutine.
func (l *loop) post(t task) {
	l.mu.Lock()
	l.posted = append(l.posted, t)
	l.mu.Unlock()
	// The loop sets waiting and then looks at posted again, so that one of both
	// sees the other.
	if l.waiting.Load() && l.waiting.CompareAndSwap(true, false) {
		l.kernel.poke()
	}
}

// again has the loop run t before it waits.
func (l *loop) again(t task) { l.todo = append(l.todo, t) }

func (l *loop) run() {
	defer close(l.donec)
	defer l.kernel.close()
	for !l.stopped {
		l.kernel.flush()
		l.waiting.Store(true)
		err := l.kernel.wait(l.patience())
		l.woke()
		if err != nil {
			panic(err) // only a wrong argument, or want of memory in the kernel
		}
		l.wheel.advance(l.now)
		l.runPosted()
		l.runTodo()
	}
}

// woke is called when a wait has ended: before the events are handed out, since what
// they post runs anyway and needs no poke, and after, when the time has gone on.
func (l *loop) woke() {
	l.waiting.Store(false)
	l.now = time.Since(l.epoch)
	l.at = l.epoch.Add(l.now)
}

// patience is how long the loop may wait.
func (l *loop) patience() time.Duration {
	l.mu.Lock()
	posted := len(l.posted)
	l.mu.Unlock()
	if posted+len(l.todo) > 0 || l.kernel.unflushed() {
		return 0
	}
	due, ok := l.wheel.due()
	if !ok {
		return -1
	}
	return max(0, due-l.now)
}

func (l *loop) runPosted() {
	l.mu.Lock()
	tasks := l.posted
	l.posted, l.spare = l.spare[:0], nil
	l.mu.Unlock()
	for _, t := range tasks {
		t.run()
	}
	clear(tasks)
	l.mu.Lock()
	l.spare = tasks
	l.mu.Unlock()
}

func (l *loop) runTodo() {
	tasks := l.todo
	l.todo = nil
	for _, t := range tasks {
		t.run()
	}
	if l.todo == nil {
		clear(tasks)
		l.todo = tasks[:0]
	}
}

// open has the loop own c: its kernel tells of it. Where another loop had it, that
// has no user for it any more.
func (l *loop) open(c *loopConn) error {
	if c.is(stateClosed) {
		return net.ErrClosed // its descriptor may be another's by now
	}
	was := c.loop.Load()
	if c.is(stateRegistered) {
		if was == l {
			return nil
		}
		was.kernel.release(c)
		c.clear(stateRegistered | stateReadable | stateEnded | stateUrgent)
	}
	c.loop.Store(l)
	return l.kernel.own(c)
}

// take returns bytes that came on c, those first that came back from an earlier relay.
func (l *loop) take(c *loopConn, limit int) (chunk, error) {
	unread := c.unread()
	if len(unread) == 0 {
		return l.kernel.take(c, limit)
	}
	n := min(limit, len(unread))
	p, rest := unread[:n], unread[n:]
	if len(rest) == 0 {
		rest = nil
	}
	c.setUnread(rest)
	return chunk{p, noBuffer}, nil
}

// event hands out an event of c.
func (l *loop) event(c *loopConn) {
	if w := c.watch.Load(); w != nil {
		w.look()
	}
	if u := c.userOn(l); u != nil {
		u.event(c)
	}
}

// cutGroup is the relays and drives that end with one context.
type cutGroup struct {
	loop    *loop
	ctx     context.Context
	members member // the head of a ring
	forget  func() bool
}

// member is the place of a relay or a drive in its group.
type member struct {
	next, prev *member
	group      *cutGroup
	cut        cutter
}

// cutter is told that its context has ended.
type cutter interface{ contextEnded() }

// join has c told, on the loop, when ctx ends.
func (l *loop) join(ctx context.Context, m *member, c cutter) {
	if ctx == nil || ctx.Done() == nil {
		return
	}
	g := l.cuts[ctx]
	if g == nil {
		g = &cutGroup{loop: l, ctx: ctx}
		g.members.next, g.members.prev = &g.members, &g.members
		l.cuts[ctx] = g
		g.forget = context.AfterFunc(ctx, func() { l.post(g) })
	}
	m.group, m.cut = g, c
	m.next, m.prev = &g.members, g.members.prev
	m.prev.next, g.members.prev = m, m
}

// context returns that with which m ends, or ended.
func (m *member) context() context.Context {
	if m.group == nil {
		return context.Background() // it has no end
	}
	return m.group.ctx
}

// leave ends that.
func (m *member) leave() {
	if m.next == nil {
		return
	}
	m.prev.next, m.next.prev = m.next, m.prev
	if g := m.group; g.members.next == &g.members && g.loop.cuts[g.ctx] == g {
		delete(g.loop.cuts, g.ctx)
		g.forget()
	}
	m.next, m.prev = nil, nil
}

// run tells the members that the context has ended.
func (g *cutGroup) run() {
	delete(g.loop.cuts, g.ctx) // who comes later makes a group of its own
	for g.members.next != &g.members {
		m := g.members.next
		cut := m.cut
		m.leave()
		cut.contextEnded()
	}
}
