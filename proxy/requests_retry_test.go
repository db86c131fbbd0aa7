package proxy

import (
	"fmt"
	"net"
	"testing"
	"time"

	"forebay/proxy/enginetest"
	"forebay/proxy/frame"
	"forebay/proxy/proxytest"
)

func TestFailedDialGoesToTheOtherBackend(t *testing.T) {
	enginetest.Each(t, testFailedDialGoesToTheOtherBackend)
}

func testFailedDialGoesToTheOtherBackend(t *testing.T) {
	down, _ := dead(t, 2)
	e := newEchoServer()
	f := start(t, requestsConfig(down, testBackend(t, 2, e.serve)))
	c := f.dial(t)
	for i := range uint32(10) {
		m := call(i, fmt.Sprint("call ", i))
		echoed(t, c, m)
		if n := e.times(m.text); n != 1 {
			t.Errorf("%s ran %d times", m.text, n)
		}
	}
	if s := f.Stats(); s.Backends[0].Requests != 0 || s.Backends[1].Requests != 10 || s.Errors != 0 {
		t.Errorf("%d and %d requests, %d errors; want 0, 10 and 0", s.Backends[0].Requests, s.Backends[1].Requests, s.Errors)
	}
}

// TestRequestThatMayHaveRunIsNotSentAgain: the backend has read the request when
// its connection ends. The client is told, and can go on.
func TestRequestThatMayHaveRunIsNotSentAgain(t *testing.T) {
	enginetest.Each(t, testRequestThatMayHaveRunIsNotSentAgain)
}

func testRequestThatMayHaveRunIsNotSentAgain(t *testing.T) {
	ends := []struct {
		name string
		end  func(t *testing.T, server net.Conn, got message)
	}{
		{name: "a FIN", end: func(t *testing.T, server net.Conn, got message) { server.Close() }},
		{name: "a reset", end: func(t *testing.T, server net.Conn, got message) { reset(t, server) }},
		{name: "half a reply", end: func(t *testing.T, server net.Conn, got message) {
			b := got.reply("half").bytes()
			write(t, server, string(b[:len(b)-1]))
			server.Close()
		}},
	}
	tests := []struct {
		name       string
		used       bool // the connection
		idempotent bool
		big        bool
		again      bool // it is sent once more
	}{
		{name: "on a new connection"},
		{name: "on a used connection", used: true},
		{name: "idempotent, on a new connection", idempotent: true},
		{name: "idempotent, on a used connection", used: true, idempotent: true, again: true},
		{name: "idempotent and large, on a used connection", used: true, idempotent: true, big: true},
	}
	for _, tt := range tests {
		for i, end := range ends {
			t.Run(tt.name+", by "+end.name, func(t *testing.T) {
				be, conns := puppets(t, 1)
				cfg := requestsConfig(be)
				if tt.idempotent {
					cfg.Requests.Idempotent = []string{"echo"}
				}
				f := start(t, cfg)
				c := f.dial(t)
				m := call(7, "may have run")
				if tt.big {
					m.text = large
				}
				var server proxytest.Conn
				if tt.used {
					server = f.warm(t, conns)
				}
				send(t, c, m)
				if server == nil {
					server = proxytest.Receive(t, conns, "a connection")
				}
				end.end(t, server, wantCall(t, server, m))
				repeats := int64(0)
				if tt.again && i < 2 {
					next := proxytest.Receive(t, conns, "another connection")
					wantCall(t, next, m)
					next.Close() // twice is enough
					repeats = 1
				}
				wantLost(t, c, m)
				exchangedAnew(t, c, conns, call(8, "and on"))
				f.wantFault(t, map[string]int64{"backend_ended": 1 + repeats})
				c.Close()
				f.stop(t)
				if s := f.Stats(); s.Errors != 1 || s.Repeats != repeats || s.Stale != 0 {
					t.Errorf("%d errors, %d repeats, %d stale; want 1, %d and 0", s.Errors, s.Repeats, s.Stale, repeats)
				}
			})
		}
	}
}

func TestIdempotentRequestIsAnsweredBySecondConnection(t *testing.T) {
	enginetest.Each(t, testIdempotentRequestIsAnsweredBySecondConnection)
}

func testIdempotentRequestIsAnsweredBySecondConnection(t *testing.T) {
	be, conns := puppets(t, 1)
	cfg := requestsConfig(be)
	cfg.Requests.Idempotent = []string{"echo"}
	f := start(t, cfg)
	server := f.warm(t, conns)
	for i, name := range []string{"echo", "Service:echo"} {
		c := f.dial(t)
		m := message{typ: frame.Call, name: name, id: uint32(i), text: "twice"}
		send(t, c, m)
		wantCall(t, server, m)
		server.Close()
		server = proxytest.Receive(t, conns, "another connection")
		got := wantCall(t, server, m)
		m.name, got.name = "echo", "echo" // as servers answer
		send(t, server, got.reply("once more"))
		wantReply(t, c, m, "once more")
		c.Close()
	}
	f.ended(t, Done, 3)
	if s := f.Stats(); s.Errors != 0 || s.Repeats != 2 {
		t.Errorf("%d errors, %d repeats; want 0 and 2", s.Errors, s.Repeats)
	}
}

// A timeout is never a reason to send a request again, and what comes too late
// reaches nobody.
func TestTimeoutIsNotRetried(t *testing.T) {
	enginetest.Each(t, testTimeoutIsNotRetried)
}

func testTimeoutIsNotRetried(t *testing.T) {
	be, conns := puppets(t, 1)
	cfg := requestsConfig(be)
	cfg.Requests.Idempotent = []string{"echo"}
	cfg.Requests.ReplyTimeout = 400 * time.Millisecond
	f := start(t, cfg)
	server := f.warm(t, conns)
	c, m := f.dial(t), call(7, "slow")
	send(t, c, m)
	got := wantCall(t, server, m)
	wantException(t, c, m, frame.CodeInternalError, "no reply within 400ms")
	server.Write(got.reply("too late").bytes())
	next := exchangedAnew(t, f.dial(t), conns, call(7, "another's"))
	exchanged(t, c, next, call(7, "mine"))
	wantGone(t, server)
	f.wantFault(t, map[string]int64{"reply_timeout": 1})
	if s := f.Stats(); s.Repeats != 0 {
		t.Errorf("%d repeats, want none", s.Repeats)
	}
}
