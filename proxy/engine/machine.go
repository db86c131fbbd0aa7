package engine

import (
	"context"
	"time"
)

// An Op is what a Machine wants done.
type Op int

// The operations.
const (
	OpWait         Op = iota // do I/O, or wait: see Step
	OpLease                  // call Machine.Lease
	OpRelease                // call Machine.Release
	OpFinishClient           // send the client a FIN
	OpDone                   // the machine has ended; the engine calls Drive's done. The client's connection is its holder's to close
)

// A Step is what to do next. With OpWait the engine makes progress on at least one
// of what is wanted, or waits until Until, and asks again. What is wanted of a side
// that has ended is left out.
type Step struct {
	Op Op

	// ToClient and ToBackend are to be written now; nil: nothing. They are valid
	// until the next call of a method of the machine.
	ToClient, ToBackend []byte

	// FromClient and FromBackend are how many bytes may be read; 0: none.
	FromClient, FromBackend int

	// ClientFirst says, where both may be read, that the client is to send next: its
	// request is not complete. Otherwise the backend is: the client is read in case
	// that it sends more, or leaves. It is a hint: a wrong one costs a pause of
	// grace at the most.
	ClientFirst bool

	// Until is when to ask again at the latest. Zero: no limit.
	Until time.Time
}

// A Machine decides what happens on one client's connection and on the backend
// connections that it leases for it, one at a time. It does no I/O itself. Its
// methods are called from one goroutine at a time; none may call the engine, or wait.
type Machine interface {
	// Next says what to do. It is called after each event, and may be called when
	// nothing has happened: it then says the same again.
	Next(now time.Time) Step

	// Lease gets a connection, or learns that there is none; then it calls leased,
	// from any goroutine, once, perhaps before it returns. It does not wait itself. Until
	// leased is called the engine calls no other method, and leaves the client to its
	// holder, who may Watch it.
	Lease(leased func())

	// Backend returns the leased connection, the same from Lease to Release; nil
	// without one.
	Backend() Conn

	// Release ends the lease. The engine does not touch the connection afterwards.
	Release()

	// ReadClient and ReadBackend take bytes that were read, at most as many as the
	// step allowed. p is valid during the call only.
	ReadClient(p []byte)
	ReadBackend(p []byte)

	// WroteClient and WroteBackend tell that the kernel took n bytes of the step's.
	WroteClient(n int)
	WroteBackend(n int)

	// ClientEnded tells of the client's FIN (io.EOF), after which it may still be
	// written to, or with any other error that its connection is gone. Each comes
	// once at the most.
	ClientEnded(err error)

	// BackendEnded tells that the leased connection has ended (io.EOF: by a FIN), or
	// failed in reading or writing. It comes once in a lease at the most, and after
	// all that could be read, unless the machine wanted to write and not to read.
	//
	// undelivered says that it is proved that the backend's program cannot have read
	// any byte of the last batch of what was written. A batch begins with a lease, and
	// with the first attempt to write after there was a step with nothing for the
	// backend and bytes were read from it. Of an earlier batch, which may have requests
	// that are unanswered, it says nothing; and a machine that has read a part of the
	// reply knows better.
	BackendEnded(err error, undelivered bool)

	// Cut tells, once, that the context has ended: the machine must soon say
	// OpRelease and OpDone, without waiting.
	Cut()
}

// DriveConfig describes one run of Drive.
type DriveConfig struct {
	// Wake may be nil. When it ends, a waiting machine is asked again, once.
	Wake context.Context
}
