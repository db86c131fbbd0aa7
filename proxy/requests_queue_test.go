package proxy

import (
	"fmt"
	"testing"
	"time"

	"forebay/proxy/enginetest"
	"forebay/proxy/frame"
	"forebay/proxy/proxytest"
)

// TestRequestsAreServedInTheOrderOfTheirArrival: each request has its own place in
// the queue. The second one of a client that has just been served is behind those
// of all who have come meanwhile.
func TestRequestsAreServedInTheOrderOfTheirArrival(t *testing.T) {
	enginetest.Each(t, testRequestsAreServedInTheOrderOfTheirArrival)
}

func testRequestsAreServedInTheOrderOfTheirArrival(t *testing.T) {
	be, conns := puppets(t, 1)
	f := start(t, requestsConfig(be))
	first := f.dial(t)
	write(t, first, string(call(1, "first").bytes())+string(call(2, "first again").bytes()))
	server := proxytest.Receive(t, conns, "a connection")
	got := wantCall(t, server, call(1, "first"))
	var clients []proxytest.Conn
	for i := range 40 {
		c := f.dial(t)
		send(t, c, call(1, fmt.Sprint("client ", i)))
		if i%2 == 0 {
			c.CloseWrite() // keeps its place
		}
		f.waiting(t, i+1)
		clients = append(clients, c)
	}
	send(t, server, got.reply("first"))
	for i, c := range clients {
		m := call(1, fmt.Sprint("client ", i))
		send(t, server, wantCall(t, server, m).reply(m.text))
		wantReply(t, c, m, m.text)
	}
	send(t, server, wantCall(t, server, call(2, "first again")).reply("first again"))
	wantReply(t, first, call(1, "first"), "first")
	wantReply(t, first, call(2, "first again"), "first again")
	if n := f.dials(); n != 1 {
		t.Errorf("%d dials, want 1", n)
	}
}

func TestClientThatLeavesTheQueueTakesItsRequestAlong(t *testing.T) {
	enginetest.Each(t, testClientThatLeavesTheQueueTakesItsRequestAlong)
}

func testClientThatLeavesTheQueueTakesItsRequestAlong(t *testing.T) {
	be, conns := puppets(t, 1)
	f := start(t, requestsConfig(be))
	first, second, third := f.dial(t), f.dial(t), f.dial(t)
	send(t, first, call(1, "first"))
	server := proxytest.Receive(t, conns, "a connection")
	got := wantCall(t, server, call(1, "first"))
	send(t, second, call(1, "second"))
	f.waiting(t, 1)
	send(t, third, call(1, "third"))
	f.waiting(t, 2)
	reset(t, second)
	f.waiting(t, 1)
	f.ended(t, ClientLeft, 1)
	send(t, server, got.reply("first"))
	send(t, server, wantCall(t, server, call(1, "third")).reply("third"))
	wantReply(t, third, call(1, "third"), "third")
}

// TestClientWithoutAConnectionIsToldAndGoesOn: the request is answered with an
// exception that says why, and the client can go on at once. A oneway call gets
// nothing, as ever.
func TestClientWithoutAConnectionIsToldAndGoesOn(t *testing.T) {
	enginetest.Each(t, testClientWithoutAConnectionIsToldAndGoesOn)
}

func testClientWithoutAConnectionIsToldAndGoesOn(t *testing.T) {
	tests := []struct {
		name   string
		change func(cfg *Config)
		text   string
	}{
		{name: "the queue is full", change: func(cfg *Config) { cfg.Queue = 0 }, text: "forebay: the queue is full (0 requests wait)"},
		{name: "the acquire timeout has passed", change: func(cfg *Config) { cfg.AcquireTimeout = 100 * time.Millisecond },
			text: "forebay: waited 0.1s for one of 1 connections"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			be, conns := puppets(t, 1)
			cfg := requestsConfig(be)
			tt.change(&cfg)
			f := start(t, cfg)
			holder, c := f.dial(t), f.dial(t)
			send(t, holder, call(1, "holds it"))
			server := proxytest.Receive(t, conns, "a connection")
			got := wantCall(t, server, call(1, "holds it"))
			for i := range uint32(3) {
				send(t, c, oneway(i, "unheard"))
				send(t, c, call(i, "refused"))
				wantException(t, c, call(i, "refused"), frame.CodeInternalError, tt.text)
			}
			send(t, holder, call(2, "behind")) // is not refused: it does not ask yet
			send(t, server, got.reply("holds it"))
			wantReply(t, holder, call(1, "holds it"), "holds it")
			send(t, server, wantCall(t, server, call(2, "behind")).reply("behind"))
			wantReply(t, holder, call(2, "behind"), "behind")
			f.idle(t, 1)
			exchanged(t, c, server, call(9, "served"))
			c.Close()
			f.ended(t, Done, 1)
			if s := f.Stats(); s.Errors != 6 || s.Requests != 9 {
				t.Errorf("%d errors, %d requests; want 6 and 9", s.Errors, s.Requests)
			}
		})
	}
}

func TestClientIsToldWhenAllBackendsAreDown(t *testing.T) {
	enginetest.Each(t, testClientIsToldWhenAllBackendsAreDown)
}

func testClientIsToldWhenAllBackendsAreDown(t *testing.T) {
	be, open := dead(t, 2)
	f := start(t, requestsConfig(be))
	c := f.dial(t)
	for i := range uint32(3) {
		send(t, c, oneway(i, "unheard"))
		send(t, c, call(i, "refused"))
		wantException(t, c, call(i, "refused"), frame.CodeInternalError, "forebay: no backend is up: ")
	}
	proxytest.ServeOn(t, open(), newEchoServer().serve)
	f.isUp(t, 0)
	echoed(t, c, call(9, "served"))
}

// A large request that gets no connection is read to its end, and then refused.
func TestLargeRequestIsRefusedAtItsEnd(t *testing.T) {
	enginetest.Each(t, testLargeRequestIsRefusedAtItsEnd)
}

func testLargeRequestIsRefusedAtItsEnd(t *testing.T) {
	be, _ := dead(t, 2)
	f := start(t, requestsConfig(be))
	c, m := f.dial(t), call(1, large)
	for range 2 {
		send(t, c, m)
		wantException(t, c, m, frame.CodeInternalError, "no backend is up")
	}
}
