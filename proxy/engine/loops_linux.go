package engine

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errAgain means that a connection has nothing to read, or no room to write, for now.
var errAgain = errors.New("not now")

// errPending means that a write is under way.
var errPending = errors.New("pending")

// Loops is an engine of loops: each is one goroutine that runs many connections.
type Loops struct {
	name       string
	cfg        Config
	options    [][3]int // of cfg: made once, as each connection gets them
	loops      []*loop
	readsAhead bool                   // connections have an ahead
	limits     atomic.Pointer[limits] // of the last relay

	turn  atomic.Uint32 // whose turn it is to get a connection
	dials atomic.Uint32 // whose it is to dial
	table table
	conns sync.WaitGroup
}

// NewEpoll returns an engine of loops over epoll.
func NewEpoll(cfg Config) (*Loops, error) {
	return newLoops("epoll", cfg, newEpoll)
}

func newLoops(name string, cfg Config, newKernel func(*loop) (kernel, error)) (*Loops, error) {
	e := &Loops{name: name, cfg: cfg, options: cfg.options(), readsAhead: name == "uring"}
	raiseProcs(cfg.workers())
	for range cfg.workers() {
		l := &loop{engine: e, epoch: time.Now(), cuts: make(map[context.Context]*cutGroup), donec: make(chan struct{})}
		failed := make(chan error)
		go func() {
			var err error
			l.kernel, err = newKernel(l)
			failed <- err
			if err == nil {
				l.run()
			}
		}()
		if err := <-failed; err != nil {
			raiseProcs(len(e.loops) - cfg.workers())
			e.Close()
			return nil, err
		}
		e.loops = append(e.loops, l)
	}
	return e, nil
}

func (cfg Config) workers() int { return max(1, cfg.Workers) }

// A loop that waits keeps its P (see epoll.wait), so that the other goroutines need Ps of
// their own.
var procs sync.Mutex

func raiseProcs(by int) {
	procs.Lock()
	defer procs.Unlock()
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + by)
}

// Name returns the name of the engine.
func (e *Loops) Name() string { return e.name }

// Close ends the loops, once every connection is closed.
func (e *Loops) Close() {
	e.conns.Wait()
	for _, l := range e.loops {
		l.post(taskFunc(func() { l.stopped = true }))
		<-l.donec
	}
	raiseProcs(-len(e.loops))
	e.loops = nil
}

// next returns the loop whose turn it is to get a connection.
func (e *Loops) next() *loop {
	if len(e.loops) == 1 {
		return e.loops[0]
	}
	return e.loops[int(e.turn.Add(1))%len(e.loops)]
}

// loopOf returns the loop of c, which gets one where it has none.
func (e *Loops) loopOf(c *loopConn) *loop {
	l := c.loop.Load()
	if l == nil {
		l = e.next()
		c.loop.Store(l)
	}
	return l
}

// newConn returns the connection of a descriptor, which it takes over.
func (e *Loops) newConn(fd int, peer peerAddr) *loopConn {
	c := &loopConn{engine: e, fd: int32(fd), peer: peer.peerName}
	if peer.zone != 0 || peer.path != "" {
		c.peer.isLong = true
		c.seldom = &seldom{zone: peer.zone, path: peer.path}
	}
	if e.readsAhead {
		c.ahead = &ahead{outID: noBuffer}
	}
	e.conns.Add(1)
	e.table.add(c)
	return c
}

// Adopt takes over a dialed connection.
func (e *Loops) Adopt(c net.Conn) (Conn, error) {
	defer c.Close()
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil, errors.New("engine: a connection without a descriptor")
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	ctlErr := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(ctlErr, err); err != nil {
		return nil, err
	}
	adopted := e.newConn(fd, peerOf(c.RemoteAddr()))
	adopted.lasts()
	return adopted, nil
}

// table finds the connections that the kernel tells of by their descriptors.
type table struct {
	mu    sync.Mutex // of who changes it
	conns atomic.Pointer[[]atomic.Pointer[loopConn]]
	gens  []uint32
}

func (t *table) add(c *loopConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if int(c.fd) >= len(t.gens) {
		t.grow(int(c.fd) + 1)
	}
	t.gens[c.fd]++
	c.gen = t.gens[c.fd]
	t.at(c.fd).Store(c)
}

func (t *table) grow(n int) {
	n = max(64, n, 2*len(t.gens))
	conns := make([]atomic.Pointer[loopConn], n)
	for fd := range t.gens {
		conns[fd].Store(t.at(int32(fd)).Load())
	}
	gens := make([]uint32, n)
	copy(gens, t.gens)
	t.gens = gens
	t.conns.Store(&conns)
}

func (t *table) at(fd int32) *atomic.Pointer[loopConn] { return &(*t.conns.Load())[fd] }

// remove forgets c, before its descriptor is closed.
func (t *table) remove(c *loopConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at(c.fd).Store(nil)
}

// whileOpen calls f unless c is being closed, and has the close wait for it.
func (t *table) whileOpen(c *loopConn, f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.at(c.fd).Load() == c {
		f()
	}
}

// find returns the connection of a descriptor, if it is still that which had it when gen
// was noted; mask is of what was noted of it.
func (t *table) find(fd int32, gen, mask uint32) *loopConn {
	if c := t.at(fd).Load(); c != nil && c.gen&mask == gen {
		return c
	}
	return nil
}
