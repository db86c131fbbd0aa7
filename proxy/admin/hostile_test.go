package admin

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"forebay/proxy/proxytest"
)

// short is long enough for a local request, and not for a test to wait.
const short = 200 * time.Millisecond

// wantClosed checks that the listener ends a connection, whatever it says before.
func wantClosed(t *testing.T, c net.Conn, what string) string {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	said, err := io.ReadAll(c)
	if e, ok := err.(net.Error); ok && e.Timeout() {
		t.Errorf("%s is kept", what)
	}
	return string(said)
}

func TestSlowHeadersEnd(t *testing.T) {
	r := serve(t, nil, func(l *limits) { l.header, l.read = short, time.Hour })
	c := proxytest.Dial(t, r.addr)
	io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
	wantClosed(t, c, "a client whose header does not end")
}

func TestSlowBodiesEnd(t *testing.T) {
	r := serve(t, nil, func(l *limits) { l.read = short })
	c := proxytest.Dial(t, r.addr)
	io.WriteString(c, "POST /api/backends HTTP/1.1\r\nHost: localhost\r\n"+authorized+"\r\n"+isJSON+"\r\nContent-Length: 30\r\n\r\n{")
	wantClosed(t, c, "a client whose body does not end")
	if got := r.changes(); got != "" {
		t.Errorf("changes = %q, want none", got)
	}
}

func TestIdleConnectionsEnd(t *testing.T) {
	r := serve(t, nil, func(l *limits) { l.idle = short })
	c := proxytest.Dial(t, r.addr)
	io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if said := wantClosed(t, c, "a client that asks no more"); !strings.HasPrefix(said, "HTTP/1.1 200") {
		t.Errorf("said %q before, want an answer", said)
	}
}

func TestHugeHeadersAreRefused(t *testing.T) {
	r := serve(t, nil)
	c := proxytest.Dial(t, r.addr)
	go func() { // it is not read to its end
		io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Huge: "+strings.Repeat("x", 1<<20)+"\r\n\r\n")
	}()
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("answer = %v, %v; want 431", res, err)
	}
}

// endless is a body of 100 MB, which counts what is taken of it.
type endless struct {
	left  int
	taken atomic.Int64
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), e.left)
	for i := range p[:n] {
		p[i] = ' '
	}
	e.left -= n
	e.taken.Add(int64(n))
	return n, nil
}

func TestHugeBodiesAreNotRead(t *testing.T) {
	r := serve(t, nil)
	for _, header := range []string{authorized, "X: y"} { // before and after the token is looked at
		body := &endless{left: 100 << 20}
		req, err := http.NewRequest("POST", "http://"+r.addr.String()+"/api/backends", body)
		if err != nil {
			t.Fatal(err)
		}
		name, value, _ := strings.Cut(header, ": ")
		req.Header.Set(name, value)
		req.Header.Set("Content-Type", "application/json")
		transport := &http.Transport{DisableKeepAlives: true}
		res, err := transport.RoundTrip(req)
		if err == nil { // else it was reset while it sent, as it should be
			res.Body.Close()
			if res.StatusCode != 413 && res.StatusCode != 401 {
				t.Errorf("answer = %s, want 413 or 401", res.Status)
			}
		}
		transport.CloseIdleConnections()
		const most = 32 << 20 // what sockets hold, and some
		if body.taken.Load() > most {
			t.Errorf("%d bytes were taken, want at most %d", body.taken.Load(), most)
		}
	}
	if got := r.changes(); got != "" {
		t.Errorf("changes = %q, want none", got)
	}
}

// TestAThousandConnections hold no more than the limit, and once they are gone the
// listener serves as before.
func TestAThousandConnections(t *testing.T) {
	r := serve(t, nil, func(l *limits) { l.header = short })
	var conns []net.Conn
	for range 1000 {
		c, err := net.Dial("tcp", r.addr.String())
		if err != nil {
			break // the backlog is full: they are kept out
		}
		conns = append(conns, c)
	}
	if len(conns) < 100 {
		t.Fatalf("%d connections, want more than the limit", len(conns))
	}
	for _, c := range conns {
		c.Close()
	}
	if res, _ := r.ask(t, "GET", "/healthz", ""); res.StatusCode != 200 {
		t.Errorf("healthz = %s, want 200", res.Status)
	}
}

// TestConnectionsBeyondTheLimitWait until one of the others ends.
func TestConnectionsBeyondTheLimitWait(t *testing.T) {
	r := serve(t, nil, func(l *limits) { l.connections = 2 })
	a, b := proxytest.Dial(t, r.addr), proxytest.Dial(t, r.addr)
	for _, c := range []net.Conn{a, b} { // each is held open
		io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
		if res, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || res.StatusCode != 200 {
			t.Fatalf("answer = %v, %v", res, err)
		}
	}
	c := proxytest.Dial(t, r.addr)
	io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
	c.SetReadDeadline(time.Now().Add(short))
	if n, err := c.Read(make([]byte, 1)); n != 0 {
		t.Fatalf("a third connection got an answer (%v)", err)
	}
	a.Close()
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Errorf("the third connection gets none when another has ended: %v", err)
	}
}

// TestSlowReadersEnd: what they do not take is not kept for them.
func TestSlowReadersEnd(t *testing.T) {
	endc := make(chan error, 1)
	r := serve(t, func(c *Config) {
		c.Page = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			var err error
			for chunk := make([]byte, 1<<20); err == nil; {
				_, err = w.Write(chunk)
			}
			endc <- err
		})
	}, func(l *limits) { l.write = short })
	c := proxytest.Dial(t, r.addr)
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	proxytest.Receive(t, endc, "the end of an answer that nobody reads")
}

// TestRunEndsWhileARequestIsAnswered: the end of the proxy does not wait for a profile.
func TestRunEndsWhileARequestIsAnswered(t *testing.T) {
	r := serve(t, func(c *Config) { c.Pprof = true }, func(l *limits) { l.shutdownWait = time.Hour })
	c := proxytest.Dial(t, r.addr)
	io.WriteString(c, "GET /debug/pprof/trace?seconds=300 HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if _, err := c.Read(make([]byte, 1)); err != nil { // it has begun
		t.Fatal(err)
	}
	r.stop()
}
