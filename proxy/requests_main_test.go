package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"forebay/balance"
	"forebay/proxy/frame"
	"forebay/proxy/proxytest"
)

// requestsConfig is config with a lease for each request of framed Thrift.
func requestsConfig(backends ...Backend) Config {
	cfg := config(backends...)
	cfg.Requests = &Requests{
		Codec:        frame.NewThrift(frame.Thrift{}),
		ReplyTimeout: time.Minute, // a test that waits for it fails
		Quarantine:   10 * time.Millisecond,
		ReplyBuffer:  256 << 10,
		BufferMemory: 64 << 20,
	}
	return cfg
}

// message is a Thrift message in a frame, in the strict binary protocol: its first
// field is text, and that of an exception has a code behind it.
type message struct {
	typ  frame.Type
	name string
	id   uint32
	text string
	code int32
}

func call(id uint32, text string) message {
	return message{typ: frame.Call, name: "echo", id: id, text: text}
}

func oneway(id uint32, text string) message {
	return message{typ: frame.Oneway, name: "fire", id: id, text: text}
}

// reply is the answer to m.
func (m message) reply(text string) message {
	return message{typ: frame.Reply, name: m.name, id: m.id, text: text}
}

func (m message) exception(code int32, text string) message {
	return message{typ: frame.Exception, name: m.name, id: m.id, text: text, code: code}
}

func (m message) String() string {
	return fmt.Sprintf("%v %s %d %.60q (%d bytes), code %d", m.typ, m.name, m.id, m.text, len(m.text), m.code)
}

// The first bytes of a string field 1 and of an i32 field 2.
const (
	textField = "\x0b\x00\x01"
	codeField = "\x08\x00\x02"
)

// headSize is how many bytes a message has before its text.
func (m message) headSize() int { return 4 + 4 + 4 + len(m.name) + 4 + len(textField) + 4 }

func (m message) bytes() []byte {
	b := make([]byte, 4, m.headSize()+len(m.text)+8)
	b = append(b, 0x80, 0x01, 0, byte(m.typ))
	b = append(binary.BigEndian.AppendUint32(b, uint32(len(m.name))), m.name...)
	b = binary.BigEndian.AppendUint32(b, m.id)
	b = append(binary.BigEndian.AppendUint32(append(b, textField...), uint32(len(m.text))), m.text...)
	if m.typ == frame.Exception {
		b = binary.BigEndian.AppendUint32(append(b, codeField...), uint32(m.code))
	}
	b = append(b, 0)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// readMessage reads a message as bytes makes them, and nothing else.
func readMessage(r io.Reader) (m message, err error) {
	size := make([]byte, 4)
	if _, err := io.ReadFull(r, size); err != nil {
		return m, err
	}
	n := binary.BigEndian.Uint32(size)
	if n > 32<<20 {
		return m, fmt.Errorf("a frame of %d bytes", n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return m, err
	}
	return parseMessage(b)
}

// readHead reads a message up to its text, and tells how many bytes are left.
func readHead(r io.Reader) (m message, rest int64, err error) {
	b := make([]byte, 12)
	if _, err := io.ReadFull(r, b); err != nil {
		return m, 0, err
	}
	m.typ = frame.Type(b[7])
	name := make([]byte, min(binary.BigEndian.Uint32(b[8:]), 1000)+4)
	if _, err := io.ReadFull(r, name); err != nil {
		return m, 0, err
	}
	m.name = string(name[:len(name)-4])
	m.id = binary.BigEndian.Uint32(name[len(name)-4:])
	return m, int64(binary.BigEndian.Uint32(b)) + 4 - int64(len(b)+len(name)), nil
}

func parseMessage(b []byte) (m message, err error) {
	take := func(n int) []byte {
		if err != nil || n < 0 || n > len(b) {
			err = errors.New("not the message of a test")
			return make([]byte, 4)
		}
		p := b[:n]
		b = b[n:]
		return p
	}
	str := func() string { return string(take(int(binary.BigEndian.Uint32(take(4))))) }
	m.typ = frame.Type(take(4)[3])
	m.name = str()
	m.id = binary.BigEndian.Uint32(take(4))
	take(len(textField))
	m.text = str()
	if m.typ == frame.Exception {
		take(len(codeField))
		m.code = int32(binary.BigEndian.Uint32(take(4)))
	}
	take(1)
	return m, err
}

// ask sends m and reads what comes back.
func ask(c net.Conn, m message) (message, error) {
	if _, err := c.Write(m.bytes()); err != nil {
		return message{}, err
	}
	return readMessage(c)
}

func send(t testing.TB, c net.Conn, m message) {
	t.Helper()
	if _, err := c.Write(m.bytes()); err != nil {
		t.Fatal(err)
	}
}

// wantCall reads the next request at a backend, which is m but for the id.
func wantCall(t testing.TB, server net.Conn, m message) (got message) {
	t.Helper()
	got, err := readMessage(server)
	m.id = got.id
	if err != nil || got != m {
		t.Fatalf("the backend read %v, %v; want %v", got, err, m)
	}
	return got
}

// wantReply reads the answer to m at a client.
func wantReply(t testing.TB, c net.Conn, m message, text string) {
	t.Helper()
	if got, err := readMessage(c); err != nil || got != m.reply(text) {
		t.Fatalf("the client read %v, %v; want %v", got, err, m.reply(text))
	}
}

// wantException reads an exception as the answer to m, with some text in it.
func wantException(t testing.TB, c net.Conn, m message, code int32, text string) {
	t.Helper()
	got, err := readMessage(c)
	if err != nil || got != m.exception(code, got.text) || !strings.Contains(got.text, text) {
		t.Fatalf("the client read %v, %v; want exception %d with %q in it", got, err, code, text)
	}
}

// echoed has a backend that echoes answer m.
func echoed(t testing.TB, c net.Conn, m message) {
	t.Helper()
	send(t, c, m)
	wantReply(t, c, m, m.text)
}

// exchanged has the test itself answer m, over the connection that server is.
func exchanged(t testing.TB, c, server net.Conn, m message) {
	t.Helper()
	send(t, c, m)
	send(t, server, wantCall(t, server, m).reply(m.text))
	wantReply(t, c, m, m.text)
}

// exchangedAnew is exchanged over a connection that was not there before, which it
// returns.
func exchangedAnew(t testing.TB, c net.Conn, conns <-chan proxytest.Conn, m message) (server proxytest.Conn) {
	t.Helper()
	send(t, c, m)
	server = proxytest.Receive(t, conns, "a connection")
	send(t, server, wantCall(t, server, m).reply(m.text))
	wantReply(t, c, m, m.text)
	return server
}

// warm has one client make a call, so that a used connection lies idle, and
// returns the backend's end of it.
func (f *front) warm(t testing.TB, conns <-chan proxytest.Conn) (server proxytest.Conn) {
	t.Helper()
	c := f.dial(t)
	server = exchangedAnew(t, c, conns, call(1, "warm up"))
	c.Close()
	f.idle(t, 1)
	return server
}

// wantReset reads a reset, or what a write sees of one.
func wantReset(t testing.TB, c net.Conn) {
	t.Helper()
	if _, err := io.Copy(io.Discard, c); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("read to %v, want a reset", err)
	}
}

// idle waits until n connections of the first backend lie idle, and none is leased.
func (f *front) idle(t testing.TB, n int) {
	t.Helper()
	proxytest.Eventually(t, "idle slots", func() bool {
		l := f.Stats().Backends[0].Load
		return l.Slots[balance.Idle] == n && l.Open() == n
	})
}

// dials is how often the first backend was dialed.
func (f *front) dials() int64 { return f.Stats().Backends[0].Pool.Dials }

// wantGone waits until the backend's end of a connection is ended by the proxy,
// which sends no byte more on it.
func wantGone(t testing.TB, server net.Conn) {
	t.Helper()
	if n, err := io.Copy(io.Discard, server); n > 0 || timedOut(err) {
		t.Fatalf("the backend read %d bytes more, to %v; want the end", n, err)
	}
}

// wantFault waits until connections have been given up for the faults in want, and
// each was counted once.
func (f *front) wantFault(t testing.TB, want map[string]int64) {
	t.Helper()
	var got map[string]int64
	sum := func(m map[string]int64) (n int64) {
		for _, v := range m {
			n += v
		}
		return n
	}
	proxytest.Eventually(t, "faults", func() bool { got = f.Stats().Faults; return sum(got) >= sum(want) })
	if !maps.Equal(got, want) {
		t.Errorf("faults %v, want %v", got, want)
	}
}

// echoServer is a Thrift backend that echoes the calls, and counts what it ran.
type echoServer struct {
	conns atomic.Int64
	mu    sync.Mutex
	ran   map[string]int // by text
}

func newEchoServer() *echoServer { return &echoServer{ran: map[string]int{}} }

func (e *echoServer) serve(c proxytest.Conn) {
	e.conns.Add(1)
	for {
		m, err := readMessage(c)
		if err != nil {
			return
		}
		e.run(m)
		if m.name != "fire" {
			c.Write(m.reply(m.text).bytes())
		}
	}
}

func (e *echoServer) run(m message) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ran[m.text]++
}

// times returns how often a request was run.
func (e *echoServer) times(text string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ran[text]
}

// all returns how many requests were run.
func (e *echoServer) all() (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, times := range e.ran {
		n += times
	}
	return n
}

// timedOut reports whether an error is the deadline of a test's connection.
func timedOut(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
