package engine

import (
	"errors"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// uring is the kernel of a loop over io_uring: it asks for what is to be done, all that
// is asked for in one turn of the loop with one system call, and is told when it has
// been done. What the ring promises, and since when, is said in ring_linux.go and
// ringops_linux.go.
//
// A connection that streams has a multishot recv, which completes for each message that
// comes, into a small buffer of the kernel's choice. The buffer is sent from, and given
// back when that is done. What a slow reader does not take is copied, so that it holds no
// buffer that others need. A backend of a drive, which wants so many bytes and no more,
// is asked for each.
//
// Where messages fill those buffers, the ring only polls, and the loop reads and writes
// itself, through one large buffer: for much data a system call costs nothing, and a
// buffer that is always the same stays in the cache.
//
// Connections are watched by an epoll set, which the ring polls: a request of the ring's
// would hold the socket open beyond its close, and take the bytes, behind which the end
// is to be seen too.
type uring struct {
	loop    *loop
	ring    *ring
	small   *bufRing
	large   []byte
	wakeFD  int // an eventfd, whose edges the ring polls
	watchFD int // the epoll set
	turn    uint64
	turnNow atomic.Uint64 // turn, for others
	order   uint64        // of the completions of sends and recvs, which is that in which these were done
	quiet   bool          // the last raw wait brought nothing
	yields  yielding
	spare   [][]arrival // see add
	arenas  [2]arena    // what drives write, in turn

	listeners map[uint64]*loopListener // that accept, by the data of their requests
	accepts   uint32                   // requests there were
}

// The group of small buffers, and their size: an odd number of cache lines, since buffers
// a power of two apart would share a few sets of the cache.
const (
	smallGroup = 1
	smallSize  = 81 * 64 // a message of 4 KiB does not fill it
)

// uringSizes are how much the ring of a loop holds. Of the buffers only so many are given
// to the kernel at first, which uses them in turn, and more when those run out. Tests make
// all of it tiny.
var uringSizes = struct {
	ring             ringConfig
	buffers, atFirst int
}{ringConfig{entries: 256, completions: 4096}, 4096, 64}

// NewUring returns an engine of loops over io_uring, or tells what this kernel lacks for
// it.
func NewUring(cfg Config) (*Loops, error) {
	if err := probeRing(); err != nil {
		return nil, err
	}
	return newLoops("uring", cfg, newUring)
}

// newUring locks its goroutine to its thread, which the ring belongs to.
func newUring(l *loop) (_ kernel, err error) {
	runtime.LockOSThread()
	k := &uring{loop: l, wakeFD: -1, watchFD: -1, large: make([]byte, loopBuffer), listeners: make(map[uint64]*loopListener)}
	defer func() {
		if err != nil {
			k.close()
		}
	}()
	if k.ring, err = newRing(uringSizes.ring); err != nil {
		return nil, err
	}
	if k.small, err = k.ring.newBufRing(smallGroup, uringSizes.buffers, smallSize, uringSizes.atFirst); err != nil {
		return nil, err
	}
	if k.wakeFD, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	if k.watchFD, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	k.pollWake()
	k.pollWatches()
	return k, nil
}

func (k *uring) close() {
	if k.ring != nil {
		if k.wakeFD >= 0 { // else the ring would hold them for a while
			k.ring.cancel(kindWake.of(k.wakeFD, 0), kindCancel.of(0, 0))
			k.ring.cancel(kindWatch.of(k.watchFD, 0), kindCancel.of(0, 0))
			k.ring.enter(false, 0, false)
			k.ring.completions(func(uint64, int32, uint32) {})
		}
		k.ring.close()
		if k.small != nil {
			k.small.close(k.ring)
		}
	}
	for _, fd := range []int{k.wakeFD, k.watchFD} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	runtime.UnlockOSThread()
}

// An opKind is what a request does. With the descriptor and the generation of its connection
// it makes the data of the request: a late completion of an earlier connection finds
// nobody. No connection has two requests of one kind at once.
type opKind uint8

const (
	kindCancel opKind = iota
	kindRecv
	kindPoll
	kindSend
	kindRoom
	kindAccept
	kindWake
	kindWatch
)

const genMask = 1<<24 - 1

func (k opKind) of(fd int, gen uint32) uint64 {
	return uint64(k)<<56 | uint64(gen&genMask)<<32 | uint64(uint32(fd))
}

func (k opKind) on(c *loopConn) uint64 { return k.of(int(c.fd), c.gen) }

func (k *uring) pollWake()    { k.ring.poll(k.wakeFD, unix.POLLIN, true, kindWake.of(k.wakeFD, 0)) }
func (k *uring) pollWatches() { k.ring.poll(k.watchFD, unix.POLLIN, true, kindWatch.of(k.watchFD, 0)) }

func (k *uring) poke() {
	one := [8]byte{1}
	unix.Write(k.wakeFD, one[:])
}

// wait: see epoll.wait. What else it does before it sleeps is yielding's business.
func (k *uring) wait(limit time.Duration) (err error) {
	began, raw := k.loop.now, time.Duration(0)
	sleeps := limit != 0 && !k.ring.due()
	if sleeps {
		k.yield()
	}
	switch {
	case !sleeps:
		err = k.ring.enter(false, 0, true)
	case k.quiet:
		err = k.ring.enter(true, limit, false)
	default:
		raw = limit
		if limit < 0 || limit > longestRaw {
			raw = longestRaw
		}
		err = k.ring.enter(true, raw, true)
	}
	if err != nil && !isBusy(err) {
		return err
	}
	k.loop.woke()
	if sleeps {
		k.yields.awake(k.loop.now)
	}
	k.turn++
	k.turnNow.Store(k.turn)
	k.arenas[k.turn%2].renew()
	n := k.ring.completions(k.completed)
	if n > 0 {
		k.quiet = false
	} else if raw > 0 && k.loop.now-began >= raw { // else a signal ended the wait
		k.quiet = true
	}
	return nil
}

// yield yields where that may pay, when what is prepared has been submitted.
func (k *uring) yield() {
	now := time.Since(k.loop.epoch)
	if !k.yields.asleep(now) {
		return
	}
	if k.ring.pending() > 0 {
		k.ring.enter(false, 0, true) // an error is met again
	}
	if !k.ring.due() {
		k.yields.yield(k.loop, now)
	}
}

// isBusy reports whether enter failed for want of something that completions give back.
func isBusy(err error) bool { return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EBUSY) }

// completed hands out a completion.
func (k *uring) completed(data uint64, res int32, flags uint32) {
	fd, gen := int32(uint32(data)), uint32(data>>32)&genMask
	switch what := opKind(data >> 56); what {
	case kindRecv, kindPoll, kindSend, kindRoom:
		k.completedOn(k.loop.engine.table.find(fd, gen, genMask), what, res, flags)
	case kindAccept:
		k.accepted(data, res)
	case kindWake:
		if flags&cqeMore == 0 && res != -int32(unix.ECANCELED) {
			k.pollWake()
		}
	case kindWatch:
		k.lookAround()
		if flags&cqeMore == 0 && res != -int32(unix.ECANCELED) {
			k.pollWatches()
		}
	}
}

func (k *uring) completedOn(c *loopConn, what opKind, res int32, flags uint32) {
	switch what {
	case kindRecv:
		k.received(c, res, flags)
	case kindPoll:
		k.polled(c, res)
	case kindSend:
		k.sent(c, res)
	case kindRoom:
		if c != nil {
			c.ahead.is &^= isAwaitingRoom
		}
	}
	if c != nil {
		k.loop.event(c)
		if c.userOn(k.loop) != nil { // otherwise another loop may have it by now
			k.spill(c)
		}
	}
}

// lookAround hands out the events of the connections that are watched.
func (k *uring) lookAround() {
	var events [64]unix.EpollEvent
	for {
		n, err := unix.EpollWait(k.watchFD, events[:], 0)
		for _, ev := range events[:max(n, 0)] {
			if c := k.loop.engine.table.find(ev.Fd, uint32(ev.Pad)&genMask, genMask); c != nil {
				k.loop.event(c)
			}
		}
		if err != unix.EINTR && n < len(events) {
			return
		}
	}
}

// watch: where all that comes is received anyway, that tells.
func (k *uring) watch(c *loopConn) {
	if streams := uint16(isStreaming | isReceiving); c.ahead.is&(streams|isCanceling|isPolling) != streams {
		k.watchEnd(c)
	}
}

func (k *uring) watchEnd(c *loopConn) {
	ev := unix.EpollEvent{Events: connEvents, Fd: c.fd, Pad: int32(c.gen)}
	if epollControl(k.watchFD, unix.EPOLL_CTL_ADD, int(c.fd), &ev) == nil {
		c.set(stateWatched)
	}
}

func (k *uring) unwatch(c *loopConn) {
	if c.is(stateWatched) {
		c.clear(stateWatched)
		epollControl(k.watchFD, unix.EPOLL_CTL_DEL, int(c.fd), nil)
	}
}

// knowsClean: a recv of this turn has told that there is no more.
func (k *uring) knowsClean(c *loopConn) bool { return c.ahead.emptied.Load() == k.turnNow.Load() }

func (k *uring) glance(c *loopConn) (bytes bool, end error) {
	a := c.ahead
	if a.is&isReceiving == 0 && a.end == nil {
		bytes, end = peek(int(c.fd))
	}
	if a.end != nil {
		end = a.end
	}
	return bytes || len(a.arrived) > 0 || len(c.unread()) > 0, end
}

// A client is accepted for each place, by a request of its own: with a multishot accept
// there could be more than places.
func (k *uring) listen(l *loopListener) {
	k.accepts++
	l.request = kindAccept.of(l.fd, k.accepts)
	k.listeners[l.request] = l
	k.ring.acceptFrom(l.fd, &l.name, &l.nameSize, l.request)
}

func (k *uring) pause(l *loopListener) {
	k.ring.cancel(l.request, kindCancel.of(0, 0))
	k.ring.enter(false, 0, true) // the caller may close the listener, which a request holds open
}

// accepted has a listener take the client that a request brought.
func (k *uring) accepted(data uint64, res int32) {
	l := k.listeners[data]
	delete(k.listeners, data)
	if l.request == data {
		l.listening = false
	}
	switch {
	case l.handler == nil: // it is closed
		if res >= 0 {
			unix.Close(int(res))
		}
		return
	case res >= 0:
		l.accepted(int(res), peerFrom(&l.name), nil) // a cancel came too late: the place is reserved still
	case res != -int32(unix.ECANCELED) && res != -int32(unix.EINTR):
		l.accepted(-1, peerAddr{}, l.failure(syscall.Errno(-res)))
	}
	l.admit()
}
