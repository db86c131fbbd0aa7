package proxy

import (
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"forebay/balance"
	"forebay/pool"
	"forebay/proxy/engine"
	"forebay/proxy/enginetest"
	"forebay/proxy/proxytest"
)

// One change may end many waits. Each waiter is told without the lock, when all of
// them are out of the queue, and the oldest first.
func TestGrantsAreToldInOrderWithoutTheLock(t *testing.T) {
	const waiters = 5
	tests := []struct {
		name   string
		change func(d *dispatcher)
		err    error
	}{
		{name: "a backend comes up", change: func(d *dispatcher) { d.up(d.at(0)) }},
		{name: "the other backend goes down", change: func(d *dispatcher) { d.down(d.at(1), errors.New("down")) }, err: balance.ErrNone},
		{name: "close", change: (*dispatcher).close, err: errShutdown},
		{name: "cut", change: (*dispatcher).cut, err: errShutdown},
		{name: "the acquire timeout", change: func(*dispatcher) { time.Sleep(longWait); synctest.Wait() }, err: errAcquireTimeout},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newTestDispatcher(t, waiters, 10, waiters, 1)
				d.down(d.at(0), errors.New("down"))
				fill(t, d)
				var told []uint64
				for _, ticket := range []uint64{3, 1, 5, 2, 4} {
					w, _ := newWaiter(claim{ticket: ticket}, longWait)
					w.granted = func(_ choice, err error) {
						if _, waiting := d.loads(); waiting != 0 { // with the lock held it would hang
							t.Errorf("%d still wait as session %d is told", waiting, ticket)
						}
						if !errors.Is(err, tt.err) {
							t.Errorf("session %d got %v, want %v", ticket, err, tt.err)
						}
						told = append(told, ticket)
					}
					d.join(w)
				}
				tt.change(d)
				if !slices.Equal(told, []uint64{1, 2, 3, 4, 5}) {
					t.Errorf("told in the order %v", told)
				}
			})
		})
	}
}

// What a waiter is told it may act on at once, in the same call.
func TestGrantMayGiveItsSlotOnAtOnce(t *testing.T) {
	d := newTestDispatcher(t, 4, 10, 1)
	fill(t, d)
	var told []uint64
	for ticket := range uint64(10) {
		w, _ := newWaiter(claim{ticket: ticket}, longWait)
		w.granted = func(c choice, err error) {
			told = append(told, ticket)
			d.giveBack(c)
		}
		d.join(w)
	}
	d.move(d.at(0), balance.Leased, balance.Free)
	if !slices.Equal(told, []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
		t.Errorf("told in the order %v, want all of them", told)
	}
	wantSlots(t, d, 0, map[balance.State]int{balance.Free: 1})
}

// A session that leaves as it is granted a slot has either left or been granted it.
func TestLeaveAndGrantHaveOneWinner(t *testing.T) {
	d := newTestDispatcher(t, 4, 1000, 2)
	fill(t, d)
	var left, granted atomic.Int64
	const rounds, sessions = 300, 8
	for range rounds {
		var wg sync.WaitGroup
		for i := range sessions {
			w, grantc := newWaiter(claim{ticket: uint64(i)}, longWait)
			d.join(w)
			wg.Go(func() {
				if d.leave(w) {
					left.Add(1)
					return
				}
				d.giveBack((<-grantc).choice)
				granted.Add(1)
				if d.leave(w) {
					t.Error("it left twice")
				}
			})
		}
		for range 2 {
			wg.Go(func() { d.move(d.at(0), balance.Leased, balance.Free) })
		}
		wg.Wait()
		wantSlots(t, d, 0, map[balance.State]int{balance.Free: 2})
		fill(t, d)
	}
	if left.Load()+granted.Load() != rounds*sessions {
		t.Errorf("%d left and %d were granted a slot, of %d", left.Load(), granted.Load(), rounds*sessions)
	}
}

func TestEstablishedWaitOnUntilTheyAreCut(t *testing.T) {
	d := newTestDispatcher(t, 4, 10, 1)
	fill(t, d)
	first, firstc := newWaiter(claim{ticket: 1, established: true}, longWait)
	second, secondc := newWaiter(claim{ticket: 2, established: true}, longWait)
	other, otherc := newWaiter(claim{ticket: 3}, longWait)
	for _, w := range []*waiter{first, second, other} {
		d.join(w)
	}
	d.close()
	if g := <-otherc; g.err != errShutdown {
		t.Errorf("a session that was never served has %+v", g)
	}
	if _, waiting := d.loads(); waiting != 2 {
		t.Errorf("%d wait, want the established two", waiting)
	}
	d.move(d.at(0), balance.Leased, balance.Free)
	if g := <-firstc; g.err != nil {
		t.Errorf("the first has %+v, want the slot", g)
	}
	d.cut()
	if g := <-secondc; g.err != errCut {
		t.Errorf("the second has %+v, want that it was cut", g)
	}
	if _, err := d.pick(claim{established: true}); err != errCut {
		t.Errorf("pick = %v, want errCut", err)
	}
	if _, err := d.pick(claim{}); err != errShutdown {
		t.Errorf("pick of a newcomer = %v, want errShutdown", err)
	}
}

// fleetingConn is a client that leaves a moment after it is watched.
type fleetingConn struct{ engine.Conn }

func (fleetingConn) Watch(f func(bool, error) bool) (stop func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for range rand.IntN(3000) {
			runtime.Gosched()
		}
		f(false, io.EOF)
	})
	return wg.Wait
}

// Clients leave while they join the queue, wait, are granted a slot, dial, and get a
// connection. Each is answered once, and no slot is lost.
func TestClientsThatLeaveAtAnyMomentLoseNoSlot(t *testing.T) {
	enginetest.Each(t, testClientsThatLeaveAtAnyMomentLoseNoSlot)
}

func testClientsThatLeaveAtAnyMomentLoseNoSlot(t *testing.T) {
	cfg := config(testBackend(t, 1, echo), testBackend(t, 2, echo))
	f := start(t, cfg)
	var served, gone atomic.Int64
	var wg sync.WaitGroup
	for worker := range 32 {
		rnd := rand.New(rand.NewPCG(uint64(worker), 1))
		wg.Go(func() {
			for range 30 {
				s := &session{srv: f.Server, client: fleetingConn{}}
				switch l, err := s.await(); {
				case err == nil && rnd.IntN(2) == 0:
					served.Add(1)
					f.keep(l, false)
				case err == nil:
					served.Add(1)
					f.discard(l, pool.Used)
				case err == errClientLeft:
					gone.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if served.Load() == 0 || gone.Load() == 0 {
		t.Errorf("%d served, %d gone; want some of both", served.Load(), gone.Load())
	}
	for i := range cfg.Backends {
		f.slots(t, i, balance.Leased, 0)
		f.slots(t, i, balance.Dialing, 0)
	}
	if n := f.Stats().Waiting; n != 0 {
		t.Errorf("%d wait, want none", n)
	}
}

// goneConn is a client that is seen to have left before its watch has begun.
type goneConn struct{ engine.Conn }

func (goneConn) Watch(f func(bool, error) bool) (stop func()) {
	var wg sync.WaitGroup
	wg.Go(func() { f(false, io.EOF) })
	wg.Wait()
	return func() {}
}

func TestClientThatHasLeftNeitherWaitsNorDials(t *testing.T) {
	enginetest.Each(t, testClientThatHasLeftNeitherWaitsNorDials)
}

func testClientThatHasLeftNeitherWaitsNorDials(t *testing.T) {
	cfg := config(testBackend(t, 1, echo))
	g := newGated(t)
	cfg.Engine = g
	f := start(t, cfg)
	gone := func(when string) {
		t.Helper()
		answerc := make(chan error, 1)
		(&session{srv: f.Server, client: goneConn{}}).acquire(func(_ *lease, err error) { answerc <- err })
		if err := proxytest.Receive(t, answerc, "the answer to a client that has left"); err != errClientLeft {
			t.Errorf("%s: acquire = %v, want errClientLeft", when, err)
		}
	}
	gone("a slot is free")
	gone("all are dialing, ahead")
	close(g.gate)
	f.slots(t, 0, balance.Idle, 1)
	f.occupy(t)
	gone("all are leased")
}

// leavingAtWill is a client that leaves when the test says so.
type leavingAtWill struct {
	engine.Conn
	leave func()
}

func (c *leavingAtWill) Watch(f func(bool, error) bool) (stop func()) {
	c.leave = func() { f(false, io.EOF) }
	return func() {}
}

// The client leaves when its session is out of the queue already, and has yet to hear
// of its slot.
func TestSlotOfAClientThatLeftAsItWasGrantedIsGivenBack(t *testing.T) {
	enginetest.Each(t, testSlotOfAClientThatLeftAsItWasGrantedIsGivenBack)
}

func testSlotOfAClientThatLeftAsItWasGrantedIsGivenBack(t *testing.T) {
	f := start(t, config(testBackend(t, 2, echo), testBackend(t, 1, echo)))
	f.dispatcher.down(f.dispatcher.at(0), errors.New("down"))
	f.occupy(t) // the other backend
	client := &leavingAtWill{}
	older, olderc := newWaiter(claim{ticket: 0}, longWait)
	older.granted = func(c choice, err error) {
		client.leave()
		olderc <- grant{c, err}
	}
	f.dispatcher.join(older)
	answerc := make(chan error, 1)
	(&session{srv: f.Server, client: client}).acquire(func(_ *lease, err error) { answerc <- err })
	f.waiting(t, 2)
	f.dispatcher.up(f.dispatcher.at(0)) // has slots for both
	f.dispatcher.giveBack(proxytest.Receive(t, olderc, "the slot of the older").choice)
	if err := proxytest.Receive(t, answerc, "the answer"); err != errClientLeft {
		t.Errorf("acquire = %v, want errClientLeft", err)
	}
	if n := f.Stats().Backends[0].Pool.Dials; n != 0 {
		t.Errorf("%d dials for a client that left", n)
	}
	f.slots(t, 0, balance.Free, 2)
}
