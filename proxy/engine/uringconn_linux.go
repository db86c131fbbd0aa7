package engine

import (
	"io"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// ahead is what the ring does for a connection, and what has come of it that nobody has
// taken yet.
type ahead struct {
	is      uint16
	full    uint8     // recvs in a row that filled a small buffer
	slack   uint8     // that would have fitted into one, of a large
	arrived []arrival // in order
	end     error     // how receiving ended, after those
	out     chunk     // what is being sent
	first   [1]arrival
}

// The bits of ahead.is.
const (
	isStreaming    = 1 << iota // what comes is wanted as it comes
	isReceiving                // a recv is in flight
	isInLarge                  // into a large buffer
	isCanceling                // and its cancellation
	isSending                  // a send is in flight
	isSendCanceled             // and its cancellation
	isLarge                    // recvs go into large buffers
	isAwaitingRoom             // a poll is in flight
	isSettling                 // the user waits for all to have ended
)

// arrival is a chunk that came.
type arrival struct {
	chunk
	turn uint64 // of the loop
}

// The buffers of the large group have ids from here.
const largeID = 1 << 16

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
	}
	k.arm(c, limit)
	return chunk{}, errAgain
}

func (k *uring) takeArrived(c *loopConn, limit int) chunk {
	a := c.ahead
	got := &a.arrived[0]
	k.heardAt = got.turn
	if len(got.p) > limit { // the limit has become lower since it was asked for
		part := chunk{got.p[:limit:limit], noBuffer}
		got.p = got.p[limit:]
		return part
	}
	ch := got.chunk
	*got = arrival{}
	if a.arrived = a.arrived[1:]; len(a.arrived) == 0 {
		a.arrived = a.first[:0]
	}
	return ch
}

// arm has the kernel receive, if it does not.
func (k *uring) arm(c *loopConn, limit int) {
	a := c.ahead
	if a.is&isReceiving != 0 || a.end != nil {
		return
	}
	a.is |= isReceiving
	a.is &^= isInLarge
	k.choose(a)
	switch {
	case a.is&isLarge != 0:
		a.is |= isInLarge
		k.ring.recv(int(c.fd), largeGroup, min(limit, largeSize), 0, kindRecvLarge.on(c))
	case a.is&isStreaming != 0:
		k.ring.recv(int(c.fd), smallGroup, 0, recvMultishot, kindRecv.on(c))
	default:
		k.ring.recv(int(c.fd), smallGroup, min(limit, smallSize), 0, kindRecv.on(c))
	}
}

// A connection goes over to large buffers when so many messages in a row filled a small
// one, and back when so many would have fitted.
const (
	growAfterFull    = 2
	shrinkAfterSmall = 16
)

// choose chooses the buffers of the next recv.
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
	switch {
	case a.is&isInLarge != 0 && n <= smallSize:
		a.slack++
	case a.is&isInLarge != 0:
		a.slack = 0
	case n < smallSize:
		a.full = 0
	default:
		if a.full++; a.full >= growAfterFull {
			k.cancelRecv(c)
		}
	}
}

// received takes the result of a recv. c is nil where its connection is gone.
func (k *uring) received(c *loopConn, what opKind, res int32, flags uint32) {
	ch := k.claim(what, res, flags)
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
		if a.arrived == nil {
			a.arrived = a.first[:0]
		}
		a.arrived = append(a.arrived, arrival{ch, k.turn})
		k.size(c, int(res))
	case res == 0:
		a.end = io.EOF
	case res == -int32(unix.ENOBUFS):
		k.starve(c)
	case res == -int32(unix.ECANCELED), res == -int32(unix.EINTR), res == -int32(unix.EAGAIN):
	default:
		a.end = os.NewSyscallError("recv", syscall.Errno(-res))
	}
}

// claim finds the bytes of a recv.
func (k *uring) claim(what opKind, res int32, flags uint32) chunk {
	group, first := k.small, int32(0)
	if what == kindRecvLarge {
		group, first = k.large, largeID
	}
	id, ok := group.take(flags)
	if !ok {
		return chunk{id: noBuffer}
	}
	return chunk{group.bytes(id, int(max(res, 0))), first + int32(id)}
}

// drop gives a buffer back.
func (k *uring) drop(ch chunk) {
	switch {
	case ch.id == noBuffer:
	case ch.id >= largeID:
		k.large.give(uint16(ch.id - largeID))
	default:
		k.small.give(uint16(ch.id))
	}
}

func (k *uring) cancelRecv(c *loopConn) {
	if a := c.ahead; a.is&(isReceiving|isCanceling) == isReceiving {
		a.is |= isCanceling
		what := kindRecv
		if a.is&isInLarge != 0 {
			what = kindRecvLarge
		}
		k.ring.cancel(what.on(c), kindCancel.of(0, 0))
	}
}

// mostAhead is how many chunks may lie unclaimed before receiving stops.
const mostAhead = 4

// spill stops the receiving of what nobody takes, and copies it, so that it holds no
// buffers.
func (k *uring) spill(c *loopConn) {
	a := c.ahead
	if len(a.arrived) < mostAhead {
		return
	}
	k.cancelRecv(c)
	k.keep(c)
}

// keep copies what has arrived to where it is taken first.
func (k *uring) keep(c *loopConn) {
	a := c.ahead
	if len(a.arrived) == 0 {
		return
	}
	n := len(c.unread)
	for _, got := range a.arrived {
		n += len(got.p)
	}
	unread := slices.Grow(c.unread[:len(c.unread):len(c.unread)], n-len(c.unread))
	for _, got := range a.arrived {
		unread = append(unread, got.p...)
		k.drop(got.chunk)
		k.heardAt = got.turn
	}
	c.unread = unread
	a.arrived = a.first[:0]
}

// starve notes that a recv found no buffer. The bytes are in the socket still.
func (k *uring) starve(c *loopConn) {
	group := k.small
	if c.ahead.is&isInLarge != 0 {
		group = k.large
	}
	group.grow(max(2, group.known/2))
	k.starved = append(k.starved, c)
}

// feed has those receive again that found no buffer.
func (k *uring) feed() {
	starved := k.starved
	k.starved = nil
	for _, c := range starved {
		if c.user != nil && k.loop.engine.table.find(c.fd, c.gen) == c {
			k.arm(c, maxBuffer)
		}
	}
}

// send sends a chunk; one at a time is in flight, so that none overtakes another.
func (k *uring) send(c *loopConn, ch chunk) {
	a := c.ahead
	if c.sendErr != nil || len(ch.p) == 0 {
		k.drop(ch)
		return
	}
	a.out = ch
	k.sendOn(c)
}

func (k *uring) sendOn(c *loopConn) {
	a := c.ahead
	flags := uint32(0)
	if a.out.id != noBuffer {
		flags = unix.MSG_DONTWAIT // a buffer of a group does not wait for a slow reader
	}
	a.is |= isSending
	k.ring.send(int(c.fd), a.out.p, flags, kindSend.on(c))
}

// sent takes the result of a send.
func (k *uring) sent(c *loopConn, res int32) {
	if c == nil {
		return // its buffer was given back when it was settled
	}
	a := c.ahead
	a.is &^= isSending | isSendCanceled
	switch {
	case res >= 0:
		c.written += uint64(res)
		if int(res) == len(a.out.p) {
			k.letGo(c)
			return
		}
		k.copyOut(c, a.out.p[res:])
	case res == -int32(unix.EAGAIN):
		k.copyOut(c, a.out.p)
	case res == -int32(unix.ECANCELED):
		return // it has sent nothing
	case res == -int32(unix.EINTR):
	default:
		c.sendErr = os.NewSyscallError("write", syscall.Errno(-res))
		k.letGo(c)
		return
	}
	if a.is&isSettling == 0 {
		k.sendOn(c)
	}
}

// copyOut has what is left of a chunk sent from memory of our own.
func (k *uring) copyOut(c *loopConn, p []byte) {
	a := c.ahead
	if a.out.id != noBuffer {
		rest := slices.Clone(p)
		k.drop(a.out)
		p = rest
	}
	a.out = chunk{p, noBuffer}
}

func (k *uring) letGo(c *loopConn) {
	k.drop(c.ahead.out)
	c.ahead.out = chunk{id: noBuffer}
}

// write writes at once, for a drive, whose machine wants to know how much was taken.
func (k *uring) write(c *loopConn, p []byte) (int, error) {
	if c.ahead.is&isAwaitingRoom != 0 {
		return 0, errAgain
	}
	n, err := writeFD(int(c.fd), p)
	c.written += uint64(n)
	switch {
	case err == unix.EAGAIN:
		k.awaitRoom(c)
		return 0, errAgain
	case err != nil:
		return 0, os.NewSyscallError("write", err)
	}
	return n, nil
}

func (k *uring) awaitRoom(c *loopConn) {
	if c.ahead.is&isAwaitingRoom == 0 {
		c.ahead.is |= isAwaitingRoom
		k.ring.poll(int(c.fd), unix.POLLOUT, false, kindRoom.on(c))
	}
}

func (k *uring) writing(c *loopConn) bool { return c.ahead.is&isSending != 0 }
func (k *uring) window() int              { return 0 }
func (k *uring) asked() uint64            { return k.turn + 1 }
func (k *uring) heard() uint64            { return k.heardAt }

// settle cancels what is in flight, and keeps what has arrived.
func (k *uring) settle(c *loopConn) bool {
	a := c.ahead
	if a == nil {
		return true
	}
	if a.out.p == nil {
		a.out.id = noBuffer
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
	a.is &^= isSettling | isStreaming | isLarge
	a.full, a.slack = 0, 0
	return true
}
