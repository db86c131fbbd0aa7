package proxy

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"forebay/balance"
	"forebay/proxy/frame"
	"forebay/proxy/proxytest"
)

// TestSessionKeepsItsLease from its first request to its end, and leaves a clean
// connection to the next.
func TestSessionKeepsItsLease(t *testing.T) {
	be, conns := puppets(t, 1)
	cfg := requestsConfig(be)
	cfg.Requests.Session = true
	f := start(t, cfg)
	var server proxytest.Conn
	for i := range 3 {
		c, other := f.dial(t), f.dial(t)
		if server == nil {
			server = exchangedAnew(t, c, conns, call(1, "login"))
		} else {
			exchanged(t, c, server, call(1, "login"))
		}
		send(t, other, call(1, "another's"))
		f.waiting(t, 1)
		exchanged(t, c, server, call(2, "query"))
		exchanged(t, c, server, call(3, "query"))
		c.CloseWrite()
		wantAll(t, c, "")
		send(t, server, wantCall(t, server, call(1, "another's")).reply("another's"))
		wantReply(t, other, call(1, "another's"), "another's")
		other.Close()
		f.ended(t, Done, int64(2*i+2))
		f.idle(t, 1)
	}
	if n := f.dials(); n != 1 {
		t.Errorf("%d dials, want 1", n)
	}
}

// TestSessionEndsWithItsConnection: what the backend kept of the client is gone, so
// that another connection would not do.
func TestSessionEndsWithItsConnection(t *testing.T) {
	be, conns := puppets(t, 1)
	cfg := requestsConfig(be)
	cfg.Requests.Session = true
	f := start(t, cfg)
	c := f.dial(t)
	server := exchangedAnew(t, c, conns, call(1, "login"))
	server.Close()
	wantAll(t, c, "")
	f.ended(t, BackendClosed, 1)
	f.slots(t, 0, balance.Free, 1)
	exchangedAnew(t, f.dial(t), conns, call(1, "login"))
}

// TestSessionLeavesNoUncleanConnection: its client goes while a reply is out.
func TestSessionLeavesNoUncleanConnection(t *testing.T) {
	be, conns := puppets(t, 1)
	cfg := requestsConfig(be)
	cfg.Requests.Session = true
	f := start(t, cfg)
	c := f.dial(t)
	server := exchangedAnew(t, c, conns, call(1, "login"))
	send(t, c, call(2, "slow"))
	wantCall(t, server, call(2, "slow"))
	reset(t, c)
	f.ended(t, ClientReset, 1)
	wantGone(t, server)
	f.wantFault(t, map[string]int64{"unread_reply": 1})
	exchangedAnew(t, f.dial(t), conns, call(1, "login"))
}

const jsonCall = `[1,"echo",1,7,{"1":{"str":"mine"}}]`

// strangers are clients whose requests cannot be told apart, or which bind state to
// their connection.
var strangers = []struct {
	name  string
	sends string
	json  bool
}{
	{name: "JSON", sends: jsonCall, json: true},
	{name: "JSON in a frame", sends: "\x00\x00\x00" + string(rune(len(jsonCall))) + jsonCall, json: true},
	{name: "SASL", sends: "\x01\x00\x00\x00\x06GSSAPI"},
	{name: "TLS", sends: "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"},
	{name: "HTTP", sends: "POST /thrift HTTP/1.1\r\n\r\n"},
}

// TestStrangerHasAConnectionOfItsOwn that nobody has used or will, and gets all its
// bytes through, the first ones too.
func TestStrangerHasAConnectionOfItsOwn(t *testing.T) {
	for _, tt := range strangers {
		for _, session := range []bool{true, false} {
			if !session && !tt.json {
				continue // TestBadInputIsRefusedWithAWord
			}
			t.Run(fmt.Sprintf("%s, session %v", tt.name, session), func(t *testing.T) {
				be, conns := puppets(t, 1)
				cfg := requestsConfig(be)
				cfg.Requests.Session = session
				f := start(t, cfg)
				used := f.warm(t, conns)
				c := f.dial(t)
				write(t, c, tt.sends)
				server := proxytest.Receive(t, conns, "a connection of its own")
				wantGone(t, used)
				wantRead(t, server, tt.sends)
				write(t, server, "an answer of whatever kind")
				wantRead(t, c, "an answer of whatever kind")
				write(t, c, "and on")
				wantRead(t, server, "and on")
				c.CloseWrite()
				wantAll(t, server, "")
				server.Close()
				wantAll(t, c, "")
				f.ended(t, Done, 2)
				f.slots(t, 0, balance.Free, 1)
				exchangedAnew(t, f.dial(t), conns, call(1, "next"))
				f.wantFault(t, nil)
				f.stop(t)
				if line := f.lineOf(t, c.LocalAddr().String()); line["bytes_up"] != float64(len(tt.sends)+len("and on")) {
					t.Errorf("log line %v, want all bytes counted", line)
				}
			})
		}
	}
}

// A stranger takes its place in the queue as everyone does, with its first bytes.
func TestStrangerWaitsInTheQueue(t *testing.T) {
	be, conns := puppets(t, 1)
	f := start(t, requestsConfig(be))
	holder, c := f.dial(t), f.dial(t)
	send(t, holder, call(1, "holds it"))
	server := proxytest.Receive(t, conns, "a connection")
	got := wantCall(t, server, call(1, "holds it"))
	write(t, c, jsonCall)
	c.CloseWrite()
	f.waiting(t, 1)
	send(t, server, got.reply("holds it"))
	own := proxytest.Receive(t, conns, "a connection of its own")
	wantAll(t, own, jsonCall)
	own.Close()
	wantAll(t, c, "")
	f.ended(t, Done, 1)
}

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
	be, _ := dead(t, 1)
	f := start(t, lengthConfig(t, 4, be))
	c := f.dial(t)
	write(t, c, length(7, "mine"))
	wantClosed(t, c)
	f.ended(t, NoBackend, 1)
}

func TestLengthMessagesWithoutAnIDAreNotShared(t *testing.T) {
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

// TestOnewayCallsOfGoClientsAreLearned: they are typed as calls, and never
// answered. Nobody waits for the reply timeout, or is told of an error.
func TestOnewayCallsOfGoClientsAreLearned(t *testing.T) {
	e := newEchoServer() // which does not answer "fire"
	cfg := requestsConfig(backend(t, 4, e.serve))
	cfg.Requests.LearnOneway = true
	cfg.Requests.Quarantine = time.Millisecond
	f := start(t, cfg)
	const clients, calls = 10, 100
	done := make(chan error, clients)
	for client := range clients {
		c := f.dial(t)
		go func() {
			defer c.Close()
			for i := range calls {
				fire := message{typ: frame.Call, name: "fire", id: uint32(2 * i), text: fmt.Sprintf("fire %d %d", client, i)}
				if _, err := c.Write(fire.bytes()); err != nil {
					done <- err
					return
				}
				m := call(uint32(2*i+1), fmt.Sprintf("call %d %d", client, i))
				if got, err := ask(c, m); err != nil || got != m.reply(m.text) {
					done <- fmt.Errorf("%v is answered with %v, %v", m, got, err)
					return
				}
			}
			done <- nil
		}()
	}
	for range clients {
		if err := proxytest.Receive(t, done, "a client's end"); err != nil {
			t.Error(err)
		}
	}
	f.ended(t, Done, clients)
	s := f.Stats()
	if s.Errors != 0 || s.Oneways < clients*calls*9/10 || len(s.Faults) != 0 || s.Backends[0].Pool.Dials > 4 {
		t.Errorf("%d errors, %d oneways, faults %v, %d dials; want none, most of %d, none and 4 at most",
			s.Errors, s.Oneways, s.Faults, s.Backends[0].Pool.Dials, clients*calls)
	}
	if lines := f.book.with("learned that the method is oneway: its calls are never answered (--learn-oneway)"); len(lines) != 1 || lines[0]["method"] != "fire" {
		t.Errorf("log %v, want one line of the method fire", lines)
	}
	for client := range clients {
		for i := range calls {
			if n := e.times(fmt.Sprintf("fire %d %d", client, i)); n != 1 {
				t.Errorf("oneway call %d of client %d ran %d times", i, client, n)
			}
		}
	}
}

// Without --learn-oneway the operator has to list such a method.
func TestListedMethodHasNoReply(t *testing.T) {
	be, conns := puppets(t, 1)
	cfg := requestsConfig(be)
	cfg.Requests.Oneway = []string{"fire"}
	f := start(t, cfg)
	c := f.dial(t)
	fire := message{typ: frame.Call, name: "fire", id: 1, text: "typed as a call"}
	send(t, c, fire)
	server := proxytest.Receive(t, conns, "a connection")
	wantCall(t, server, fire)
	exchanged(t, c, server, call(2, "and on"))
	fire.name = "Service:fire"
	send(t, c, fire)
	wantCall(t, server, fire)
	c.Close()
	f.ended(t, Done, 1)
	if s := f.Stats(); s.Oneways != 2 || s.Errors != 0 {
		t.Errorf("%d oneways, %d errors; want 2 and 0", s.Oneways, s.Errors)
	}
}
