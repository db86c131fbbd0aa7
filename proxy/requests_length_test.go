package proxy

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"forebay/proxy/enginetest"
	"forebay/proxy/frame"
	"forebay/proxy/proxytest"
)

// length is a message of a protocol with a length of four bytes, and an id of four
// behind it.
func length(id uint32, text string) string {
	n := len(text) + 4
	return string([]byte{0, byte(n >> 16), byte(n >> 8), byte(n), byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)}) + text
}

// readLength reads such a message.
func readLength(t testing.TB, c net.Conn) (id uint32, text string) {
	t.Helper()
	head := make([]byte, 8)
	_, err := io.ReadFull(c, head)
	if err != nil {
		t.Fatal(err)
	}
	body := make([]byte, int(head[2])<<8+int(head[3])-4)
	if _, err := io.ReadFull(c, body); err != nil {
		t.Fatal(err)
	}
	return uint32(head[4])<<24 | uint32(head[5])<<16 | uint32(head[6])<<8 | uint32(head[7]), string(body)
}

func lengthConfig(t testing.TB, idWidth int, backends ...Backend) Config {
	t.Helper()
	codec, err := frame.NewLength(frame.Length{Width: 4, IDOffset: 4, IDWidth: idWidth})
	if err != nil {
		t.Fatal(err)
	}
	cfg := requestsConfig(backends...)
	cfg.Requests.Codec = codec
	return cfg
}

func TestLengthMessagesWithAnIDShareConnections(t *testing.T) {
	enginetest.Each(t, testLengthMessagesWithAnIDShareConnections)
}

func testLengthMessagesWithAnIDShareConnections(t *testing.T) {
	be, conns := puppets(t, 1)
	f := start(t, lengthConfig(t, 4, be))
	var server proxytest.Conn
	seen := map[uint32]bool{}
	for i, c := range []net.Conn{f.dial(t), f.dial(t), f.dial(t)} {
		text := fmt.Sprint("client ", i)
		write(t, c, length(7, text))
		if server == nil {
			server = proxytest.Receive(t, conns, "a connection")
		}
		id, got := readLength(t, server)
		if got != text || seen[id] {
			t.Errorf("the backend read %q with the id %d, seen before: %v", got, id, seen[id])
		}
		seen[id] = true
		write(t, server, length(id, "to "+text))
		if id, got := readLength(t, c); id != 7 || got != "to "+text {
			t.Errorf("the client read %q with the id %d", got, id)
		}
	}
	if n := f.dials(); n != 1 {
		t.Errorf("%d dials, want 1", n)
	}
}

// The protocol has no exceptions: only the end of its connection tells a client.
func TestLengthReplyWithAnotherIDReachesNobody(t *testing.T) {
	enginetest.Each(t, testLengthReplyWithAnotherIDReachesNobody)
}

func testLengthReplyWithAnotherIDReachesNobody(t *testing.T) {
	be, conns := puppets(t, 1)
	f := start(t, lengthConfig(t, 4, be))
	c := f.dial(t)
	write(t, c, length(7, "mine"))
	server := proxytest.Receive(t, conns, "a connection")
	id, _ := readLength(t, server)
	write(t, server, length(id+1, "another's"))
	wantClosed(t, c)
	wantGone(t, server)
	f.wantFault(t, map[string]int64{"wrong_reply": 1})
	f.ended(t, BrokenReply, 1)
}

func TestLengthClientWithoutAConnectionIsClosed(t *testing.T) {
	enginetest.Each(t, testLengthClientWithoutAConnectionIsClosed)
}

func testLengthClientWithoutAConnectionIsClosed(t *testing.T) {
	be, _ := dead(t, 1)
	f := start(t, lengthConfig(t, 4, be))
	c := f.dial(t)
	write(t, c, length(7, "mine"))
	wantClosed(t, c)
	f.ended(t, NoBackend, 1)
}

func TestLengthMessagesWithoutAnIDAreNotShared(t *testing.T) {
	enginetest.Each(t, testLengthMessagesWithoutAnIDAreNotShared)
}

func testLengthMessagesWithoutAnIDAreNotShared(t *testing.T) {
	be, conns := puppets(t, 2)
	f := start(t, lengthConfig(t, 0, be))
	for i := range 3 {
		c := f.dial(t)
		for j := range 3 {
			write(t, c, length(7, "mine"))
			if j == 0 {
				server := proxytest.Receive(t, conns, "a connection of its own")
				t.Cleanup(func() { server.Close() })
				go func() { // an echo, for it is raw
					b := make([]byte, 100)
					for {
						n, err := server.Read(b)
						if err != nil {
							server.Close()
							return
						}
						server.Write(b[:n])
					}
				}()
			}
			wantRead(t, c, length(7, "mine"))
		}
		c.CloseWrite()
		wantAll(t, c, "")
		f.ended(t, Done, int64(i+1))
	}
	if n := f.dials(); n != 3 {
		t.Errorf("%d dials, want one for each client", n)
	}
}

// The operator has vouched for one reply to each request.
func TestLengthMessagesWithoutAnIDAreSharedOnTrust(t *testing.T) {
	enginetest.Each(t, testLengthMessagesWithoutAnIDAreSharedOnTrust)
}

func testLengthMessagesWithoutAnIDAreSharedOnTrust(t *testing.T) {
	be, conns := puppets(t, 1)
	cfg := lengthConfig(t, 0, be)
	cfg.Requests.Trust = true
	f := start(t, cfg)
	var server proxytest.Conn
	for i := range 3 {
		c := f.dial(t)
		text := length(7, fmt.Sprint("client ", i))
		write(t, c, text)
		if server == nil {
			server = proxytest.Receive(t, conns, "a connection")
		}
		wantRead(t, server, text)
		answer := length(8, "to "+strings.Repeat("x", i))
		write(t, server, answer)
		wantRead(t, c, answer)
	}
	if n := f.dials(); n != 1 {
		t.Errorf("%d dials, want 1", n)
	}
}
