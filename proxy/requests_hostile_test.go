package proxy

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"forebay/balance"
	"forebay/proxy/enginetest"
	"forebay/proxy/frame"
	"forebay/proxy/proxytest"
)

// large is a text that no proxy keeps whole.
var large = strings.Repeat("0123456789abcdef", 200<<10/16)

// A trick is what a backend does in place of an answer, or besides it.
type trick struct {
	name   string
	change func(r *Requests)
	ask    message
	play   func(t *testing.T, c, server net.Conn, got message) // got is the request at the backend
	want   func(t *testing.T, c net.Conn, asked message)
	fault  string
	closed string // why, for the pool
}

func wantEcho(t *testing.T, c net.Conn, m message) { t.Helper(); wantReply(t, c, m, m.text) }

func wantMismatch(t *testing.T, c net.Conn, m message) {
	t.Helper()
	wantException(t, c, m, frame.CodeInternalError, "did not match")
}

func wantLost(t *testing.T, c net.Conn, m message) {
	t.Helper()
	wantException(t, c, m, frame.CodeInternalError, "closed its connection before it replied")
}

func wantNothing(*testing.T, net.Conn, message) {}

var tricks = []trick{
	{
		name: "answers late", fault: "reply_timeout", closed: "failed",
		change: func(r *Requests) { r.ReplyTimeout = 400 * time.Millisecond },
		ask:    call(7, "slow"),
		play: func(t *testing.T, c, server net.Conn, got message) {
			wantGone(t, server)
			server.Write(got.reply("too late").bytes()) // to nobody
		},
		want: func(t *testing.T, c net.Conn, m message) {
			wantException(t, c, m, frame.CodeInternalError, "no reply within 400ms")
		},
	},
	{
		name: "answers twice at once", fault: "stray_bytes", closed: "stray_bytes",
		ask: call(7, "twice"),
		play: func(t *testing.T, c, server net.Conn, got message) {
			b := got.reply("twice").bytes()
			server.Write(append(b, b...))
		},
		want: wantEcho,
	},
	{
		name: "answers twice, a moment later", fault: "stray_bytes", closed: "stray_bytes",
		ask: call(7, "twice"),
		play: func(t *testing.T, c, server net.Conn, got message) {
			send(t, server, got.reply("twice"))
			wantEcho(t, c, call(7, "twice"))
			send(t, server, got.reply("twice"))
		},
		want: wantNothing,
	},
	{
		name: "answers with another's sequence id", fault: "wrong_reply", closed: "failed",
		ask: call(7, "mine"),
		play: func(t *testing.T, c, server net.Conn, got message) {
			got.id++
			send(t, server, got.reply("another's"))
		},
		want: wantMismatch,
	},
	{
		name: "answers with the client's own sequence id", fault: "wrong_reply", closed: "failed",
		ask: call(7, "mine"),
		play: func(t *testing.T, c, server net.Conn, got message) {
			got.id = 7
			send(t, server, got.reply("mine"))
		},
		want: wantMismatch,
	},
	{
		name: "answers for another method", fault: "wrong_reply", closed: "failed",
		ask: call(7, "mine"),
		play: func(t *testing.T, c, server net.Conn, got message) {
			got.name = "other"
			send(t, server, got.reply("another's"))
		},
		want: wantMismatch,
	},
	{
		name: "answers with a call", fault: "wrong_reply", closed: "failed",
		ask:  call(7, "mine"),
		play: func(t *testing.T, c, server net.Conn, got message) { send(t, server, got) },
		want: wantMismatch,
	},
	{
		name: "answers a oneway call", fault: "oneway_answered", closed: "stray_bytes",
		change: func(r *Requests) { r.Quarantine = time.Minute },
		ask:    oneway(7, "no answer"),
		play:   func(t *testing.T, c, server net.Conn, got message) { send(t, server, got.reply("an answer")) },
		want:   wantNothing,
	},
	{
		name: "answers with half a reply and closes", fault: "backend_ended", closed: "failed",
		ask: call(7, "half"),
		play: func(t *testing.T, c, server net.Conn, got message) {
			b := got.reply("half").bytes()
			server.Write(b[:len(b)/2])
			server.Close()
		},
		want: wantLost,
	},
	{
		name: "closes without a word", fault: "backend_ended", closed: "failed",
		ask:  call(7, "lost"),
		play: func(t *testing.T, c, server net.Conn, got message) { server.Close() },
		want: wantLost,
	},
	{
		name: "resets", fault: "backend_ended", closed: "failed",
		ask:  call(7, "lost"),
		play: func(t *testing.T, c, server net.Conn, got message) { reset(t, server) },
		want: wantLost,
	},
	{
		name: "greets", fault: "malformed_reply", closed: "failed",
		ask:  call(7, "greeted"),
		play: func(t *testing.T, c, server net.Conn, got message) { write(t, server, "220 ready\r\n") },
		want: wantMismatch,
	},
	{
		name: "sends on after the reply", fault: "stray_bytes", closed: "stray_bytes",
		ask: call(7, "junk"),
		play: func(t *testing.T, c, server net.Conn, got message) {
			server.Write(append(got.reply("junk").bytes(), "junk"...))
		},
		want: wantEcho,
	},
	{
		name: "answers before the request is complete", fault: "early_reply", closed: "failed",
		ask: call(7, large),
		play: func(t *testing.T, c, server net.Conn, got message) {
			send(t, server, got.reply("early"))
			wantReply(t, c, call(7, ""), "early")
		},
		want: wantNothing,
	},
	{
		name: "answers with an exception that leaves servers out of step", fault: "bad_exception", closed: "failed",
		ask: call(7, "bad"),
		play: func(t *testing.T, c, server net.Conn, got message) {
			send(t, server, got.exception(frame.CodeProtocolError, "out of step"))
		},
		want: func(t *testing.T, c net.Conn, m message) {
			t.Helper()
			wantException(t, c, m, frame.CodeProtocolError, "out of step")
		},
	},
}

// TestConnectionIsNotReusedAfterAFault has a backend misbehave in one way: the
// client gets its own answer or an exception and can go on, the fault is counted
// once and by its name, and no request follows on the same connection.
func TestConnectionIsNotReusedAfterAFault(t *testing.T) {
	enginetest.Each(t, testConnectionIsNotReusedAfterAFault)
}

func testConnectionIsNotReusedAfterAFault(t *testing.T) {
	for _, tt := range tricks {
		for _, used := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, used %v", tt.name, used), func(t *testing.T) {
				be, conns := puppets(t, 1)
				cfg := requestsConfig(be)
				if tt.change != nil {
					tt.change(cfg.Requests)
				}
				f := start(t, cfg)
				var server proxytest.Conn
				if used {
					server = f.warm(t, conns)
				}
				c := tt.run(t, f, conns, server)
				f.wantFault(t, map[string]int64{tt.fault: 1})
				f.slots(t, 0, balance.Free, 1)
				exchangedAnew(t, c, conns, call(8, "and on"))
				c.Close()
				f.stop(t)
				s := f.Stats()
				if s.Errors > 1 || s.Backends[0].Pool.Closed[tt.closed] != 1 {
					t.Errorf("%d errors, closed %v; want one at most, and one %s", s.Errors, s.Backends[0].Pool.Closed, tt.closed)
				}
			})
		}
	}
}

// run plays the trick on a client's request, which comes over the used connection
// that server is, or over a new one.
func (tt trick) run(t *testing.T, f *front, conns <-chan proxytest.Conn, server proxytest.Conn) (c proxytest.Conn) {
	t.Helper()
	c = f.dial(t)
	b := tt.ask.bytes()
	sent := min(len(b), 100<<10) // of a large request, a part
	write(t, c, string(b[:sent]))
	if server == nil {
		server = proxytest.Receive(t, conns, "a connection")
	}
	got, rest, err := readHead(server)
	if err != nil || got.name != tt.ask.name || got.typ != tt.ask.typ {
		t.Fatalf("the backend read %v, %v; want %v", got, err, tt.ask)
	}
	if sent == len(b) {
		io.CopyN(io.Discard, server, rest)
	}
	tt.play(t, c, server, got)
	tt.want(t, c, tt.ask)
	if sent == len(b) {
		wantGone(t, server)
	}
	write(t, c, string(b[sent:]))
	return c
}

// A reply of which the client has got a part cannot be taken back: nothing but a
// reset tells it.
func TestClientOfHalfALargeReplyIsReset(t *testing.T) {
	enginetest.Each(t, testClientOfHalfALargeReplyIsReset)
}

func testClientOfHalfALargeReplyIsReset(t *testing.T) {
	be, conns := puppets(t, 1)
	f := start(t, requestsConfig(be))
	c := f.dial(t)
	send(t, c, call(7, "half"))
	server := proxytest.Receive(t, conns, "a connection")
	b := wantCall(t, server, call(7, "half")).reply(large).bytes()
	write(t, server, string(b[:len(b)/2]))
	server.Close()
	wantReset(t, c)
	f.wantFault(t, map[string]int64{"backend_ended": 1})
	f.ended(t, BrokenReply, 1)
	f.warm(t, conns)
}

// One byte begins no message yet, and is one too many.
func TestConnectionIsNotReusedAfterOneStrayByte(t *testing.T) {
	enginetest.Each(t, testConnectionIsNotReusedAfterOneStrayByte)
}

func testConnectionIsNotReusedAfterOneStrayByte(t *testing.T) {
	be, conns := puppets(t, 1)
	f := start(t, requestsConfig(be))
	c := f.dial(t)
	m := call(7, "mine")
	send(t, c, m)
	server := proxytest.Receive(t, conns, "a connection")
	write(t, server, string(wantCall(t, server, m).reply("mine").bytes())+"\xff")
	wantEcho(t, c, m)
	wantGone(t, server)
	f.wantFault(t, map[string]int64{"stray_bytes": 1})
	exchangedAnew(t, c, conns, call(8, "and on"))
}
