package engine

import (
	"context"
	"sync/atomic"
	"time"
)

// steps is one run of Drive on a loop. It does what the machine says as drive does
// (drive.go, wants.go), without waiting: where that waits, steps returns to its loop
// and asks the machine again at an event or when its timer goes off.
type steps struct {
	loop    *loop
	seat    seat
	machine Machine
	client  *loopConn
	backend *loopConn // the leased connection
	done    func()
	ctx     context.Context
	cut     member
	wake    wakeMember
	timer   timer
	leased  func() // bound once
	state   atomic.Uint32

	phase  stepPhase
	queued bool          // the loop will run it again
	to     *loopConn     // what is being written to, while writing
	sent   uint64        // to.written before
	waits  bool          // for what is wanted
	wanted Step          // what the machine said last
	until  time.Duration // when to ask again; 0: at no time
	doCut  bool          // the machine is to be told that the context has ended
	isCut  bool          // it has been, or is to be

	sides

	drainEnd time.Duration // when the reading ends of what is left on a connection to which a write failed
	end      error         // how the backend ended, while it is found out what it can have read
	begun    time.Duration
	pause    time.Duration
}

type stepPhase uint8

const (
	stepping  stepPhase = iota
	writing             // a write is under way, of which the machine does not know
	leasing             // the machine's Lease has not called back
	releasing           // the kernel still works on the connection
	judging             // it is found out what the backend can have read
	closing             // the machine is done, and the kernel still works
	stepped
)

// The states of a lease, in steps.state: who changes it second goes on.
const (
	leaseAsked   = iota
	leaseDone    // leased was called
	leaseAwaited // the loop went on with something else
)

// wakeMember is the place of a drive among those that DriveConfig.Wake wakes.
type wakeMember struct {
	member
	steps *steps
}

func (w *wakeMember) contextEnded() { w.steps.ask() }

// Drive does what m says, on the client's loop.
func (e *Loops) Drive(ctx context.Context, client Conn, m Machine, cfg DriveConfig, done func()) {
	c := client.(*loopConn)
	d := &steps{loop: e.loopOf(c), machine: m, client: c, done: done, ctx: ctx}
	d.leased = d.haveLeased
	d.wake.steps = d
	d.loop.post(taskFunc(func() { d.begin(cfg) }))
}

func (d *steps) begin(cfg DriveConfig) {
	d.seat = seat{d.loop, d}
	d.client.seat.Store(&d.seat)
	d.loop.kernel.stream(d.client)
	if err := d.loop.open(d.client); err != nil {
		d.clientEnded(d.machine, err)
	}
	d.loop.join(d.ctx, &d.cut, d)
	d.loop.join(cfg.Wake, &d.wake.member, &d.wake)
	d.step()
}

func (d *steps) run() {
	d.queued = false
	if d.phase == leasing {
		if d.state.Load() != leaseDone {
			return // it was queued before it asked for the lease
		}
		d.takeLease()
	}
	d.step()
}

// ask has the machine asked again, whether or not what it waits for has come.
func (d *steps) ask() {
	d.waits = false
	d.step()
}

func (d *steps) event(*loopConn) { d.step() }

// timeUp asks again, unless the time was that of an earlier wait.
func (d *steps) timeUp() {
	if d.until == 0 || d.loop.now < d.until {
		d.setTimer()
		return
	}
	d.ask()
}

// cutOff ends the drive as the end of its context does.
func (d *steps) cutOff() {
	if !d.isCut {
		d.cut.leave()
		d.contextEnded()
	}
}

func (d *steps) contextEnded() {
	d.isCut = true
	d.doCut = true
	d.ask()
}

// turns is how many steps a drive makes before others have their turn.
const stepTurns = 64

// step asks the machine and does what it says, until it has to wait.
func (d *steps) step() {
	if !d.mayGoOn() {
		return
	}
	for range stepTurns {
		if d.waits {
			if !d.wait(&d.wanted) {
				return
			}
			d.waits = false
		}
		if !d.obey() {
			return
		}
	}
	if !d.queued {
		d.queued = true
		d.loop.again(d)
	}
}

// obey asks the machine what to do, and does it. It reports whether there is more to do
// now.
func (d *steps) obey() bool {
	if d.doCut {
		d.doCut = false
		d.machine.Cut()
	}
	d.wanted = d.machine.Next(d.loop.at)
	switch d.wanted.Op {
	case OpLease:
		return d.askLease()
	case OpRelease:
		d.phase = releasing
		return d.release()
	case OpFinishClient:
		d.client.closeWrite() // if it fails, a read finds out why
	case OpDone:
		d.phase = closing
		d.finish()
		return false
	default:
		d.waits = true
	}
	return true
}

// mayGoOn finishes what was under way, and reports whether the machine can be asked.
func (d *steps) mayGoOn() bool {
	switch d.phase {
	case stepping:
		return true
	case writing:
		return d.wrote()
	case releasing:
		return d.release()
	case judging:
		return d.judge()
	case closing:
		d.finish()
	}
	return false
}

// askLease has the machine lease, and reports whether it has.
func (d *steps) askLease() bool {
	d.phase = leasing
	d.state.Store(leaseAsked)
	d.machine.Lease(d.leased)
	if d.state.CompareAndSwap(leaseAsked, leaseAwaited) {
		return false // haveLeased posts
	}
	d.takeLease()
	return d.phase == stepping
}

// haveLeased is called by the machine, from any goroutine.
func (d *steps) haveLeased() {
	if d.state.Swap(leaseDone) == leaseAwaited {
		d.loop.post(d)
	}
}

func (d *steps) takeLease() {
	d.phase = stepping
	d.sides.lease, d.drainEnd = lease{}, 0
	c := d.machine.Backend()
	if c == nil {
		return
	}
	d.backend = c.(*loopConn)
	d.backend.seat.Store(&d.seat)
	d.mark = d.backend.written
	if err := d.loop.open(d.backend); err != nil {
		d.backendEnded(err)
	}
}

// release gives the leased connection up, and reports whether it has.
func (d *steps) release() bool {
	if d.backend != nil && !d.loop.kernel.settle(d.backend) {
		return false
	}
	if d.backend != nil {
		d.backend.seat.Store(nil)
		d.backend = nil
	}
	d.phase = stepping
	d.machine.Release()
	return true
}

func (d *steps) finish() {
	k := d.loop.kernel
	client := k.settle(d.client)
	backend := d.backend == nil || k.settle(d.backend)
	if !client || !backend {
		return
	}
	d.phase = stepped
	d.timer.cancel()
	d.cut.leave()
	d.wake.leave()
	d.client.seat.Store(nil)
	if d.backend != nil {
		d.backend.seat.Store(nil)
	}
	d.done()
}
