package exchange

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"forebay/proxy/frame"
)

// TestEachConditionOfReuseAlone has for each thing that forbids a connection to
// serve another client a lease that ends with that alone. What is in the middle of a
// message belongs to a call that is outstanding.
func TestEachConditionOfReuseAlone(t *testing.T) {
	ask := func(r *rig) message { r.client(twoWay("echo", 1, "a")); return r.last() }
	for _, tt := range []struct {
		name string
		do   func(r *rig)
		want Facts
	}{
		{"none", func(r *rig) { ask(r); r.reply("re a") }, Facts{}},
		{"a reply is outstanding", func(r *rig) {
			r.client(join(twoWay("fire", 0, "x"), twoWay("echo", 1, "a")))
			r.reply("re a")
			r.clientEnded(io.EOF)
			r.after(proofTime)
		}, Facts{Outstanding: 1}},
		{"a quarantine is not over", func(r *rig) { r.client(oneway("fire", "a")); r.m.Cut(); r.run() },
			Facts{Outstanding: 1, Fault: Interrupted}},
		{"a request is sent in part", func(r *rig) {
			r.client(twoWay("echo", 1, big(200<<10))[:100<<10])
			r.after(idleTimeout)
		}, Facts{Outstanding: 1, MidRequest: true}},
		{"a reply is read in part", func(r *rig) {
			r.slowClient = true
			p := ask(r).reply(big(1 << 20))
			readAll(r, p)
			r.after(idleTimeout)
		}, Facts{Outstanding: 1, MidReply: true}},
		{"a wrong reply", func(r *rig) {
			ask(r)
			r.m.ReadBackend(framed(frame.Reply, "other", 1, "x"))
			r.run()
		}, Facts{Fault: WrongReply}},
		{"stray bytes", func(r *rig) {
			m := ask(r)
			r.m.ReadBackend(join(m.reply("re a"), m.reply("re a")))
			r.run()
		}, Facts{Fault: StrayBytes}},
		{"a oneway call that is answered", func(r *rig) {
			r.client(join(oneway("echo", "x"), twoWay("echo", 1, "a")))
			all := r.requests()
			r.backend(join(all[0].reply("x"), all[1].reply("x")))
		}, Facts{Fault: OnewayAnswered}},
		{"a malformed reply", func(r *rig) {
			ask(r)
			r.m.ReadBackend([]byte("HTTP"))
			r.run()
		}, Facts{Fault: MalformedReply, MidReply: true}},
		{"an early reply", func(r *rig) {
			r.client(twoWay("echo", 1, big(200<<10))[:100<<10])
			r.backend(twoWayReply("echo", headOf(r.t.(*testing.T), r.sent).ID.Seq, "x"))
		}, Facts{Fault: EarlyReply}},
		{"no reply in time", func(r *rig) { ask(r); r.after(replyTimeout) }, Facts{Fault: ReplyTimeout}},
		{"a FIN", func(r *rig) { ask(r); r.backendEnded(io.EOF, false) }, Facts{Fault: BackendEnded}},
		{"a reset", func(r *rig) { ask(r); r.backendEnded(errReset, false) }, Facts{Fault: BackendEnded}},
		{"an exception", func(r *rig) { r.backend(ask(r).exception(frame.CodeProtocolError, "")) }, Facts{Fault: BadException}},
		{"a client that left in its request", func(r *rig) {
			r.client(join(strict(frame.Call, "echo", 1), longString(100<<10)))
			r.client([]byte{99})
		}, Facts{Fault: UnfinishedWrite}},
		{"a reply that nobody waits for", func(r *rig) { ask(r); r.clientEnded(errReset); r.after(drainTime) },
			Facts{Fault: UnreadReply}},
		{"an end before the request", func(r *rig) { ask(r); r.refuse = "x"; r.backendEnded(io.EOF, true) }, Facts{Fault: Stale}},
		{"a cut", func(r *rig) {
			r.cfg.Session = true
			ask(r)
			r.reply("re a")
			r.m.Cut()
			r.run()
		}, Facts{Fault: Interrupted}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			tt.do(r)
			tt.want.Used = true
			r.wantReleased(tt.want)
			if tt.name != "none" && reusable(tt.want) {
				t.Error("it may serve another client")
			}
		})
	}
}

func TestUnusedLeaseSaysSo(t *testing.T) {
	r := newRig(t)
	r.slowBackend = true
	r.client(twoWay("echo", 1, "a"))
	r.m.Cut()
	r.run()
	r.wantReleased(Facts{Fault: Interrupted, Outstanding: 1, MidRequest: true})
}

func TestFaultsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for f := range NumFaults {
		if name := f.String(); name == "" || seen[name] {
			t.Errorf("fault %d: %q", int(f), name)
		} else {
			seen[name] = true
		}
	}
}

func TestIDsAreUniqueOnAConnectionAndCannotBeGuessed(t *testing.T) {
	a, b := NewConn(), NewConn()
	if a.next == b.next {
		t.Error("two connections begin at the same id")
	}
	for _, bits := range []int{8, 16, 24, 32, 64} {
		seen := map[uint64]bool{}
		for range 200 {
			id := a.newID(bits)
			if seen[id.Seq] || bits < 64 && id.Seq>>bits != 0 || bits == 32 && int32(id.Seq) < 0 {
				t.Fatalf("%d bits: %x", bits, id.Seq)
			}
			seen[id.Seq] = true
		}
	}
}

func TestMemoryIsGivenBack(t *testing.T) {
	r := newRig(t, session)
	r.client(twoWay("echo", 1, big(60<<10)))
	r.reply(big(60 << 10))
	r.run()
	for what, q := range map[string]*queue{"pending": &r.m.pending, "request": &r.m.req.raw, "to client": &r.m.toClient,
		"to backend": &r.m.toBackend, "reply": &r.m.reply.held} {
		if q.chunk != nil {
			t.Errorf("%s: holds memory", what)
		}
	}
}

func TestQueue(t *testing.T) {
	var q queue
	if q.len() != 0 || q.bytes() != nil {
		t.Fatalf("zero: %d, %q", q.len(), q.bytes())
	}
	written, read := 0, 0
	for i := range 1000 { // never empty
		q.append(fmt.Append(nil, i, ","))
		written += len(fmt.Append(nil, i, ","))
		if i > 0 {
			n := len(fmt.Append(nil, i-1, ","))
			if got := string(q.bytes()[:n]); got != fmt.Sprint(i-1, ",") {
				t.Fatalf("%q at %d", got, i)
			}
			q.took(n)
			read += n
		}
		if q.len() != written-read {
			t.Fatalf("%d bytes; want %d", q.len(), written-read)
		}
	}
	if n := len(q.chunk.data); n > 100 {
		t.Errorf("it keeps %d bytes of %d", n, q.len())
	}
	q.drop()
	if q.chunk != nil || q.len() != 0 {
		t.Error("dropped, it holds memory")
	}
}

func TestBudgetIsExhaustedAtItsLimit(t *testing.T) {
	b := &Budget{Max: 10}
	b.add(9)
	if b.exhausted() {
		t.Error("at 9 of 10")
	}
	b.add(1)
	if !b.exhausted() || b.Held() != 10 {
		t.Errorf("at %d of 10", b.Held())
	}
	if !new(Budget).exhausted() {
		t.Error("the zero value holds something")
	}
}

func TestErrorsOfTheClientAreKept(t *testing.T) {
	r := newRig(t)
	r.client([]byte{0, 0, 0, 0})
	r.clientEnded(io.EOF)
	_, err := r.m.End()
	if e := new(frame.Error); !errors.As(err, &e) {
		t.Errorf("%T", err)
	}
}
