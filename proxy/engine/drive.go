package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Drive does what m says, in a goroutine of its own. Only a wait for several things
// that lasts has more (wants.go).
func (e *Net) Drive(ctx context.Context, client Conn, m Machine, cfg DriveConfig, done func()) {
	d := &drive{client: client.(*netConn), machine: m, up: sizer{size: minBuffer}, down: sizer{size: minBuffer}}
	d.paced.by = &e.pacer
	d.leasedc = make(chan struct{}, 1)
	d.leased = func() { d.leasedc <- struct{}{} }
	forget := context.AfterFunc(ctx, func() { d.interrupt(cut) })
	forgetWake := func() bool { return true }
	if cfg.Wake != nil {
		forgetWake = context.AfterFunc(cfg.Wake, func() { d.interrupt(woken) })
	}
	d.client.setUser(func() { d.interrupt(cut) })
	e.wg.Go(func() {
		d.run()
		d.seal()
		forget()
		forgetWake()
		done()
	})
}

// drive is one run of Drive. Its goroutine owns all of it but what is atomic or
// under mu.
type drive struct {
	machine  Machine
	client   *netConn
	up, down sizer // of the reads from the client, from the backend

	sides
	isCut bool // the machine has been told

	leased  func() // bound once
	leasedc chan struct{}

	second want // what ended the last wait for several things, where the first of them did not

	pending atomic.Uint32 // interrupts that the machine does not know of

	// mu orders the deadlines of the goroutine with those of an interrupt: who makes
	// a deadline later holds it, and has seen that nothing is pending.
	mu      sync.Mutex
	backend *netConn // the leased connection
	leasing bool     // the client is the holder's for now
	paced   paced
	bell    chan struct{} // closed by an interrupt, where no connection is waited for
	sealed  bool          // the drive has ended
}

// The interrupts, bits of drive.pending.
const (
	cut   = 1 << iota // the context has ended
	woken             // DriveConfig.Wake has
)

func (d *drive) run() {
	for {
		d.heed()
		now := time.Now()
		s := d.machine.Next(now)
		switch s.Op {
		case OpWait:
			d.wait(&s, now)
		case OpLease:
			d.askLease()
		case OpRelease:
			d.release()
		case OpFinishClient:
			d.client.closeWrite() // if it fails, a read finds out why
		case OpDone:
			return
		}
	}
}

func (d *drive) askLease() {
	d.mu.Lock()
	d.leasing = true
	if d.pending.Load() != 0 {
		d.client.clearDeadlines() // a watch would end at once
	}
	d.mu.Unlock()

	d.machine.Lease(d.leased)
	<-d.leasedc

	d.mu.Lock()
	d.leasing = false
	if c := d.machine.Backend(); c != nil {
		d.backend = c.(*netConn)
	}
	d.mu.Unlock()
	d.sides.lease = lease{}
	if d.backend != nil {
		d.mark = d.backend.written
	}
}

func (d *drive) release() {
	d.mu.Lock()
	if d.backend != nil {
		d.giveUp(d.backend)
		d.backend = nil
	}
	d.mu.Unlock()
	d.machine.Release()
}

// seal ends the time in which an interrupt may touch the connections.
func (d *drive) seal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sealed = true
	d.client.user.Store(nil)
	d.giveUp(d.client)
	if d.backend != nil {
		d.giveUp(d.backend)
	}
}

// giveUp leaves c to its holder, without a deadline. It is called with the lock
// held.
func (d *drive) giveUp(c *netConn) {
	if d.pending.Load() != 0 || c.hasDeadline() {
		c.clearDeadlines()
	}
}

// interrupt has the wait that is under way end, or else the next one.
func (d *drive) interrupt(why uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sealed {
		return
	}
	d.pending.Or(why)
	if d.bell != nil {
		close(d.bell)
		d.bell = nil
	}
	if !d.leasing {
		d.client.SetDeadline(aLongTimeAgo)
	}
	if d.backend != nil {
		d.backend.SetDeadline(aLongTimeAgo)
	}
}

// heed takes the interrupts, if there are any.
func (d *drive) heed() {
	if d.pending.Load() == 0 {
		return
	}
	d.mu.Lock()
	why := d.pending.Swap(0)
	d.client.clearDeadlines()
	if d.backend != nil {
		d.backend.clearDeadlines()
	}
	d.mu.Unlock()
	if why&cut != 0 && !d.isCut {
		d.isCut = true
		d.machine.Cut()
	}
}

// sleep waits where nothing is wanted.
func (d *drive) sleep(until time.Time) {
	bell := make(chan struct{})
	d.mu.Lock()
	if d.pending.Load() != 0 {
		d.mu.Unlock()
		return
	}
	d.bell = bell
	d.mu.Unlock()

	var timeup <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		timeup = t.C
	}
	select {
	case <-bell:
	case <-timeup:
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	d.bell = nil
}
