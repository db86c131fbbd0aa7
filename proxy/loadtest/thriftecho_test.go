package loadtest

import (
	"context"
	"encoding/hex"
	"errors"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/apache/thrift/lib/go/thrift"
)

// A wire is one form as the library's client speaks it.
type wire struct {
	name string
	make func(net.Conn) thrift.TProtocol
}

// wires are all forms that the library's client knows.
func wires() []wire {
	var ws []wire
	around := map[string]func(thrift.TTransport) thrift.TTransport{
		"framed":   func(t thrift.TTransport) thrift.TTransport { return thrift.NewTFramedTransportConf(t, nil) },
		"unframed": func(t thrift.TTransport) thrift.TTransport { return thrift.NewTBufferedTransport(t, 4096) },
	}
	strict, lax := true, false
	for name, around := range around {
		for inner, f := range map[string]thrift.TProtocolFactory{
			"binary":     thrift.NewTBinaryProtocolFactoryConf(&thrift.TConfiguration{TBinaryStrictRead: &strict, TBinaryStrictWrite: &strict}),
			"old binary": thrift.NewTBinaryProtocolFactoryConf(&thrift.TConfiguration{TBinaryStrictRead: &lax, TBinaryStrictWrite: &lax}),
			"compact":    thrift.NewTCompactProtocolFactoryConf(nil),
		} {
			ws = append(ws, wire{name + " " + inner, func(c net.Conn) thrift.TProtocol {
				return f.GetProtocol(around(thrift.NewTSocketFromConnConf(c, nil)))
			}})
		}
	}
	for name, cfg := range map[string]*thrift.TConfiguration{
		"header binary":  {THeaderProtocolID: thrift.THeaderProtocolIDPtrMust(thrift.THeaderProtocolBinary)},
		"header compact": {THeaderProtocolID: thrift.THeaderProtocolIDPtrMust(thrift.THeaderProtocolCompact)},
		"header zlib":    {THeaderTransforms: []thrift.THeaderTransformID{thrift.TransformZlib}},
	} {
		ws = append(ws, wire{name, func(c net.Conn) thrift.TProtocol {
			return thrift.NewTHeaderProtocolConf(thrift.NewTSocketFromConnConf(c, cfg), cfg)
		}})
	}
	return ws
}

func serveCalls(t testing.TB, cfg EchoConfig) (net.Listener, *Echo) {
	t.Helper()
	ln := listen(t, "tcp")
	cfg.Thrift = true
	return ln, startEcho(t, ln, cfg)
}

// call makes a call that has a result, and fails the test if it is another one.
func call(t *testing.T, c *thrift.TStandardClient, method string, args, want record) {
	t.Helper()
	got := record{}
	if _, err := c.Call(t.Context(), method, args, got); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%s = %.200v, %v; want %.200v", method, got, err, want)
	}
}

var wholeItem = record{
	1: "text", 2: "\x00\xffdata", 3: true, 4: int8(-8), 5: int16(-1600), 6: int32(-3200000), 7: int64(-64 << 40), 8: 0.125,
	9:  map[string]int64{"a": 1, "b": -2},
	10: set{3, -4},
	11: []record{{1: "part", 3: false, 9: map[string]int64{}, 11: []record{}}, {}},
	12: thrift.Tuuid{1, 2, 3},
}

func TestEchoAnswersEveryMethodInEveryForm(t *testing.T) {
	long := strings.Repeat("0123456789", 7000)
	for _, w := range wires() {
		for _, service := range []string{"", "Echo"} {
			t.Run(w.name+" "+service, func(t *testing.T) {
				ln, e := serveCalls(t, EchoConfig{})
				in := w.make(dial(t, ln))
				out := in
				if service != "" {
					out = thrift.NewTMultiplexedProtocol(in, service)
				}
				c := thrift.NewTStandardClient(in, out)
				call(t, c, "echo", record{1: "text"}, record{0: "text"})
				call(t, c, "echo", record{1: "", 2: int32(5)}, record{0: ""})
				call(t, c, "echo", record{1: long}, record{0: long})
				call(t, c, "echoBinary", record{1: "\x00\xff"}, record{0: "\x00\xff"})
				call(t, c, "echoItem", record{1: wholeItem}, record{0: wholeItem})
				call(t, c, "fail", record{1: "because"}, record{1: record{1: "because"}})
				call(t, c, "slow", record{1: "text", 2: int32(1), 3: "more"}, record{0: "text"})
				if _, err := c.Call(t.Context(), "fire", record{1: "text"}, nil); err != nil { // typed CALL
					t.Fatal(err)
				}
				call(t, c, "ping", record{}, record{})
				wantException(t, c, "nothing", thrift.UNKNOWN_METHOD)
				call(t, c, "ping", record{}, record{})
				want := EchoStats{Calls: 11, Oneways: 1, Replies: 10}
				if got := e.Stats(); got.Calls != want.Calls || got.Oneways != want.Oneways || got.Replies != want.Replies || got.Faults != 0 {
					t.Errorf("stats = %+v, want %+v", got, want)
				}
			})
		}
	}
}

func TestEchoIsAsSlowAsItIsAskedTo(t *testing.T) {
	const millis = 30
	ln, _ := serveCalls(t, EchoConfig{})
	p := thrift.NewTCompactProtocolConf(thrift.NewTBufferedTransport(thrift.NewTSocketFromConnConf(dial(t, ln), nil), 4096), nil)
	start := time.Now()
	call(t, thrift.NewTStandardClient(p, p), "slow", record{1: "text", 2: int32(millis)}, record{0: "text"})
	if took := time.Since(start); took < millis*time.Millisecond {
		t.Errorf("the reply took %v, want %d ms", took, millis)
	}
}

func wantException(t *testing.T, c *thrift.TStandardClient, method string, kind int32) {
	t.Helper()
	_, err := c.Call(t.Context(), method, record{1: "text"}, record{})
	var ex thrift.TApplicationException
	if !errors.As(err, &ex) || ex.TypeId() != kind || !strings.Contains(ex.Error(), method) {
		t.Fatalf("%s = %v, want an exception of type %d that names it", method, err, kind)
	}
}

func TestEchoKnowsNoOtherService(t *testing.T) {
	ln, _ := serveCalls(t, EchoConfig{})
	p := thrift.NewTBinaryProtocolConf(thrift.NewTFramedTransportConf(thrift.NewTSocketFromConnConf(dial(t, ln), nil), nil), nil)
	wantException(t, thrift.NewTStandardClient(p, thrift.NewTMultiplexedProtocol(p, "Other")), "echo", thrift.UNKNOWN_METHOD)
}

// onewayTyped makes every call ONEWAY.
type onewayTyped struct{ thrift.TProtocol }

func (p onewayTyped) WriteMessageBegin(ctx context.Context, name string, _ thrift.TMessageType, seq int32) error {
	return p.TProtocol.WriteMessageBegin(ctx, name, thrift.ONEWAY, seq)
}

func TestEchoDoesNotAnswerWhatIsTypedOneway(t *testing.T) {
	ln, e := serveCalls(t, EchoConfig{})
	for _, method := range []string{"fire", "echo", "nothing"} {
		p := thrift.NewTCompactProtocolConf(thrift.NewTBufferedTransport(thrift.NewTSocketFromConnConf(dial(t, ln), nil), 4096), nil)
		oneways, calls := thrift.NewTStandardClient(p, onewayTyped{p}), thrift.NewTStandardClient(p, p)
		if _, err := oneways.Call(t.Context(), method, record{1: "text"}, nil); err != nil {
			t.Fatal(err)
		}
		call(t, calls, "echo", record{1: "next"}, record{0: "next"})
	}
	if s := e.Stats(); s.Calls != 6 || s.Oneways != 3 || s.Replies != 3 {
		t.Errorf("stats = %+v, want 6 calls, 3 of them oneway", s)
	}
}

// unhex makes bytes of hexadecimal digits, among which 'text' stands for itself.
func unhex(s string) string {
	var b strings.Builder
	for i, part := range strings.Split(s, "'") {
		if i%2 == 1 {
			b.WriteString(part)
			continue
		}
		raw, err := hex.DecodeString(strings.ReplaceAll(part, " ", ""))
		if err != nil {
			panic(err)
		}
		b.Write(raw)
	}
	return b.String()
}

// forms are pings as they are on the wire, and their replies.
var forms = []struct{ name, call, reply string }{
	{
		name: "framed binary", call: "00000011 80010001 00000004 'ping' 00000007 00",
		reply: "00000011 80010002 00000004 'ping' 00000007 00",
	},
	{
		name: "framed old binary", call: "0000000e 00000004 'ping' 01 00000007 00",
		reply: "0000000e 00000004 'ping' 02 00000007 00",
	},
	{
		name: "framed compact", call: "00000009 822107 04 'ping' 00",
		reply: "00000009 824107 04 'ping' 00",
	},
	{
		name: "unframed binary", call: "80010001 00000004 'ping' 00000007 00",
		reply: "80010002 00000004 'ping' 00000007 00",
	},
	{
		name: "unframed old binary", call: "00000004 'ping' 01 00000007 00",
		reply: "00000004 'ping' 02 00000007 00",
	},
	{
		name: "unframed compact", call: "822107 04 'ping' 00",
		reply: "824107 04 'ping' 00",
	},
	{
		name: "header binary", call: "0000001f 0fff0000 00000009 0001 00000000 80010001 00000004 'ping' 00000007 00",
		reply: "0000001f 0fff0000 00000009 0001 00000000 80010002 00000004 'ping' 00000007 00",
	},
	{
		name: "header compact, flags and a header", call: "00000023 0fff0008 00000009 0004 02000101 016b0176 00000000 00000000 822107 04 'ping' 00",
		reply: "00000017 0fff0008 00000009 0001 02000000 824107 04 'ping' 00",
	},
}

func TestEchoTellsTheFormOfEachCallFromItsBytes(t *testing.T) {
	ln, _ := serveCalls(t, EchoConfig{})
	mixed := dial(t, ln)
	for _, f := range forms {
		t.Run(f.name, func(t *testing.T) {
			for _, conn := range []net.Conn{dial(t, ln), mixed} {
				for _, b := range []byte(unhex(f.call)) { // however it is split
					write(t, conn, string([]byte{b}))
				}
				wantRead(t, conn, unhex(f.reply))
			}
		})
	}
}

func TestEchoClosesWhatItCannotRead(t *testing.T) {
	deep := strings.Repeat("0c0001", maxDepth+1)
	tests := []struct{ name, sent string }{
		{name: "HTTP", sent: "'GET / HTTP/1.1' 0d0a0d0a"},
		{name: "an empty frame", sent: "00000000"},
		{name: "a frame of 101 MiB", sent: "06500000 80010001"},
		{name: "a frame of nothing known", sent: "00000011 ff010001 00000004"},
		{name: "a frame that ends in the message", sent: "00000010 80010001 00000004 'ping' 00000007 00"},
		{name: "a name of a gigabyte", sent: "80010001 40000000 'ping'"},
		{name: "a value of no type", sent: "80010001 00000004 'echo' 00000007 630001"},
		{name: "structs nested too deep", sent: "80010001 00000004 'echo' 00000007" + deep},
		{name: "THeader with JSON", sent: "0000001f 0fff0000 00000009 0001 01000000 80010001"},
		{name: "THeader with an unknown transform", sent: "00000012 0fff0000 00000009 0001 00010500 80010001"},
		{name: "THeader with two transforms", sent: "00000012 0fff0000 00000009 0001 00020101 80010001"},
		{name: "THeader longer than its frame", sent: "00000010 0fff0000 00000009 0002 00000000 0000"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ln, e := serveCalls(t, EchoConfig{})
			conn := dial(t, ln)
			write(t, conn, unhex(tt.sent))
			wantEnd(t, conn, "eof")
			if s := e.Stats(); s.BytesOut != 0 {
				t.Errorf("stats = %+v, want no reply", s)
			}
		})
	}
}

func TestEchoReadsPastWhatAFrameHasAfterItsMessage(t *testing.T) {
	ln, _ := serveCalls(t, EchoConfig{})
	conn := dial(t, ln)
	for range 2 {
		write(t, conn, unhex("00000014 80010001 00000004 'ping' 00000007 00 'abc'"))
		wantRead(t, conn, unhex(forms[0].reply))
	}
}

func TestEchoOfThriftHasTheMannersOfTheRawOne(t *testing.T) {
	const pause = 50 * time.Millisecond
	ping, reply := unhex(forms[0].call), unhex(forms[0].reply)
	tests := []struct {
		name string
		cfg  EchoConfig
		want string // of what comes at once
		rest string // after a pause
		end  string // "": none
	}{
		{name: "greets", cfg: EchoConfig{Greet: "hi"}, want: "hi" + reply},
		{name: "waits", cfg: EchoConfig{Delay: pause}, rest: reply},
		{name: "is late with the second half", cfg: EchoConfig{Late: pause}, want: reply[:10], rest: reply[10:]},
		{name: "closes", cfg: EchoConfig{CloseAfter: int64(len(ping))}, want: reply, end: "eof"},
		{name: "resets", cfg: EchoConfig{ResetAfter: int64(len(ping))}, end: "reset"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ln, _ := serveCalls(t, tt.cfg)
			conn := dial(t, ln)
			start := time.Now()
			write(t, conn, ping)
			wantRead(t, conn, tt.want)
			wantRead(t, conn, tt.rest)
			if took := time.Since(start); tt.rest != "" && took < pause {
				t.Errorf("the reply took %v, want %v", took, pause)
			}
			if tt.end == "eof" {
				wantEnd(t, conn, tt.end)
			}
			if tt.end == "reset" {
				wantReset(t, conn)
			}
		})
	}
}

// wantReset reads to a reset, which may overtake the last reply.
func wantReset(t *testing.T, conn net.Conn) {
	t.Helper()
	var err error
	for err == nil {
		_, err = conn.Read(make([]byte, 64))
	}
	if causeOf(err) != "reset" {
		t.Errorf("the connection ended with %v, want a reset", err)
	}
}

func TestSilentEchoReadsCallsAndAnswersNone(t *testing.T) {
	ln, e := serveCalls(t, EchoConfig{Silent: true, AnswerOneway: true})
	conn := dial(t, ln)
	write(t, conn, unhex(forms[0].call))
	write(t, conn, unhex(forms[5].call))
	closeWrite(conn)
	wantEnd(t, conn, "eof")
	if s := e.Stats(); s.Calls != 2 || s.Replies != 0 || s.BytesOut != 0 {
		t.Errorf("stats = %+v, want 2 calls and no reply", s)
	}
}
