package exchange

import (
	"io"
	"testing"

	"forebay/proxy/frame"
)

func TestRequestGoesOutWithAnotherIDAndItsReplyComesBackWithTheClients(t *testing.T) {
	r := newRig(t)
	r.client(twoWay("echo", 7, "ping"))
	out := r.last()
	if out.head.ID.Seq == 7 || out.body() != "ping" || out.head.Name != "echo" {
		t.Fatalf("the backend got %d %q %q", out.head.ID.Seq, out.head.Name, out.body())
	}
	r.reply("pong")
	r.wantAnswers("7:pong")
	r.wantReleased(clean)
	if want := (Stats{Requests: 1, Up: r.m.Stats.Up, Down: int64(len(twoWay("echo", 7, "pong")))}); r.m.Stats != want {
		t.Errorf("stats %+v; want %+v", r.m.Stats, want)
	}
}

func TestEachFormIsAnsweredInItsForm(t *testing.T) {
	for _, form := range forms() {
		t.Run(form.name, func(t *testing.T) {
			r := newRig(t)
			r.client(form.request)
			back := r.last()
			if back.head.ID.Seq == 9 {
				t.Fatal("the id was not rewritten")
			}
			r.refuse = "no more"
			r.backend(back.exception(frame.CodeInternalError, "from the backend"))
			r.wantAnswers("9!6:from the backend")

			r.client(form.request)
			got := messages(t, r.cfg.Codec.Replies(), r.got)
			if len(got) != 1 || got[0].head.Form != back.head.Form || got[0].head.ID.Outer != form.outer {
				t.Fatalf("refused: %+v", got)
			}
			r.wantAnswers("9!6:forebay: no more")
		})
	}
}

type form struct {
	name    string
	request []byte
	outer   uint32
}

// forms are those of Thrift, each with a call of id 9.
func forms() []form {
	empty := "\x00" // a struct without fields
	old := join([]byte{0, 0, 0, 4}, []byte("echo"), []byte{1, 0, 0, 0, 9}, []byte(empty))
	compact := join([]byte{0x82, 1<<5 | 1, 9, 4}, []byte("echo"), []byte(empty))
	binary := append(strict(frame.Call, "echo", 9), empty...)
	inFrame := func(p []byte) []byte { return append([]byte{0, 0, 0, byte(len(p))}, p...) }
	header := func(protocol byte, p []byte) []byte {
		return inFrame(join([]byte{0x0f, 0xff, 0, 0, 0, 0, 0, 5, 0, 1, protocol, 0, 0, 0}, p))
	}
	return []form{
		{"binary", binary, 0}, {"old", old, 0}, {"compact", compact, 0},
		{"framed binary", inFrame(binary), 0}, {"framed old", inFrame(old), 0}, {"framed compact", inFrame(compact), 0},
		{"header binary", header(0, binary), 5}, {"header compact", header(2, compact), 5},
	}
}

func TestBytesMayComeOneByOne(t *testing.T) {
	r := newRig(t)
	for _, b := range twoWay("echo", 7, "ping") {
		r.client([]byte{b})
	}
	for _, b := range r.last().reply("pong") {
		r.backend([]byte{b})
	}
	r.wantAnswers("7:pong")
	r.wantReleased(clean)
}

func TestPipelinedRequestsAreAnsweredInOrderOneAtATime(t *testing.T) {
	r := newRig(t)
	r.client(join(twoWay("echo", 1, "a"), twoWay("echo", 2, "b"), twoWay("echo", 3, "c")))
	for i, body := range []string{"a", "b", "c"} {
		if all := r.requests(); len(all) != 1 || all[0].body() != body {
			t.Fatalf("request %d: the backend has got %d, the last %q", i, len(all), r.last().body())
		}
		r.reply("re " + body)
	}
	r.wantAnswers("1:re a", "2:re b", "3:re c")
	r.wantReleased(clean, clean, clean)
}

func TestNextRequestWaitsUntilTheReplyIsTaken(t *testing.T) {
	r := newRig(t)
	r.slowClient = true
	r.client(join(twoWay("echo", 1, "a"), twoWay("echo", 2, "b")))
	r.reply("re a")
	if r.wantReleased(clean); r.leases != 1 {
		t.Fatal("the second request got a lease before the first reply was taken")
	}
	r.slowClient = false
	r.run()
	r.reply("re b")
	r.wantAnswers("1:re a", "2:re b")
}

func TestSmallRequestIsLeasedForWhenItIsWhole(t *testing.T) {
	r := newRig(t)
	whole := twoWay("echo", 1, big(maxFlight-100))
	r.client(whole[:len(whole)-1])
	if r.leases != 0 {
		t.Fatal("leased before the request was whole")
	}
	r.client(whole[len(whole)-1:])
	if r.leases != 1 {
		t.Fatal("not leased")
	}
}

func TestLargeRequestIsStreamed(t *testing.T) {
	r := newRig(t)
	whole := twoWay("echo", 1, big(300<<10))
	r.client(whole[:maxFlight])
	if r.leases != 1 || len(r.sent) != maxFlight {
		t.Fatalf("%d leases, %d bytes sent of %d", r.leases, len(r.sent), maxFlight)
	}
	r.slowBackend = true
	r.client(whole[maxFlight : 2*maxFlight])
	if r.step.FromClient != 0 {
		t.Fatalf("%d more bytes are wanted while the backend takes none", r.step.FromClient)
	}
	r.slowBackend = false
	r.client(whole[2*maxFlight:])
	if got := r.last(); got.body() != big(300<<10) {
		t.Fatalf("the backend got a body of %d bytes", len(got.body()))
	}
	r.reply("ok")
	r.wantAnswers("1:ok")
	r.wantReleased(clean)
}

func TestRequestBehindAStreamedOneIsNotMixedUp(t *testing.T) {
	r := newRig(t)
	r.client(join(twoWay("echo", 1, big(200<<10)), twoWay("echo", 2, "b")))
	r.reply("re a")
	r.reply("re b")
	r.wantAnswers("1:re a", "2:re b")
}

func TestReplyBeforeItsRequestIsComplete(t *testing.T) {
	r := newRig(t)
	whole := twoWay("echo", 1, big(200<<10))
	r.client(whole[:100<<10])
	id := headOf(t, r.sent).ID.Seq
	r.backend(framed(frame.Reply, "echo", id, "no need"))
	r.wantAnswers("1:no need")
	r.wantReleased(Facts{Fault: EarlyReply, MidRequest: false, Used: true})
	r.client(join(whole[100<<10:], twoWay("echo", 2, "b")))
	r.reply("re b")
	r.wantAnswers("2:re b")
	r.wantReleased(clean)
}

func TestReplyIsReadWhileTheBackendDoesNotTakeTheRequest(t *testing.T) {
	r := newRig(t)
	whole := twoWay("echo", 1, big(100<<10))
	r.client(whole[:90<<10])
	id := headOf(t, r.sent).ID.Seq
	r.slowBackend = true
	r.client(whole[90<<10:])
	r.backend(framed(frame.Reply, "echo", id, "no need"))
	r.wantAnswers("1:no need")
	r.wantReleased(Facts{Fault: EarlyReply, Used: true})
}

func TestRequestAnsweredEarlyIsAnsweredOnce(t *testing.T) {
	for name, rest := range map[string]func(r *rig){
		"and cut short by a FIN": func(r *rig) { r.clientEnded(io.EOF) },
		"and then malformed":     func(r *rig) { r.client([]byte{0xff, 0xff, 0xff}) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.client(join(strict(frame.Call, "echo", 1), longString(200 << 10)[:100<<10]))
			id := headOf(t, r.sent).ID.Seq
			r.backend(append(strict(frame.Reply, "echo", id), 0))
			r.wantAnswers("1:\x00")
			r.client(longString(200 << 10)[100<<10:][:100<<10+7])
			rest(r)
			r.clientEnded(io.EOF)
			r.wantAnswers()
			r.wantEnd(Malformed)
		})
	}
}

func TestClientThatGoesWrongWhileAnEarlyReplyIsForwardedIsReset(t *testing.T) {
	r := newRig(t)
	r.client(join(strict(frame.Call, "echo", 1), longString(200 << 10)[:100<<10]))
	id := headOf(t, r.sent).ID.Seq
	part := join(strict(frame.Reply, "echo", id), longString(200 << 10)[:100<<10])
	r.backend(part)
	r.clientEnded(io.EOF)
	r.wantEnd(BrokenReply)
	if !r.m.Abrupt() || len(r.got) != len(part) {
		t.Errorf("abrupt %v, the client got %d bytes of %d", r.m.Abrupt(), len(r.got), len(part))
	}
}

// longString is an unframed body of one field, a string of n bytes, without the
// stop byte.
func longString(n int) []byte {
	return join([]byte{11, 0, 1, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, []byte(big(n)))
}

func headOf(t *testing.T, p []byte) frame.Head {
	t.Helper()
	s := frame.NewThrift(frame.Thrift{}).Requests()
	if _, err := s.Scan(p); err != nil || s.Head() == nil {
		t.Fatalf("no head: %v", err)
	}
	return *s.Head()
}

func TestRefusedRequestIsAnswered(t *testing.T) {
	r := newRig(t)
	r.refuse = "the queue is full"
	r.client(twoWay("Service:echo", 7, "a"))
	if got := messages(t, r.cfg.Codec.Replies(), r.got); len(got) != 1 || got[0].head.Name != "echo" {
		t.Fatalf("got %+v", got)
	}
	r.wantAnswers("7!6:forebay: the queue is full")
	r.wantNotDone()
	r.refuse = ""
	r.client(twoWay("echo", 8, "b"))
	r.reply("re b")
	r.wantAnswers("8:re b")
	if s := r.m.Stats; s.Requests != 2 || s.Errors != 1 {
		t.Errorf("stats %+v", s)
	}
}

func TestConnectionIsNotUpgradedUnlessItIsTheClientsOwn(t *testing.T) {
	r := newRig(t)
	r.client(twoWay("__can__finagle__trace__v3__", 7, "a"))
	r.wantAnswers("7!1:cannot be upgraded")
	if r.leases != 0 {
		t.Error("the backend was asked")
	}
	r.client(twoWay("echo", 8, "b"))
	r.reply("re b")
	r.wantAnswers("8:re b")

	own := newRig(t, session)
	own.client(twoWay("__can__finagle__trace__v3__", 7, "a"))
	own.reply("yes")
	own.wantAnswers("7:yes")
}

func TestRefusedLargeRequestIsAnsweredOnceItIsRead(t *testing.T) {
	r := newRig(t)
	r.refuse = "the queue is full"
	whole := twoWay("echo", 7, big(300<<10))
	r.client(whole[:len(whole)-1])
	r.wantAnswers()
	r.client(join(whole[len(whole)-1:], twoWay("echo", 8, "b")))
	r.wantAnswers("7!6:queue is full", "8!6:queue is full")
}

func TestRefusedOnewayIsSilent(t *testing.T) {
	for name, p := range map[string][]byte{
		"typed so": oneway("fire", "a"),
		"listed":   twoWay("listed", 3, "a"),
		"large":    oneway("fire", big(300<<10)),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.refuse = "the queue is full"
			r.client(p)
			r.wantAnswers()
			r.wantNotDone()
			if s := r.m.Stats; s.Requests != 1 || s.Errors != 1 {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

func TestLeaseThatComesLateLeavesTheRequestItsTime(t *testing.T) {
	r := newRig(t)
	r.holdLease = true
	r.client(twoWay("echo", 7, "a"))
	r.now = r.now.Add(2 * idleTimeout) // nobody asks meanwhile
	r.slowBackend = true
	r.m.Leased(NewConn())
	r.run()
	r.wantNotDone()
	r.slowBackend = false
	r.run()
	r.reply("re a")
	r.wantAnswers("7:re a")
}
