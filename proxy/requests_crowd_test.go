package proxy

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"forebay/proxy/enginetest"
	"forebay/proxy/frame"
	"forebay/proxy/proxytest"
)

// Each request of the crowd begins with who sent it; the answer is made of that.
const (
	stampSize = 16
	bigAnswer = 8 << 10 // stamps in a big one
	onTheWay  = 64      // requests of one client that may be on their way: oneway calls, and what is behind them
)

// stamp tells the client, its request and what kind that is.
func stamp(client, request int, kind byte) string {
	return fmt.Sprintf("%07d.%06d.%c", client, request, kind)
}

// villain is a backend that does one of everything, at random, that a backend
// should not do. It stops at the first misdeed on a connection, and watches what
// still comes on it.
type villain struct {
	every int // one in so many answers

	mu     sync.Mutex
	rnd    *rand.Rand
	ran    map[string]int
	did    map[string]int64 // misdeeds
	sum    int64
	wrongs []string // of the proxy
}

// pick returns a misdeed, or none.
func (v *villain) pick(deeds ...string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.rnd.IntN(v.every) > 0 {
		return ""
	}
	return deeds[v.rnd.IntN(len(deeds))]
}

// count counts a misdeed, and returns it.
func (v *villain) count(deed string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if deed != "" {
		v.did[deed]++
		v.sum++
	}
	return deed
}

func (v *villain) misdeeds() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.sum
}

func (v *villain) run(text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ran[text]++
}

func (v *villain) wrong(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.wrongs = append(v.wrongs, fmt.Sprintf(format, args...))
}

func (v *villain) serve(c proxytest.Conn) {
	if v.count(v.pick("greets")) != "" {
		c.Write([]byte("220 at your service\r\n"))
		v.follow(c, onTheWay)
		return
	}
	for {
		m, rest, err := readHead(c)
		if err != nil {
			return
		}
		lead := make([]byte, len(textField)+4+stampSize)
		if _, err := io.ReadFull(c, lead); err != nil {
			return
		}
		m.text = string(lead[len(lead)-stampSize:])
		rest -= int64(len(lead))
		early := rest > int64(len(large))-100 && v.pick("early") != ""
		if early {
			c.Write(m.reply(m.text).bytes())
		}
		if n, _ := io.CopyN(io.Discard, c, rest); n != rest {
			if early {
				v.count("early") // the proxy has seen it
			}
			return
		}
		v.run(m.text)
		if !early && !v.answer(c, m) {
			return
		}
	}
}

// answer answers, and reports whether to go on.
func (v *villain) answer(c proxytest.Conn, m message) bool {
	if m.typ == frame.Oneway {
		if v.count(v.pick("oneway")) == "" {
			return true
		}
		c.Write(m.reply(m.text).bytes())
		v.follow(c, onTheWay)
		return false
	}
	right := m.reply(m.text)
	if m.text[stampSize-1] == 'b' {
		right.text = strings.Repeat(m.text, bigAnswer)
	}
	b := right.bytes()
	switch v.count(v.pick("late", "twice", "wrong id", "wrong method", "half", "closes", "resets", "after", "garbage", "exception")) {
	case "":
		c.Write(b)
		return true
	case "late":
		v.follow(c, 0) // until the proxy has given up
		c.Write(b)
	case "twice":
		c.Write(append(b, b...))
		if len(b) < 4<<10 {
			v.follow(c, 0)
		} else {
			v.follow(c, onTheWay) // the second one may come later
		}
	case "wrong id":
		right.id += uint32(1 + rand.IntN(1000))
		c.Write(right.bytes())
		v.follow(c, 0)
	case "wrong method":
		right.name = "another"
		c.Write(right.bytes())
		v.follow(c, 0)
	case "half":
		c.Write(b[:len(b)/2])
	case "resets":
		c.(*net.TCPConn).SetLinger(0)
	case "after":
		c.Write(b)
		after(time.Duration(rand.IntN(5)) * time.Millisecond)
		c.Write([]byte("\xffjunk\xff"))
		v.follow(c, onTheWay)
	case "garbage":
		c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
		v.follow(c, 0)
	case "exception":
		c.Write(m.exception(frame.CodeProtocolError, m.text).bytes())
		v.follow(c, 0)
	}
	return false
}

// follow reads what comes after a misdeed: at most so many requests that were on
// their way.
func (v *villain) follow(c net.Conn, most int) {
	for n := 1; ; n++ {
		m, err := readMessage(c)
		if err != nil {
			return
		}
		if n > most {
			v.wrong("request %d after a misdeed: %.20s", n, m.text)
		}
	}
}

// TestHostileBackendsMixUpNoClients: every client gets its own answers, or is told
// that it gets none; no request runs twice; each misdeed costs one connection.
func TestHostileBackendsMixUpNoClients(t *testing.T) {
	enginetest.Each(t, testHostileBackendsMixUpNoClients)
}

func testHostileBackendsMixUpNoClients(t *testing.T) {
	clients, calls := 200, 20
	if testing.Short() {
		calls = 5
	}
	v := &villain{every: 10, rnd: rand.New(rand.NewPCG(1, 2)), ran: map[string]int{}, did: map[string]int64{}}
	cfg := requestsConfig(testBackend(t, 8, v.serve), testBackend(t, 8, v.serve))
	cfg.Requests.ReplyTimeout = 400 * time.Millisecond
	cfg.Requests.Quarantine = time.Millisecond
	f := start(t, cfg)
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			w := &wary{t: t, f: f, client: client}
			defer w.hangUp()
			for request := range calls {
				w.request(request)
			}
		})
	}
	wg.Wait()
	proxytest.Eventually(t, "the end of the sessions", func() bool { return f.Stats().Clients == 0 })
	var sum int64
	proxytest.Eventually(t, "a fault for each misdeed", func() bool {
		sum = 0
		for _, n := range f.Stats().Faults {
			sum += n
		}
		return sum >= v.misdeeds()
	})
	f.stop(t)
	v.mu.Lock()
	defer v.mu.Unlock()
	for text, n := range v.ran {
		if n > 1 {
			t.Errorf("request %s ran %d times", text, n)
		}
	}
	for _, wrong := range v.wrongs {
		t.Error(wrong)
	}
	s := f.Stats()
	for _, name := range []string{"wrong_reply", "stray_bytes", "oneway_answered", "malformed_reply", "reply_timeout", "backend_ended", "bad_exception"} {
		if s.Faults[name] == 0 && !testing.Short() {
			t.Errorf("no fault %s: the test proves little", name)
		}
	}
	if late := max(0, s.Faults["reply_timeout"]-v.did["late"]); sum > v.sum+late { // an honest answer may be late, too
		t.Errorf("%d faults for %d misdeeds, and %d late answers", sum, v.sum, late)
	}
	t.Logf("%d requests, %d errors, %d faults %v for %d misdeeds %v; sessions %v", s.Requests, s.Errors, sum, s.Faults, v.sum, v.did, s.Ended)
}

// wary is a client that believes nothing.
type wary struct {
	t      *testing.T
	f      *front
	client int
	conn   net.Conn
}

func (w *wary) hangUp() {
	if w.conn != nil {
		w.conn.Close()
		w.conn = nil
	}
}

func (w *wary) dial() error {
	c, err := net.Dial("tcp", w.f.at.String())
	if err != nil {
		return err
	}
	c.SetDeadline(time.Now().Add(60 * time.Second))
	w.conn = c
	return nil
}

func (w *wary) request(n int) {
	kind := "sssssssssssssssb1ooo"[rand.IntN(20)]
	m := call(uint32(n), stamp(w.client, n, kind))
	switch kind {
	case 'o':
		m.typ, m.name = frame.Oneway, "fire"
	case '1': // a large request
		m.text += large
	}
	if w.conn == nil {
		if err := w.dial(); err != nil {
			w.t.Error(err)
			return
		}
	}
	if _, err := w.conn.Write(m.bytes()); err != nil {
		w.t.Errorf("request %.20s: %v", m.text, err)
		w.hangUp()
		return
	}
	if kind == 'o' {
		return
	}
	want := m.reply(m.text[:stampSize])
	if kind == 'b' {
		want.text = strings.Repeat(m.text, bigAnswer)
	}
	got, err := readMessage(w.conn)
	switch {
	case err == nil && got == want:
	case err == nil && got == m.exception(frame.CodeInternalError, got.text) && strings.HasPrefix(got.text, "forebay: "):
	case err == nil && got == m.exception(frame.CodeProtocolError, want.text[:stampSize]):
	case kind == 'b' && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.ErrUnexpectedEOF)):
		w.hangUp() // it had a part of its reply
	default:
		w.t.Errorf("request %.20s is answered with %v, %v", m.text, got, err)
		w.hangUp()
	}
}
