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
	"forebay/proxy/proxytest"
)

func TestClientThatLeavesInItsRequestCostsNoConnection(t *testing.T) {
	enginetest.Each(t, testClientThatLeavesInItsRequestCostsNoConnection)
}

func testClientThatLeavesInItsRequestCostsNoConnection(t *testing.T) {
	be, conns := puppets(t, 1)
	f := start(t, requestsConfig(be))
	f.warm(t, conns)
	c := f.dial(t)
	b := call(1, strings.Repeat("unfinished", 1000)).bytes()
	write(t, c, string(b[:len(b)/2]))
	proxytest.Eventually(t, "its session", func() bool { return f.Stats().Clients == 1 })
	reset(t, c)
	f.ended(t, ClientReset, 1)
	f.idle(t, 1)
	if s := f.Stats(); s.Backends[0].Requests != 1 {
		t.Errorf("%d leases, want that of the first client", s.Backends[0].Requests)
	}
}

// A backend that has part of a request would take the next one for the rest of it.
func TestClientThatLeavesALargeRequestTakesItsConnectionAlong(t *testing.T) {
	enginetest.Each(t, testClientThatLeavesALargeRequestTakesItsConnectionAlong)
}

func testClientThatLeavesALargeRequestTakesItsConnectionAlong(t *testing.T) {
	be, conns := puppets(t, 1)
	f := start(t, requestsConfig(be))
	c := f.dial(t)
	b := call(1, large).bytes()
	write(t, c, string(b[:len(b)/2]))
	server := proxytest.Receive(t, conns, "a connection")
	if _, _, err := readHead(server); err != nil {
		t.Fatal(err)
	}
	reset(t, c)
	f.ended(t, ClientReset, 1)
	f.wantFault(t, map[string]int64{"unfinished_request": 1})
	if n, err := io.Copy(io.Discard, server); n >= int64(len(b)) || timedOut(err) {
		t.Errorf("the backend read %d bytes, to %v; want the end before the request's", n, err)
	}
	f.slots(t, 0, balance.Free, 1)
	exchangedAnew(t, f.dial(t), conns, call(2, "next"))
}

// TestReplyToAClientThatLeftIsDropped: its connection serves on, and no one else
// gets the reply.
func TestReplyToAClientThatLeftIsDropped(t *testing.T) {
	enginetest.Each(t, testReplyToAClientThatLeftIsDropped)
}

func testReplyToAClientThatLeftIsDropped(t *testing.T) {
	tests := []struct {
		name  string
		abort bool
		leave func(t *testing.T, c proxytest.Conn)
		why   Reason
	}{
		{name: "by a reset", leave: func(t *testing.T, c proxytest.Conn) { reset(t, c) }, why: ClientReset},
		{name: "by a FIN, with abort on FIN", abort: true, leave: func(t *testing.T, c proxytest.Conn) { c.CloseWrite() }, why: ClientLeft},
	}
	for _, tt := range tests {
		for _, size := range []int{1, len(large)} {
			t.Run(fmt.Sprintf("%s, reply of %d bytes", tt.name, size), func(t *testing.T) {
				be, conns := puppets(t, 1)
				cfg := requestsConfig(be)
				cfg.AbortOnFIN = tt.abort
				f := start(t, cfg)
				c, m := f.dial(t), call(1, "nobody's")
				send(t, c, m)
				server := proxytest.Receive(t, conns, "a connection")
				got := wantCall(t, server, m)
				other := f.dial(t)
				send(t, other, call(1, "mine"))
				f.waiting(t, 1)
				tt.leave(t, c)
				send(t, server, got.reply(large[:size]))
				send(t, server, wantCall(t, server, call(1, "mine")).reply("mine"))
				wantReply(t, other, call(1, "mine"), "mine")
				f.ended(t, tt.why, 1)
				f.wantFault(t, nil)
				if n := f.dials(); n != 1 {
					t.Errorf("%d dials, want 1", n)
				}
			})
		}
	}
}

func TestHalfClosedClientGetsItsReplies(t *testing.T) {
	enginetest.Each(t, testHalfClosedClientGetsItsReplies)
}

func testHalfClosedClientGetsItsReplies(t *testing.T) {
	be, conns := puppets(t, 1)
	f := start(t, requestsConfig(be))
	c := f.dial(t)
	first, second := call(1, "one"), call(2, "two")
	write(t, c, string(first.bytes())+string(second.bytes()))
	c.CloseWrite()
	server := proxytest.Receive(t, conns, "a connection")
	for _, m := range []message{first, second} {
		send(t, server, wantCall(t, server, m).reply(m.text))
		wantReply(t, c, m, m.text)
	}
	wantAll(t, c, "")
	f.ended(t, Done, 1)
	f.idle(t, 1)
	exchanged(t, f.dial(t), server, call(3, "next")) // the backend has seen no FIN
}

// TestPipelinedRequestsAreAnsweredInOrder, one at a time: the backend gets the
// second when the first is answered, over whichever connection.
func TestPipelinedRequestsAreAnsweredInOrder(t *testing.T) {
	enginetest.Each(t, testPipelinedRequestsAreAnsweredInOrder)
}

func testPipelinedRequestsAreAnsweredInOrder(t *testing.T) {
	be, conns := puppets(t, 1)
	f := start(t, requestsConfig(be))
	c := f.dial(t)
	var all strings.Builder
	const n = 50
	for i := range uint32(n) {
		all.Write(call(i, fmt.Sprint("call ", i)).bytes())
	}
	write(t, c, all.String())
	server := proxytest.Receive(t, conns, "a connection")
	for i := range uint32(n) {
		m := call(i, fmt.Sprint("call ", i))
		got := wantCall(t, server, m)
		if bytes, _ := peek(server); bytes {
			t.Fatal("the next request came before the reply")
		}
		send(t, server, got.reply(m.text))
	}
	for i := range uint32(n) {
		m := call(i, fmt.Sprint("call ", i))
		wantReply(t, c, m, m.text)
	}
	if d := f.dials(); d != 1 {
		t.Errorf("%d dials, want 1", d)
	}
}

// peek reports whether a byte comes within a moment.
func peek(c net.Conn) (bool, error) {
	c.SetReadDeadline(time.Now().Add(time.Millisecond))
	defer c.SetReadDeadline(time.Now().Add(20 * time.Second))
	n, err := c.Read(make([]byte, 1))
	return n > 0, err
}

// One slow call does not hold up what its own client sent before it, nor other
// clients.
func TestClientsDoNotWaitForEachOthersReplies(t *testing.T) {
	enginetest.Each(t, testClientsDoNotWaitForEachOthersReplies)
}

func testClientsDoNotWaitForEachOthersReplies(t *testing.T) {
	be, conns := puppets(t, 2)
	f := start(t, requestsConfig(be))
	slow, quick := f.dial(t), f.dial(t)
	send(t, slow, call(1, "slow"))
	first := proxytest.Receive(t, conns, "a connection")
	got := wantCall(t, first, call(1, "slow"))
	second := exchangedAnew(t, quick, conns, call(1, "quick"))
	for i := range uint32(10) {
		exchanged(t, quick, second, call(i, "quick"))
	}
	send(t, first, got.reply("slow"))
	wantReply(t, slow, call(1, "slow"), "slow")
}

func TestFINAfterAOnewayCallIsNoAbort(t *testing.T) {
	enginetest.Each(t, testFINAfterAOnewayCallIsNoAbort)
}

func testFINAfterAOnewayCallIsNoAbort(t *testing.T) {
	be, conns := puppets(t, 1)
	f := start(t, requestsConfig(be))
	c := f.dial(t)
	send(t, c, oneway(1, "last words"))
	c.Close()
	server := proxytest.Receive(t, conns, "a connection")
	wantCall(t, server, oneway(1, "last words"))
	f.ended(t, Done, 1)
	f.idle(t, 1) // after the quarantine
	exchanged(t, f.dial(t), server, call(1, "next"))
	f.wantFault(t, nil)
}

func TestRequestsAreCountedWhileTheirSessionLasts(t *testing.T) {
	enginetest.Each(t, testRequestsAreCountedWhileTheirSessionLasts)
}

func testRequestsAreCountedWhileTheirSessionLasts(t *testing.T) {
	f := start(t, requestsConfig(testBackend(t, 1, newEchoServer().serve)))
	c := f.dial(t)
	for i := range uint32(3) {
		m := call(i, "count me")
		if got, err := ask(c, m); err != nil || got != m.reply(m.text) {
			t.Fatal(got, err)
		}
	}
	proxytest.Eventually(t, "the requests to be counted", func() bool { return f.Stats().Requests == 3 })
	c.Close()
	f.ended(t, Done, 1)
	if n := f.Stats().Requests; n != 3 {
		t.Errorf("%d requests at the end, want 3", n)
	}
}
