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

// exchange sends the next request and checks the reply.
func (c *client) exchange(now time.Time) *fault {
	c.seq++
	fillPattern(c.want, c.id, c.seq)
	c.arm(now)
	if len(c.want) > largeRequest {
		return c.exchangeLarge()
	}
	if _, err := c.conn.Write(c.want); err != nil {
		return c.fault(stageWrite, err)
	}
	return c.readReply()
}

func (c *client) exchangeLarge() *fault {
	conn := c.conn
	written := make(chan error, 1) // buffered: the sender never blocks
	go func() {
		_, err := conn.Write(c.want)
		written <- err
	}()
	if f := c.readReply(); f != nil {
		c.drop() // ends the write
		<-written
		return f
	}
	if err := <-written; err != nil {
		return c.fault(stageWrite, err)
	}
	return nil
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
