package engine

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// send sends a chunk; one at a time is in flight, so that none overtakes another.
func (k *uring) send(c *loopConn, ch chunk) {
	switch {
	case c.sendErr() != nil || len(ch.p) == 0:
		k.drop(ch)
	case ch.id == inBuffer:
		k.sendLarge(c, ch.p)
	default:
		c.out, c.ahead.outID = ch.p, ch.id
		k.sendOn(c)
	}
}

// sendLarge writes what lies in the buffer of the loop. What does not fit is kept.
func (k *uring) sendLarge(c *loopConn, p []byte) {
	n, err := c.writeNow(p)
	k.order++
	switch {
	case err != nil && err != errAgain:
		c.rarely().sendErr = err
	case n < len(p):
		c.hold(p[n:])
		k.sendOn(c)
	}
}

// sendOn sends what is left. A buffer of the group does not wait for a slow reader.
func (k *uring) sendOn(c *loopConn) {
	a := c.ahead
	flags := uint32(0)
	if a.outID != noBuffer {
		flags = unix.MSG_DONTWAIT
	}
	a.is |= isSending
	c.beforeWrite()
	k.ring.send(int(c.fd), c.out, flags, kindSend.on(c))
}

// sent takes the result of a send.
func (k *uring) sent(c *loopConn, res int32) {
	k.order++
	if c == nil {
		return // its buffer was given back when it was settled
	}
	a := c.ahead
	a.is &^= isSending | isSendCanceled
	if a.is&isOnce != 0 {
		k.sentOnce(c, res)
		return
	}
	switch {
	case res >= 0:
		c.written += uint64(res)
		if int(res) == len(c.out) {
			k.letGo(c)
			return
		}
		k.copyOut(c, c.out[res:])
	case res == -int32(unix.EAGAIN):
		k.copyOut(c, c.out)
	case res == -int32(unix.ECANCELED):
		return // it has sent nothing
	case res == -int32(unix.EINTR):
	default:
		c.rarely().sendErr = os.NewSyscallError("write", syscall.Errno(-res))
		k.letGo(c)
		return
	}
	if a.is&isSettling == 0 {
		k.sendOn(c)
	}
}

// sentOnce takes the result of a drive's send, which tells its machine what is left.
func (k *uring) sentOnce(c *loopConn, res int32) {
	a := c.ahead
	k.arenas[a.arena()].busy--
	a.is &^= isOnce | isOfOddTurn
	c.out = nil
	switch {
	case res >= 0:
		c.written += uint64(res)
	case res == -int32(unix.EAGAIN):
		k.awaitRoom(c)
	case res != -int32(unix.ECANCELED) && res != -int32(unix.EINTR):
		c.rarely().sendErr = os.NewSyscallError("write", syscall.Errno(-res))
	}
}

// copyOut has what is left of a chunk sent, from memory of our own.
func (k *uring) copyOut(c *loopConn, p []byte) {
	a := c.ahead
	if a.outID == noBuffer {
		c.out = p
		return
	}
	c.hold(p)
	k.drop(chunk{id: a.outID})
	a.outID = noBuffer
}

func (k *uring) letGo(c *loopConn) {
	k.drop(chunk{id: c.ahead.outID})
	c.ahead.outID = noBuffer
	c.letGo()
}

// arena tells in which one lies what is being sent.
func (a *ahead) arena() int {
	if a.is&isOfOddTurn != 0 {
		return 1
	}
	return 0
}

// arena is memory for what is sent in a turn. A send that does not wait is over when the
// next turn begins, so that a turn later the memory can be used again.
type arena struct {
	buf  []byte
	used int
	busy int // sends that are under way
}

const arenaSize = 256 << 10

// renew has the memory used again, or leaves it to sends that are under way still.
func (a *arena) renew() {
	a.used = 0
	if a.busy > 0 {
		a.buf = nil
	}
}

func (k *uring) write(c *loopConn, p []byte) (int, error) {
	if c.ahead.is&isAwaitingRoom != 0 {
		return 0, errAgain
	}
	if len(p) > mostCopied {
		n, err := c.writeNow(p)
		if err == errAgain {
			k.awaitRoom(c)
		}
		return n, err
	}
	a := &k.arenas[k.turn%2]
	if len(a.buf)-a.used < len(p) {
		a.buf, a.used = make([]byte, arenaSize), 0
	}
	q := a.buf[a.used : a.used+len(p) : a.used+len(p)]
	a.used += copy(q, p)
	a.busy++
	c.out, c.ahead.outID = q, noBuffer
	c.ahead.is |= isSending | isOnce
	if k.turn%2 != 0 {
		c.ahead.is |= isOfOddTurn
	}
	c.beforeWrite()
	k.ring.send(int(c.fd), q, unix.MSG_DONTWAIT, kindSend.on(c))
	return 0, errPending
}

func (k *uring) expect(c *loopConn, limit int) { k.arm(c, limit) }
func (k *uring) flush()                        {}
func (k *uring) unflushed() bool               { return false }

func (k *uring) awaitRoom(c *loopConn) {
	if c.ahead.is&isAwaitingRoom == 0 {
		c.ahead.is |= isAwaitingRoom
		k.ring.poll(int(c.fd), unix.POLLOUT, false, kindRoom.on(c))
	}
}
