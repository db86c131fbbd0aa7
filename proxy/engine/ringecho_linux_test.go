package engine

import (
	"bytes"
	"testing"
)

// ringEcho has clients send messages to an echo, all on one ring.
type ringEcho struct {
	testing.TB
	r       *ring
	buf     *bufRing
	clients []ringClient
	left    int // messages not yet sent
	open    int // messages not yet back
	bad     int
}

type ringClient struct {
	fd, echo int
	message  []byte
	got      []byte
	sent     byte // number of messages, which their bytes depend on
}

// The data of a request: what it is, whose, and which buffer it uses.
const (
	pingEcho = iota // multishot recv of the echo
	pingBack        // send of the echo
	pingRecv        // multishot recv of the client
	pingSend        // send of the client
)

func pingData(what, client int, id uint16) uint64 {
	return uint64(what)<<32 | uint64(client)<<16 | uint64(id)
}

func newRingEcho(t testing.TB, clients int) *ringEcho {
	pp := &ringEcho{TB: t, r: testRing(t, ringConfig{entries: 256, completions: 1024})}
	pp.buf = testBufRing(t, pp.r, 3, 256, 256, 256)
	pp.clients = make([]ringClient, clients)
	for i := range pp.clients {
		c := &pp.clients[i]
		c.fd, c.echo = streamPair(t)
		c.message = make([]byte, 0, 256)
		pp.r.recv(c.echo, pp.buf.group, 0, recvMultishot|recvPollFirst, pingData(pingEcho, i, 0))
		pp.r.recv(c.fd, pp.buf.group, 0, recvMultishot|recvPollFirst, pingData(pingRecv, i, 0))
	}
	return pp
}

// run passes n messages there and back.
func (pp *ringEcho) run(n int) {
	pp.left = n
	for i := range pp.clients {
		pp.send(i)
	}
	pp.r.run(pp, func() bool { return pp.left == 0 && pp.open == 0 }, pp.complete)
}

func (pp *ringEcho) send(i int) {
	if pp.left == 0 {
		return
	}
	pp.left--
	pp.open++
	c := &pp.clients[i]
	c.sent++
	c.message = c.message[:1+int(c.sent)%200]
	for k := range c.message {
		c.message[k] = c.sent + byte(k)
	}
	c.got = c.got[:0]
	pp.r.send(c.fd, c.message, 0, pingData(pingSend, i, 0))
}

func (pp *ringEcho) complete(data uint64, res int32, flags uint32) {
	what, i := int(data>>32), int(data>>16&0xffff)
	c := &pp.clients[i]
	if res <= 0 {
		pp.Fatalf("request %d of client %d: %v", what, i, errnoOf(res))
	}
	switch what {
	case pingSend:
		if int(res) != len(c.message) {
			pp.Fatalf("sent %d bytes of %d", res, len(c.message))
		}
	case pingBack:
		pp.buf.give(uint16(data))
	case pingEcho:
		pp.rearm(flags, c.echo, data)
		id, _ := pp.buf.take(flags)
		pp.r.send(c.echo, pp.buf.bytes(id, int(res)), 0, pingData(pingBack, i, id))
	case pingRecv:
		pp.rearm(flags, c.fd, data)
		id, _ := pp.buf.take(flags)
		c.got = append(c.got, pp.buf.bytes(id, int(res))...)
		pp.buf.give(id)
		if len(c.got) >= len(c.message) {
			if !bytes.Equal(c.got, c.message) {
				pp.bad++
			}
			pp.open--
			pp.send(i)
		}
	}
}

func (pp *ringEcho) rearm(flags uint32, fd int, data uint64) {
	if flags&cqeMore == 0 {
		pp.r.recv(fd, pp.buf.group, 0, recvMultishot, data)
	}
}

func TestRingPassesMessages(t *testing.T) {
	pp := newRingEcho(t, 64)
	pp.run(100_000)
	if pp.bad > 0 {
		t.Errorf("%d messages came back changed", pp.bad)
	}
	if pp.buf.free() != 256 {
		t.Errorf("free = %d at the end, want 256", pp.buf.free())
	}
}

func BenchmarkRingPingPong(b *testing.B) {
	pp := newRingEcho(b, 64)
	b.ReportAllocs()
	b.ResetTimer()
	pp.run(b.N)
}
