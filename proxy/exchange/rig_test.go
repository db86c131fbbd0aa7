package exchange

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"forebay/proxy/frame"
)

// rig drives a machine by hand, in synthetic time: what the machine wants to write
// is taken at once, and leases are given, unless the test says otherwise.
type rig struct {
	t   testing.TB
	cfg *Config
	m   *Machine
	now time.Time

	slowClient, slowBackend bool // they take nothing
	refuse                  string
	holdLease               bool
	conn                    *Conn // the next lease's, nil: a new one

	step     Step
	got      []byte // by the client
	sent     []byte // to the backend of this lease
	leases   int
	released []Facts
	fin      bool // the client was sent a FIN
	done     bool
}

var start = time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)

var errReset = errors.New("connection reset")

const (
	replyTimeout = 10 * time.Second
	idleTimeout  = 60 * time.Second
	quarantine   = 50 * time.Millisecond
	replyBuffer  = 256 << 10
)

func newRig(t testing.TB, change ...func(*Config)) *rig {
	cfg := &Config{
		Codec:        frame.NewThrift(frame.Thrift{}),
		Methods:      NewMethods([]string{"listed"}, true),
		Budget:       &Budget{Max: 1 << 30},
		Idempotent:   map[string]bool{"get": true},
		ReplyTimeout: replyTimeout,
		IdleTimeout:  idleTimeout,
		Quarantine:   quarantine,
		ReplyBuffer:  replyBuffer,
	}
	// These are known to be answered, so that nothing goes out behind them.
	cfg.Methods.answered("echo")
	cfg.Methods.answered("get")
	for _, c := range change {
		c(cfg)
	}
	return &rig{t: t, cfg: cfg, m: New(cfg), now: start}
}

// session, lengths and the like are changes of the configuration.
func session(c *Config) { c.Session = true }

func lengths(idWidth int) func(*Config) {
	return func(c *Config) {
		codec, err := frame.NewLength(frame.Length{Width: 4, IDOffset: 4, IDWidth: idWidth})
		if err != nil {
			panic(err)
		}
		c.Codec = codec
	}
}

// run does what the machine says until it waits for something that is not there.
func (r *rig) run() {
	r.t.Helper()
	for range 10000 {
		r.step = r.m.Next(r.now)
		if !r.act() {
			r.check()
			return
		}
	}
	r.t.Fatalf("the machine does not come to rest: %s", show(r.step))
}

// act does one step, and reports whether it was one that can be done at once.
func (r *rig) act() bool {
	s := &r.step
	switch {
	case s.Op == Done:
		r.done = true
		return false
	case s.Op == Lease:
		return r.lease()
	case s.Op == Release:
		r.released = append(r.released, r.m.Facts())
		r.m.Released()
		return true
	case s.Op == FinishClient:
		r.fin = true
		return true
	case len(s.ToBackend) > 0 && !r.slowBackend:
		r.sent = append(r.sent, s.ToBackend...)
		r.m.WroteBackend(len(s.ToBackend))
		return true
	case len(s.ToClient) > 0 && !r.slowClient:
		r.got = append(r.got, s.ToClient...)
		r.m.WroteClient(len(s.ToClient))
		return true
	}
	return false
}

func (r *rig) lease() bool {
	switch {
	case r.holdLease:
		return false
	case r.refuse != "":
		r.m.Refused(errors.New(r.refuse), r.refuse)
		return true
	}
	c := r.conn
	if c == nil {
		c = NewConn()
	}
	r.conn, r.sent = nil, nil
	r.leases++
	r.m.Leased(c)
	return true
}

// check holds the machine against what is always so.
func (r *rig) check() {
	r.t.Helper()
	if err := invariants(r.m, r.step, r.now); err != nil {
		r.t.Fatal(err)
	}
	if r.done && r.cfg.Budget.Held() != 0 {
		r.t.Fatalf("%d bytes of the budget are held by a machine that is done", r.cfg.Budget.Held())
	}
}

// invariants tell what a waiting machine does wrong.
func invariants(m *Machine, s Step, now time.Time) error {
	wants := len(s.ToClient) + len(s.ToBackend) + s.FromClient + s.FromBackend
	switch {
	case s.Op != Wait:
	case !s.Until.IsZero() && !now.Before(s.Until):
		return fmt.Errorf("a wait that is over: busy loop: %s", show(s))
	case m.conn == nil && len(s.ToBackend)+s.FromBackend > 0:
		return fmt.Errorf("it wants something of a backend that it has not: %s", show(s))
	case wants == 0 && s.Until.IsZero():
		return fmt.Errorf("a wait for nothing: %s", show(s))
	}
	for _, b := range []struct {
		what      string
		n, atMost int
	}{
		{"pending", m.pending.len(), maxPending},
		{"request", m.req.raw.len(), maxFlight + maxRead},
		{"to backend", m.toBackend.len(), maxFlight + maxRead + 8},
		{"held reply", m.reply.held.len(), maxHold + maxRead},
		{"to client", m.toClient.len(), max(m.cfg.ReplyBuffer, maxHold) + maxRead + 8},
		{"calls", len(m.calls), maxCalls},
	} {
		if b.n > b.atMost {
			return fmt.Errorf("%s: %d, more than %d", b.what, b.n, b.atMost)
		}
	}
	return nil
}

func show(s Step) string {
	return fmt.Sprintf("op %d, to client %d, to backend %d, from client %d, from backend %d, until %v",
		s.Op, len(s.ToClient), len(s.ToBackend), s.FromClient, s.FromBackend, s.Until)
}

// client has the client send p, as the machine takes it.
func (r *rig) client(p []byte) {
	r.t.Helper()
	r.run()
	for len(p) > 0 {
		n := min(len(p), r.step.FromClient)
		if r.step.Op != Wait || n == 0 {
			r.t.Fatalf("%d bytes of the client are not wanted: %s", len(p), show(r.step))
		}
		r.m.ReadClient(p[:n])
		p = p[n:]
		r.run()
	}
}

// backend has the backend send p.
func (r *rig) backend(p []byte) {
	r.t.Helper()
	r.run()
	for len(p) > 0 {
		n := min(len(p), r.step.FromBackend)
		if n == 0 {
			r.t.Fatalf("%d bytes of the backend are not wanted: %s", len(p), show(r.step))
		}
		r.m.ReadBackend(p[:n])
		p = p[n:]
		r.run()
	}
}

func (r *rig) clientEnded(err error) { r.m.ClientEnded(err); r.run() }

func (r *rig) backendEnded(err error, undelivered bool) {
	r.m.BackendEnded(err, undelivered)
	r.run()
}

// after lets time pass, and wakes the machine only when it asked for that.
func (r *rig) after(d time.Duration) {
	r.t.Helper()
	end := r.now.Add(d)
	r.run()
	for !r.done && !r.step.Until.IsZero() && !r.step.Until.After(end) {
		r.now = r.step.Until
		r.run()
	}
	r.now = end
}

// requests returns what the backend of this lease has got.
func (r *rig) requests() []message { return messages(r.t, r.cfg.Codec.Requests(), r.sent) }

// last returns the newest request that is whole.
func (r *rig) last() message {
	r.t.Helper()
	all := r.requests()
	if len(all) == 0 {
		r.t.Fatal("the backend has got no request")
	}
	return all[len(all)-1]
}

// reply has the backend answer the newest request.
func (r *rig) reply(body string) {
	r.t.Helper()
	r.backend(r.last().reply(body))
}

// wantAnswers checks what the client has got since the last time: "7:text" for a
// reply to its call 7, "7!6:text" for an exception of code 6, of which the text need
// be only a part.
func (r *rig) wantAnswers(want ...string) {
	r.t.Helper()
	got := messages(r.t, r.cfg.Codec.Replies(), r.got)
	r.got = nil
	ok := len(got) == len(want)
	for i := 0; ok && i < len(got); i++ {
		head, text, _ := strings.Cut(want[i], ":")
		ghead, gtext, _ := strings.Cut(got[i].describe(r.cfg.Codec), ":")
		ok = head == ghead && (gtext == text || strings.Contains(head, "!") && strings.Contains(gtext, text))
	}
	if !ok {
		var described []string
		for _, g := range got {
			described = append(described, g.describe(r.cfg.Codec))
		}
		r.t.Fatalf("the client got %.200q; want %q", described, want)
	}
}

// wantReleased checks the facts of all the leases that have ended since.
func (r *rig) wantReleased(want ...Facts) {
	r.t.Helper()
	if fmt.Sprint(r.released) != fmt.Sprint(want) {
		r.t.Fatalf("released with %+v; want %+v", r.released, want)
	}
	r.released = nil
}

// wantFault checks the fault of the one lease that has ended since.
func (r *rig) wantFault(want Fault) {
	r.t.Helper()
	if len(r.released) != 1 || r.released[0].Fault != want || r.released[0].Outstanding > 0 {
		r.t.Fatalf("released with %+v; want the fault %v", r.released, want)
	}
	r.released = nil
}

func (r *rig) wantEnd(want End) {
	r.t.Helper()
	if r.fin && !r.done { // it lingers
		r.clientEnded(io.EOF)
	}
	if end, err := r.m.End(); !r.done || end != want {
		r.t.Fatalf("done %v, end %d (%v); want %d", r.done, end, err, want)
	}
}

func (r *rig) wantNotDone() {
	r.t.Helper()
	if r.done {
		end, err := r.m.End()
		r.t.Fatalf("the session has ended: %d, %v", end, err)
	}
}

// clean is what the facts of a connection are that may serve another client.
var clean = Facts{Used: true}

// message is one that was read.
type message struct {
	head frame.Head
	raw  []byte
}

func (m message) body() string { return string(m.raw[m.head.Size:]) }

// describe says it as wantAnswers has it.
func (m message) describe(codec frame.Codec) string {
	if m.head.Type == frame.Exception {
		code, _ := codec.ExceptionCode(&m.head, m.raw[m.head.Size:])
		return fmt.Sprintf("%d!%d:%s", m.head.ID.Seq, code, m.body())
	}
	return fmt.Sprintf("%d:%s", m.head.ID.Seq, m.body())
}

// reply is the answer of an honest backend.
func (m message) reply(body string) []byte {
	if m.head.Name == "" {
		return sized(m.head.ID.Seq, m.head.IDBits/8, body)
	}
	return framed(frame.Reply, m.head.Method(), m.head.ID.Seq, body)
}

func (m message) exception(code int32, text string) []byte {
	return frame.NewThrift(frame.Thrift{}).AppendException(nil, &m.head, code, text)
}

// messages splits whole messages, and leaves out what is not whole.
func messages(t testing.TB, s frame.Scanner, p []byte) (all []message) {
	t.Helper()
	for len(p) > 0 {
		n, err := s.Scan(p)
		if err != nil {
			t.Fatalf("after %d messages: %v: %.40q", len(all), err, p)
		}
		if !s.Done() {
			break
		}
		all = append(all, message{*s.Head(), p[:n]})
		s.Next()
		p = p[n:]
	}
	return all
}

// framed is a message in the framed binary form. Nobody looks into the body.
func framed(typ frame.Type, name string, seq uint64, body string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(4+4+len(name)+4+len(body)))
	return append(append(b, strict(typ, name, seq)...), body...)
}

func strict(typ frame.Type, name string, seq uint64) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0x80, 1, 0, byte(typ)}, uint32(len(name)))
	return binary.BigEndian.AppendUint32(append(b, name...), uint32(seq))
}

func twoWay(name string, seq uint64, body string) []byte {
	return framed(frame.Call, name, seq, body)
}

func twoWayReply(name string, seq uint64, body string) []byte {
	return framed(frame.Reply, name, seq, body)
}

func oneway(name string, body string) []byte { return framed(frame.Oneway, name, 0, body) }

// sized is a message of the length protocol.
func sized(id uint64, idWidth int, body string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(idWidth+len(body)))
	for i := idWidth - 1; i >= 0; i-- {
		b = append(b, byte(id>>(8*i)))
	}
	return append(b, body...)
}

func join(parts ...[]byte) (all []byte) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func big(n int) string { return strings.Repeat("x", n) }
