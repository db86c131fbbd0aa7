package frame

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"
)

var update = flag.Bool("update", false, "record the conversations in testdata/frame anew")

const captures = "../../testdata/frame"

// A conversation was held between two libraries: the client called ping, echo,
// missing, fire (oneway) and ping.
type conversation struct {
	client, server string // "go" or "python"
	form           Form
}

// conversations are those recorded. Python's library cannot read BinaryOld.
func conversations() (all []conversation) {
	for _, f := range readable {
		all = append(all, conversation{"go", "go", f})
		if f.Protocol != BinaryOld {
			all = append(all, conversation{"python", "go", f}, conversation{"go", "python", f})
		}
	}
	return all
}

// file is where one direction of it is kept.
func (c conversation) file(direction string) string {
	form := strings.ReplaceAll(c.form.String(), " ", "-")
	return filepath.Join(captures, fmt.Sprintf("%s-%s-%s.%s.bin", c.client, c.server, form, direction))
}

func TestCapturedConversations(t *testing.T) {
	for _, c := range conversations() {
		t.Run(fmt.Sprintf("%s to %s %s", c.client, c.server, c.form), func(t *testing.T) {
			if *update {
				record(t, c)
			}
			fire := Oneway
			if c.client == "go" {
				fire = Call // what Go's library sends for oneway methods
			}
			codec := NewThrift(Thrift{})
			checkCapture(t, codec, codec.Requests(), c, "requests", []message{
				{name: "Probe:ping", typ: Call},
				{name: "Probe:echo", typ: Call},
				{name: "Probe:missing", typ: Call},
				{name: "Probe:fire", typ: fire},
				{name: "Probe:ping", typ: Call},
			})
			checkCapture(t, codec, codec.Replies(), c, "replies", []message{
				{name: "ping", typ: Reply},
				{name: "echo", typ: Reply},
				{name: "missing", typ: Exception},
				{name: "ping", typ: Reply},
			})
		})
	}
}

// checkCapture scans one direction at once and in chunks of each small size.
func checkCapture(t *testing.T, codec Codec, s Scanner, c conversation, direction string, want []message) {
	t.Helper()
	b, err := os.ReadFile(c.file(direction))
	if err != nil {
		t.Fatal(err)
	}
	for size := 1; size < 50; size++ {
		tr := traceOf(t, s, b, func() int { return size })
		if tr.err != "" || tr.begun || len(tr.heads) != len(want) || tr.ends[len(want)-1] != len(b) {
			t.Fatalf("%s in chunks of %d: %+v, want %d messages in %d bytes", direction, size, tr, len(want), len(b))
		}
		for i, h := range tr.heads {
			if h.Form != c.form || h.Name != want[i].name || h.Type != want[i].typ || h.Binds != "" {
				t.Errorf("%s: message %d = %+v, want %+v", direction, i, h, want[i])
			}
			body := b[:tr.ends[i]]
			if i > 0 {
				body = body[tr.ends[i-1]:]
			}
			if code, ok := codec.ExceptionCode(&h, body[h.Size:]); ok != (h.Type == Exception) || ok && code != CodeUnknownMethod {
				t.Errorf("%s: message %d has the code %d, %t", direction, i, code, ok)
			}
		}
	}
}

// record holds a conversation through a tap, and writes both directions.
func record(t *testing.T, c conversation) {
	t.Helper()
	var requests, replies bytes.Buffer
	tap := tapped(t, startServer(t, c), &requests, &replies)
	runClient(t, c, tap.port)
	<-tap.done
	for direction, b := range map[string][]byte{"requests": requests.Bytes(), "replies": replies.Bytes()} {
		if err := os.WriteFile(c.file(direction), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

type tap struct {
	port string
	done chan struct{}
}

// tapped passes one connection on to a server, and keeps what goes by.
func tapped(t *testing.T, server string, requests, replies io.Writer) tap {
	listener := listen(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		client, err := listener.Accept()
		if err != nil {
			return
		}
		defer client.Close()
		backend, err := net.Dial("tcp", "127.0.0.1:"+server)
		if err != nil {
			t.Error(err)
			return
		}
		defer backend.Close()
		replied := make(chan struct{})
		go func() {
			defer close(replied)
			io.Copy(io.MultiWriter(client, replies), backend)
		}()
		io.Copy(io.MultiWriter(backend, requests), client)
		backend.(*net.TCPConn).CloseWrite()
		<-replied
	}()
	return tap{port: portOf(listener), done: done}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func portOf(l net.Listener) string { return strconv.Itoa(l.Addr().(*net.TCPAddr).Port) }

func words(f Form) []string { return strings.Fields(f.String()) }

func peer(t *testing.T, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), "/usr/bin/python3", append([]string{filepath.Join(captures, "peer.py")}, args...)...)
	cmd.Stderr = os.Stderr
	return cmd
}

// startServer starts a server for one client, and returns its port.
func startServer(t *testing.T, c conversation) string {
	t.Helper()
	if c.server == "go" {
		l := listen(t)
		go serveGo(t, l, c.form)
		return portOf(l)
	}
	cmd := peer(t, append([]string{"server"}, words(c.form)...)...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Wait() })
	port, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(port)
}

// serveGo answers the calls of one connection by Go's library.
func serveGo(t *testing.T, l net.Listener, f Form) {
	conn, err := l.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	ctx := t.Context()
	p := library(f, buffered(conn))
	for {
		name, _, seq, err := p.ReadMessageBegin(ctx)
		if err != nil || thrift.SkipDefaultDepth(ctx, p, thrift.STRUCT) != nil {
			return
		}
		switch method := (&Head{Name: name}).Method(); method {
		case "fire":
		case "missing":
			p.WriteMessageBegin(ctx, method, thrift.EXCEPTION, seq)
			thrift.NewTApplicationException(thrift.UNKNOWN_METHOD, "no such method").Write(ctx, p)
			p.Flush(ctx)
		default:
			p.WriteMessageBegin(ctx, method, thrift.REPLY, seq)
			(&writer{tb: t, p: p}).structure(plain)
			p.Flush(ctx)
		}
	}
}

func buffered(conn net.Conn) thrift.TTransport {
	return thrift.NewTBufferedTransport(thrift.NewTSocketFromConnConf(conn, nil), 4096)
}

// plain writes what libraries without uuids can read.
func plain(w *writer) {
	w.field(1, thrift.STRING, func() { w.str(strings.Repeat("text", 50)) })
	w.field(2, thrift.BOOL, func() { w.boolean(true) })
	w.list(3, thrift.BOOL, 17, func(i int) { w.boolean(i%2 == 0) })
	w.mapping(4, thrift.STRING, thrift.STRUCT, 2, func(int) { w.str("k"); w.structure(nil) })
	w.set(500, thrift.DOUBLE, 3, func(i int) { w.double(float64(i)) })
}

// plainArgs is such a struct, for calls.
type plainArgs struct{ testing.TB }

func (a plainArgs) Write(_ context.Context, p thrift.TProtocol) error {
	(&writer{tb: a, p: p}).structure(plain)
	return nil
}

func (plainArgs) Read(ctx context.Context, p thrift.TProtocol) error { return noArgs{}.Read(ctx, p) }

// runClient makes the calls, and returns after the last answer.
func runClient(t *testing.T, c conversation, port string) {
	t.Helper()
	if c.client == "python" {
		if err := peer(t, append([]string{"client", port}, words(c.form)...)...).Run(); err != nil {
			t.Fatal(err)
		}
		return
	}
	conn, err := net.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p := library(c.form, buffered(conn))
	client := thrift.NewTStandardClient(p, thrift.NewTMultiplexedProtocol(p, "Probe"))
	for _, method := range []string{"ping", "echo", "missing", "fire", "ping"} {
		var result thrift.TStruct = noArgs{}
		if method == "fire" {
			result = nil // oneway
		}
		_, err := client.Call(t.Context(), method, plainArgs{t}, result)
		if (err != nil) != (method == "missing") {
			t.Fatalf("%s: %v", method, err)
		}
	}
}
