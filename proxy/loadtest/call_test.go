package loadtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/thrift/lib/go/thrift"
)

func TestRunOfCallsAgainstAGoodServerIsClean(t *testing.T) {
	for tr := range transports {
		for p := range encodings {
			for _, cfg := range []LoadConfig{
				{Method: "echo", Clients: 1, Size: 32, Requests: 100},
				{Method: "echo", Clients: 4, Size: 65, Requests: 200, RequestsPerClient: 7},
				{Method: "echo", Clients: 2, Size: 300_000, Requests: 6},
				{Method: "mix", Clients: 8, Size: 64, Requests: 800},
				{Method: "mix", Clients: 8, Size: 64, Requests: 400, RequestsPerClient: 1},
				{Method: "mix", Clients: 2, Size: 20_000, Requests: 60, Rate: 2000},
			} {
				cfg.Thrift, cfg.ThriftTransport, cfg.ThriftProtocol = true, tr, p
				t.Run(tr+" "+p+" "+cfg.Method, func(t *testing.T) {
					ln, e := serveCalls(t, EchoConfig{})
					res := load(t, ln, cfg)
					if !res.OK() || res.Requests != cfg.Requests || res.Replies+res.Oneways != cfg.Requests {
						t.Errorf("result = %+v, want %d requests and all well", res, cfg.Requests)
					}
					s := e.Stats()
					if s.Calls != cfg.Requests || s.Oneways != res.Oneways || s.Replies != res.Replies || s.Accepted != res.Sessions {
						t.Errorf("the server saw %+v, want what the result has: %+v", s, res)
					}
					if (res.Oneways > 0) != (cfg.Method == "mix") {
						t.Errorf("%d oneways in a load of %s", res.Oneways, cfg.Method)
					}
				})
			}
		}
	}
}

// The offsets in a framed, binary echo of a text.
const (
	typeAt = 7
	nameAt = 12
	seqAt  = 16
	argAt  = 20
	idAt   = 22
	textAt = 27
)

// readFrame returns the next framed message, nil at the end.
func readFrame(conn net.Conn) []byte {
	length := make([]byte, 4)
	if _, err := io.ReadFull(conn, length); err != nil {
		return nil
	}
	rest := make([]byte, binary.BigEndian.Uint32(length))
	if _, err := io.ReadFull(conn, rest); err != nil {
		return nil
	}
	return append(length, rest...)
}

// echoed makes a call of echo its reply.
func echoed(call []byte) []byte {
	reply := bytes.Clone(call)
	reply[typeAt], reply[idAt] = byte(thrift.REPLY), 0
	return reply
}

// answerFrames answers every call with what reply makes of it and of the first
// one of the connection.
func answerFrames(reply func(call, first []byte) []byte) badHandler {
	return func(conns [2]net.Conn, _ int) {
		var first []byte
		for call := readFrame(conns[0]); call != nil; call = readFrame(conns[0]) {
			if first == nil {
				first = call
			}
			conns[0].Write(reply(call, first))
		}
	}
}

// changed replies with one byte changed.
func changed(at int, to func(byte) byte) badHandler {
	return answerFrames(func(call, _ []byte) []byte {
		b := echoed(call)
		b[at] = to(b[at])
		return b
	})
}

// swapCalls answers two clients with the other one's reply from the given
// offset on.
func swapCalls(from int) badHandler {
	return func(conns [2]net.Conn, _ int) {
		a, b := echoed(readFrame(conns[0])), echoed(readFrame(conns[1]))
		conns[0].Write(append(a[:from:from], b[from:]...))
		conns[1].Write(append(b[:from:from], a[from:]...))
		readRequest(conns[0], 1)
		readRequest(conns[1], 1)
	}
}

// nameOf returns the method of a framed, binary call, and its sequence id.
func nameOf(call []byte) (name string, seq int32) {
	end := nameAt + binary.BigEndian.Uint32(call[nameAt-4:])
	return string(call[nameAt:end]), int32(binary.BigEndian.Uint32(call[end:]))
}

// exceptionTo answers any call with an exception, of a sequence id that is off
// by some. A oneway gets nothing.
func exceptionTo(call []byte, kind int32, text string, off int32) []byte {
	name, seq := nameOf(call)
	if name == onewayName {
		return nil
	}
	w := newMessageWriter()
	p := w.begin(form{framed, binaryStrict}, wrapping{})
	p.WriteMessageBegin(background, strings.TrimPrefix(name, "Echo:"), thrift.EXCEPTION, seq+off)
	thrift.NewTApplicationException(kind, text).Write(background, p)
	b, _ := w.end()
	return b
}

func except(kind int32, text string, off int32) badHandler {
	return answerFrames(func(call, _ []byte) []byte { return exceptionTo(call, kind, text, off) })
}

func TestRunCountsWhatABadServerDoesToCallsAsWhatItIs(t *testing.T) {
	nextDigit := func(b byte) byte { return "123456789abcdef0"[strings.IndexByte("0123456789abcdef", b)] }
	whole := func(b []byte) badHandler { return answerFrames(func(_, _ []byte) []byte { return b }) }
	tests := []struct {
		name   string
		handle badHandler
		cfg    LoadConfig
		want   map[string]int64
	}{
		{name: "swaps two clients' replies", handle: swapCalls(0), cfg: LoadConfig{Clients: 2, Requests: 2}, want: map[string]int64{otherClient: 2}},
		{name: "swaps two clients' replies, with the ids right", handle: swapCalls(argAt), cfg: LoadConfig{Clients: 2, Requests: 2}, want: map[string]int64{otherClient: 2}},
		{name: "sends the call back", handle: answerFrames(func(call, _ []byte) []byte { return call }), want: map[string]int64{altered: 3}},
		{name: "gives another id", handle: changed(seqAt, func(b byte) byte { return b + 1 }), want: map[string]int64{wrongID: 3}},
		{name: "names another method", handle: changed(nameAt, func(byte) byte { return 'E' }), want: map[string]int64{wrongMethod: 3}},
		{name: "changes a letter", handle: changed(textAt+40, nextDigit), want: map[string]int64{altered: 3}},
		{name: "changes the client's number", handle: changed(textAt+3, nextDigit), want: map[string]int64{altered: 3}},
		{name: "gives another field", handle: changed(idAt, func(byte) byte { return 3 }), want: map[string]int64{altered: 3}},
		{name: "gives no field", handle: answerFrames(func(call, _ []byte) []byte {
			return append([]byte{0, 0, 0, 17}, append(echoed(call)[4:argAt], 0)...)
		}), want: map[string]int64{altered: 3}},
		{name: "announces more than the reply", handle: changed(3, func(b byte) byte { return b + 1 }), want: map[string]int64{extraBytes: 3}},
		{name: "announces a byte less", handle: changed(3, func(b byte) byte { return b - 1 }), want: map[string]int64{altered: 3}},
		{name: "announces ten bytes less", handle: changed(3, func(b byte) byte { return b - 10 }), want: map[string]int64{altered: 3}},
		{name: "types its reply as a call", handle: changed(typeAt, func(byte) byte { return byte(thrift.CALL) }), want: map[string]int64{altered: 3}},
		{name: "adds a frame", handle: answerFrames(func(call, _ []byte) []byte { return append(echoed(call), call...) }), want: map[string]int64{extraBytes: 3}},
		{name: "throws, and adds a frame", handle: answerFrames(func(call, _ []byte) []byte {
			return append(exceptionTo(call, thrift.INTERNAL_ERROR, "forebay: no backend", 0), call...)
		}), want: map[string]int64{extraBytes: 3}},
		{name: "is no Thrift", handle: whole([]byte("HTTP/1.1 400")), want: map[string]int64{altered: 3}},
		{name: "answers in another form", handle: whole([]byte(unhex("80010002 00000004 'echo' 00000007 00"))), want: map[string]int64{altered: 3}},
		{name: "closes in the middle", handle: func(conns [2]net.Conn, _ int) { conns[0].Write(echoed(readFrame(conns[0]))[:textAt]) }, want: map[string]int64{"reply_eof": 3}},
		{name: "throws with another id", handle: except(thrift.INTERNAL_ERROR, "forebay: no backend", 1), want: map[string]int64{wrongID: 3}},
		{name: "throws of its own", handle: except(thrift.PROTOCOL_ERROR, "no", 0), want: map[string]int64{"exception_protocol_error": 3}},
		{name: "throws what nobody knows", handle: except(99, "no", 0), want: map[string]int64{"exception_other": 3}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ln := listen(t, "tcp")
			tt.cfg.Thrift, tt.cfg.Size, tt.cfg.Clients = true, 64, max(1, tt.cfg.Clients)
			tt.cfg.Requests = max(3*int64(2-tt.cfg.Clients), tt.cfg.Requests)
			serveGroups(t, ln, tt.cfg.Clients, tt.handle, 0)
			res := load(t, ln, tt.cfg)
			if got := kindsOf(res); !maps.Equal(got, tt.want) || res.OK() || res.Replies != 0 && tt.want[extraBytes] == 0 {
				t.Errorf("result = %+v, want no reply and the faults %v", res, tt.want)
			}
		})
	}
}

func TestRunKnowsAnOldReplyByItsContent(t *testing.T) {
	ln := listen(t, "tcp")
	serveBad(t, ln, answerFrames(func(call, first []byte) []byte {
		return append(echoed(call)[:argAt], echoed(first)[argAt:]...)
	}), 0)
	res := load(t, ln, LoadConfig{Thrift: true, Clients: 1, Size: 64, Requests: 4})
	if got := kindsOf(res); res.Replies != 2 || got[otherRequest] != 2 || len(got) != 1 {
		t.Errorf("result = %+v, want 2 replies and 2 of another request", res)
	}
}

func TestRunTellsAFaultFromThatOfAnEarlierConnection(t *testing.T) {
	ln := listen(t, "tcp")
	replies := make(chan []byte, 2)
	replies <- []byte{0, 0} // and the end
	replies <- []byte("HTTP/1.1 400")
	serveBad(t, ln, func(conns [2]net.Conn, _ int) {
		readFrame(conns[0])
		conns[0].Write(<-replies)
	}, 0)
	res := load(t, ln, LoadConfig{Thrift: true, Clients: 1, Size: 64, Requests: 2})
	if got := kindsOf(res); got["reply_eof"] != 1 || got[altered] != 1 {
		t.Errorf("faults = %v, want an end, and then a reply that is none", got)
	}
}

func TestRunChecksTheIDInTHeader(t *testing.T) {
	ln := listen(t, "tcp")
	const before = headerLength
	serveBad(t, ln, answerFrames(func(call, _ []byte) []byte {
		b := bytes.Clone(call)
		b[before+typeAt], b[before+idAt] = byte(thrift.REPLY), 0
		b[4+4]++
		return b
	}), 0)
	res := load(t, ln, LoadConfig{Thrift: true, ThriftTransport: "header", Clients: 1, Size: 64, Requests: 2})
	if got := kindsOf(res); got[wrongID] != 2 || len(got) != 1 {
		t.Errorf("result = %+v, want 2 of another sequence id", res)
	}
}

func TestRunTakesAnExceptionOfTheProxyAsAnErrorAndGoesOn(t *testing.T) {
	for kind, name := range map[int32]string{
		thrift.INTERNAL_ERROR: "exception_internal_error", thrift.UNKNOWN_METHOD: "exception_unknown_method",
	} {
		ln := listen(t, "tcp")
		serveBad(t, ln, except(kind, "forebay: no backend", 0), 0)
		res := load(t, ln, LoadConfig{Thrift: true, Method: "mix", Clients: 1, Size: 32, Requests: 300})
		got := kindsOf(res)
		if res.Sessions != 1 || res.Mismatches != 0 || res.Requests != 300 || got[name] != 300-res.Oneways || len(got) != 1 {
			t.Errorf("result = %+v, want one session of errors and oneways", res)
		}
		if !strings.Contains(res.FirstError, "forebay: no backend") {
			t.Errorf("first error = %q, want the text of the exception", res.FirstError)
		}
	}
}

func TestRunExpectsTheExceptionOfAMethodThatDoesNotExist(t *testing.T) {
	ln := listen(t, "tcp")
	serveBad(t, ln, except(thrift.UNKNOWN_METHOD, "unknown", 0), 0)
	res := load(t, ln, LoadConfig{Thrift: true, Method: "mix", Clients: 1, Size: 32, Requests: 300})
	got := kindsOf(res)
	if res.Replies == 0 || res.Mismatches != 0 || res.Replies+res.Oneways+res.Errors != 300 {
		t.Errorf("result = %+v, want the calls of no method answered rightly", res)
	}
	if res.Errors == 0 || got["exception_unknown_method"] != res.Errors {
		t.Errorf("faults = %v, want errors of the methods that exist", got)
	}
}

func TestRunExpectsNoResultOfAMethodThatDoesNotExist(t *testing.T) {
	ln := listen(t, "tcp")
	serveBad(t, ln, answerFrames(func(call, _ []byte) []byte {
		if name, _ := nameOf(call); name != unknownName {
			return exceptionTo(call, thrift.INTERNAL_ERROR, "no", 0)
		}
		const length = 4 + 4 + len(unknownName) + 4 + 1
		reply := append([]byte{0, 0, 0, byte(length)}, call[4:4+length]...)
		reply[typeAt], reply[len(reply)-1] = byte(thrift.REPLY), thrift.STOP
		return reply
	}), 0)
	res := load(t, ln, LoadConfig{Thrift: true, Method: "mix", Clients: 1, Size: 32, Requests: 300})
	if got := kindsOf(res); got[altered] == 0 || res.Mismatches != got[altered] || res.Replies != 0 {
		t.Errorf("result = %+v, want the results taken as altered", res)
	}
}

func TestMixCallsEveryMethodInEveryWay(t *testing.T) {
	ln := listen(t, "tcp")
	var mu sync.Mutex
	got := make(map[string]bool)
	serveBad(t, ln, answerFrames(func(call, _ []byte) []byte {
		name, _ := nameOf(call)
		mu.Lock()
		defer mu.Unlock()
		got[fmt.Sprint(name, " ", call[typeAt])] = true
		return exceptionTo(call, thrift.INTERNAL_ERROR, "no", 0)
	}), 0)
	load(t, ln, LoadConfig{Thrift: true, Method: "mix", Clients: 1, Size: 32, Requests: 500})
	want := map[string]bool{
		"echo 1": true, "echoBinary 1": true, "echoItem 1": true, "fail 1": true, "ping 1": true, "noSuchMethod 1": true,
		"fire 1": true, "fire 4": true, "Echo:echo 1": true,
	}
	mu.Lock()
	defer mu.Unlock()
	if !maps.Equal(got, want) {
		t.Errorf("calls = %v, want %v", got, want)
	}
}

func TestRunFindsWhatAHostileEchoDoes(t *testing.T) {
	const short = 100 * time.Millisecond
	tests := []struct {
		name     string
		echo     EchoConfig
		load     LoadConfig
		want     string // the one kind of fault
		count    int64  // 0: any number
		sessions int64  // 0: any number
	}{
		{name: "another id", echo: EchoConfig{WrongID: 3}, load: LoadConfig{Requests: 9}, want: wrongID, count: 3},
		{name: "answered oneways", echo: EchoConfig{AnswerOneway: true}, load: LoadConfig{Requests: 300, Method: "mix"}, want: onewayReply},
		{
			name: "answered oneways at the end of a session", echo: EchoConfig{AnswerOneway: true},
			load: LoadConfig{Requests: 300, Method: "mix", RequestsPerClient: 1}, want: onewayReply,
		},
		{name: "two replies", echo: EchoConfig{Twice: 3}, load: LoadConfig{Requests: 9}, want: extraBytes, count: 3},
		{
			name: "two replies, one of them late", echo: EchoConfig{Twice: 1, Late: short},
			load: LoadConfig{Requests: 1}, want: extraBytes, count: 1,
		},
		{name: "half a reply", echo: EchoConfig{Half: 3}, load: LoadConfig{Requests: 9}, want: "reply_eof", count: 3},
		{name: "junk after the last reply", echo: EchoConfig{After: 3}, load: LoadConfig{Requests: 9, RequestsPerClient: 3}, want: extraBytes, count: 3},
		{name: "junk before the next reply", echo: EchoConfig{After: 2}, load: LoadConfig{Requests: 3}, want: altered, count: 1},
		{
			name: "an answer before the call is read", echo: EchoConfig{Early: 2},
			load: LoadConfig{Requests: 6, Size: 1 << 20}, want: "exception_internal_error", count: 3, sessions: 1,
		},
		{name: "silence", echo: EchoConfig{Silent: true}, load: LoadConfig{Requests: 2, Timeout: short}, want: "reply_timeout", count: 2},
	}
	for _, tt := range tests {
		for tr := range transports {
			if tt.echo.Early > 0 && tr == "unframed" {
				continue // never early
			}
			t.Run(tr+": "+tt.name, func(t *testing.T) {
				ln, _ := serveCalls(t, tt.echo)
				tt.load.Thrift, tt.load.ThriftTransport, tt.load.Clients = true, tr, 1
				tt.load.Size = max(64, tt.load.Size)
				res := load(t, ln, tt.load)
				got := kindsOf(res)
				if len(got) != 1 || got[tt.want] == 0 || tt.count != 0 && got[tt.want] != tt.count {
					t.Errorf("faults = %v (%s), want %d of %s", got, res.FirstError, tt.count, tt.want)
				}
				if tt.sessions != 0 && res.Sessions != tt.sessions {
					t.Errorf("%d sessions, want %d", res.Sessions, tt.sessions)
				}
			})
		}
	}
}

func TestRunWaitsBetweenRequests(t *testing.T) {
	const think = 20 * time.Millisecond
	for _, thrift := range []bool{false, true} {
		ln := listen(t, "tcp")
		startEcho(t, ln, EchoConfig{Thrift: thrift})
		res := load(t, ln, LoadConfig{Thrift: thrift, Clients: 1, Size: 32, Requests: 4, Think: think})
		if !res.OK() || res.Replies != 4 || res.Elapsed < 3*think || res.Latency.Max >= think && res.Latency.P50 >= think {
			t.Errorf("result = %+v, want 4 replies with %v between them, which is not latency", res, think)
		}
	}
}

func TestRunDoesNotWaitOnWhenItIsOver(t *testing.T) {
	ln := listen(t, "tcp")
	startEcho(t, ln, EchoConfig{})
	res := load(t, ln, LoadConfig{Clients: 1, Size: 16, Duration: 50 * time.Millisecond, Think: time.Hour})
	if !res.OK() || res.Replies != 1 || res.Elapsed > patience {
		t.Errorf("result = %+v, want one reply", res)
	}
}

func TestSequenceIDsOfClientsDiffer(t *testing.T) {
	const clients, calls = 1000, 10
	seen := make(map[int32]bool)
	for client := range uint64(clients) {
		for seq := range uint64(calls) {
			seen[sequenceID(7<<32+client, seq)] = true
		}
	}
	if len(seen) != clients*calls {
		t.Errorf("%d ids for %d calls", len(seen), clients*calls)
	}
}

func TestTextIsTextAndTellsWhoseItIs(t *testing.T) {
	for size := minText; size < 100; size++ {
		c := newContent(size)
		c.fill(1<<63+5, 1<<40)
		for _, b := range [][]byte{c.text, c.raw} {
			if client, seq, ok := idsOf(b); !ok || client != 1<<63+5 || seq != 1<<40 {
				t.Errorf("ids of %q = %#x, %#x, %v", b, client, seq, ok)
			}
		}
		for _, b := range c.text {
			if b < ' ' || b > '~' {
				t.Errorf("text of %d bytes has %#x in it", size, b)
			}
		}
	}
	if _, _, ok := idsOf(make([]byte, idSize-1)); ok {
		t.Error("15 bytes have ids")
	}
}
