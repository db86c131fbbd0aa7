package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"forebay/proxy/engine"
	"forebay/proxy/enginetest"
	"forebay/proxy/frame"
	"forebay/proxy/proxytest"
)

// remembering is an engine that shows the backend connections to the test.
type remembering struct {
	engine.Engine
	adopted chan engine.Conn
}

func (r *remembering) Dial(ctx context.Context, network, addr string) (engine.Conn, error) {
	conn, err := r.Engine.Dial(ctx, network, addr)
	r.adopted <- conn
	return conn, err
}

// TestConnectionFoundDeadAtTheLeaseCostsNothing: what is wrong with an idle
// connection shows before the request is sent.
func TestConnectionFoundDeadAtTheLeaseCostsNothing(t *testing.T) {
	enginetest.Each(t, testConnectionFoundDeadAtTheLeaseCostsNothing)
}

func testConnectionFoundDeadAtTheLeaseCostsNothing(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(t *testing.T, server proxytest.Conn)
		fault map[string]int64
	}{
		{name: "its backend closed it", spoil: func(t *testing.T, server proxytest.Conn) { server.Close() }},
		{name: "its backend reset it", spoil: func(t *testing.T, server proxytest.Conn) { reset(t, server) }},
		{name: "stray bytes came", spoil: func(t *testing.T, server proxytest.Conn) { write(t, server, "stray") },
			fault: map[string]int64{"stray_bytes": 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			be, conns := puppets(t, 1)
			cfg := requestsConfig(be)
			eng := &remembering{Engine: enginetest.New(t), adopted: make(chan engine.Conn, 10)}
			cfg.Engine = eng
			f := start(t, cfg)
			c := f.dial(t)
			server := exchangedAnew(t, c, conns, call(1, "before"))
			f.idle(t, 1)
			idle := proxytest.Receive(t, eng.adopted, "the proxy's end")
			tt.spoil(t, server)
			proxytest.Eventually(t, "the proxy's kernel to know", func() bool {
				bytes, end := idle.Peek()
				return bytes || end != nil
			})
			exchangedAnew(t, c, conns, call(2, "after"))
			f.wantFault(t, tt.fault)
			c.Close()
			f.ended(t, Done, 1)
			if s := f.Stats(); s.Errors != 0 || s.Stale != 0 {
				t.Errorf("%d errors, %d stale; want none", s.Errors, s.Stale)
			}
		})
	}
}

// interposed is an engine that calls leased when a request has got its connection,
// before a byte of it is sent.
type interposed struct {
	engine.Engine
	leased func()
}

func (i *interposed) Drive(ctx context.Context, client engine.Conn, m engine.Machine, cfg engine.DriveConfig, done func()) {
	i.Engine.Drive(ctx, client, &interposedMachine{m, i}, cfg, done)
}

type interposedMachine struct {
	engine.Machine
	*interposed
}

// Lease has what is interposed wait: in a goroutine of its own where the engine has one
// for many connections.
func (m *interposedMachine) Lease(leased func()) {
	m.Machine.Lease(func() {
		wait := func() {
			m.leased()
			leased()
		}
		if m.Name() == "net" {
			wait()
		} else {
			go wait()
		}
	})
}

// TestRequestThatReachedNobodyIsSentAgain: the connection ends between its lease
// and the request.
func TestRequestThatReachedNobodyIsSentAgain(t *testing.T) {
	enginetest.Each(t, testRequestThatReachedNobodyIsSentAgain)
}

func testRequestThatReachedNobodyIsSentAgain(t *testing.T) {
	ends := map[string]func(testing.TB, net.Conn){
		"closed": func(_ testing.TB, server net.Conn) { server.Close() },
		"reset":  func(t testing.TB, server net.Conn) { reset(t, server) },
	}
	for name, end := range ends {
		for _, used := range []bool{false, true} {
			for _, ask := range []message{call(7, "once"), oneway(7, "once")} {
				t.Run(fmt.Sprintf("%s, used %v, %v", name, used, ask.typ), func(t *testing.T) {
					be, conns := puppets(t, 1)
					cfg := requestsConfig(be)
					cfg.Requests.Quarantine = time.Minute // after it nobody asks what became of a oneway call
					remember := &remembering{Engine: enginetest.New(t), adopted: make(chan engine.Conn, 10)}
					reached, proceed := make(chan struct{}), make(chan struct{})
					var armed atomic.Bool
					cfg.Engine = &interposed{Engine: remember, leased: func() {
						if armed.CompareAndSwap(true, false) {
							close(reached)
							<-proceed
						}
					}}
					f := start(t, cfg)
					c := f.dial(t)
					var server proxytest.Conn
					if used {
						server = f.warm(t, conns)
					}
					armed.Store(true)
					send(t, c, ask)
					proxytest.Receive(t, reached, "the lease")
					if server == nil {
						server = proxytest.Receive(t, conns, "a connection")
					}
					end(t, server)
					leased := proxytest.Receive(t, remember.adopted, "the proxy's end")
					proxytest.Eventually(t, "the proxy's kernel to know", func() bool { _, end := leased.Peek(); return end != nil })
					close(proceed)
					next := proxytest.Receive(t, conns, "another connection")
					got := wantCall(t, next, ask)
					if ask.typ == frame.Call {
						send(t, next, got.reply("once"))
						wantReply(t, c, ask, "once")
					}
					exchanged(t, c, next, call(8, "and on"))
					c.Close()
					f.idle(t, 1)
					f.wantFault(t, map[string]int64{"stale": 1})
					f.stop(t)
					if s := f.Stats(); s.Errors != 0 || s.Stale != 1 || s.Repeats != 0 || s.Backends[0].Pool.Closed["backend_closed"] != 1 {
						t.Errorf("%d errors, %d stale, %d repeats, closed %v; want 0, 1, 0 and one backend_closed",
							s.Errors, s.Stale, s.Repeats, s.Backends[0].Pool.Closed)
					}
				})
			}
		}
	}
}

// A backend that ends each connection before a request reaches it gets so many
// tries, and then the client is told.
func TestRequestIsNotSentAgainForever(t *testing.T) {
	enginetest.Each(t, testRequestIsNotSentAgainForever)
}

func testRequestIsNotSentAgainForever(t *testing.T) {
	var accepted atomic.Int64
	be := testBackend(t, 1, func(proxytest.Conn) { accepted.Add(1) })
	cfg := requestsConfig(be)
	remember := &remembering{Engine: enginetest.New(t), adopted: make(chan engine.Conn, 100)}
	cfg.Engine = &interposed{Engine: remember, leased: func() {
		for conn := <-remember.adopted; ; {
			if _, end := conn.Peek(); end != nil {
				return
			}
		}
	}}
	f := start(t, cfg)
	c, m := f.dial(t), call(7, "nobody listens")
	send(t, c, m)
	wantLost(t, c, m)
	if n := accepted.Load(); n != 9 {
		t.Errorf("%d connections for one request, want 1 and 8 more", n)
	}
	c.Close()
	f.ended(t, Done, 1)
}

// hastyServer is a backend that closes its connections when they are idle, just as
// the proxy may be about to use one of them. It counts what it ran.
type hastyServer struct {
	*echoServer
	conns map[*hastyConn]bool
	lost  map[string]bool // came before the FIN left, and was not read: nobody can tell
}

type hastyConn struct {
	proxytest.Conn
	mu   sync.Mutex
	idle bool // it is waited for a request
}

// await waits for a byte. It reports false where the connection is to be closed.
func (c *hastyConn) await(b []byte) (n int, err error) {
	c.set(true)
	defer c.set(false)
	return c.Read(b)
}

func (c *hastyConn) set(idle bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = idle
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
}

// hurry closes all that are idle.
func (h *hastyServer) hurry() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.conns {
		c.mu.Lock()
		if c.idle {
			c.SetReadDeadline(time.Now())
		}
		c.mu.Unlock()
	}
}

func (h *hastyServer) note(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

func (h *hastyServer) serve(conn proxytest.Conn) {
	c := &hastyConn{Conn: conn}
	h.note(func() { h.conns[c] = true })
	defer h.note(func() { delete(h.conns, c) })
	first := make([]byte, 1)
	for {
		_, err := c.await(first)
		closed := timedOut(err) && !shutdownUnlessReadable(conn)
		if timedOut(err) {
			_, err = c.Read(first)
		}
		if err != nil {
			return
		}
		m, err := readMessage(io.MultiReader(bytes.NewReader(first), c))
		switch {
		case err != nil:
			return
		case closed:
			h.note(func() { h.lost[m.text] = true })
			io.Copy(io.Discard, c)
			return
		}
		h.run(m)
		if m.typ != frame.Oneway {
			c.Write(m.reply(m.text).bytes())
		}
	}
}

// TestConnectionThatItsBackendClosedCostsNoRequestAnything: thousands of calls in
// front of a backend that closes idle connections just as they are used. A client
// may see two errors, of requests that nobody can tell from such as ran: of one that
// had reached the backend's kernel when the backend closed, and which it then did
// not read; and of one that went out right behind a oneway call of the same client,
// on the same lease, where the acknowledgement of the first says nothing of it.
func TestConnectionThatItsBackendClosedCostsNoRequestAnything(t *testing.T) {
	enginetest.Each(t, testConnectionThatItsBackendClosedCostsNoRequestAnything)
}

func testConnectionThatItsBackendClosedCostsNoRequestAnything(t *testing.T) {
	calls := 100
	if testing.Short() {
		calls = 20
	}
	h := &hastyServer{echoServer: newEchoServer(), conns: map[*hastyConn]bool{}, lost: map[string]bool{}}
	cfg := requestsConfig(testBackend(t, 16, h.serve))
	cfg.Requests.Quarantine = 0
	seldom := 4
	if enginetest.Name(t) != "net" {
		seldom = 40 // the closes meet many more requests, and none is to meet eight in a row
	}
	cfg.Engine = &interposed{Engine: enginetest.New(t), leased: func() {
		if rand.IntN(seldom) == 0 {
			h.hurry()
		}
	}}
	f := start(t, cfg)
	var clients sync.WaitGroup
	var failed sync.Map
	for worker := range 20 {
		c := f.dial(t)
		clients.Go(func() {
			for i := range calls {
				m := call(uint32(i), fmt.Sprintf("client %d, call %d", worker, i))
				if i%10 == 9 {
					m.typ = frame.Oneway
					if _, err := c.Write(m.bytes()); err != nil {
						t.Errorf("%v: %v", m, err)
					}
					continue
				}
				switch got, err := ask(c, m); {
				case err == nil && got == m.reply(m.text):
				case err == nil && got == m.exception(frame.CodeInternalError, got.text):
					failed.Store(m.text, got.text)
				default:
					t.Errorf("%v is answered with %v, %v", m, got, err)
					return
				}
			}
			c.Close()
		})
	}
	clients.Wait()
	f.ended(t, Done, 20)
	f.stop(t)
	h.mu.Lock()
	defer h.mu.Unlock()
	for worker := range 20 {
		for i := range calls {
			text := fmt.Sprintf("client %d, call %d", worker, i)
			said, bad := failed.Load(text)
			beyondProof := h.lost[text] || i%10 == 0 && i > 0
			if bad && !beyondProof {
				t.Errorf("%s: %v", text, said)
			}
			if n := h.ran[text]; n > 1 || n == 0 && !bad && i%10 != 9 {
				t.Errorf("%s ran %d times, lost %v", text, n, h.lost[text])
			}
		}
	}
	s := f.Stats()
	t.Logf("%d dials for %d requests; %d connections were stale, %d requests were lost beyond proof; faults %v, closed %v",
		s.Backends[0].Pool.Dials, s.Requests, s.Stale, len(h.lost), s.Faults, s.Backends[0].Pool.Closed)
	if s.Stale == 0 {
		t.Error("no connection was stale: the test proves nothing")
	}
}

// A lease that a request has got when shutdown begins is its own, though its
// backend had ended that connection.
func TestRequestThatMeetsAStaleConnectionWhileDrainingIsAnswered(t *testing.T) {
	enginetest.Each(t, testRequestThatMeetsAStaleConnectionWhileDrainingIsAnswered)
}

func testRequestThatMeetsAStaleConnectionWhileDrainingIsAnswered(t *testing.T) {
	be, conns := puppets(t, 1)
	cfg := requestsConfig(be)
	reached, proceed := make(chan struct{}, 10), make(chan struct{})
	cfg.Engine = &interposed{Engine: enginetest.New(t), leased: func() { reached <- struct{}{}; <-proceed }}
	f := start(t, cfg)
	c, m := f.dial(t), call(1, "once")
	send(t, c, m)
	proxytest.Receive(t, reached, "the lease")
	stale := proxytest.Receive(t, conns, "a connection")
	stale.Close()
	done := f.draining(t)
	close(proceed)
	next := proxytest.Receive(t, conns, "another connection")
	send(t, next, wantCall(t, next, m).reply("once"))
	wantReply(t, c, m, "once")
	wantAll(t, c, "")
	wantDrained(t, f, done, 1)
}
