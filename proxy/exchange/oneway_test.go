package exchange

import (
	"fmt"
	"io"
	"testing"
	"time"

	"forebay/proxy/frame"
)

func TestOnewayCallIsQuarantined(t *testing.T) {
	r := newRig(t)
	r.client(oneway("fire", "a"))
	r.after(quarantine - 1)
	r.wantReleased()
	r.after(1)
	r.wantReleased(clean)
	r.wantAnswers()
	if s := r.m.Stats; s.Requests != 1 || s.Oneways != 1 {
		t.Errorf("stats %+v", s)
	}
}

func TestListedMethodIsOnewayWhateverItsCallIsTyped(t *testing.T) {
	for _, name := range []string{"listed", "Service:listed"} {
		r := newRig(t)
		r.client(twoWay(name, 5, "a"))
		r.after(quarantine)
		r.wantReleased(clean)
		r.wantAnswers()
	}
}

func TestZeroQuarantineReleasesAtOnce(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Quarantine = 0 })
	r.client(oneway("fire", "a"))
	r.wantReleased(clean)
}

func TestQuarantinedConnectionIsReusedByItsClientAtOnce(t *testing.T) {
	r := newRig(t)
	r.client(join(oneway("fire", "a"), oneway("fire", "b"), twoWay("echo", 1, "c")))
	if len(r.requests()) != 3 || r.leases != 1 {
		t.Fatalf("%d requests on %d leases", len(r.requests()), r.leases)
	}
	r.reply("re c")
	r.wantAnswers("1:re c")
	r.wantReleased(clean) // the quarantine is over: what came before was passed
}

func TestOnewayCallThatIsAnswered(t *testing.T) {
	t.Run("in the quarantine", func(t *testing.T) {
		r := newRig(t)
		r.client(oneway("echo", "a"))
		r.reply("secret")
		r.wantAnswers()
		r.wantReleased(Facts{Fault: OnewayAnswered, Outstanding: 1, Used: true})
		r.wantNotDone()
	})
	t.Run("before the reply to the next call, which is delivered", func(t *testing.T) {
		r := newRig(t)
		r.client(join(oneway("echo", "a"), twoWay("echo", 1, "b")))
		all := r.requests()
		r.backend(join(all[0].reply(big(500<<10)), all[1].reply("re b")))
		r.wantAnswers("1:re b")
		r.wantFault(OnewayAnswered)
	})
	t.Run("after the reply to the next call", func(t *testing.T) {
		r := newRig(t)
		r.client(join(oneway("echo", "a"), twoWay("echo", 1, "b")))
		all := r.requests()
		r.m.ReadBackend(join(all[1].reply("re b"), all[0].reply("secret")))
		r.run()
		r.wantAnswers("1:re b")
		r.wantFault(OnewayAnswered)
	})
	t.Run("while the next client has the connection", func(t *testing.T) {
		conn := NewConn()
		r := newRig(t)
		r.conn = conn
		r.client(oneway("Service:echo", "a"))
		late := r.last()
		r.after(quarantine)
		r.wantReleased(clean)

		next := newRig(t)
		next.conn = conn
		next.client(twoWay("echo", 1, "b"))
		next.backend(late.reply("secret"))
		next.wantAnswers()
		next.reply("re b")
		next.wantAnswers("1:re b")
		next.wantFault(OnewayAnswered)
	})
	t.Run("by one of the same id, but another method", func(t *testing.T) {
		r := newRig(t)
		r.client(oneway("echo", "a"))
		r.backend(framed(frame.Reply, "other", r.last().head.ID.Seq, "secret"))
		r.wantAnswers()
		r.wantFault(WrongReply)
	})
	t.Run("while the next oneway call is sent, which is sent to its end", func(t *testing.T) {
		r := newRig(t)
		whole := oneway("fire", big(200<<10))
		r.client(join(oneway("echo", "a"), whole[:100<<10]))
		r.backend(twoWayReply("echo", r.requests()[0].head.ID.Seq, "secret"))
		r.wantReleased()
		r.client(whole[100<<10:])
		if len(r.requests()) != 2 {
			t.Fatal("the second was not sent")
		}
		r.client(twoWay("echo", 1, "b"))
		r.reply("re b")
		r.wantAnswers("1:re b")
	})
	t.Run("in part", func(t *testing.T) {
		for _, n := range []int{3, 30} {
			for _, pooling := range []bool{false, true} {
				r := newRig(t, func(c *Config) { c.Session = pooling })
				r.client(oneway("echo", "a"))
				r.backend(r.last().reply(big(100))[:n])
				r.after(time.Minute)
				r.wantAnswers()
				if len(r.released) != 1 || reusable(r.released[0]) {
					t.Fatalf("%d bytes, session %v: released with %+v", n, pooling, r.released)
				}
			}
		}
	})
}

// reusable is the proxy's condition.
func reusable(f Facts) bool {
	return f.Outstanding == 0 && !f.MidRequest && !f.MidReply && f.Fault == NoFault
}

func TestGhostIsKnownByItsIDAndItsName(t *testing.T) {
	for name, stray := range map[string]func(late message) []byte{
		"another id":     func(m message) []byte { return twoWayReply("fire", m.head.ID.Seq-1, "secret") },
		"another method": func(m message) []byte { return twoWayReply("echo", m.head.ID.Seq, "secret") },
	} {
		t.Run(name, func(t *testing.T) {
			conn := NewConn()
			r := newRig(t)
			r.conn = conn
			r.client(oneway("fire", "a"))
			late := r.last()
			r.after(quarantine)
			r.run()
			r.wantReleased(clean)
			r.conn = conn
			r.client(twoWay("echo", 1, "b"))
			r.backend(stray(late))
			r.wantAnswers("1!6:did not match")
			r.wantFault(WrongReply)
		})
	}
}

func TestGhostsAreBounded(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Quarantine = 0 })
	conn := NewConn()
	for range 10 * maxGhosts {
		r.conn = conn
		r.client(oneway("fire", "a"))
	}
	if len(conn.ghosts) != maxGhosts {
		t.Fatalf("%d ghosts", len(conn.ghosts))
	}
}

func TestOnewayCallsInQuarantineAreBoundedAndDoNotWait(t *testing.T) {
	r := newRig(t)
	for range 3 * maxCalls {
		r.client(oneway("fire", "a"))
	}
	if n := len(r.requests()); n != 3*maxCalls || r.leases != 1 {
		t.Fatalf("%d requests on %d leases", n, r.leases)
	}
	r.after(quarantine)
	r.wantReleased(Facts{Used: true, Crowded: true})
}

// Learning.

// proof has a client send a call of a oneway method, and another whose reply is a
// proof.
func proof(t *testing.T, methods *Methods, name string) {
	t.Helper()
	r := newRig(t, func(c *Config) { c.Methods = methods })
	r.client(join(twoWay(name, 1, "a"), twoWay("echo", 2, "b")))
	r.reply("re b")
	r.wantAnswers("2:re b")
	r.clientEnded(io.EOF)
	if !r.fin {
		t.Error("the client waits for the proof")
	}
	r.after(proofTime)
	r.wantEnd(Finished)
}

func TestThreeProofsLearnAMethod(t *testing.T) {
	var told []string
	m := NewMethods(nil, true)
	m.Learned = func(name string, oneway bool) { told = append(told, fmt.Sprint(name, oneway)) }
	for i := range 3 {
		if m.Oneway("fire") {
			t.Fatalf("learned after %d", i)
		}
		proof(t, m, "fire")
	}
	if !m.Oneway("fire") || m.Oneway("echo") || fmt.Sprint(told) != "[firetrue]" {
		t.Fatalf("fire %v, echo %v, told %q", m.Oneway("fire"), m.Oneway("echo"), told)
	}
	r := newRig(t, func(c *Config) { c.Methods = m })
	r.client(twoWay("fire", 1, "a"))
	r.after(quarantine)
	r.wantReleased(clean)
}

func TestCallsPassedOverByOneReplyAreOneProof(t *testing.T) {
	r := newRig(t)
	r.client(join(twoWay("fire", 1, "a"), twoWay("fire", 2, "b"), twoWay("fire", 3, "c"), twoWay("echo", 4, "d")))
	r.reply("re d")
	r.wantAnswers("4:re d")
	if r.cfg.Methods.Oneway("fire") {
		t.Fatal("learned of one reply")
	}
}

func TestPassedCallThatIsNotAnsweredIsNoSecondProof(t *testing.T) {
	r := newRig(t)
	for i := range 2 {
		r.client(join(twoWay("fire", 1, "a"), twoWay("echo", 2, "b")))
		r.reply("re b")
		r.wantAnswers("2:re b")
		r.after(replyTimeout)
		r.wantFault(ReplyTimeout)
		if r.cfg.Methods.Oneway("fire") {
			t.Fatalf("learned after %d", i+1)
		}
	}
	r.wantNotDone()
}

func TestConnectionWithAPassedCallIsNotReused(t *testing.T) {
	r := newRig(t)
	r.client(join(twoWay("fire", 1, "a"), twoWay("echo", 2, "b")))
	r.reply("re b")
	r.wantReleased()
	r.clientEnded(io.EOF)
	r.wantReleased()
	r.after(proofTime)
	r.wantReleased(Facts{Outstanding: 1, Used: true})
	r.wantEnd(Finished)
}

func TestLateAnswerToAPassedCallIsNoProof(t *testing.T) {
	r := newRig(t)
	r.client(twoWay("slow", 1, "a"))
	slow := r.last()
	r.client(twoWay("echo", 2, "b"))
	r.reply("re b")
	r.clientEnded(io.EOF)
	r.after(proofTime - 1)
	r.backend(slow.reply("re a"))
	r.wantAnswers("2:re b", "1:re a")
	r.wantEnd(Finished)
	if m := r.cfg.Methods; m.open("fire") || m.learned["slow"].passed != 0 {
		t.Error("the server answers out of order, and something would be learned of it")
	}
}

func TestClientThatGoesOnDoesNotWaitForACallThatMayBeOneway(t *testing.T) {
	r := newRig(t)
	r.client(oneway("two-way", "a"))
	answered := r.last()
	r.client(twoWay("fire", 1, "b"))
	r.backend(answered.reply("spoils the connection"))
	r.client(twoWay("echo", 2, "c"))
	r.wantReleased()
	r.after(proofTime)
	r.wantReleased(Facts{Fault: OnewayAnswered, Used: true})
	if r.leases != 2 {
		t.Fatalf("%d leases, want another for the next request", r.leases)
	}
	r.reply("re c")
	r.wantAnswers("1!6:no reply came", "2:re c")
}

func TestCallIsNotWaitedForOnceItsMethodIsLearned(t *testing.T) {
	m := NewMethods(nil, true)
	r := newRig(t, func(c *Config) { c.Methods = m })
	r.client(twoWay("fire", 1, "a"))
	r.clientEnded(io.EOF)
	for range proofs {
		m.passedOver("fire")
	}
	r.after(proofTime)
	r.after(quarantine)
	r.wantReleased(clean)
	r.wantEnd(Finished)
}

func TestExceptionIsNoAnswerToLearnFrom(t *testing.T) {
	m := NewMethods(nil, true)
	for range proofs {
		proof(t, m, "fire")
	}
	r := newRig(t, func(c *Config) { c.Methods = m })
	r.client(twoWay("fire", 1, "what the server cannot read"))
	r.backend(r.last().exception(frame.CodeInternalError, "bad arguments"))
	r.wantAnswers("1!6:bad arguments")
	if !m.Oneway("fire") {
		t.Error("one bad call unlearned the method for everybody")
	}
	r.client(twoWay("unknown", 2, "a"))
	r.backend(r.last().exception(frame.CodeUnknownMethod, "no such method"))
	if m.learned["unknown"] != nil {
		t.Error("a method that is not known is remembered; clients can name anything")
	}
}

func TestLateAnswerOnAnIdleConnectionUnlearns(t *testing.T) {
	m := NewMethods(nil, true)
	for range proofs {
		proof(t, m, "slow")
	}
	conn := NewConn()
	r := newRig(t, func(c *Config) { c.Methods = m })
	r.conn = conn
	r.client(twoWay("slow", 1, "a"))
	late := r.last().reply("late")
	r.after(quarantine)
	r.wantReleased(clean)
	if r.cfg.Disowned(conn, twoWayReply("slow", 1, "another's")) || r.cfg.Disowned(conn, []byte("no message")) || !m.Oneway("slow") {
		t.Error("something else was taken for the late answer")
	}
	if !r.cfg.Disowned(conn, late) || m.Oneway("slow") {
		t.Error("the late answer was not known, or taught nothing")
	}
}

func TestMoreOnewayCallsThanAreRememberedSpoilTheConnection(t *testing.T) {
	for n, want := range map[int]Facts{maxGhosts: {Used: true}, maxGhosts + 1: {Used: true, Crowded: true}} {
		r := newRig(t)
		for range n {
			r.client(oneway("fire", "a"))
		}
		r.after(quarantine)
		r.wantReleased(want)
	}
}

func TestOnlyALoneCallIsKeptToBeSentAgain(t *testing.T) {
	r := newRig(t)
	for range 5 {
		r.client(oneway("fire", big(10<<10)))
	}
	for i := range r.m.calls[:4] {
		if r.m.calls[i].raw.len() > 0 {
			t.Errorf("call %d is kept", i)
		}
	}
}

func TestMethodIsLearnedWhileItsEarlierCallsAreOut(t *testing.T) {
	r := newRig(t)
	for i := range uint64(3) {
		r.client(join(twoWay("fire", 0, "a"), twoWay("echo", i, "b")))
		r.reply("re b")
		r.wantAnswers(fmt.Sprint(i, ":re b"))
	}
	r.wantReleased()
	r.after(proofTime)
	r.wantReleased(clean)
	if !r.cfg.Methods.Oneway("fire") {
		t.Fatal("not learned")
	}
}

func TestAnswerUnlearnsAMethodForGood(t *testing.T) {
	var told []string
	m := NewMethods(nil, true)
	for range proofs {
		proof(t, m, "fire")
	}
	m.Learned = func(name string, oneway bool) { told = append(told, fmt.Sprint(name, oneway)) }
	r := newRig(t, func(c *Config) { c.Methods = m })
	r.client(twoWay("fire", 1, "a"))
	r.reply("re a")
	r.wantAnswers("1:re a") // it was typed as a call: its client waits
	r.wantReleased(clean)
	if m.Oneway("fire") || fmt.Sprint(told) != "[firefalse]" || r.m.Stats.Oneways != 0 {
		t.Errorf("oneway %v, told %q, %d oneways", m.Oneway("fire"), told, r.m.Stats.Oneways)
	}
	r.client(join(twoWay("fire", 2, "a"), twoWay("echo", 3, "b")))
	if len(r.requests()) != 1 {
		t.Error("a call went out behind one that is known to be answered")
	}
}

func TestLearnedMethodIsUnlearnedByAGhostsAnswer(t *testing.T) {
	m := NewMethods(nil, true)
	for range proofs {
		proof(t, m, "fire")
	}
	conn := NewConn()
	r := newRig(t, func(c *Config) { c.Methods = m })
	r.conn = conn
	r.client(twoWay("fire", 1, "a"))
	late := r.last()
	r.after(quarantine)
	r.conn = conn
	r.client(twoWay("echo", 2, "b"))
	r.backend(late.reply("late"))
	r.wantAnswers()
	if m.Oneway("fire") {
		t.Error("still oneway")
	}
}

func TestServerThatAnswersOutOfOrderEndsLearning(t *testing.T) {
	r := newRig(t)
	r.client(join(twoWay("slow", 1, "a"), twoWay("echo", 2, "b")))
	all := r.requests()
	r.backend(join(all[1].reply("re b"), all[0].reply("re a")))
	r.wantAnswers("2:re b", "1:re a")
	r.wantReleased(clean)
	if r.cfg.Methods.open("another") {
		t.Error("calls still go out behind one that is not known")
	}
	for range proofs {
		r.cfg.Methods.passedOver("fire")
	}
	if r.cfg.Methods.Oneway("fire") {
		t.Error("still learns")
	}
}

func TestLateReplyThatArrivesWhenItsTimeIsUpIsDelivered(t *testing.T) {
	r := newRig(t)
	r.client(join(twoWay("slow", 1, "a"), twoWay("echo", 2, "b")))
	all := r.requests()
	r.backend(all[1].reply("re b"))
	r.after(replyTimeout - time.Second)
	p := all[0].reply("re a")
	r.backend(p[:len(p)-1])
	r.after(2 * time.Second)
	r.backend(p[len(p)-1:])
	r.wantAnswers("2:re b", "1:re a")
	r.wantReleased(clean)
}

func TestUnansweredCallsAreBounded(t *testing.T) {
	r := newRig(t)
	for i := range uint64(maxCalls) {
		r.client(twoWay("fire", i, "a"))
	}
	r.client(twoWay("fire", 99, "a"))
	if n := len(r.requests()); n != maxCalls {
		t.Fatalf("%d calls are out", n)
	}
}

func TestClientIsServedThoughItsPassedCallsAreManyAndHaveNoTimeout(t *testing.T) {
	r := newRig(t, func(c *Config) { c.ReplyTimeout = 0 })
	for i := range uint64(maxCalls - 1) {
		r.client(twoWay(fmt.Sprint("fire", i), i, "a"))
	}
	r.client(twoWay("echo", 1000, "b"))
	r.reply("re b")
	r.wantReleased(Facts{Outstanding: maxCalls - 1, Used: true})
	r.client(join(twoWay("fire", 1001, "a"), twoWay("echo", 1002, "c")))
	r.reply("re c")
	r.wantAnswers("1000:re b", "1002:re c")
}

func TestCallsBehindALongReplyHaveTheirTimeAfterIt(t *testing.T) {
	r := newRig(t)
	r.client(join(twoWay("new", 1, "a"), twoWay("echo", 2, "b")))
	all := r.requests()
	p := all[0].reply(big(200 << 10))
	for len(p) > 0 {
		n := min(10<<10, len(p))
		r.backend(p[:n])
		p = p[n:]
		r.after(replyTimeout - time.Second)
	}
	r.backend(all[1].reply("re b"))
	r.wantAnswers("1:"+big(200<<10), "2:re b")
	r.wantReleased(clean)
}

func TestNoRequestGoesOutBehindOneThatIsAnswered(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"its method is known to be":       func(c *Config) {},
		"nothing is learned":              func(c *Config) { c.Methods = NewMethods(nil, false) },
		"a server was seen to take turns": func(c *Config) { c.Methods.outOfOrder() },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, change)
			r.client(join(twoWay("echo", 1, "a"), twoWay("echo", 2, "b")))
			if len(r.requests()) != 1 {
				t.Fatalf("%d requests are out", len(r.requests()))
			}
		})
	}
}
