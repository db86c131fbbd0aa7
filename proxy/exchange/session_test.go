package exchange

import (
	"io"
	"testing"

	"forebay/proxy/frame"
)

func TestSessionKeepsItsLease(t *testing.T) {
	r := newRig(t, session)
	for i := range uint64(3) {
		r.client(twoWay("echo", i, "a"))
		r.reply("re a")
	}
	r.client(oneway("fire", "a"))
	r.after(2 * quarantine)
	r.wantAnswers("0:re a", "1:re a", "2:re a")
	r.wantReleased()
	if r.leases != 1 || len(r.requests()) != 4 {
		t.Fatalf("%d leases, %d requests", r.leases, len(r.requests()))
	}
	r.clientEnded(io.EOF)
	r.wantReleased(clean)
	r.wantEnd(Finished)
}

func TestSessionEndsWithItsBackend(t *testing.T) {
	for name, undelivered := range map[string]bool{"delivered": false, "undelivered": true} {
		t.Run("between requests, "+name, func(t *testing.T) {
			r := newRig(t, session)
			r.client(twoWay("echo", 1, "a"))
			r.reply("re a")
			r.backendEnded(io.EOF, undelivered)
			r.wantEnd(BackendClosed)
			if r.m.Abrupt() {
				t.Error("abrupt")
			}
		})
		t.Run("in a request, which is not sent again, "+name, func(t *testing.T) {
			r := newRig(t, session)
			r.client(twoWay("get", 1, "a"))
			r.reply("re a")
			r.client(twoWay("get", 2, "b"))
			r.backendEnded(io.EOF, undelivered)
			r.wantAnswers("1:re a", "2!6:closed its connection")
			r.clientEnded(io.EOF)
			r.wantEnd(BackendClosed)
			if r.leases != 1 {
				t.Errorf("%d leases", r.leases)
			}
		})
	}
	t.Run("in a streamed request, which is read and answered first", func(t *testing.T) {
		r := newRig(t, session)
		whole := twoWay("echo", 1, big(200<<10))
		r.client(whole[:100<<10])
		r.backendEnded(errReset, false)
		r.wantNotDone()
		r.client(whole[100<<10:])
		r.wantAnswers("1!6:closed its connection")
		r.clientEnded(io.EOF)
		r.wantEnd(BackendClosed)
	})
	t.Run("while the next request is there, which goes nowhere else", func(t *testing.T) {
		r := newRig(t, session)
		r.client(twoWay("echo", 1, "a"))
		r.reply("re a")
		r.client(twoWay("new", 2, "b"))
		r.m.ReadClient(twoWay("echo", 3, "c"))
		r.m.BackendEnded(io.EOF, false)
		r.run()
		r.wantAnswers("1:re a", "2!6:closed its connection")
		r.clientEnded(io.EOF)
		r.wantEnd(BackendClosed)
		if r.leases != 1 {
			t.Errorf("%d leases", r.leases)
		}
	})
	t.Run("before its first reply, while the next request is there", func(t *testing.T) {
		r := newRig(t, session)
		r.client(twoWay("new", 1, "a"))
		r.m.ReadClient(twoWay("echo", 2, "b"))
		r.m.BackendEnded(io.EOF, false)
		r.run()
		r.wantAnswers("1!6:closed its connection")
		r.clientEnded(io.EOF)
		r.wantEnd(BackendClosed)
		if r.leases != 1 {
			t.Errorf("%d leases", r.leases)
		}
	})
	t.Run("without a reply in time", func(t *testing.T) {
		r := newRig(t, session)
		r.client(twoWay("echo", 1, "a"))
		r.after(replyTimeout)
		r.wantAnswers("1!6:no reply within")
		r.clientEnded(io.EOF)
		r.wantEnd(BackendClosed)
	})
}

func TestSessionThatIsRefusedGoesOn(t *testing.T) {
	r := newRig(t, session)
	r.refuse = "full"
	r.client(twoWay("echo", 1, "a"))
	r.refuse = ""
	r.client(twoWay("echo", 2, "b"))
	r.reply("re b")
	r.wantAnswers("1!6:full", "2:re b")
	r.wantNotDone()
}

func TestSessionOutlastsWhatOnlyTheNextClientWouldMind(t *testing.T) {
	for _, tt := range []struct {
		name  string
		first []byte
		reply func(m message) []byte
		want  Fault
	}{
		{"an exception", twoWay("echo", 1, "a"), func(m message) []byte { return m.exception(frame.CodeMissingResult, "why") }, BadException},
		{"a oneway call that is answered", oneway("echo", "a"), func(m message) []byte { return m.reply("secret") }, OnewayAnswered},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, session)
			r.client(tt.first)
			r.backend(tt.reply(r.last()))
			r.got = nil
			r.after(quarantine)
			r.client(twoWay("echo", 2, "b"))
			r.reply("re b")
			r.wantAnswers("2:re b")
			r.clientEnded(io.EOF)
			r.wantReleased(Facts{Fault: tt.want, Used: true})
			r.wantEnd(Finished)
		})
		t.Run(tt.name+", and then ends with its backend", func(t *testing.T) {
			r := newRig(t, session)
			r.client(tt.first)
			r.backend(tt.reply(r.last()))
			r.got = nil
			r.after(quarantine)
			r.client(twoWay("echo", 2, "b"))
			r.backendEnded(io.EOF, true)
			if tt.want == OnewayAnswered { // no state is known to be kept
				r.reply("re b")
				r.wantAnswers("2:re b")
				if r.leases != 2 {
					t.Errorf("%d leases", r.leases)
				}
				return
			}
			r.wantAnswers("2!6:closed its connection")
			r.clientEnded(io.EOF)
			r.wantEnd(BackendClosed)
		})
	}
}

func TestSessionIsNotPinnedElsewhereOnceItHasALease(t *testing.T) {
	header := forms()[6].request
	r := newRig(t, session)
	r.client(header)
	r.backend(r.last().exception(frame.CodeInternalError, "no"))
	r.got = nil
	r.client(persistent())
	r.wantAnswers("9!7:must come first")
	r.clientEnded(io.EOF)
	r.wantEnd(Malformed)
}
