package exchange

import (
	"errors"
	"io"
	"testing"
	"time"

	"forebay/proxy/frame"
)

// FuzzMachine drives a machine with what the input says, and checks that it stays
// within its bounds, never waits for nothing or for what is past, and ends.
func FuzzMachine(f *testing.F) {
	call := []byte{opCall, 0, opWrite, 255}
	answer := []byte{opReply, 0, opTake, 255}
	for _, script := range [][]byte{
		join(call, answer, []byte{opFIN}),
		join([]byte{opConfig, 1}, call, answer, call, answer, []byte{opBackendEnd, 1}),
		join([]byte{opCall, 1}, call, answer, []byte{opLater, 200}),
		join([]byte{opCall, 2}, call, answer, []byte{opCall, 3, opReset}),
		join([]byte{opBig, 3, opWrite, 9, opReply, 1, opBackendEnd, 0}),
		join(call, []byte{opBackendEnd, 1, opRefuse, opWrite, 255}),
		join(call, []byte{opLater, 255, opLater, 255, opCut}),
		append([]byte{opRaw, 20}, forms()[0].request...),
		append(append(call, opStray, 40), "[1,\"echo\",1,1,{}]"...),
	} {
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		r := &replay{rig: newRig(t), script: script}
		r.slowClient, r.slowBackend, r.holdLease = true, true, true
		for len(r.script) > 0 && !r.done {
			r.event(r.next())
			r.advance()
		}
		r.end()
	})
}

// The events; others are the first ones again.
const (
	opCall       = iota // the client sends a request: the method
	opWrite             // the backend takes so much
	opReply             // the backend answers the newest call: how
	opTake              // the client takes so much
	opRaw               // the client sends the next so many bytes of the script
	opStray             // the backend does
	opFIN               // of the client
	opReset             // of the client
	opBackendEnd        // undelivered or not
	opLater             // so many tenths of a second
	opBig               // the client sends part of a large request: so many sixteenths
	opRefuse
	opDrain
	opCut
	opConfig // of the machine; it begins anew
	numOps
)

// replay is a rig that a script drives.
type replay struct {
	*rig
	script []byte
	rest   []byte // of a request that was sent in part
	seq    uint64
}

func (r *replay) next() int {
	if len(r.script) == 0 {
		return 0
	}
	b := r.script[0]
	r.script = r.script[1:]
	return int(b)
}

func (r *replay) bytes() []byte {
	n := min(r.next(), len(r.script))
	p := r.script[:n]
	r.script = r.script[n:]
	return p
}

// advance does what can be done at once: leases are given, and ended.
func (r *replay) advance() {
	for range 200 {
		r.step = r.m.Next(r.now)
		r.check()
		if r.step.Op == Lease {
			r.holdLease = false
		}
		again := r.act()
		r.holdLease = true
		if !again {
			return
		}
	}
	r.t.Fatalf("the machine does not come to rest: %s", show(r.step))
}

func (r *replay) event(op int) {
	s := &r.step
	switch op % numOps {
	case opCall:
		r.request(r.next(), 10)
	case opBig:
		r.request(0, 100<<10*r.next()/64)
	case opWrite:
		if n := min(r.next(), len(s.ToBackend)); n > 0 {
			r.sent = append(r.sent, s.ToBackend[:n]...)
			r.m.WroteBackend(n)
		} else if n = len(s.ToBackend); n > 0 {
			r.m.WroteBackend(n)
		}
	case opReply:
		r.respond(r.next())
	case opTake:
		if n := min(r.next(), len(s.ToClient)); n > 0 {
			r.m.WroteClient(n)
		}
	case opRaw:
		r.fromClient(r.bytes())
	case opStray:
		r.fromBackend(r.bytes())
	case opFIN:
		r.endClient(io.EOF)
	case opReset:
		r.endClient(errReset)
	case opBackendEnd:
		if r.m.conn != nil {
			r.m.BackendEnded(io.EOF, r.next()%2 == 1)
		}
	case opLater:
		r.now = r.now.Add(time.Duration(r.next()) * time.Second / 10)
	case opRefuse:
		r.refuse = map[string]string{"": "full"}[r.refuse]
	case opDrain:
		r.m.Drain()
	case opCut:
		r.m.Cut()
	case opConfig:
		r.configure(r.next())
	}
}

// configure begins anew, with another configuration.
func (r *replay) configure(b int) {
	if r.m.conn != nil || r.m.Stats != (Stats{}) || r.m.in.Begun() || r.m.fin {
		return
	}
	r.cfg.Session = b&1 > 0
	r.cfg.AbortOnFIN = b&2 > 0
	if b&4 > 0 {
		r.cfg.Quarantine = 0
	}
	if b&8 > 0 {
		lengths(4)(r.cfg)
	}
	if b&16 > 0 {
		r.cfg.IdleTimeout = 10 * time.Millisecond
	}
	if b&32 > 0 {
		r.cfg.ReplyBuffer = 0
	}
	if b&64 > 0 {
		lengths(0)(r.cfg)
		r.cfg.Trust = true
	}
	r.m = New(r.cfg)
}

func (r *replay) request(method, size int) {
	if len(r.rest) > 0 {
		r.fromClient(r.rest)
		return
	}
	r.seq++
	name := []string{"echo", "fire", "listed", "get", "new"}[method%5]
	typ := frame.Call
	if method&8 > 0 {
		typ = frame.Oneway
	}
	p := framed(typ, name, r.seq, big(1+size))
	switch {
	case r.cfg.Trust:
		p = sized(0, 0, big(size))
	case r.m.cfg.Codec.AppendException(nil, &frame.Head{Form: frame.Form{Transport: frame.Framed, Protocol: frame.Binary}}, 0, "") == nil:
		p = sized(r.seq, 4, big(size))
	}
	r.fromClient(p)
}

func (r *replay) fromClient(p []byte) {
	n := min(len(p), r.step.FromClient)
	r.rest = p[n:]
	if n > 0 && !r.m.fin {
		r.m.ReadClient(p[:n])
	}
}

func (r *replay) fromBackend(p []byte) {
	if n := min(len(p), r.step.FromBackend); n > 0 {
		r.m.ReadBackend(p[:n])
	}
}

// respond has the backend answer one of the calls that are out.
func (r *replay) respond(how int) {
	if len(r.m.calls) == 0 {
		return
	}
	x := &r.m.calls[how>>4%len(r.m.calls)]
	m := message{head: x.head}
	m.head.ID = x.id
	p := m.reply(big(how * how))
	if how&4 > 0 {
		p = m.exception(int32(how>>4), "why")
	}
	if how&8 > 0 {
		p = p[:len(p)/2]
	}
	r.fromBackend(p)
}

func (r *replay) endClient(err error) {
	if !r.m.fin || err != io.EOF && r.m.gone == nil {
		r.m.ClientEnded(err)
	}
}

// end ends all, and checks that the machine does.
func (r *replay) end() {
	r.refuse = ""
	r.advance()
	if len(r.script)%2 == 0 {
		r.endClient(errors.New("gone"))
	} else {
		r.slowClient = false
		r.endClient(io.EOF)
	}
	for range 100 {
		if r.advance(); r.done {
			break
		}
		if r.step.Until.IsZero() {
			r.m.Cut()
			continue
		}
		r.now = r.step.Until
	}
	if !r.done {
		r.t.Fatalf("it does not end: %s", show(r.step))
	}
}
