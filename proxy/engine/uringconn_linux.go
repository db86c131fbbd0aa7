package engine

import (
	"io"
	"os"
	"slices"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// ahead is what the ring does for a connection, and what has come of it that nobody has
// taken yet.
type ahead struct {
	is      uint16
	full    uint8         // recvs in a row that filled a buffer
	slack   uint8         // reads of the loop that would have fitted into one
	outID   int32         // the buffer that loopConn.out lies in
	arrived []arrival     // in order; nil where nothing has
	end     error         // how receiving ended, after those
	heard   uint64        // when what was taken, or copied, last had come
	emptied atomic.Uint64 // the turn in which a recv last left nothing in the socket
}

// The bits of ahead.is.
const (
	isStreaming    = 1 << iota // what comes is wanted as it comes
	isReceiving                // a recv is in flight
	isPolling                  // a poll is, in its place
	isCanceling                // and its cancellation
	isSending                  // a send is in flight
	isOnce                     // it is a drive's, which does not go on by itself
	isSendCanceled             // and its cancellation
	isLarge                    // messages are large: the loop reads
	isReadable                 // then: there may be something to read
	isAwaitingRoom             // a poll is in flight
	isSettling                 // the user waits for all to have ended
	isOfOddTurn                // what is sent lies in the arena of such a turn
)

// arrival is a chunk that came.
type arrival struct {
	chunk
	order uint64
}

func (k *uring) own(c *loopConn) error {
	c.set(stateRegistered)
	return nil
}

// release: the connection has no user, so nothing is in flight.
func (k *uring) release(*loopConn) {}

func (k *uring) stream(c *loopConn) { c.ahead.is |= isStreaming }

func (k *uring) take(c *loopConn, limit int) (chunk, error) {
	a := c.ahead
	switch {
	case len(a.arrived) > 0:
		return k.takeArrived(c, limit), nil
	case a.end != nil:
		return chunk{}, a.end
	case a.is&isReadable != 0:
		return k.read(c, limit)
	}
	k.arm(c, limit)
	return chunk{}, errAgain
}

// read reads into the buffer of the loop.
func (k *uring) read(c *loopConn, limit int) (chunk, error) {
	a := c.ahead
	limit = min(limit, len(k.large))
	n, err := readFD(int(c.fd), k.large[:limit])
	if n < limit { // a stream socket that gives less has no more
		a.is &^= isReadable
	}
	switch {
	case err == unix.EAGAIN:
		k.arm(c, limit)
		return chunk{}, errAgain
	case err != nil || n == 0:
		a.end = readEnd(err)
		return chunk{}, a.end
	case n > smallSize:
		a.slack = 0
	default:
		a.slack++
	}
	if n < limit {
		a.emptied.Store(k.turn)
	}
	k.order++
	a.heard = k.order
	return chunk{k.large[:n], inBuffer}, nil
}

func (k *uring) takeArrived(c *loopConn, limit int) chunk {
	a := c.ahead
	got := &a.arrived[0]
	a.heard = got.order
	if len(got.p) > limit { // the limit has become lower since it was asked for
		part := chunk{got.p[:limit:limit], noBuffer}
		got.p = got.p[limit:]
		return part
	}
	ch := got.chunk
	if a.arrived = slices.Delete(a.arrived, 0, 1); len(a.arrived) == 0 {
		k.empty(a)
	}
	return ch
}

// mostSpare bounds uring.spare.
const mostSpare = 64

// add adds what came to what has arrived. A connection has room for that only while
// there is something: quiet ones share it.
func (k *uring) add(a *ahead, got arrival) {
	if n := len(k.spare); a.arrived == nil && n > 0 {
		a.arrived, k.spare = k.spare[n-1], k.spare[:n-1]
	} else if a.arrived == nil {
		a.arrived = make([]arrival, 0, mostAhead)
	}
	a.arrived = append(a.arrived, got)
}

// empty gives that room up.
func (k *uring) empty(a *ahead) {
	if a.arrived != nil && len(k.spare) < mostSpare {
		clear(a.arrived)
		k.spare = append(k.spare, a.arrived[:0])
	}
	a.arrived = nil
}

// arm has the kernel receive, if it does not.
func (k *uring) arm(c *loopConn, limit int) {
	a := c.ahead
	if a.is&isReceiving != 0 || a.end != nil {
		return
	}
	a.is |= isReceiving
	k.choose(a)
	switch {
	case a.is&isLarge != 0:
		a.is |= isPolling
		k.ring.poll(int(c.fd), unix.POLLIN|unix.POLLRDHUP, false, kindPoll.on(c))
	case a.is&isStreaming != 0:
		k.ring.recv(int(c.fd), smallGroup, 0, recvMultishot, kindRecv.on(c))
	default:
		k.ring.recv(int(c.fd), smallGroup, min(limit, smallSize), recvPollFirst, kindRecv.on(c))
	}
}

// The loop reads itself when so many messages in a row filled a buffer, and leaves it to
// the ring again when so many would have fitted.
const (
	growAfterFull    = 2
	shrinkAfterSmall = 16
)

// choose chooses who reads next.
func (k *uring) choose(a *ahead) {
	switch {
	case a.full >= growAfterFull:
		a.is |= isLarge
	case a.slack >= shrinkAfterSmall:
		a.is &^= isLarge
	default:
		return
	}
	a.full, a.slack = 0, 0
}

// size learns from a recv of n bytes.
func (k *uring) size(c *loopConn, n int) {
	a := c.ahead
	if n < smallSize {
		a.full = 0
	} else if a.full++; a.full >= growAfterFull {
		k.cancelRecv(c)
	}
}

// polled takes the result of a poll.
func (k *uring) polled(c *loopConn, res int32) {
	if c == nil {
		return
	}
	c.ahead.is &^= isReceiving | isPolling | isCanceling
	if res > 0 {
		c.ahead.is |= isReadable
	}
}

// received takes the result of a recv. c is nil where its connection is gone.
func (k *uring) received(c *loopConn, res int32, flags uint32) {
	k.order++
	ch := k.claim(res, flags)
	if c == nil {
		k.drop(ch)
		return
	}
	a := c.ahead
	if flags&cqeMore == 0 {
		a.is &^= isReceiving | isCanceling
	}
	switch {
	case res > 0:
		k.add(a, arrival{ch, k.order})
		if flags&cqeSockNonEmpty == 0 { // told of since 5.19
			a.emptied.Store(k.turn)
		}
		k.size(c, int(res))
	case res == 0:
		a.end = io.EOF
	case res == -int32(unix.ENOBUFS):
		k.starve()
	case res == -int32(unix.ECANCELED), res == -int32(unix.EINTR), res == -int32(unix.EAGAIN):
	default:
		a.end = os.NewSyscallError("recv", syscall.Errno(-res))
	}
}

// claim finds the bytes of a recv.
func (k *uring) claim(res int32, flags uint32) chunk {
	id, ok := k.small.take(flags)
	if !ok {
		return chunk{id: noBuffer}
	}
	return chunk{k.small.bytes(id, int(max(res, 0))), int32(id)}
}

// drop gives a buffer back.
func (k *uring) drop(ch chunk) {
	if ch.id >= 0 {
		k.small.give(uint16(ch.id))
	}
}

func (k *uring) cancelRecv(c *loopConn) {
	if a := c.ahead; a.is&(isReceiving|isCanceling) == isReceiving {
		a.is |= isCanceling
		what := kindRecv
		if a.is&isPolling != 0 {
			what = kindPoll
		}
		k.ring.cancel(what.on(c), kindCancel.of(0, 0))
	}
}

// mostAhead is how many chunks may lie unclaimed before receiving stops.
const mostAhead = 4

// spill stops the receiving of what nobody takes, and copies it, so that it holds no
// buffers: some for each connection, none where they are about to run out.
func (k *uring) spill(c *loopConn) {
	a := c.ahead
	if len(a.arrived) == 0 || len(a.arrived) < mostAhead && !k.small.scarce() {
		return
	}
	k.cancelRecv(c)
	k.keep(c)
	if w := c.watch.Load(); w != nil {
		w.unlessOver(func() { k.watchEnd(c) }) // no recv will tell
	}
}

// keep copies what has arrived to where it is taken first.
func (k *uring) keep(c *loopConn) {
	a := c.ahead
	if len(a.arrived) == 0 {
		return
	}
	unread := c.unread()
	n := len(unread)
	for _, got := range a.arrived {
		n += len(got.p)
	}
	unread = slices.Grow(unread[:len(unread):len(unread)], n-len(unread))
	for _, got := range a.arrived {
		unread = append(unread, got.p...)
		k.drop(got.chunk)
		a.heard = got.order
	}
	c.setUnread(unread)
	k.empty(a)
}

// starve has the kernel get more buffers, where a recv found none. The bytes are in the
// socket still; whose they are asks again at the event, if he still wants them.
func (k *uring) starve() {
	k.small.grow(max(2, k.small.known/2))
}

func (k *uring) writing(c *loopConn) bool { return c.ahead.is&isSending != 0 }
func (k *uring) asked() uint64            { return k.order }

func (k *uring) heard(c *loopConn) uint64 { return c.ahead.heard }

// settle cancels what is in flight, and keeps what has arrived.
func (k *uring) settle(c *loopConn) bool {
	a := c.ahead
	if a == nil {
		return true
	}
	a.is |= isSettling
	k.cancelRecv(c)
	if a.is&(isSending|isSendCanceled) == isSending {
		a.is |= isSendCanceled
		k.ring.cancel(kindSend.on(c), kindCancel.of(0, 0))
	}
	if a.is&isAwaitingRoom != 0 {
		k.ring.cancel(kindRoom.on(c), kindCancel.of(0, 0))
	}
	if a.is&(isReceiving|isSending|isAwaitingRoom) != 0 {
		return false
	}
	k.keep(c)
	k.letGo(c)
	a.is &^= isSettling | isStreaming | isLarge | isReadable
	a.full, a.slack = 0, 0
	return true
}
