// Package health finds out which backends are down.
//
// A [Monitor] watches one backend. It checks it at intervals, over a connection of its
// own, and hears from those who serve clients what they met: a dial that failed, a
// client that was not served, a success. Of each change it tells its [Owner].
//
// # When a backend goes down
//
// After Fall failures in a row, of checks and of dials together. Failures that were
// under way at the same moment are one. A success clears what it contradicts: a check
// clears every failure, a dial the failed dials. (Where checks do no more than dial, a
// dial clears theirs too. Where they ask for an answer it does not: the kernel of a
// stopped program goes on accepting.)
//
// What one client meets proves nothing, since its own garbage may be the cause: it
// brings the next check forward, and that decides. Only where four different clients
// were not served within 30 seconds, and nobody was served since, does each check that
// does not refute them count as one failure more. A check that gets an answer
// (SendExpect, Thrift) refutes them, so with these no clients, however many, take a
// backend down that answers. A check that only connects does not refute: three checks
// later, with the usual Fall, the backend is down. However many connections a client
// has it is one client, and so are all clients behind one address and all in one IPv6
// /64: for them, choose a check that asks for an answer.
//
// What this machine lacks (descriptors, memory, ports) says nothing about a backend:
// such checks are skipped, and such dials must not be reported.
//
// # When it comes up
//
// After Rise checks in a row that succeeded. A backend that goes down again within a
// minute of coming up is flapping: each time doubles the checks that it needs, up to a
// minute's worth of them, and each minute that it stays up undoes one doubling.
// Evidence that was under way before the last change says nothing of the time after it.
//
// # How often it is checked
//
// Every Interval, ±10 %, from start to start and never two at once; the first check
// comes at a random moment of the first Interval. While a failure or a client that was
// not served waits to be settled, every quarter of Interval (but not below 100 ms,
// unless Interval is). Nothing that clients do makes it more. A check needs a slot of
// the backend (Reserve), being a connection to it; where there is none it is tried
// again after the shorter time.
//
// With no Interval there are no checks while the backend is up: one failed dial takes
// it down, clients cannot, and then it is dialed, with a back-off whose pauses are
// drawn between 0 and 100 ms, doubled up to 5 s. One success brings it up.
//
// # Who owns what
//
// The Monitor owns the state of its backend and the connections of its checks. Its one
// goroutine is the caller of Run. Slots, the choice between backends, slow start and
// what becomes of connections and sessions are the owner's. No lock is held while the
// owner is told, so it may call the Monitor back.
//
// Rise, fall and the shorter interval are HAProxy's; counting what clients meet and
// ejecting for longer each time come from Envoy's outlier detection; the back-off is
// gRPC's, with full jitter.
//
// # Where the code is
//
//	monitor.go  Config, Monitor: what it is told, what it tells
//	run.go      when the checks are made
//	check.go    one check, and whose fault its failure is
//	expect.go   SendExpect; escape.go: its bytes as an operator writes them
//	thrift.go   Thrift; thriftreply.go: the reader of a reply
//	machine.go  up or down: the rules above, as arithmetic
//	witness.go  clients that were not served
//	snapshot.go what operators see
package health
