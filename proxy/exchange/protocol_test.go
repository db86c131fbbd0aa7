package exchange

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"forebay/proxy/frame"
)

func TestMalformedRequestIsAnsweredWhereItsHeadWasRead(t *testing.T) {
	negative := join(strict(frame.Call, "echo", 7), []byte{11, 0, 1, 0xff, 0xff, 0xff, 0xff})
	for _, tt := range []struct {
		name string
		p    []byte
		want []string
	}{
		{"no head", []byte("\x00\x00\x00\x00"), nil},
		{"a reply", framed(frame.Reply, "echo", 7, "a"), []string{"7!2:type reply"}},
		{"a body of negative size", negative, []string{"7!7:negative size"}},
		{"oneway", append(strict(frame.Oneway, "echo", 7), 99), nil},
		{"listed oneway", append(strict(frame.Call, "listed", 7), 99), nil},
		{"persistent headers", persistent(), []string{"9!7:persistent headers"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.client(tt.p)
			r.wantAnswers(tt.want...)
			if r.leases > 0 || !r.fin {
				t.Errorf("%d leases, FIN %v", r.leases, r.fin)
			}
			r.after(lingerTime)
			r.wantEnd(Malformed)
			if r.m.Abrupt() {
				t.Error("abrupt")
			}
		})
	}
}

// persistent is a call of id 9 that binds headers to its connection.
func persistent() []byte {
	head := []byte{0x0f, 0xff, 0, 0, 0, 0, 0, 5, 0, 2, 0, 0, 2, 1, 1, 'k', 1, 'v'}
	p := join(head, strict(frame.Call, "echo", 9), []byte{0})
	return append([]byte{0, 0, 0, byte(len(p))}, p...)
}

func TestMalformedStreamedRequestEndsItsConnection(t *testing.T) {
	r := newRig(t)
	r.client(join(strict(frame.Call, "echo", 7), longString(100<<10)))
	r.client([]byte{99})
	r.wantAnswers("7!7:type 99")
	r.wantReleased(Facts{Fault: UnfinishedWrite, Used: true})
	r.clientEnded(io.EOF)
	r.wantEnd(Malformed)
}

func TestMalformedRequestDoesNotFreeWhatIsOut(t *testing.T) {
	t.Run("a oneway call in quarantine", func(t *testing.T) {
		r := newRig(t)
		r.client(join(oneway("fire", "a"), []byte{0, 0, 0, 0}))
		r.wantReleased()
		r.after(quarantine)
		r.wantReleased(clean)
	})
	t.Run("a call", func(t *testing.T) {
		r := newRig(t)
		r.client(join(twoWay("new", 1, "a"), []byte{0, 0, 0, 0}))
		r.wantAnswers("1!6:behind it")
		r.wantReleased(Facts{Fault: UnreadReply, Used: true})
	})
}

func TestWhatIsSentBehindAMalformedRequestIsDropped(t *testing.T) {
	r := newRig(t)
	r.client([]byte{0, 0, 0, 0})
	for range 10 {
		r.client([]byte(big(maxRead)))
	}
	r.clientEnded(io.EOF)
	r.wantEnd(Malformed)
}

func TestPinnedSessionIsHandedOverWhole(t *testing.T) {
	json := []byte(`[1,"echo",1,1,{}]`)
	zlib := []byte{0, 0, 0, 16, 0x0f, 0xff, 0, 0, 0, 0, 0, 5, 0, 1, 0, 1, 1, 0, 'x', 'y'}
	for _, tt := range []struct {
		name   string
		change func(*Config)
		p      []byte
	}{
		{"JSON", nil, json},
		{"a transform", nil, zlib},
		{"a length without an id", lengths(0), join(sized(0, 0, "a"), sized(0, 0, "b"))},
		{"another protocol, in a session", session, []byte("GET / HTTP/1.1\r\n\r\n")},
		{"persistent headers, in a session", session, persistent()},
	} {
		for _, chunk := range []int{1, 3, 1000} {
			r := newRig(t)
			if tt.change != nil {
				r = newRig(t, tt.change)
			}
			fed := feedUntilDone(r, tt.p, chunk)
			r.wantEnd(Pinned)
			if got := r.m.Unread(); !bytes.Equal(got, tt.p[:fed]) {
				t.Errorf("%s, by %d: unread %q of %q", tt.name, chunk, got, tt.p[:fed])
			}
			if r.leases != 0 || len(r.got) != 0 || r.fin || r.m.Abrupt() {
				t.Errorf("%s: %d leases, got %q, FIN %v, abrupt %v", tt.name, r.leases, r.got, r.fin, r.m.Abrupt())
			}
		}
	}
}

func feedUntilDone(r *rig, p []byte, chunk int) (fed int) {
	for r.run(); !r.done && fed < len(p); {
		n := min(chunk, len(p)-fed)
		r.client(p[fed : fed+n])
		fed += n
	}
	return fed
}

func TestMessageThatCannotBePooledMayNotLeaveAReplyBehind(t *testing.T) {
	header := forms()[6].request
	zlib := []byte{0, 0, 0, 16, 0x0f, 0xff, 0, 0, 0, 0, 0, 5, 0, 1, 0, 1, 1, 0, 'x', 'y'}
	r := newRig(t)
	r.cfg.Methods = NewMethods(nil, true)
	r.client(join(header, zlib))
	r.wantAnswers("9!6:behind it")
	r.clientEnded(io.EOF)
	r.wantEnd(Malformed)
}

func TestForeignBytesAreRefusedInRequestPooling(t *testing.T) {
	r := newRig(t)
	r.client([]byte("GET / HTTP/1.1\r\n\r\n"))
	r.clientEnded(io.EOF)
	r.wantEnd(Malformed)
	if _, err := r.m.End(); err == nil || !strings.Contains(err.Error(), "HTTP") {
		t.Errorf("error %v", err)
	}
}

func TestLengthProtocol(t *testing.T) {
	t.Run("ids are rewritten and put back", func(t *testing.T) {
		for _, width := range []int{1, 2, 4, 8} {
			r := newRig(t, lengths(width))
			r.client(join(sized(7, width, "a"), sized(8, width, "b")))
			if len(r.requests()) != 1 {
				t.Fatal("the second went out behind the first")
			}
			r.reply("re a")
			r.reply("re b")
			r.wantAnswers("7:re a", "8:re b")
			r.wantReleased(clean, clean)
		}
	})
	t.Run("without ids, where that is trusted", func(t *testing.T) {
		r := newRig(t, lengths(0), func(c *Config) { c.Trust = true })
		r.client(join(sized(0, 0, "a"), sized(0, 0, "b")))
		r.backend(sized(0, 0, "re a"))
		r.backend(sized(0, 0, "re b"))
		r.wantAnswers("0:re a", "0:re b")
	})
	t.Run("a refusal ends the session, since there are no exceptions", func(t *testing.T) {
		r := newRig(t, lengths(4))
		r.refuse = "full"
		r.client(sized(7, 4, "a"))
		r.wantAnswers()
		r.wantEnd(Unserved)
		if _, err := r.m.End(); err == nil || err.Error() != "full" {
			t.Errorf("error %v", err)
		}
	})
	t.Run("a large refused request is read first", func(t *testing.T) {
		r := newRig(t, lengths(4))
		r.refuse = "full"
		whole := sized(7, 4, big(200<<10))
		r.client(whole[:len(whole)-1])
		r.wantNotDone()
		r.client(whole[len(whole)-1:])
		r.wantEnd(Unserved)
	})
}
