package proxy

import (
	"fmt"
	"net"
	"testing"
	"time"

	"forebay/balance"
	"forebay/proxy/enginetest"
	"forebay/proxy/frame"
	"forebay/proxy/proxytest"
)

// TestConnectionIsNotSharedInTheQuarantine: after a oneway call it is its client's
// for a time, who may use it at once.
func TestConnectionIsNotSharedInTheQuarantine(t *testing.T) {
	enginetest.Each(t, testConnectionIsNotSharedInTheQuarantine)
}

func testConnectionIsNotSharedInTheQuarantine(t *testing.T) {
	be, conns := puppets(t, 2)
	cfg := requestsConfig(be)
	cfg.Requests.Quarantine = time.Minute
	f := start(t, cfg)
	c := f.dial(t)
	send(t, c, oneway(1, "fire"))
	server := proxytest.Receive(t, conns, "a connection")
	wantCall(t, server, oneway(1, "fire"))
	exchangedAnew(t, f.dial(t), conns, call(1, "another's")) // over another connection
	exchanged(t, c, server, call(2, "mine"))
	exchanged(t, c, server, call(3, "mine again"))
	if n := f.dials(); n != 2 {
		t.Errorf("%d dials, want 2", n)
	}
}

// An answer to a oneway call that comes after the quarantine finds nobody who would
// take it for its own, whatever ids the clients use.
func TestLateAnswerToAOnewayCallReachesNobody(t *testing.T) {
	enginetest.Each(t, testLateAnswerToAOnewayCallReachesNobody)
}

func testLateAnswerToAOnewayCallReachesNobody(t *testing.T) {
	be, conns := puppets(t, 1)
	cfg := requestsConfig(be)
	cfg.Requests.Quarantine = 0
	f := start(t, cfg)
	c := f.dial(t)
	smuggle := message{typ: frame.Oneway, name: "echo", id: 1, text: "secret"}
	send(t, c, smuggle)
	server := proxytest.Receive(t, conns, "a connection")
	ghost := wantCall(t, server, smuggle)
	f.idle(t, 1)
	victim, m := f.dial(t), call(1, "mine")
	send(t, victim, m)
	wantCall(t, server, m)
	send(t, server, ghost.reply("secret")) // before the answer, or in its place
	server.CloseWrite()
	wantLost(t, victim, m)
	f.wantFault(t, map[string]int64{"oneway_answered": 1})
	exchangedAnew(t, victim, conns, m)
}

func TestOnewayIsNeverSentTwice(t *testing.T) {
	enginetest.Each(t, testOnewayIsNeverSentTwice)
}

func testOnewayIsNeverSentTwice(t *testing.T) {
	for _, end := range []func(testing.TB, net.Conn){
		func(_ testing.TB, server net.Conn) { server.Close() },
		func(t testing.TB, server net.Conn) { reset(t, server) },
	} {
		be, conns := puppets(t, 1)
		cfg := requestsConfig(be)
		cfg.Requests.Idempotent = []string{"fire"}
		cfg.Requests.Quarantine = time.Minute
		f := start(t, cfg)
		server := f.warm(t, conns)
		c, m := f.dial(t), oneway(7, "once")
		send(t, c, m)
		wantCall(t, server, m)
		end(t, server)
		f.slots(t, 0, balance.Free, 1)
		exchangedAnew(t, c, conns, call(8, "and on")) // is the first on the next connection
		c.Close()
		f.ended(t, Done, 2)
		if s := f.Stats(); s.Repeats != 0 || s.Oneways != 1 || s.Requests != 3 {
			t.Errorf("%d repeats, %d oneways, %d requests; want 0, 1 and 3", s.Repeats, s.Oneways, s.Requests)
		}
	}
}

// Go's clients type their oneway calls as calls, which are never answered. Nobody waits
// for the reply timeout, or is told of an error.
func TestOnewayCallsOfGoClientsAreLearned(t *testing.T) {
	enginetest.Each(t, testOnewayCallsOfGoClientsAreLearned)
}

func testOnewayCallsOfGoClientsAreLearned(t *testing.T) {
	e := newEchoServer() // which does not answer "fire"
	cfg := requestsConfig(testBackend(t, 4, e.serve))
	cfg.Requests.LearnOneway = true
	cfg.Requests.Quarantine = time.Millisecond
	f := start(t, cfg)
	const clients, few, calls = 10, 3, 100
	var conns []proxytest.Conn
	for range clients {
		conns = append(conns, f.dial(t))
	}
	fireAndCall := func(from, to int) {
		done := make(chan error, clients)
		for client, c := range conns {
			go func() { done <- fireAndAsk(c, client, from, to) }()
		}
		for range clients {
			if err := proxytest.Receive(t, done, "a client's calls"); err != nil {
				t.Error(err)
			}
		}
	}
	fireAndCall(0, few)
	proxytest.Eventually(t, "the method to be learned", func() bool { return f.requests.Methods.Oneway("fire") })
	fireAndCall(few, calls)
	for _, c := range conns {
		c.Close()
	}
	f.ended(t, Done, clients)
	s := f.Stats()
	if s.Errors != 0 || s.Oneways < clients*(calls-few) || len(s.Faults) != 0 || s.Backends[0].Pool.Dials > 4 {
		t.Errorf("%d errors, %d oneways, faults %v, %d dials; want none, at least %d, none and 4 at most",
			s.Errors, s.Oneways, s.Faults, s.Backends[0].Pool.Dials, clients*(calls-few))
	}
	if lines := f.book.with("learned that the method is oneway: its calls are never answered (--learn-oneway)"); len(lines) != 1 || lines[0]["method"] != "fire" {
		t.Errorf("log %v, want one line of the method fire", lines)
	}
	proxytest.Eventually(t, "the last oneway calls", func() bool { return e.all() >= 2*clients*calls })
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
	enginetest.Each(t, testListedMethodHasNoReply)
}

func testListedMethodHasNoReply(t *testing.T) {
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

// A server that answers out of order (a thread for each call). One client teaches the
// proxy that the two-way method "slow" is oneway, by leaving before the answer comes;
// then another client's call of it is forgotten: it gets neither answer nor exception.
func TestOneClientCannotTeachThatATwoWayMethodIsOneway(t *testing.T) {
	enginetest.Each(t, testOneClientCannotTeachThatATwoWayMethodIsOneway)
}

func testOneClientCannotTeachThatATwoWayMethodIsOneway(t *testing.T) {
	be := testBackend(t, 8, func(c proxytest.Conn) {
		for {
			m, err := readMessage(c)
			if err != nil {
				return
			}
			if m.name == "slow" {
				time.AfterFunc(300*time.Millisecond, func() { c.Write(m.reply(m.text).bytes()) })
				continue
			}
			c.Write(m.reply(m.text).bytes())
		}
	})
	cfg := requestsConfig(be)
	cfg.Requests.LearnOneway = true
	cfg.Requests.ReplyTimeout = 2 * time.Second
	cfg.SessionIdleTimeout = time.Minute
	f := start(t, cfg)
	for i := range 3 {
		evil := f.dial(t)
		slow := call(1, fmt.Sprint("evil", i))
		slow.name = "slow"
		send(t, evil, slow)
		send(t, evil, call(2, "fast"))
		got, err := readMessage(evil)
		if err != nil || got.id != 2 {
			t.Fatal(got, err)
		}
		evil.Close()
		after(20 * time.Millisecond)
	}
	for i := range 3 {
		good := f.dial(t)
		slow := call(1, fmt.Sprint("good", i))
		slow.name = "slow"
		send(t, good, slow)
		good.SetReadDeadline(time.Now().Add(3 * time.Second)) // longer than the reply timeout
		got, err := readMessage(good)
		if err != nil || got != slow.reply(slow.text) {
			t.Errorf("call %d: answered with %v, %v", i, got, err)
		}
		good.Close()
	}
}

// fireAndAsk has a client call a oneway method, as Go's do, and then another.
func fireAndAsk(c net.Conn, client, from, to int) error {
	for i := from; i < to; i++ {
		fire := message{typ: frame.Call, name: "fire", id: uint32(2 * i), text: fmt.Sprintf("fire %d %d", client, i)}
		if _, err := c.Write(fire.bytes()); err != nil {
			return err
		}
		m := call(uint32(2*i+1), fmt.Sprintf("call %d %d", client, i))
		if got, err := ask(c, m); err != nil || got != m.reply(m.text) {
			return fmt.Errorf("%v is answered with %v, %v", m, got, err)
		}
	}
	return nil
}
