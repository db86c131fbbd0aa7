package loadtest

import (
	"bytes"
	"fmt"
	"time"
)

// largeRequest is the size from which on a request is written and its reply
// read at the same time. With less, the buffers of the kernel hold a request
// whose server answers before it has read all.
const largeRequest = 64 << 10

// exchange sends the next request and checks the reply. It reports whether
// there was one.
func (c *client) exchange(now time.Time) (answered bool, f *fault) {
	c.seq++
	c.arm(now)
	if c.calls != nil {
		return c.calls.exchange()
	}
	return true, c.exchangeBytes()
}

func (c *client) exchangeBytes() *fault {
	fillPattern(c.want, c.id, c.seq)
	return c.send(c.want, c.readReply)
}

// send writes a request and has read take its reply.
func (c *client) send(request []byte, read func() *fault) *fault {
	if len(request) > largeRequest {
		return c.sendLarge(request, read)
	}
	if _, err := c.conn.Write(request); err != nil {
		return c.fault(stageWrite, err)
	}
	return read()
}

func (c *client) sendLarge(request []byte, read func() *fault) *fault {
	conn := c.conn
	written := make(chan error, 1) // buffered: the sender never blocks
	go func() {
		_, err := conn.Write(request)
		written <- err
	}()
	f := read()
	if f != nil && !f.usable {
		c.drop() // ends the write
		<-written
		return f
	}
	if err := <-written; err != nil {
		return c.fault(stageWrite, err)
	}
	return f
}

// readReply reads until the reply is whole and right, or is seen to be wrong.
func (c *client) readReply() *fault {
	for have := 0; have < len(c.want); {
		n, err := c.conn.Read(c.got[have:])
		if f := c.compare(have, have+n); f != nil {
			return f
		}
		have += n
		if err != nil && have < len(c.want) {
			return c.fault(stageReply, fmt.Errorf("%w after %d of %d bytes", err, have, len(c.want)))
		}
	}
	return nil
}

// compare checks the bytes of the reply from index from up to index to.
func (c *client) compare(from, to int) *fault {
	end := min(to, len(c.want))
	if !bytes.Equal(c.got[from:end], c.want[from:end]) {
		return c.wrongReply(c.got[:end])
	}
	if to > len(c.want) {
		return c.mismatch(extraBytes, "more bytes than were sent")
	}
	return nil
}

// wrongReply tells whose reply got is. It is another's only if all of it is;
// the numbers alone may have been altered.
func (c *client) wrongReply(got []byte) *fault {
	if len(got) < idSize {
		return c.mismatch(altered, fmt.Sprintf("reply starts with % x", got))
	}
	id, seq := readIDs(got)
	other := make([]byte, len(c.want))
	fillPattern(other, id, seq)
	switch {
	case !bytes.Equal(got, other[:len(got)]):
		return c.mismatch(altered, fmt.Sprintf("byte %d of the reply differs", firstDifference(got, c.want)))
	case id != c.id:
		return c.mismatch(otherClient, fmt.Sprintf("got the reply to request %d of client %#x", seq, id))
	default:
		return c.mismatch(otherRequest, fmt.Sprintf("got the reply to request %d", seq))
	}
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}
