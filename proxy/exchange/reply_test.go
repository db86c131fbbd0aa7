package exchange

import (
	"io"
	"testing"
	"time"

	"forebay/proxy/frame"
)

func TestReplyThatDoesNotMatchIsForNobody(t *testing.T) {
	for _, tt := range []struct {
		name  string
		reply func(m message) []byte
		want  Fault
	}{
		{"another id", func(m message) []byte { return framed(frame.Reply, "echo", m.head.ID.Seq+1, "secret") }, WrongReply},
		{"another method", func(m message) []byte { return framed(frame.Reply, "other", m.head.ID.Seq, "secret") }, WrongReply},
		{"a call", func(m message) []byte { return framed(frame.Call, "echo", m.head.ID.Seq, "secret") }, WrongReply},
		{"a oneway call", func(m message) []byte { return framed(frame.Oneway, "echo", m.head.ID.Seq, "secret") }, WrongReply},
		{"JSON", func(m message) []byte { return []byte(`[1,"echo",2,7,{"secret":1}]`) }, WrongReply},
		{"no Thrift", func(m message) []byte { return []byte("HTTP/1.1 200 OK\r\n\r\nsecret") }, MalformedReply},
		{"a body that is none", func(m message) []byte { return append(strict(frame.Reply, "echo", m.head.ID.Seq), 99) }, MalformedReply},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.client(twoWay("echo", 7, "a"))
			p := tt.reply(r.last())
			r.m.ReadBackend(p)
			r.run()
			r.wantAnswers("7!6:did not match")
			r.wantFault(tt.want)
			if got, want := string(r.m.Oddity()), string(p[:min(16, len(p))]); got != want {
				t.Errorf("oddity %q; want %q", got, want)
			}
			r.client(twoWay("echo", 8, "b"))
			r.reply("re b")
			r.wantAnswers("8:re b")
			r.wantReleased(clean)
		})
	}
}

func TestReplyWithTheFullNameMatches(t *testing.T) {
	for _, name := range []string{"echo", "Service:echo"} {
		r := newRig(t)
		r.client(twoWay("Service:echo", 7, "a"))
		r.backend(framed(frame.Reply, name, r.last().head.ID.Seq, "re a"))
		r.wantAnswers("7:re a")
		r.wantReleased(clean)
	}
}

func TestStrayBytesBehindAReply(t *testing.T) {
	again := func(id uint64) []byte { return twoWayReply("echo", id, "secret") }
	for name, stray := range map[string]func(id uint64) []byte{
		"a byte":      func(id uint64) []byte { return again(id)[:1] },
		"part of one": func(id uint64) []byte { return again(id)[:15] },
		"another one": again,
		"no reply":    func(uint64) []byte { return []byte("HTTP/1.1 408 Request Timeout") },
	} {
		for _, pooling := range []bool{false, true} {
			r := newRig(t, func(c *Config) { c.Session = pooling })
			r.client(twoWay("echo", 7, "a"))
			id := r.last().head.ID.Seq
			p := stray(id)
			r.m.ReadBackend(join(twoWayReply("echo", id, "re a"), p))
			r.run()
			r.wantAnswers("7:re a")
			if r.wantFault(StrayBytes); string(r.m.Oddity()) != string(p[:min(16, len(p))]) {
				t.Errorf("%s: oddity %q", name, r.m.Oddity())
			}
		}
	}
}

func TestStrayBytesBetweenTheRequestsOfASession(t *testing.T) {
	r := newRig(t, session)
	r.client(twoWay("echo", 7, "a"))
	r.reply("re a")
	r.backend([]byte{0})
	r.wantAnswers("7:re a")
	r.wantFault(StrayBytes)
}

func TestReplyCutShort(t *testing.T) {
	t.Run("of which the client has nothing", func(t *testing.T) {
		for _, n := range []int{0, 1, 20, 1000} {
			r := newRig(t)
			r.client(twoWay("echo", 7, "a"))
			r.backend(r.last().reply(big(2000))[:n])
			r.backendEnded(io.EOF, false)
			r.wantAnswers("7!6:closed its connection")
			r.wantReleased(Facts{Fault: BackendEnded, MidReply: n > 0, Used: true})
			r.wantNotDone()
		}
	})
	t.Run("of which the client has a part", func(t *testing.T) {
		r := newRig(t)
		r.client(twoWay("echo", 7, "a"))
		r.backend(r.last().reply(big(200 << 10))[:100<<10])
		r.backendEnded(errReset, false)
		r.wantEnd(BrokenReply)
		r.wantReleased(Facts{Fault: BackendEnded, MidReply: true, Used: true})
		if !r.m.Abrupt() || len(r.got) != 100<<10 {
			t.Errorf("abrupt %v; the client got %d bytes", r.m.Abrupt(), len(r.got))
		}
	})
	t.Run("by a malformed body, of which the client has a part", func(t *testing.T) {
		r := newRig(t)
		r.client(twoWay("echo", 7, "a"))
		r.backend(join(strict(frame.Reply, "echo", r.last().head.ID.Seq), longString(100<<10)))
		r.m.ReadBackend([]byte{99})
		r.run()
		r.wantEnd(BrokenReply)
	})
}

func TestNoReplyInTime(t *testing.T) {
	r := newRig(t)
	r.client(twoWay("echo", 7, "a"))
	id := r.last().head.ID.Seq
	r.after(replyTimeout - 1)
	r.wantAnswers()
	r.after(1)
	r.wantAnswers("7!6:no reply within 10s")
	r.wantReleased(Facts{Fault: ReplyTimeout, Used: true})
	r.client(twoWay("echo", 8, "b"))
	r.m.ReadBackend(framed(frame.Reply, "echo", id, "late"))
	r.run()
	r.wantAnswers("8!6:did not match")
}

func TestReplyTimeoutIsToldThoughTheSessionWouldBeIdle(t *testing.T) {
	for name, slow := range map[string]bool{"sent": false, "unsent": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(c *Config) { c.IdleTimeout = replyTimeout })
			r.slowBackend = slow
			r.client(twoWay("echo", 7, "a"))
			r.after(replyTimeout)
			r.wantAnswers("7!6:10s")
			r.wantNotDone()
			r.after(replyTimeout)
			r.wantEnd(Idle)
		})
	}
}

func TestReplyThatHasBegunIsInTimeWhileItMoves(t *testing.T) {
	r := newRig(t)
	r.client(twoWay("echo", 7, "a"))
	p := r.last().reply("0123456789")
	r.backend(p[:len(p)-10])
	for i := len(p) - 10; i < len(p); i++ {
		r.after(replyTimeout * 9 / 10)
		r.backend(p[i : i+1])
	}
	r.wantAnswers("7:0123456789")
	r.wantReleased(clean)
}

func TestTransferThatStalls(t *testing.T) {
	t.Run("of the request", func(t *testing.T) {
		r := newRig(t)
		r.slowBackend = true
		r.client(twoWay("echo", 7, "a"))
		r.m.WroteBackend(5)
		r.after(replyTimeout)
		r.wantAnswers("7!6:nothing moved for 10s")
		r.wantReleased(Facts{Fault: ReplyTimeout, Used: true})
	})
	t.Run("of a streamed request, which is read before the answer", func(t *testing.T) {
		r := newRig(t)
		r.slowBackend = true
		whole := twoWay("echo", 7, big(200<<10))
		r.client(whole[:maxFlight])
		r.after(replyTimeout)
		r.wantAnswers()
		r.wantReleased(Facts{Fault: ReplyTimeout})
		r.client(whole[maxFlight:])
		r.wantAnswers("7!6:nothing moved for 10s")
		r.wantNotDone()
	})
	t.Run("of the reply", func(t *testing.T) {
		r := newRig(t)
		r.client(twoWay("echo", 7, "a"))
		r.backend(r.last().reply(big(1000))[:500])
		r.after(replyTimeout)
		r.wantAnswers("7!6:nothing moved for 10s")
		r.wantReleased(Facts{Fault: ReplyTimeout, MidReply: true, Used: true})
	})
	t.Run("of a reply that the client has a part of", func(t *testing.T) {
		r := newRig(t)
		r.client(twoWay("echo", 7, "a"))
		r.backend(r.last().reply(big(200 << 10))[:100<<10])
		r.after(replyTimeout)
		r.wantEnd(BrokenReply)
	})
}

func TestExceptionsThatLeaveAServerOutOfStep(t *testing.T) {
	for code := int32(0); code < 12; code++ {
		r := newRig(t)
		r.client(twoWay("echo", 7, "a"))
		r.backend(r.last().exception(code, "why"))
		want := Facts{Fault: BadException, Used: true}
		if code == frame.CodeUnknownMethod || code == frame.CodeInternalError {
			want = clean
		}
		r.wantReleased(want)
		if got := messages(t, r.cfg.Codec.Replies(), r.got); len(got) != 1 || got[0].head.ID.Seq != 7 {
			t.Errorf("code %d: the client got %+v", code, got)
		}
	}
	t.Run("that cannot be read", func(t *testing.T) {
		r := newRig(t)
		r.client(twoWay("echo", 7, "a"))
		r.backend(framed(frame.Exception, "echo", r.last().head.ID.Seq, "\xff"))
		r.wantReleased(Facts{Fault: BadException, Used: true})
	})
	t.Run("that is too long", func(t *testing.T) {
		r := newRig(t)
		r.client(twoWay("echo", 7, "a"))
		r.backend(r.last().exception(frame.CodeInternalError, big(200<<10)))
		r.wantReleased(Facts{Fault: BadException, Used: true})
	})
}

func TestSlowClient(t *testing.T) {
	t.Run("does not hold the lease, where its reply fits", func(t *testing.T) {
		r := newRig(t)
		r.slowClient = true
		r.client(twoWay("echo", 7, "a"))
		r.reply(big(200 << 10))
		r.wantReleased(clean)
		if n := int64(r.m.toClient.len()); n < 200<<10 || r.cfg.Budget.Held() != n {
			t.Errorf("%d bytes to the client, %d of the budget", n, r.cfg.Budget.Held())
		}
		r.slowClient = false
		r.run()
		r.wantAnswers("7:" + big(200<<10))
		if r.cfg.Budget.Held() != 0 {
			t.Errorf("%d of the budget held", r.cfg.Budget.Held())
		}
	})
	t.Run("has the backend wait, where it does not", func(t *testing.T) {
		r := newRig(t)
		r.slowClient = true
		r.client(twoWay("echo", 7, "a"))
		p := r.last().reply(big(1 << 20))
		rest := readAll(r, p)
		if held := len(p) - len(rest); r.step.FromBackend != 0 || held < replyBuffer || held > replyBuffer+maxRead {
			t.Fatalf("%d bytes read, %d more wanted", held, r.step.FromBackend)
		}
		r.slowClient = false
		r.backend(rest)
		r.wantAnswers("7:" + big(1<<20))
		r.wantReleased(clean)
	})
	t.Run("has the backend wait, where the budget of all is exhausted", func(t *testing.T) {
		r := newRig(t)
		r.cfg.Budget.Max = 100 << 10
		r.slowClient = true
		r.client(twoWay("echo", 7, "a"))
		p := r.last().reply(big(1 << 20))
		rest := readAll(r, p)
		if held := len(p) - len(rest); held < 100<<10 || held > 100<<10+maxRead {
			t.Fatalf("%d bytes read", held)
		}
		r.slowClient = false
		r.backend(rest)
		r.wantAnswers("7:" + big(1<<20))
	})
	t.Run("is given up after the idle timeout, by a reset", func(t *testing.T) {
		r := newRig(t)
		r.slowClient = true
		r.client(twoWay("echo", 7, "a"))
		readAll(r, r.last().reply(big(1<<20)))
		r.after(idleTimeout)
		r.wantEnd(Idle)
		r.wantReleased(Facts{Outstanding: 1, MidReply: true, Used: true})
		if !r.m.Abrupt() {
			t.Error("the client is not told that it lacks a part")
		}
	})
	t.Run("that does not end its request while it has part of an early reply is reset", func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.IdleTimeout = replyTimeout / 2 })
		r.client(twoWay("echo", 7, big(200<<10))[:100<<10])
		r.backend(twoWayReply("echo", headOf(t, r.sent).ID.Seq, big(200<<10))[:100<<10])
		r.after(replyTimeout / 2)
		r.wantEnd(Idle)
		if !r.m.Abrupt() {
			t.Error("the client is not told that it lacks a part")
		}
	})
	t.Run("that has taken all there is, is not cut off by a reset", func(t *testing.T) {
		r := newRig(t)
		r.client(twoWay("echo", 7, "a"))
		r.reply("re a")
		r.after(idleTimeout)
		r.wantEnd(Idle)
		if r.m.Abrupt() {
			t.Error("abrupt")
		}
	})
}

// readAll has the backend send p as far as the machine takes it, and returns the
// rest.
func readAll(r *rig, p []byte) []byte {
	r.run()
	for len(p) > 0 && r.step.FromBackend > 0 {
		n := min(len(p), r.step.FromBackend)
		r.m.ReadBackend(p[:n])
		p = p[n:]
		r.run()
	}
	return p
}

func TestIdleTimeout(t *testing.T) {
	for _, tt := range []struct {
		name string
		sent []byte
	}{
		{"nothing", nil},
		{"part of a request", twoWay("echo", 1, "a")[:9]},
		{"part of a streamed request", twoWay("echo", 1, big(200<<10))[:100<<10]},
		{"part of a streamed oneway call", oneway("fire", big(200<<10))[:100<<10]},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.client(tt.sent)
			r.after(idleTimeout - 1)
			r.wantNotDone()
			r.after(1)
			r.wantEnd(Idle)
			if r.leases > 0 {
				r.wantReleased(Facts{Outstanding: 1, MidRequest: true, Used: true})
			}
		})
	}
	t.Run("does not end a session that waits for a reply", func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.ReplyTimeout = 0 })
		r.client(twoWay("echo", 1, "a"))
		r.after(time.Hour)
		r.reply("re a")
		r.wantAnswers("1:re a")
		r.after(idleTimeout - 1)
		r.wantNotDone()
		r.after(1)
		r.wantEnd(Idle)
	})
	t.Run("shorter than the quarantine, or the wait for a dropped reply", func(t *testing.T) {
		for _, gone := range []bool{false, true} {
			r := newRig(t, func(c *Config) { c.IdleTimeout, c.Quarantine = 10*time.Millisecond, 100*time.Millisecond })
			r.client(oneway("fire", "a"))
			if gone {
				r.clientEnded(errReset)
			}
			r.after(99 * time.Millisecond)
			r.wantReleased()
			r.after(time.Millisecond)
			r.wantReleased(clean)
		}
	})
	t.Run("while a oneway call is sent to a backend that takes nothing", func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.ReplyTimeout = 0 })
		r.slowBackend = true
		r.client(oneway("fire", "a"))
		r.after(idleTimeout)
		r.wantEnd(Idle)
	})
}
