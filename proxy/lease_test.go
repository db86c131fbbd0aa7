package proxy

import (
	"context"
	"errors"
	"io"
	"testing"

	"forebay/balance"
	"forebay/pool"
	"forebay/proxy/engine"
	"forebay/proxy/enginetest"
	"forebay/proxy/proxytest"
)

// TestEachBackendIsTriedOnce: a backend whose dial failed a client, and that is
// up again a moment later, serves others but not that client.
func TestEachBackendIsTriedOnce(t *testing.T) {
	enginetest.Each(t, testEachBackendIsTriedOnce)
}

func testEachBackendIsTriedOnce(t *testing.T) {
	cfg := config(testBackend(t, 2, echo), testBackend(t, 1, echo))
	g := newGated(t)
	cfg.Engine = g
	f := start(t, cfg)
	let := func(err error) {
		t.Helper()
		proxytest.Receive(t, g.began, "a dial")
		g.gate <- err
	}
	first := f.dial(t)
	let(nil)
	ping(t, first)
	second := f.dial(t) // at the other backend, which is full now
	let(nil)
	ping(t, second)

	third := f.dial(t)
	let(errors.New("no"))
	f.waiting(t, 1)
	f.isUp(t, 0)
	fourth := f.dial(t)
	let(nil)
	ping(t, fourth)
	f.waiting(t, 1)
	second.Close()
	let(nil)
	ping(t, third)
	if s := f.Stats(); s.Backends[1].Load.Active() != 1 || s.Waiting != 0 {
		t.Errorf("the other backend has %d active, and %d wait; want 1 and 0", s.Backends[1].Load.Active(), s.Waiting)
	}
	close(g.gate)
}

// observed is an engine whose backend connections tell when they are closed.
type observed struct {
	engine.Engine
	onClose func()
}

func (o *observed) Dial(ctx context.Context, network, addr string) (engine.Conn, error) {
	conn, err := o.Engine.Dial(ctx, network, addr)
	return &observedConn{conn, o}, err
}

type observedConn struct {
	engine.Conn
	engine *observed
}

func (c *observedConn) Close() error {
	c.engine.onClose()
	return c.Conn.Close()
}

// TestSlotIsFreeOnlyWhenItsConnectionIsClosed looks at the slots at the moment of
// the close.
func TestSlotIsFreeOnlyWhenItsConnectionIsClosed(t *testing.T) {
	enginetest.Each(t, testSlotIsFreeOnlyWhenItsConnectionIsClosed)
}

func testSlotIsFreeOnlyWhenItsConnectionIsClosed(t *testing.T) {
	tests := []struct {
		name  string
		end   func(srv *Server, l *lease)
		state balance.State // of the slot, while the connection is closed
	}{
		{name: "discarded", end: func(srv *Server, l *lease) { srv.discard(l, pool.Used) }, state: balance.Closing},
		{name: "not fit to be kept", end: func(srv *Server, l *lease) {
			for end := error(nil); end != io.EOF; _, end = l.Conn().Peek() {
			}
			srv.keep(l, false)
		}, state: balance.Leased},
		{name: "the relay's result decides", end: func(srv *Server, l *lease) {
			srv.release(l, engine.Result{End: engine.Finished})
		}, state: balance.Closing},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			be := testBackend(t, 3, func(proxytest.Conn) {}) // closes at once
			cfg := config(be)
			o := &observed{Engine: enginetest.New(t)}
			cfg.Engine = o
			f := start(t, cfg)
			closed := 0
			o.onClose = func() {
				closed++
				if l := f.Stats().Backends[0].Load; l.Slots[tt.state] != 1 || l.Open() != 1 {
					t.Errorf("while the connection is closed the slots are %v, want one %v", l.Slots, tt.state)
				}
			}
			s := &session{srv: f.Server, id: 1, client: silentConn{}}
			l, err := s.await()
			if err != nil {
				t.Fatal(err)
			}
			tt.end(f.Server, l)
			if l := f.Stats().Backends[0].Load; closed != 1 || l.Open() != 0 {
				t.Errorf("closed %d times, then the slots are %v; want once, and all free", closed, l.Slots)
			}
		})
	}
}

// silentConn is a client that waits.
type silentConn struct{ engine.Conn }

func (silentConn) Watch(func(bool, error) bool) (stop func()) { return func() {} }

// A session that finds a connection ready begins neither a watch of its client, nor
// anything else that it would have to end.
func TestLeaseOfAReadyConnectionBeginsNothing(t *testing.T) {
	enginetest.Each(t, testLeaseOfAReadyConnectionBeginsNothing)
}

func testLeaseOfAReadyConnectionBeginsNothing(t *testing.T) {
	cfg := config(testBackend(t, 1, echo))
	cfg.MinIdle = 1
	f := start(t, cfg)
	f.slots(t, 0, balance.Idle, 1)
	s := &session{srv: f.Server} // has no client, who could be watched
	answered := false
	s.acquire(func(l *lease, err error) {
		if err != nil || !l.ready {
			t.Fatalf("acquire = %v, %v; want a ready connection", l, err)
		}
		f.keep(l, false)
		answered = true
	})
	if !answered {
		t.Error("acquire returned without an answer")
	}
}
