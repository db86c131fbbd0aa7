package exchange

import (
	"io"
	"testing"
)

func TestRequestIsSentAgainWhereThatIsSafe(t *testing.T) {
	const exception = "1!6:closed its connection"
	for _, tt := range []struct {
		name        string
		request     []byte
		reused      bool
		undelivered bool
		before      func(r *rig) // the end
		change      func(c *Config)
		part        bool // only a part of it was taken
		again       bool
	}{
		{name: "undelivered", request: twoWay("echo", 1, "a"), undelivered: true, again: true},
		{name: "undelivered, on a connection that was used", request: twoWay("echo", 1, "a"), undelivered: true, reused: true, again: true},
		{name: "undelivered, in part", request: twoWay("echo", 1, "a"), undelivered: true, again: true, part: true},
		{name: "delivered", request: twoWay("echo", 1, "a"), reused: true},
		{name: "idempotent", request: twoWay("get", 1, "a"), reused: true, again: true},
		{name: "idempotent, of a service", request: twoWay("Service:get", 1, "a"), reused: true, again: true},
		{name: "idempotent, on a new connection", request: twoWay("get", 1, "a")},
		{name: "idempotent, with a byte of the reply", request: twoWay("get", 1, "a"), reused: true,
			before: func(r *rig) { r.backend(r.last().reply("re a")[:1]) }},
		{name: "idempotent, with the reply half read", request: twoWay("get", 1, "a"), reused: true,
			before: func(r *rig) { p := r.last().reply("re a"); r.backend(p[:len(p)-1]) }},
		{name: "undelivered, but too large to be kept", request: twoWay("echo", 1, big(100<<10)), undelivered: true},
		{name: "idempotent, but too large to be kept", request: twoWay("get", 1, big(100<<10)), reused: true},
		{name: "undelivered, the first of a session", request: twoWay("echo", 1, "a"), undelivered: true, change: session, again: true},
		{name: "undelivered, while the next request is read", request: twoWay("new", 1, "a"), undelivered: true,
			before: func(r *rig) { r.client([]byte{0}) }},
		{name: "undelivered, behind another", request: join(twoWay("new", 0, "0"), twoWay("echo", 1, "a")), undelivered: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			if tt.change != nil {
				tt.change(r.cfg)
			}
			r.conn = NewConn()
			r.conn.Reused = tt.reused
			r.slowBackend = tt.part
			r.client(tt.request)
			if tt.part {
				r.m.WroteBackend(5)
				r.slowBackend = false
			}
			if tt.before != nil {
				tt.before(r)
			}
			r.backendEnded(io.EOF, tt.undelivered)
			if r.leases == 2 != tt.again {
				t.Fatalf("%d leases", r.leases)
			}
			if !tt.again {
				got := messages(t, r.cfg.Codec.Replies(), r.got)
				if len(got) == 0 || got[len(got)-1].head.ID.Seq != 1 {
					t.Fatalf("the client got %+v", got)
				}
				r.got = got[len(got)-1].raw
				r.wantAnswers(exception)
				if r.m.Stats.Stale+r.m.Stats.Repeats != 0 {
					t.Errorf("stats %+v", r.m.Stats)
				}
				return
			}
			if got := r.last().body(); got != "a" {
				t.Errorf("%q was sent again", got)
			}
			if want := map[bool]Fault{true: Stale, false: BackendEnded}[tt.undelivered]; r.released[0].Fault != want {
				t.Errorf("released with %+v", r.released)
			}
			r.reply("re a")
			r.wantAnswers("1:re a")
		})
	}
}

func TestOnewayCallIsSentAgainOnlyIfUndelivered(t *testing.T) {
	for _, undelivered := range []bool{false, true} {
		r := newRig(t)
		r.conn = NewConn()
		r.conn.Reused = true
		r.client(oneway("get", "a"))
		r.backendEnded(io.EOF, undelivered)
		if again := r.leases == 2; again != undelivered {
			t.Errorf("undelivered %v: %d leases", undelivered, r.leases)
		}
		r.after(quarantine)
		r.wantAnswers()
		if s := r.m.Stats; s.Oneways != 1 || s.Requests != 1 {
			t.Errorf("stats %+v", s)
		}
	}
}

func TestUndeliveredOnewayCallOfAClientThatHasSentItsFINIsSentAgain(t *testing.T) {
	r := newRig(t)
	r.client(oneway("fire", "a"))
	r.clientEnded(io.EOF)
	r.backendEnded(io.EOF, true)
	if r.leases != 2 || len(r.requests()) != 1 {
		t.Fatalf("%d leases, %d requests on the last", r.leases, len(r.requests()))
	}
	r.after(quarantine)
	r.wantEnd(Finished)
}

func TestUndeliveredRequestIsSentAgainABoundedNumberOfTimes(t *testing.T) {
	r := newRig(t)
	r.client(twoWay("echo", 1, "a"))
	for i := range maxAttempts {
		if r.leases != i+1 {
			t.Fatalf("%d leases after %d attempts", r.leases, i)
		}
		r.backendEnded(io.EOF, true)
	}
	r.backendEnded(io.EOF, true)
	r.wantAnswers("1!6:closed its connection")
	if s := r.m.Stats; s.Stale != maxAttempts || s.Errors != 1 || s.Requests != 1 {
		t.Errorf("stats %+v", s)
	}
}

func TestIdempotentRequestIsRepeatedOnce(t *testing.T) {
	used := func() *Conn { c := NewConn(); c.Reused = true; return c }
	r := newRig(t)
	r.conn = used()
	r.client(twoWay("get", 1, "a"))
	r.conn = used()
	r.backendEnded(io.EOF, false)
	r.conn = used()
	r.backendEnded(io.EOF, true) // this one does not count
	r.conn = used()
	r.backendEnded(io.EOF, false)
	r.wantAnswers("1!6:closed its connection")
	if s := r.m.Stats; r.leases != 3 || s.Repeats != 1 || s.Stale != 1 {
		t.Errorf("%d leases, stats %+v", r.leases, s)
	}
}

func TestNothingIsSentAgainAfterATimeout(t *testing.T) {
	r := newRig(t)
	r.conn = NewConn()
	r.conn.Reused = true
	r.client(twoWay("get", 1, "a"))
	r.after(replyTimeout)
	r.wantAnswers("1!6:no reply within")
	if r.leases != 1 {
		t.Errorf("%d leases", r.leases)
	}
}

func TestRequestThatCannotBeSentAgainIsAnswered(t *testing.T) {
	r := newRig(t)
	r.client(twoWay("echo", 1, "a"))
	r.refuse = "no backend"
	r.backendEnded(io.EOF, true)
	r.wantAnswers("1!6:no backend")
}

func TestBackendThatEndsWhileARequestIsStreamed(t *testing.T) {
	r := newRig(t)
	whole := twoWay("echo", 1, big(200<<10))
	r.client(whole[:100<<10])
	r.backendEnded(errReset, false)
	r.wantAnswers() // it has not been read yet
	r.client(whole[100<<10:])
	r.wantAnswers("1!6:closed its connection")
	r.wantNotDone()
}

func TestBackendThatEndsInAQuarantineIsNotKept(t *testing.T) {
	r := newRig(t)
	r.client(oneway("fire", "a"))
	r.backendEnded(io.EOF, false)
	r.wantFault(BackendEnded)
	r.wantNotDone()
}
