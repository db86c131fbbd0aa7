package proxy

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"forebay/proxy/enginetest"
	"forebay/proxy/exchange"
	"forebay/proxy/frame"
	"forebay/proxy/proxytest"
)

func TestConnectionIsReusableOnlyWhereEveryConditionHolds(t *testing.T) {
	tests := []struct {
		name  string
		facts exchange.Facts
		keep  bool
	}{
		{name: "all hold", facts: exchange.Facts{Used: true}, keep: true},
		{name: "nothing was sent", keep: true},
		{name: "a reply is outstanding", facts: exchange.Facts{Used: true, Outstanding: 1}},
		{name: "in the middle of a request", facts: exchange.Facts{Used: true, MidRequest: true}},
		{name: "in the middle of a reply", facts: exchange.Facts{Used: true, MidReply: true}},
	}
	for f := exchange.NoFault + 1; f < exchange.NumFaults; f++ {
		tests = append(tests, struct {
			name  string
			facts exchange.Facts
			keep  bool
		}{name: "fault " + f.String(), facts: exchange.Facts{Used: true, Fault: f}})
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if keep := reusable(tt.facts); keep != tt.keep {
				t.Errorf("reusable = %v, want %v", keep, tt.keep)
			}
		})
	}
}

// TestConnectionIsDiscardedWhereOneConditionFails has one client leave a connection
// on which all is well but for one thing. TestConnectionIsNotReusedAfterAFault has
// the faults.
func TestConnectionIsDiscardedWhereOneConditionFails(t *testing.T) {
	enginetest.Each(t, testConnectionIsDiscardedWhereOneConditionFails)
}

func testConnectionIsDiscardedWhereOneConditionFails(t *testing.T) {
	tests := []struct {
		name   string
		change func(cfg *Config)
		play   func(t *testing.T, f *front, c, server proxytest.Conn)
		reason string // of the close
		fault  string
	}{
		{name: "a reply is outstanding", reason: "failed", fault: "unread_reply",
			play: func(t *testing.T, f *front, c, server proxytest.Conn) {
				send(t, c, call(2, "unanswered"))
				wantCall(t, server, call(2, "unanswered"))
				reset(t, c)
			}},
		{name: "a request was sent in part", reason: "used", fault: "unfinished_request",
			play: func(t *testing.T, f *front, c, server proxytest.Conn) {
				write(t, c, string(call(2, large).bytes()[:100<<10]))
				if _, _, err := readHead(server); err != nil {
					t.Fatal(err)
				}
				reset(t, c)
			}},
		{name: "a reply was read in part", reason: "failed", fault: "unread_reply",
			play: func(t *testing.T, f *front, c, server proxytest.Conn) {
				send(t, c, call(2, "half"))
				b := wantCall(t, server, call(2, "half")).reply("half").bytes()
				reset(t, c)
				write(t, server, string(b[:len(b)/2]))
			}},
		{name: "a byte can be read", reason: "stray_bytes", fault: "stray_bytes",
			play: func(t *testing.T, f *front, c, server proxytest.Conn) { write(t, server, "x") }},
		{name: "its backend has sent a FIN", reason: "backend_closed",
			play: func(t *testing.T, f *front, c, server proxytest.Conn) { server.CloseWrite() }},
		{name: "its backend has reset it", reason: "backend_closed",
			play: func(t *testing.T, f *front, c, server proxytest.Conn) { reset(t, server) }},
		{name: "it has lain idle for its time", reason: "idle_timeout",
			change: func(cfg *Config) { cfg.IdleTimeout = 20 * time.Millisecond },
			play:   func(*testing.T, *front, proxytest.Conn, proxytest.Conn) {}},
		{name: "its life is over", reason: "lifetime",
			change: func(cfg *Config) { cfg.MaxLifetime = 20 * time.Millisecond },
			play:   func(*testing.T, *front, proxytest.Conn, proxytest.Conn) {}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			be, conns := puppets(t, 1)
			cfg := requestsConfig(be)
			if tt.change != nil {
				tt.change(&cfg)
			}
			f := start(t, cfg)
			c := f.dial(t)
			server := exchangedAnew(t, c, conns, call(1, "the first"))
			tt.play(t, f, c, server)
			proxytest.Eventually(t, "its close", func() bool { return f.Stats().Backends[0].Pool.Closed[tt.reason] == 1 })
			if tt.fault != "" {
				f.wantFault(t, map[string]int64{tt.fault: 1})
			}
			server.Close()
			exchangedAnew(t, f.dial(t), conns, call(1, "the next"))
		})
	}
}

// A backend that went down while a connection was leased, and is up again, is
// another one as far as that connection is concerned.
func TestConnectionOfABackendThatWentDownIsDiscarded(t *testing.T) {
	enginetest.Each(t, testConnectionOfABackendThatWentDownIsDiscarded)
}

func testConnectionOfABackendThatWentDownIsDiscarded(t *testing.T) {
	be, open := dead(t, 2)
	conns := make(chan proxytest.Conn, 10)
	ended := t.Context().Done()
	puppet := func(c proxytest.Conn) { conns <- c; <-ended }
	ln := open()
	proxytest.ServeOn(t, ln, puppet)
	f := start(t, requestsConfig(be))
	c := f.dial(t)
	m := call(1, "before")
	send(t, c, m)
	server := proxytest.Receive(t, conns, "a connection")
	got := wantCall(t, server, m)
	ln.Close()
	other := f.dial(t)
	send(t, other, call(2, "meanwhile"))
	wantException(t, other, call(2, "meanwhile"), frame.CodeInternalError, "no backend is up")
	proxytest.ServeOn(t, open(), puppet)
	proxytest.Receive(t, conns, "the connection of a check")
	f.isUp(t, 0)
	send(t, server, got.reply("before"))
	wantReply(t, c, m, "before")
	wantGone(t, server)
	if n := f.Stats().Backends[0].Pool.Closed["failed"]; n != 1 {
		t.Errorf("%d connections closed as failed, want 1", n)
	}
}

// TestCallsOfManyClientsShareFewConnections: every client gets its own answers, with
// its own sequence ids, which are those of all the others.
func TestCallsOfManyClientsShareFewConnections(t *testing.T) {
	enginetest.Each(t, testCallsOfManyClientsShareFewConnections)
}

func testCallsOfManyClientsShareFewConnections(t *testing.T) {
	one, two := newEchoServer(), newEchoServer()
	f := start(t, requestsConfig(testBackend(t, 4, one.serve), testBackend(t, 4, two.serve)))
	const clients, calls = 100, 20
	var wg sync.WaitGroup
	for client := range clients {
		c := f.dial(t)
		wg.Go(func() {
			for i := range calls {
				m := call(uint32(i), fmt.Sprintf("client %d, call %d", client, i))
				if got, err := ask(c, m); err != nil || got != m.reply(m.text) {
					t.Errorf("%v is answered with %v, %v", m, got, err)
					return
				}
			}
			c.Close()
		})
	}
	wg.Wait()
	f.ended(t, Done, clients)
	s := f.Stats()
	if dials := s.Backends[0].Pool.Dials + s.Backends[1].Pool.Dials; dials > 8 || one.conns.Load()+two.conns.Load() != dials {
		t.Errorf("%d dials, of which %d and %d arrived; want 8 at most", dials, one.conns.Load(), two.conns.Load())
	}
	if s.Requests != clients*calls || s.Errors != 0 || s.Stale != 0 || len(s.Faults) != 0 {
		t.Errorf("%d requests, %d errors, %d stale, faults %v; want %d and none", s.Requests, s.Errors, s.Stale, s.Faults, clients*calls)
	}
	for client := range clients {
		for i := range calls {
			text := fmt.Sprintf("client %d, call %d", client, i)
			if n := one.times(text) + two.times(text); n != 1 {
				t.Errorf("%s ran %d times", text, n)
			}
		}
	}
}

func TestLeaseOfOneRequestGoesToTheNextClient(t *testing.T) {
	enginetest.Each(t, testLeaseOfOneRequestGoesToTheNextClient)
}

func testLeaseOfOneRequestGoesToTheNextClient(t *testing.T) {
	be, conns := puppets(t, 1)
	f := start(t, requestsConfig(be))
	first, second := f.dial(t), f.dial(t)
	server := exchangedAnew(t, first, conns, call(1, "one"))
	seen := map[uint32]bool{}
	for i, c := range []net.Conn{second, first, second, second, first} {
		m := call(1, fmt.Sprint("call ", i))
		send(t, c, m)
		got := wantCall(t, server, m)
		if got.id == 1 || seen[got.id] {
			t.Errorf("the backend has seen the id %d before, or it is the client's", got.id)
		}
		seen[got.id] = true
		send(t, server, got.reply(m.text))
		wantReply(t, c, m, m.text)
	}
	if n := f.dials(); n != 1 {
		t.Errorf("%d dials, want 1", n)
	}
}

// TestClientWithoutARequestHoldsNoConnection: one that sends nothing, or only a
// part of a request, costs its backend nothing.
func TestClientWithoutARequestHoldsNoConnection(t *testing.T) {
	enginetest.Each(t, testClientWithoutARequestHoldsNoConnection)
}

func testClientWithoutARequestHoldsNoConnection(t *testing.T) {
	e := newEchoServer()
	f := start(t, requestsConfig(testBackend(t, 1, e.serve)))
	silent, slow := f.dial(t), f.dial(t)
	m := call(1, strings.Repeat("slow ", 1000))
	write(t, slow, string(m.bytes()[:2000]))
	proxytest.Eventually(t, "two clients", func() bool { return f.Stats().Clients == 2 })
	if n := f.dials(); n != 0 {
		t.Errorf("%d dials for clients without a request", n)
	}
	echoed(t, f.dial(t), call(1, "quick"))
	write(t, slow, string(m.bytes()[2000:]))
	wantReply(t, slow, m, m.text)
	silent.Close()
	f.ended(t, Done, 1)
}

// TestSlowReaderHoldsNoLeaseWithinTheReplyBuffer has a client not read its reply.
// With one connection in all, others can only be served once its lease is over.
func TestSlowReaderHoldsNoLeaseWithinTheReplyBuffer(t *testing.T) {
	enginetest.Each(t, testSlowReaderHoldsNoLeaseWithinTheReplyBuffer)
}

func testSlowReaderHoldsNoLeaseWithinTheReplyBuffer(t *testing.T) {
	const huge = 12 << 20 // more than the kernel takes
	tests := []struct {
		name           string
		size           int
		buffer, memory int
		held           bool
	}{
		{name: "200 KB", size: 200 << 10, buffer: 256 << 10, memory: 1 << 20},
		{name: "12 MB within the buffer", size: huge, buffer: huge + 1<<10, memory: 2 * huge},
		{name: "12 MB beyond the buffer", size: huge, buffer: 256 << 10, memory: 2 * huge, held: true},
		{name: "12 MB beyond the memory of all", size: huge, buffer: huge + 1<<10, memory: 1 << 20, held: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			be, conns := puppets(t, 1)
			cfg := requestsConfig(be)
			cfg.Requests.ReplyBuffer, cfg.Requests.BufferMemory = tt.buffer, int64(tt.memory)
			f := start(t, cfg)
			slow, other := f.dial(t), f.dial(t)
			m := call(1, "much")
			send(t, slow, m)
			server := proxytest.Receive(t, conns, "a connection")
			got := wantCall(t, server, m)
			written := make(chan error, 1)
			text := strings.Repeat("much", tt.size/4)
			go func() {
				_, err := server.Write(got.reply(text).bytes())
				written <- err
			}()
			if tt.held {
				send(t, other, call(2, "other"))
				f.waiting(t, 1)
				limit := int64(min(tt.buffer, tt.memory))
				proxytest.Eventually(t, "a full buffer", func() bool { return f.Stats().Buffered >= limit })
				if s := f.Stats(); s.Waiting != 1 || s.Buffered > limit+64<<10 {
					t.Errorf("%d wait, and %d bytes are held where %d may be", s.Waiting, s.Buffered, limit)
				}
				wantReply(t, slow, m, text)
				send(t, server, wantCall(t, server, call(2, "other")).reply("other"))
				wantReply(t, other, call(2, "other"), "other")
			} else {
				exchanged(t, other, server, call(2, "other"))
				if tt.size == huge && f.Stats().Buffered == 0 {
					t.Error("nothing is held for the slow client: the test proves nothing")
				}
				wantReply(t, slow, m, text)
			}
			if err := proxytest.Receive(t, written, "the end of the write"); err != nil {
				t.Error(err)
			}
			exchanged(t, slow, server, call(3, "and on"))
			proxytest.Eventually(t, "an empty buffer", func() bool { return f.Stats().Buffered == 0 })
		})
	}
}

// A client that goes while the proxy holds a reply for it takes the memory along.
func TestReplyHeldForAClientThatLeavesIsForgotten(t *testing.T) {
	enginetest.Each(t, testReplyHeldForAClientThatLeavesIsForgotten)
}

func testReplyHeldForAClientThatLeavesIsForgotten(t *testing.T) {
	be, conns := puppets(t, 1)
	cfg := requestsConfig(be)
	cfg.Requests.ReplyBuffer = 16 << 20
	f := start(t, cfg)
	slow := f.dial(t)
	m := call(1, "much")
	send(t, slow, m)
	server := proxytest.Receive(t, conns, "a connection")
	send(t, server, wantCall(t, server, m).reply(strings.Repeat("much", 3<<20)))
	f.idle(t, 1)
	reset(t, slow)
	f.ended(t, ClientReset, 1)
	if n := f.Stats().Buffered; n != 0 {
		t.Errorf("%d bytes are still counted as held", n)
	}
	exchanged(t, f.dial(t), server, call(2, "next"))
}

// TestStrayBytesAreSaid: what a backend sends while nobody has asked is counted and
// logged, with its first bytes, and the connection serves nobody.
func TestStrayBytesAreSaid(t *testing.T) {
	enginetest.Each(t, testStrayBytesAreSaid)
}

func testStrayBytesAreSaid(t *testing.T) {
	tests := []struct {
		name    string
		minIdle int
		find    func(t *testing.T, f *front, conns <-chan proxytest.Conn) (server proxytest.Conn)
	}{
		{name: "on a connection that was used", find: func(t *testing.T, f *front, conns <-chan proxytest.Conn) proxytest.Conn {
			return f.warm(t, conns)
		}},
		{name: "on one that was dialed ahead", minIdle: 1, find: func(t *testing.T, f *front, conns <-chan proxytest.Conn) proxytest.Conn {
			server := proxytest.Receive(t, conns, "a connection")
			f.idle(t, 1)
			return server
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			be, conns := puppets(t, 1)
			cfg := requestsConfig(be)
			cfg.MinIdle = tt.minIdle
			f := start(t, cfg)
			server := tt.find(t, f, conns)
			write(t, server, "\x00\x01stray bytes, and more of them")
			f.wantFault(t, map[string]int64{"stray_bytes": 1})
			wantGone(t, server)
			lines := f.book.with("a backend sent what no request asked for; the connection is closed and nobody got it")
			if len(lines) != 1 || lines[0]["level"] != "error" || lines[0]["backend"] != be.String() ||
				lines[0]["fault"] != "stray_bytes" || lines[0]["bytes"] != fmt.Sprintf("%x", "\x00\x01stray bytes, a") {
				t.Errorf("log %v, want one line with the first 16 bytes", lines)
			}
			proxytest.Eventually(t, "the close to be counted", func() bool {
				return f.Stats().Backends[0].Pool.Closed["stray_bytes"] == 1
			})
			exchangedAnew(t, f.dial(t), conns, call(1, "next"))
		})
	}
}

// A storm of stray bytes is summed, not said byte by byte.
func TestFurtherStrayBytesAreSummed(t *testing.T) {
	enginetest.Each(t, testFurtherStrayBytesAreSummed)
}

func testFurtherStrayBytesAreSummed(t *testing.T) {
	be := testBackend(t, 4, func(c proxytest.Conn) {
		if m, err := readMessage(c); err == nil {
			b := m.reply(m.text).bytes()
			c.Write(append(b, b...))
			io.Copy(io.Discard, c)
		}
	})
	f := start(t, requestsConfig(be))
	c := f.dial(t)
	for i := range uint32(50) {
		echoed(t, c, call(i, "twice"))
	}
	f.wantFault(t, map[string]int64{"stray_bytes": 50})
	if lines := f.book.with("a backend sent what no request asked for; the connection is closed and nobody got it"); len(lines) != 1 {
		t.Errorf("said %d times, want once", len(lines))
	}
}
