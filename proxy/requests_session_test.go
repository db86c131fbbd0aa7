package proxy

import (
	"fmt"
	"testing"

	"forebay/balance"
	"forebay/proxy/enginetest"
	"forebay/proxy/proxytest"
)

// TestSessionKeepsItsLease from its first request to its end, and leaves a clean
// connection to the next.
func TestSessionKeepsItsLease(t *testing.T) {
	enginetest.Each(t, testSessionKeepsItsLease)
}

func testSessionKeepsItsLease(t *testing.T) {
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
	enginetest.Each(t, testSessionEndsWithItsConnection)
}

func testSessionEndsWithItsConnection(t *testing.T) {
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
	enginetest.Each(t, testSessionLeavesNoUncleanConnection)
}

func testSessionLeavesNoUncleanConnection(t *testing.T) {
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
	enginetest.Each(t, testStrangerHasAConnectionOfItsOwn)
}

func testStrangerHasAConnectionOfItsOwn(t *testing.T) {
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
	enginetest.Each(t, testStrangerWaitsInTheQueue)
}

func testStrangerWaitsInTheQueue(t *testing.T) {
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
