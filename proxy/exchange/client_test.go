package exchange

import (
	"io"
	"testing"
	"time"
)

func TestClientFIN(t *testing.T) {
	t.Run("with nothing out ends the session", func(t *testing.T) {
		r := newRig(t)
		r.clientEnded(io.EOF)
		r.wantEnd(Finished)
		if r.leases > 0 || r.m.Abrupt() {
			t.Errorf("%d leases, abrupt %v", r.leases, r.m.Abrupt())
		}
	})
	t.Run("after a request waits for its reply", func(t *testing.T) {
		r := newRig(t)
		r.client(twoWay("echo", 1, "a"))
		r.clientEnded(io.EOF)
		r.wantNotDone()
		r.reply("re a")
		r.wantAnswers("1:re a")
		r.wantEnd(Finished)
		r.wantReleased(clean)
	})
	t.Run("after pipelined requests waits for all of their replies", func(t *testing.T) {
		r := newRig(t)
		r.client(join(twoWay("echo", 1, "a"), twoWay("echo", 2, "b")))
		r.clientEnded(io.EOF)
		r.reply("re a")
		r.wantNotDone()
		r.reply("re b")
		r.wantAnswers("1:re a", "2:re b")
		r.wantEnd(Finished)
	})
	t.Run("after a request that waits for a lease", func(t *testing.T) {
		r := newRig(t)
		r.holdLease = true
		r.client(twoWay("echo", 1, "a"))
		r.clientEnded(io.EOF)
		r.holdLease = false
		r.run()
		r.reply("re a")
		r.wantAnswers("1:re a")
		r.wantEnd(Finished)
	})
	t.Run("before the reply is taken waits for the client", func(t *testing.T) {
		r := newRig(t)
		r.slowClient = true
		r.client(twoWay("echo", 1, "a"))
		r.clientEnded(io.EOF)
		r.reply("re a")
		r.wantNotDone()
		r.slowClient = false
		r.run()
		r.wantAnswers("1:re a")
		r.wantEnd(Finished)
	})
	t.Run("in a request is told of, behind the replies to those before", func(t *testing.T) {
		r := newRig(t)
		r.client(join(twoWay("echo", 1, "a"), twoWay("echo", 2, "b")[:20]))
		r.clientEnded(io.EOF)
		r.reply("re a")
		r.wantAnswers("1:re a", "2!7:cut a request short")
		r.wantEnd(Malformed)
	})
	t.Run("in the head of a request", func(t *testing.T) {
		r := newRig(t)
		r.client(twoWay("echo", 1, "a")[:3])
		r.clientEnded(io.EOF)
		r.wantAnswers()
		r.wantEnd(Malformed)
	})
	t.Run("in a streamed request", func(t *testing.T) {
		r := newRig(t)
		r.client(twoWay("echo", 1, big(200<<10))[:100<<10])
		r.clientEnded(io.EOF)
		r.wantAnswers("1!7:cut a request short")
		r.wantEnd(Malformed)
		r.wantFault(UnfinishedWrite)
	})
	t.Run("in a large request that was refused", func(t *testing.T) {
		r := newRig(t)
		r.refuse = "full"
		r.client(twoWay("echo", 1, big(200<<10))[:100<<10])
		r.clientEnded(io.EOF)
		r.wantAnswers("1!7:cut a request short")
		r.wantEnd(Malformed)
	})
	t.Run("in a oneway call is told to nobody", func(t *testing.T) {
		r := newRig(t)
		r.client(oneway("fire", "a")[:20])
		r.clientEnded(io.EOF)
		r.wantAnswers()
		r.wantEnd(Malformed)
	})
	t.Run("after a oneway call does not make the client wait for the quarantine", func(t *testing.T) {
		r := newRig(t)
		r.client(oneway("fire", "a"))
		r.clientEnded(io.EOF)
		if !r.fin || r.done {
			t.Fatalf("FIN %v, done %v", r.fin, r.done)
		}
		r.after(quarantine)
		r.wantEnd(Finished)
		r.wantReleased(clean)
	})
}

func TestClientGoneCostsNothingBeforeItsRequestIsOut(t *testing.T) {
	for name, p := range map[string][]byte{
		"nothing":           nil,
		"part of a request": twoWay("echo", 1, "a")[:9],
		"a request":         twoWay("echo", 1, "a"),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.holdLease = true
			r.client(p)
			r.clientEnded(errReset)
			r.wantEnd(ClientGone)
			if _, err := r.m.End(); err != errReset || r.leases > 0 {
				t.Errorf("%v; %d leases", err, r.leases)
			}
		})
	}
}

func TestRequestOfAClientThatIsGoneIsNotSentBehindAnother(t *testing.T) {
	r := newRig(t)
	r.client(twoWay("new", 1, "a")) // may be a oneway call
	r.m.ReadClient(twoWay("echo", 2, "b"))
	r.m.ClientEnded(errReset)
	r.run()
	if n := len(r.requests()); n != 1 {
		t.Fatalf("the backend has got %d requests", n)
	}
}

func TestClientGoneInTheMiddleOfItsRequestEndsTheConnection(t *testing.T) {
	r := newRig(t)
	r.client(twoWay("echo", 1, big(200<<10))[:100<<10])
	r.clientEnded(errReset)
	r.wantEnd(ClientGone)
	r.wantReleased(Facts{Fault: UnfinishedWrite, Outstanding: 1, MidRequest: true, Used: true})
}

func TestClientGoneWhileItsWholeRequestIsSent(t *testing.T) {
	for name, taken := range map[string]bool{"which is taken": true, "which is not": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.slowBackend = true
			r.client(twoWay("echo", 1, "a"))
			r.m.WroteBackend(5)
			r.clientEnded(errReset)
			r.wantNotDone()
			if !taken {
				r.after(drainTime)
				r.wantEnd(ClientGone)
				r.wantFault(UnreadReply)
				return
			}
			id := r.m.calls[0].id.Seq
			r.slowBackend = false
			r.run()
			r.backend(twoWayReply("echo", id, "re a"))
			r.wantReleased(clean)
			r.wantEnd(ClientGone)
		})
	}
}

func TestReplyToAClientThatIsGoneIsDropped(t *testing.T) {
	for name, size := range map[string]int{"small": 10, "large": 500 << 10} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.client(twoWay("echo", 1, "a"))
			r.clientEnded(errReset)
			r.after(drainTime - 1)
			r.reply(big(size))
			r.wantAnswers()
			r.wantReleased(clean)
			r.wantEnd(ClientGone)
		})
	}
	t.Run("of which it had a part", func(t *testing.T) {
		r := newRig(t)
		r.client(twoWay("echo", 1, "a"))
		p := r.last().reply(big(500 << 10))
		r.slowClient = true
		rest := readAll(r, p)
		r.clientEnded(errReset)
		if r.cfg.Budget.Held() != 0 {
			t.Errorf("%d of the budget held for nobody", r.cfg.Budget.Held())
		}
		r.backend(rest)
		r.wantReleased(clean)
		r.wantEnd(ClientGone)
	})
	t.Run("unless it does not come in time", func(t *testing.T) {
		r := newRig(t)
		r.client(twoWay("echo", 1, "a"))
		r.clientEnded(errReset)
		r.after(drainTime)
		r.wantEnd(ClientGone)
		r.wantFault(UnreadReply)
	})
	t.Run("unless the backend ends", func(t *testing.T) {
		r := newRig(t)
		r.client(twoWay("get", 1, "a"))
		r.clientEnded(errReset)
		r.backendEnded(errReset, true)
		r.wantEnd(ClientGone)
		r.wantFault(BackendEnded)
		if r.leases != 1 || r.m.Abrupt() {
			t.Errorf("%d leases, abrupt %v", r.leases, r.m.Abrupt())
		}
	})
}

func TestAbortOnFIN(t *testing.T) {
	r := newRig(t, func(c *Config) { c.AbortOnFIN = true })
	r.client(join(twoWay("echo", 1, "a"), twoWay("echo", 2, "b")))
	r.clientEnded(io.EOF)
	r.reply("re a")
	r.wantAnswers()
	r.wantEnd(ClientGone)
	r.wantReleased(clean)
	if r.leases != 1 {
		t.Errorf("%d leases", r.leases)
	}
}

func TestFINAndResetOneAfterTheOther(t *testing.T) {
	r := newRig(t)
	r.client(twoWay("echo", 1, "a"))
	r.clientEnded(io.EOF)
	r.clientEnded(errReset)
	r.reply("re a")
	r.wantAnswers()
	r.wantEnd(ClientGone)
}

func TestDrain(t *testing.T) {
	t.Run("ends a session with nothing out at once", func(t *testing.T) {
		r := newRig(t)
		r.run()
		r.m.Drain()
		r.run()
		r.wantDrained()
	})
	t.Run("lets what is out be answered", func(t *testing.T) {
		r := newRig(t)
		r.slowClient = true
		r.client(twoWay("echo", 1, "a"))
		r.m.Drain()
		r.reply("re a")
		r.wantNotDone()
		r.slowClient = false
		r.run()
		r.wantAnswers("1:re a")
		r.wantDrained()
	})
	t.Run("lets a request that has begun be answered", func(t *testing.T) {
		r := newRig(t)
		whole := twoWay("echo", 1, "a")
		r.client(whole[:5])
		r.m.Drain()
		r.client(whole[5:])
		r.reply("re a")
		r.wantAnswers("1:re a")
		r.wantDrained()
	})
	t.Run("keeps the lease of a session", func(t *testing.T) {
		r := newRig(t, session)
		r.client(twoWay("echo", 1, "a"))
		r.reply("re a")
		r.m.Drain()
		r.run()
		r.wantDrained()
		r.wantReleased(clean)
	})
}

// wantDrained checks that the client is told, and has a moment to see it before what
// it may have sent meanwhile resets its connection.
func (r *rig) wantDrained() {
	r.t.Helper()
	if !r.fin || r.done {
		r.t.Fatalf("FIN sent: %v, done: %v; want a FIN, and then a wait", r.fin, r.done)
	}
	r.client(twoWay("echo", 99, "too late"))
	r.wantNotDone()
	r.clientEnded(io.EOF)
	r.wantEnd(Drained)
}

func TestCutEndsAtOnce(t *testing.T) {
	cut := Facts{Fault: Interrupted, Used: true}
	with := func(outstanding int, midRequest, midReply bool) *Facts {
		f := cut
		f.Outstanding, f.MidRequest, f.MidReply = outstanding, midRequest, midReply
		return &f
	}
	for _, tt := range []struct {
		name string
		do   func(r *rig)
		want *Facts
	}{
		{"with nothing out", func(r *rig) { r.run() }, nil},
		{"in a request", func(r *rig) { r.client(twoWay("echo", 1, "a")[:9]) }, nil},
		{"before a lease", func(r *rig) { r.holdLease = true; r.client(twoWay("echo", 1, "a")) }, nil},
		{"while a request is streamed", func(r *rig) { r.client(twoWay("echo", 1, big(200<<10))[:100<<10]) }, with(1, true, false)},
		{"before a reply", func(r *rig) { r.client(twoWay("echo", 1, "a")) }, with(1, false, false)},
		{"in a reply", func(r *rig) {
			r.client(twoWay("echo", 1, "a"))
			r.backend(r.last().reply("re a")[:9])
		}, with(1, false, true)},
		{"in a quarantine", func(r *rig) { r.client(oneway("fire", "a")) }, with(1, false, false)},
		{"while a reply is dropped", func(r *rig) {
			r.client(twoWay("echo", 1, "a"))
			r.clientEnded(errReset)
		}, with(1, false, false)},
		{"before the reply is taken", func(r *rig) {
			r.slowClient = true
			r.client(twoWay("echo", 1, "a"))
			r.reply("re a")
			r.wantReleased(clean)
		}, nil},
		{"while it lingers", func(r *rig) { r.client([]byte{0, 0, 0, 0}) }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			tt.do(r)
			r.m.Cut()
			for n := 0; ; n++ {
				r.step = r.m.Next(r.now)
				if r.step.Op == Wait || n > 3 {
					t.Fatalf("it waits: %s", show(r.step))
				}
				if !r.act() {
					break
				}
			}
			r.check()
			if !r.done || !r.m.Abrupt() {
				t.Errorf("done %v, abrupt %v", r.done, r.m.Abrupt())
			}
			if tt.want != nil {
				r.wantReleased(*tt.want)
			} else {
				r.wantReleased()
			}
		})
	}
}

func TestLingerIsBounded(t *testing.T) {
	r := newRig(t, func(c *Config) { c.IdleTimeout = 0 })
	r.client([]byte{0, 0, 0, 0})
	for range 10 {
		r.after(lingerTime / 11)
		r.client([]byte("more"))
	}
	r.wantNotDone()
	r.after(time.Second)
	r.wantEnd(Malformed)
}
