package proxy

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"forebay/proxy/enginetest"
	"forebay/proxy/frame"
	"forebay/proxy/proxytest"
)

// unframed is a message of the strict binary protocol without a frame.
func unframed(m message) []byte { return m.bytes()[4:] }

// badClients have sent what is no request.
var badClients = []struct {
	name  string
	sends []byte
	code  int32  // of the exception that it gets; 0: none, for there is no request to answer
	says  string // in the log, and in the exception
}{
	{name: "SSH", sends: []byte("SSH-2.0-OpenSSH_9.2p1\r\n"), says: "SSH"},
	{name: "HTTP", sends: []byte("GET /thrift HTTP/1.1\r\nHost: here\r\n\r\n"), says: "HTTP"},
	{name: "HTTP, a post", sends: []byte("POST /thrift HTTP/1.1\r\n\r\n"), says: "HTTP"},
	{name: "TLS", sends: []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), says: "TLS"},
	{name: "SASL", sends: []byte("\x01\x00\x00\x00\x06GSSAPI"), says: "SASL"},
	{name: "Kitex TTHeader", sends: []byte("\x00\x00\x00\x40\x10\x00\x00\x00\x00\x00\x00\x01"), says: "TTHeader"},
	{name: "a frame of 2 GB", sends: []byte("\x7f\xff\xff\xff\x80\x01\x00\x01"), says: "2147483647"},
	{name: "an empty frame", sends: []byte("\x00\x00\x00\x00\x80\x01\x00\x01"), says: "length of 0"},
	{name: "a frame too short for its message", sends: append([]byte("\x00\x00\x00\x10"), unframed(call(7, "x"))...), says: "too short"},
	{name: "an endless number", sends: append([]byte("\x00\x00\x00\x20\x82\x21"), bytes.Repeat([]byte{0xff}, 30)...), says: "over the limit of 5 bytes"},
	{name: "a name of 1 GB", sends: []byte("\x00\x00\x10\x00\x80\x01\x00\x01\x40\x00\x00\x00name"), says: "over the limit of 1024"},
	{name: "a name of a negative size", sends: []byte("\x00\x00\x10\x00\x80\x01\x00\x01\xff\xff\xff\xffname"), says: "negative"},
	{name: "an unknown type of message", sends: []byte("\x00\x00\x10\x00\x80\x01\x00\x09\x00\x00\x00\x04name"), says: "type 9"},
	{name: "a reply", code: frame.CodeInvalidMessageType, sends: call(7, "x").reply("y").bytes(), says: "type reply"},
	{name: "nesting of 10,000", code: frame.CodeProtocolError, says: "256",
		sends: append(unframed(call(7, ""))[:4+4+len("echo")+4], bytes.Repeat([]byte("\x0c\x00\x01"), 10000)...)},
	{name: "an unknown type of field", code: frame.CodeProtocolError, says: "type",
		sends: append(unframed(call(7, ""))[:4+4+len("echo")+4], "\x7f\x00\x01"...)},
	{name: "a string of 2 GB", code: frame.CodeProtocolError, says: "2147483647",
		sends: append(unframed(call(7, ""))[:4+4+len("echo")+4], "\x0b\x00\x01\x7f\xff\xff\xff"...)},
}

// TestBadInputIsRefusedWithAWord: the client is told where its protocol has a word
// for that, the log has one line that says what came, and no backend connection is
// harmed.
func TestBadInputIsRefusedWithAWord(t *testing.T) {
	enginetest.Each(t, testBadInputIsRefusedWithAWord)
}

func testBadInputIsRefusedWithAWord(t *testing.T) {
	for _, tt := range badClients {
		t.Run(tt.name, func(t *testing.T) {
			be, conns := puppets(t, 1)
			f := start(t, requestsConfig(be))
			server := f.warm(t, conns)
			c := f.dial(t)
			write(t, c, string(tt.sends))
			if tt.code != 0 {
				if len(tt.sends) > 4 && tt.sends[0] == 0x80 {
					wantUnframedException(t, c, call(7, ""), tt.code, tt.says)
				} else {
					wantException(t, c, call(7, ""), tt.code, tt.says)
				}
			}
			wantAll(t, c, "")
			write(t, c, "some more") // is dropped
			c.Close()
			f.ended(t, ProtocolError, 1)
			exchanged(t, f.dial(t), server, call(1, "next")) // over the connection that was there
			f.wantFault(t, nil)
			f.stop(t)
			f.wantLine(t, c, "protocol_error", tt.says)
		})
	}
}

// wantUnframedException is wantException of a client that uses no frames.
func wantUnframedException(t testing.TB, c io.Reader, m message, code int32, text string) {
	t.Helper()
	all, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseMessage(all)
	if err != nil || got != m.exception(code, got.text) || !strings.Contains(got.text, text) {
		t.Fatalf("the client read %v, %v; want exception %d with %q in it", got, err, code, text)
	}
}

// wantLine finds the one log line of a client, which is worth being read.
func (f *front) wantLine(t *testing.T, c proxytest.Conn, reason, text string) {
	t.Helper()
	line := f.lineOf(t, c.LocalAddr().String())
	said, _ := line["error"].(string)
	if line["level"] != "info" || line["reason"] != reason || !strings.Contains(said, text) {
		t.Errorf("log line %v, want reason %s and an error with %q in it", line, reason, text)
	}
}

// A client that has been served before its bytes went bad gets what it is owed
// first.
func TestBadInputBehindARequestDoesNotCostItsReply(t *testing.T) {
	enginetest.Each(t, testBadInputBehindARequestDoesNotCostItsReply)
}

func testBadInputBehindARequestDoesNotCostItsReply(t *testing.T) {
	be, conns := puppets(t, 1)
	f := start(t, requestsConfig(be))
	c, m := f.dial(t), call(1, "good")
	write(t, c, string(m.bytes())+"SSH-2.0-OpenSSH_9.2p1\r\n")
	server := proxytest.Receive(t, conns, "a connection")
	send(t, server, wantCall(t, server, m).reply(m.text))
	wantReply(t, c, m, m.text)
	wantAll(t, c, "")
	c.Close()
	f.ended(t, ProtocolError, 1)
	f.idle(t, 1)
	exchanged(t, f.dial(t), server, call(2, "next"))
}

// TestTruncatedRequestIsNoRequest: a client ends in the middle of a request, at
// each of its bytes.
func TestTruncatedRequestIsNoRequest(t *testing.T) {
	enginetest.Each(t, testTruncatedRequestIsNoRequest)
}

func testTruncatedRequestIsNoRequest(t *testing.T) {
	be, conns := puppets(t, 1)
	f := start(t, requestsConfig(be))
	server := f.warm(t, conns)
	m := call(7, "cut")
	b := m.bytes()
	for n := 1; n < len(b); n++ {
		c := f.dial(t)
		write(t, c, string(b[:n]))
		c.CloseWrite()
		if headSize := 4 + 4 + 4 + len(m.name) + 4; n >= headSize {
			wantException(t, c, m, frame.CodeProtocolError, "cut a request short")
		}
		wantAll(t, c, "")
		f.ended(t, ProtocolError, int64(n))
		c.Close()
	}
	exchanged(t, f.dial(t), server, call(1, "next"))
	if s := f.Stats(); s.Backends[0].Requests != 2 {
		t.Errorf("%d leases, want 2: none for what is no request", s.Backends[0].Requests)
	}
}

func TestRandomBytesHarmNobody(t *testing.T) {
	enginetest.Each(t, testRandomBytesHarmNobody)
}

func testRandomBytesHarmNobody(t *testing.T) {
	be, conns := puppets(t, 1)
	f := start(t, requestsConfig(be))
	server := f.warm(t, conns)
	n := int64(200)
	for seed := range uint64(n) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		b := make([]byte, 1+rnd.IntN(2000))
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		if seed%2 == 0 { // behind a length that is allowed
			b = append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
		}
		c := f.dial(t)
		write(t, c, string(b))
		c.CloseWrite()
		if _, err := io.Copy(io.Discard, c); timedOut(err) {
			t.Fatal(err)
		}
		c.Close()
	}
	f.ended(t, ProtocolError, n)
	exchanged(t, f.dial(t), server, call(1, "next"))
	f.wantFault(t, nil)
}

// TestAnnouncedSizeTakesNoMemory: hundreds of clients announce the largest frame
// that is allowed, and send little of it.
func TestAnnouncedSizeTakesNoMemory(t *testing.T) {
	enginetest.Each(t, testAnnouncedSizeTakesNoMemory)
}

func testAnnouncedSizeTakesNoMemory(t *testing.T) {
	be := testBackend(t, 1, newEchoServer().serve)
	f := start(t, requestsConfig(be))
	before := heap()
	const n = 200
	b := call(1, "").bytes()
	binary.BigEndian.PutUint32(b, 16_000_000)
	for i := range n {
		c := f.dial(t)
		write(t, c, string(b[:30])+fmt.Sprintf("%60d", i))
	}
	proxytest.Eventually(t, "the sessions", func() bool { return f.Stats().Clients == n })
	echoed(t, f.dial(t), call(1, "served meanwhile"))
	if grown := heap() - before; grown > 32<<20 {
		t.Errorf("the heap has grown by %d bytes for %d announced frames", grown, n)
	}
}

// heap is Go's: what an engine has the kernel map does not show.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
