package engine

import (
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// epoll is the kernel of a loop over epoll: it is told that something can be done, and
// does it itself. One read takes what came of a message, into a buffer of the loop's,
// and one write passes it on.
//
// Connections are registered once, edge-triggered: an edge is told of once, and is kept
// in the connection's state until a read or a write has found out more. What epoll
// promises is in epoll(7): with stream sockets a read that brings less than was asked
// for has taken all there was (since 2.6.9, when it began to hold); what comes later
// is a new edge. That does not hold where an urgent byte, or on a Unix socket descriptors
// that come along, end a read: then one goes on until there is nothing. A FIN is told of
// as EPOLLRDHUP (2.6.17), also where bytes are in front of it.
//
// The writes of all the events of one wait are made together, after the reads: the
// receivers on this machine are woken once for many messages, not for each, which costs
// more than the write itself.
type epoll struct {
	loop   *loop
	fd     int
	wakeFD int         // an eventfd
	buf    []byte      // what is read, and what is to be written
	used   int         // of buf, until the next flush
	outs   []*loopConn // with something to write
	spare  []*loopConn
	order  uint64 // flushes
	events [128]unix.EpollEvent
	quiet  bool // the last raw wait brought nothing

	listeners map[int32]*loopListener // by their descriptors
}

func newEpoll(l *loop) (kernel, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("eventfd", err)
	}
	k := &epoll{loop: l, fd: fd, wakeFD: wake, buf: make([]byte, loopBuffer), listeners: make(map[int32]*loopListener)}
	if err := k.control(unix.EPOLL_CTL_ADD, int32(wake), listenerGen, unix.EPOLLIN|unix.EPOLLET); err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

func (k *epoll) close() {
	unix.Close(k.fd)
	unix.Close(k.wakeFD)
}

// control changes what the kernel tells of a descriptor.
func (k *epoll) control(op int, fd int32, gen uint32, events uint32) error {
	ev := unix.EpollEvent{Events: events, Fd: fd, Pad: int32(gen)}
	return epollControl(k.fd, op, int(fd), &ev)
}

// connEvents are the edges of a connection. Room to write is added where a write has
// found none: most never do.
const connEvents = unix.EPOLLIN | unix.EPOLLPRI | unix.EPOLLRDHUP | unix.EPOLLET

func (k *epoll) own(c *loopConn) error {
	if err := k.control(unix.EPOLL_CTL_ADD, c.fd, c.gen, connEvents); err != nil {
		return err
	}
	c.set(stateRegistered | stateWritable)
	c.clear(stateRoom)
	return nil
}

func (k *epoll) release(c *loopConn) { k.control(unix.EPOLL_CTL_DEL, c.fd, 0, 0) }

func (k *epoll) awaitRoom(c *loopConn) {
	c.clear(stateWritable)
	if !c.is(stateRoom) {
		c.set(stateRoom)
		k.control(unix.EPOLL_CTL_MOD, c.fd, c.gen, connEvents|unix.EPOLLOUT)
	}
}

// leastRoom is how much room a read finds in the buffer.
const leastRoom = 64 << 10

func (k *epoll) take(c *loopConn, limit int) (chunk, error) {
	if !c.is(stateReadable) {
		return chunk{}, errAgain
	}
	if len(k.buf)-k.used < leastRoom {
		k.writeAll()
	}
	limit = min(limit, len(k.buf)-k.used)
	n, err := readFD(int(c.fd), k.buf[k.used:k.used+limit])
	switch {
	case err == unix.EAGAIN:
		c.clear(stateReadable)
		return chunk{}, errAgain
	case err != nil || n == 0:
		return chunk{}, readEnd(err)
	case n < limit && !c.is(stateEnded|stateUrgent) && c.peer.isTCP():
		c.clear(stateReadable)
	}
	return chunk{k.buf[k.used : k.used+n : k.used+n], inBuffer}, nil
}

// inBuffer is the id of a chunk that lies at the end of what is used of the buffer.
const inBuffer = -2

func (k *epoll) drop(chunk)            {}
func (k *epoll) expect(*loopConn, int) {}

// send has a chunk written by the next flush. What then does not fit is kept.
func (k *epoll) send(c *loopConn, ch chunk) {
	if c.sendErr() != nil {
		return
	}
	if ch.id == inBuffer {
		k.used += len(ch.p)
	}
	c.out = ch.p
	c.set(stateKeeps)
	k.outs = append(k.outs, c)
}

// mostCopied is how much of a message is copied to be written with those of others.
const mostCopied = 16 << 10

func (k *epoll) write(c *loopConn, p []byte) (int, error) {
	switch {
	case !c.is(stateWritable):
		return 0, errAgain
	case len(p) > mostCopied:
		return k.writeNow(c, p)
	case len(k.buf)-k.used < len(p):
		k.writeAll()
	}
	c.out = k.buf[k.used : k.used+len(p)]
	k.used += copy(c.out, p)
	c.clear(stateKeeps)
	k.outs = append(k.outs, c)
	return 0, errPending
}

func (k *epoll) writeNow(c *loopConn, p []byte) (int, error) {
	n, err := c.writeNow(p)
	if err == errAgain || err == nil && n < len(p) {
		k.awaitRoom(c)
	}
	return n, err
}

// writeAll makes the writes that were put off. Their events come with the flush.
func (k *epoll) writeAll() {
	k.used = 0
	k.order++
	for _, c := range k.outs {
		if p := c.out; len(p) > 0 && !c.keeps() {
			n, err := k.writeNow(c, p)
			c.out = nil
			switch {
			case err != nil && err != errAgain:
				c.rarely().sendErr = err
			case n < len(p) && c.is(stateKeeps):
				c.hold(p[n:])
			}
		}
	}
}

func (k *epoll) flush() {
	if len(k.outs) == 0 {
		return
	}
	k.writeAll()
	outs := k.outs
	k.outs = k.spare[:0]
	for _, c := range outs {
		k.loop.event(c)
	}
	clear(outs)
	k.spare = outs
}

func (k *epoll) unflushed() bool { return len(k.outs) > 0 }

// sendHeld writes what was kept.
func (k *epoll) sendHeld(c *loopConn) {
	n, err := k.writeNow(c, c.out)
	if err != nil && err != errAgain {
		c.rarely().sendErr = err
		c.letGo()
		return
	}
	if c.out = c.out[n:]; len(c.out) == 0 {
		c.letGo()
	}
}

func (k *epoll) asked() uint64          { k.order++; return k.order }
func (k *epoll) heard(*loopConn) uint64 { return k.order }

// writing: what is kept is not under way.
func (k *epoll) writing(c *loopConn) bool { return len(c.out) > 0 && !c.keeps() }
func (k *epoll) stream(*loopConn)         {}

// Who is registered is watched.
func (k *epoll) watch(*loopConn)   {}
func (k *epoll) unwatch(*loopConn) {}

func (k *epoll) knowsClean(c *loopConn) bool {
	return c.state.Load()&(stateRegistered|stateReadable|stateEnded) == stateRegistered
}

func (k *epoll) glance(c *loopConn) (bytes bool, end error) {
	if !c.is(stateReadable | stateEnded) {
		return len(c.unread()) > 0, nil // as of the last wait; there will be an edge
	}
	return c.Peek()
}

// settle has nothing to end but what was kept, or put off.
func (k *epoll) settle(c *loopConn) bool {
	if k.writing(c) {
		k.writeAll()
	}
	c.letGo()
	return true
}

// listenerGen stands for a listener in place of a connection's generation, which begins
// at 1.
const listenerGen = 0

// A listener is level-triggered: one client is accepted for each event, and what is
// left is told of again.
func (k *epoll) listen(l *loopListener) {
	k.listeners[int32(l.fd)] = l
	k.control(unix.EPOLL_CTL_ADD, int32(l.fd), listenerGen, unix.EPOLLIN)
}

func (k *epoll) pause(l *loopListener) {
	k.control(unix.EPOLL_CTL_DEL, int32(l.fd), 0, 0)
	delete(k.listeners, int32(l.fd))
}

func (k *epoll) poke() {
	one := [8]byte{1}
	unix.Write(k.wakeFD, one[:])
}

// longestRaw is the longest wait that keeps the P: below the 10 ms after which the
// runtime's monitor takes a goroutine for one that runs too long, and signals it.
const longestRaw = 9 * time.Millisecond

// wait waits first without telling the scheduler, since a loop under load is soon needed
// again, and handing its P over and back costs more than all else. Garbage collection
// reaches the thread by a signal, which ends the wait (EINTR). After a wait in vain, and
// before a long one, it does tell.
func (k *epoll) wait(limit time.Duration) error {
	n, err := 0, error(nil)
	switch {
	case limit == 0:
		n, err = k.poll(0, true)
	case k.quiet:
		n, err = k.poll(limit, false)
		k.quiet = n == 0 || err != nil
	default:
		raw := limit
		if limit < 0 || limit > longestRaw {
			raw = longestRaw
		}
		n, err = k.poll(raw, true)
		k.quiet = n == 0 && err == nil
	}
	if err == unix.EINTR {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("epoll_wait", err)
	}
	k.loop.woke()
	k.hand(n)
	return nil
}

// poll calls epoll_pwait, whose time limit is in milliseconds.
func (k *epoll) poll(limit time.Duration, raw bool) (int, error) {
	ms := -1
	if limit >= 0 {
		ms = int((limit + time.Millisecond - 1) / time.Millisecond)
	}
	call := unix.Syscall6
	if raw {
		call = unix.RawSyscall6
	}
	n, _, errno := call(unix.SYS_EPOLL_PWAIT, uintptr(k.fd), uintptr(unsafe.Pointer(&k.events)), uintptr(len(k.events)), uintptr(ms), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// hand hands out n events. That of a connection that an earlier one has ended finds
// nothing, also where another has got its descriptor.
func (k *epoll) hand(n int) {
	for _, ev := range k.events[:n] {
		if ev.Fd == int32(k.wakeFD) {
			continue
		}
		if ev.Pad == listenerGen {
			k.accept(k.listeners[ev.Fd])
			continue
		}
		c := k.loop.engine.table.find(ev.Fd, uint32(ev.Pad), ^uint32(0))
		if c == nil || c.loop.Load() != k.loop {
			continue
		}
		k.note(c, ev.Events)
		k.loop.event(c)
	}
}

func (k *epoll) note(c *loopConn, events uint32) {
	var bits uint32
	if events&unix.EPOLLOUT != 0 {
		bits |= stateWritable
	}
	if events&unix.EPOLLIN != 0 {
		bits |= stateReadable
	}
	if events&unix.EPOLLPRI != 0 {
		bits |= stateReadable | stateUrgent
	}
	if events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		bits |= stateReadable | stateEnded | stateWritable // a write finds out too
	}
	c.set(bits)
	if bits&stateWritable != 0 && c.userOn(k.loop) != nil && c.keeps() {
		k.sendHeld(c)
	}
}

func (k *epoll) accept(l *loopListener) {
	if l == nil {
		return // an event before this one has paused it
	}
	if l.placed = l.placed || l.handler.Admit(); !l.placed {
		l.pause()
		return
	}
	fd, peer, err := acceptFD(l.fd)
	if err == unix.EAGAIN || err == unix.EINTR {
		return
	}
	if err != nil {
		err = l.failure(err)
	}
	l.accepted(fd, peer, err)
}
