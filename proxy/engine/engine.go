// Package engine moves bytes: it is the only part of forebay that knows
// descriptors. An Engine accepts clients, takes over dialed connections, watches
// either kind without taking anything from it, relays pairs of them, and drives
// machines, which decide for one client what goes to which backend.
//
// # What every engine keeps
//
//   - A FIN is relayed per direction, after every byte before it; the other
//     direction goes on, bounded by RelayConfig.HalfCloseTimeout.
//   - A connection that was reset, or failed, is reset towards the other side
//     too, once what was read before has been acknowledged there (one second at
//     the most). After both sides have finished there is no reset.
//   - A slow reader stops the reading of its peer: what a session may hold is
//     bounded by its two buffers.
//   - A quiet session holds no buffer.
//
// # Who owns what
//
// A Conn belongs to its holder, who closes it. While Relay runs (until it calls
// done) both connections belong to the engine: nobody else may use them. After
// that they are the holder's again: where the Result says so (Quiet, Stale) they
// can be used on, otherwise they can only be closed.
//
// While Drive runs (until it calls done) the client's connection belongs to the
// engine, but during Machine.Lease, when its holder may watch it. A backend's is the
// engine's from the return of Lease to the call of Release, or to the end of the drive
// where the machine keeps it. All are given back without a deadline. The engine reads
// no more than a step wants, so that whoever comes next finds the rest.
//
// # The loops (epoll, uring)
//
// A loop is one goroutine that runs many relays and drives. Each is a state machine
// (pair_linux.go, steps_linux.go): an event, a timer or a posted task has it do what
// there is to do, and it returns. What differs between epoll and uring is behind the
// small interface kernel (loop_linux.go). All that belongs to a connection (loopConn) and
// is not atomic is its loop's while it has a user, which is a relay, a drive or a dial;
// without one it is its holder's. A connection moves to the loop of its client when that
// leases it. Other goroutines only post tasks, under the loop's mu; who posts to a loop
// that waits pokes it. Timers lie on a wheel. The kernel's memory (provided buffers)
// belongs to the ring from give to take, and to the chunk in between.
//
// When something goes wrong there: a descriptor that is used again is told from the one
// before by a generation; an operation is cancelled and awaited (kernel.settle) before a
// connection goes back to its holder; want of buffers leaves the bytes in the socket; a
// completion queue that overflows is flushed by the kernel later; accepting without
// descriptors rests as everywhere (Handler.Failed); and what a slow reader does not take
// is copied out of the shared buffers.
//
// # What happens when, during a relay
//
//   - The client or the backend is gone: its reset ends the session; its FIN ends
//     one direction.
//   - Both at once: the first one seen gives the reason; either way both
//     directions end before done is called.
//   - Nothing moves for the idle timeout (after one side's FIN: the half-close
//     timeout): the session ends.
//   - The context ends, or Conn.Cut is called: the session is cut, and both sides are
//     reset.
//   - A backend ends a connection that its client's first bytes have not reached:
//     the session ends as Stale, and the client keeps the bytes (flight.go).
//
// # What happens when, during a drive
//
//   - The client is gone: the machine is told when a step wants to read it, after what
//     it sent before, or when a write to it fails, which ends the reading too. Of a reset
//     behind a FIN only a write tells.
//   - The backend is gone: likewise, with whether its program can have read the
//     request; and where a write fails, what it sent before is read first, if the
//     steps want it.
//   - Both at once: the machine is told of each, in the order in which they are seen.
//   - The time of a step has come, or DriveConfig.Wake has ended: the machine is asked
//     again.
//   - The context ends, or Conn.Cut is called: the machine is told (Cut), and ends. The
//     engine resets nothing: that is left to the holders.
//   - A slow reader stops what a step does not want: what a session holds is bounded
//     by what its machine takes.
package engine

import (
	"context"
	"fmt"
	"net"
	"time"
)

// Engine moves bytes. Its methods may be called by several goroutines.
type Engine interface {
	// Name is what --engine calls it.
	Name() string

	// Listen opens a listener on network ("tcp" or "unix") and addr. The socket
	// file of a dead process is replaced, that of a live one is not.
	Listen(ctx context.Context, network, addr string) (Listener, error)

	// Dial connects to addr on network ("tcp" or "unix"). A name is resolved at each
	// dial; its addresses are tried one after the other, since two at once would be
	// two connections.
	Dial(ctx context.Context, network, addr string) (Conn, error)

	// Adopt takes over a dialed connection. c must not be used afterwards.
	Adopt(c net.Conn) (Conn, error)

	// Relay moves bytes both ways between client and backend until both have
	// ended or ctx is done, then calls done, from any goroutine, once. It does not
	// wait itself; done must not wait either.
	Relay(ctx context.Context, client, backend Conn, cfg RelayConfig, done func(Result))

	// Drive does what m says, until it says OpDone; when ctx ends, m is told by Cut,
	// and says so. Then it calls done, likewise.
	Drive(ctx context.Context, client Conn, m Machine, cfg DriveConfig, done func())

	// Close waits for the engine's goroutines to end. Every connection must have
	// been closed by its holder.
	Close()
}

// A Connector is an Engine that can dial without a goroutine for each dial.
type Connector interface {
	// Connector returns a Dial of one address that does not wait: it calls done once,
	// later, from any goroutine; done must not wait either. A dial ends with its context,
	// and after timeout.
	Connector(network, addr string, timeout time.Duration) func(ctx context.Context, done func(Conn, error))
}

// A Listener accepts clients.
type Listener interface {
	// Serve accepts clients for h until Close. It returns when no method of h is
	// running any more or will be called.
	Serve(h Handler)

	// Resume has Serve ask for a place again, after Admit said that there was none. It
	// may come before that Admit has returned, and from a method of h; it calls none.
	Resume()

	Addr() net.Addr
	Close() error
}

// A Handler is whom a Listener accepts clients for. Its methods are called by any
// goroutine, Admit and Failed by one at a time. None may wait: an engine may have one
// goroutine for many connections.
type Handler interface {
	// Admit reserves a place for one more client and reports whether there was one.
	// If not, no client is accepted until Resume. A place that no client came for
	// when the listener was closed is forgotten.
	Admit() bool

	// Accepted takes a client, and its place.
	Accepted(client Conn)

	// Failed tells that no client could be accepted, and returns how long not to try.
	// The place is still reserved.
	Failed(err error) (rest time.Duration)
}

// A Conn is one connection of an engine.
type Conn interface {
	RemoteAddr() net.Addr

	// Peek tells, without waiting and without taking anything, whether bytes
	// can be read, and whether the peer has ended the connection: end is nil
	// while it has not, io.EOF after a FIN, another error after a failure. Where
	// the platform cannot tell, it says that nothing has happened.
	Peek() (bytes bool, end error)

	// Clean reports that nothing has happened, as far as that is known: Peek would tell
	// of no bytes and no end. It may go by what was known a moment ago, and costs less.
	Clean() bool

	// PeekBytes copies to p what can be read, without waiting and without taking
	// it, and returns how many bytes. Where the platform cannot, it copies none.
	PeekBytes(p []byte) int

	// Unacked returns how many bytes were written that the peer's kernel has not
	// taken yet: they keep a connection open there that is closed here. Where the
	// platform cannot tell it is 0.
	Unacked() int

	// Watch calls f with what Peek would say, from another goroutine: once soon
	// and then whenever it may have changed, until f returns false or stop is
	// called. stop returns when no call of f is under way or will come; it must
	// not be called from f. A connection is not watched and relayed at once.
	Watch(f func(bytes bool, end error) (more bool)) (stop func())

	// Cut ends the relay or the drive that this client's connection is in, as the end of
	// its context would. It may be called by any goroutine, also when that has ended, or
	// the connection is closed: then it does nothing.
	Cut()

	// Abort has Close reset the connection. Unix sockets know no reset.
	Abort()

	// Close closes the connection.
	Close() error
}

// Config describes what every connection of an engine gets.
type Config struct {
	// Workers is how many loops an engine of loops has. Zero means one: more cost more
	// for the same work, until one processor cannot do it.
	Workers int

	// KeepAlive is the time between keep-alive probes of a quiet TCP
	// connection. Zero means none.
	KeepAlive time.Duration

	// UserTimeout is how long sent bytes may stay without acknowledgement, or a
	// peer that reads nothing may hold them up, before a TCP connection fails.
	// Zero means the system's default. It is kept on Linux only.
	UserTimeout time.Duration
}

// RelayConfig describes one relay. A zero duration means no limit.
type RelayConfig struct {
	// IdleTimeout ends a session in which no byte moved either way. What a slow
	// reader takes out of the kernel's buffers has moved too.
	IdleTimeout time.Duration

	// HalfCloseTimeout does so once one side has sent its FIN, counted from then.
	HalfCloseTimeout time.Duration

	// KeepQuiet withholds the client's FIN from the backend, and ends the relay
	// as Quiet once the client has sent its FIN, the last byte came from the
	// backend (or none moved) and nothing moved for this long. Zero relays the
	// FIN.
	KeepQuiet time.Duration

	// Replay lets the relay end as Stale. Without it, however the backend ends
	// the connection is its answer to this client.
	Replay bool

	// Unread is what was read from the client before. It is relayed first, as if it
	// were read now. Where the relay ends as Stale the client's connection keeps it:
	// the next relay must not be given it again.
	Unread []byte
}

// An End tells how a relay ended.
type End uint8

// The ends of a relay.
const (
	Finished         End = iota // both sides sent their FIN
	ClientReset                 // the client reset its connection
	BackendReset                // the backend reset its
	ClientFailed                // the connection to the client failed (TCP gave up)
	BackendFailed               // likewise that to the backend
	IdleTimeout                 // nothing moved for the idle timeout
	HalfCloseTimeout            // nothing moved for the half-close timeout
	Cut                         // the context ended
	Quiet                       // the client is done; the backend's connection is as open as before (KeepQuiet)
	Stale                       // the backend had ended the connection before any byte reached it (Replay)
)

var endNames = [...]string{"finished", "client reset", "backend reset", "client failed", "backend failed",
	"idle timeout", "half-close timeout", "cut", "quiet", "stale"}

// String returns the name of the end.
func (e End) String() string {
	if int(e) >= len(endNames) {
		return fmt.Sprintf("end %d", int(e))
	}
	return endNames[e]
}

// Half tells what one direction did.
type Half struct {
	Taken   int64 // bytes read from its source
	Moved   int64 // of these, bytes given to its destination's kernel
	FIN     bool  // its source sent a FIN
	FINSent bool  // which was relayed to its destination, or is by the Close that must follow
}

// Result tells what a relay did.
type Result struct {
	Up, Down Half // client to backend, backend to client
	End      End
	Err      error // what the system said, for the ends that have a cause; may be nil

	// LastDown tells that the last byte that moved came from the backend, and was
	// read from it after the last write to it had begun.
	LastDown bool

	// Unacked is how many bytes the kernel still holds that were given to it for
	// the backend. It is counted when End is Quiet.
	Unacked int

	// QuietFor is how long nothing had moved when the relay ended.
	QuietFor time.Duration
}

// Untouched reports that no byte was taken from either side and no FIN was
// relayed to the backend: its connection is as it was before.
func (r Result) Untouched() bool { return r.Up.Taken == 0 && r.Down.Taken == 0 && !r.Up.FINSent }
