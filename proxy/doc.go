// Package proxy is the life of a session: one client connection, from accept to
// close.
//
//	client                                                        backend
//	  │ 1 accept    accept.go   entrance         a place, its descriptors     │
//	  │ 2 pick      queue.go    dispatcher       by a strategy; takes a slot  │
//	  │             queue.go    … or the queue, FIFO over all backends        │
//	  │ 3 lease     lease.go    pool Take | Dial a connection in that slot ───┤
//	  │ 4 relay     engine/     Engine.Relay                                  │
//	  ╞══ up ════════════════════════════════════════════════════════════════►╡
//	  ╞◄═ down ═══════════════════════════════════════════════════════════════╡
//	  │ 5 release   reuse.go    may it serve another client? keep | close ────┘
//	  │ 6 account   session.go  one reason, one log line, one counter
//
// Where the protocol tells requests apart (Config.Requests), steps 2 to 5 come for
// each request: the engine drives a machine (package exchange) that says when,
// and requests.go does what it asks for. A session that binds state to its
// connection goes on as a relay, over a connection that nobody has used.
//
// Beside these steps stands what an operator changes while they go on: the set of
// backends (control.go), a pause (pause.go), one session (registry.go). And what is found
// out about a backend: whether it is up (health.go, by package health), from checks
// (check.go) and from what clients meet (evidence.go), and how it comes back (slowstart.go).
//
// The files are the steps, and session.go reads in their order. Package balance
// decides who serves next (Config.Balance: by default the least loaded by active/max), package pool keeps the connections to one backend,
// package engine moves the bytes; each knows nothing of the others.
//
// # Who owns what
//
//   - The dispatcher owns every slot of every backend and the queue, under one
//     lock. A slot is taken before a dial begins and given back after the
//     connection is closed; nothing else opens or closes a backend connection, and
//     a check has a slot too.
//   - The monitor of a backend decides whether it is up. It tells the dispatcher without
//     a lock of its own, in order; who tells the monitor something holds no lock either,
//     but for SlotFree, which only leaves a note.
//   - A backend (backend.go) is one for all that refer to it, leases and sessions too. What
//     may change of it is the dispatcher's, under its lock: its numbers, its state, whether
//     it is up (health.go), and its index in the account, which is another's once it is
//     gone. It is gone when it has been removed and none of its slots is in use.
//   - A session owns its client's connection and its lease. While the engine
//     relays, or drives the session's machine, the engine has both; between
//     Lease and Release of a machine the lease is the session's to end.
//   - An acquire (lease.go) has the session until it has an answer. At any time one
//     goroutine has the acquire: who asked, who granted it a slot, the one that dials.
//     The watch of the client, which runs beside these, only notes that the client has
//     left, and ends what is waited for: it has the acquire where it took it out of the
//     queue.
//   - The server owns the sessions and their goroutines (it waits for them) and the pools
//     (which end after the last session, or when their backend is gone).
//   - An entry of the registry belongs to its session until that closes its client. What an
//     operator sees of the session, and how the session is ended from outside, is under the
//     entry's lock. Without Config.Registry there are none.
//
// # On which goroutine things run
//
// Nothing in a session's life waits in the goroutine that calls it: an engine may have
// one thread for thousands of sessions. Each step is a call of the one before, or of what
// it needed: the engine (accepted, relayed, the methods of the machine), whoever freed a
// slot (granted, without the dispatcher's lock), a timer.
//
// A goroutine is begun only for what must wait, and the server waits for it:
//
//   - a dial for a client, and the rest after a dial that this machine could not make;
//   - the end of a lease whose oneway calls are still on their way (reuse.go);
//   - the end of a watch that has just seen something, since it cannot be stopped from
//     within: a client that left the queue, or sent its first byte (firstbyte.go).
//
// The queue has one timer for all that wait (deadline.go). Each backend has its goroutines:
// that of its pool, that of its monitor, which makes the checks, one while it starts slowly,
// and one for each dial where the engine cannot connect without waiting (engine.Connector).
//
// A quiet session has no goroutine, timer, context or watch of its own. Its memory is the
// session, its lease, and what the engine keeps.
//
// # What happens when
//
//   - The client goes while it waits (for its first byte, in the queue, for a
//     dial): a reset, or a FIN before any byte, ends the session as client_left;
//     its place or its dial goes to the next one. So does a slot that it was granted
//     meanwhile. A FIN after bytes is a half-close, and the client is served (unless
//     AbortOnFIN).
//   - The backend goes: before the request reached it, the session moves to
//     another connection (engine.Stale); later its end is relayed.
//   - Both at once: the engine reports the one it saw first; the lease is closed
//     once, by the session.
//   - The acquire timeout passes as a slot becomes free: whoever has the dispatcher's
//     lock first decides. A waiter whose time is up gets no slot.
//   - A backend is drained, or maintained: no lease begins there, what lies idle is closed,
//     those who wait and have no other hope are refused, leases go on. With a lease for each
//     request a session goes elsewhere after it. Removed: the same, and gone after that; one
//     that is added again before stays, with its open connections counted.
//   - Max is lowered below what is open: what lies idle is closed, and no lease begins until
//     enough have ended. Raised: those who wait are served by the one who raises it.
//   - A pause: no lease begins anywhere and nothing lies idle; all wait in the queue, none is
//     refused for want of a backend, and their time stands still (Config.PauseTimeout). A
//     shutdown ends it.
//   - A session is disconnected: it leaves the queue or its dial, or is cut in the engine
//     (engine.Conn.Cut). Where it is between two steps, the next one sees it.
//   - A dial fails: the session tries each other backend once, then the backups. Where all
//     are down it ends at once as no_backend (unless Health.TryAllDown: what is down is then
//     tried as well, after what is up).
//   - No backend is left but backups, each other one being down, drained or removed: they
//     serve, also those who wait. One comes back: it gets what is new, and the backups nothing
//     more. That all others are full is no reason: who waits, waits for these.
//   - A backend goes down: no lease begins there, what lies idle is closed, who waits and
//     has no other hope, backups included, is refused; leases go on (unless Health.CutOnDown). It comes up: few
//     dials at once till as many have succeeded, and a max that rises (Health.SlowStart).
//   - All slots of a backend are leased when it is to be checked: the next one that is free
//     is the check's, before those who wait; a connection that would have been kept is
//     closed for that.
//   - Shutdown: the listener closes, those who wait are refused (but for sessions that
//     were established, and have lost a stale connection), relays end by themselves
//     until the drain timeout and are cut then; the pools close last.
//   - A place becomes free as the listener is told that there is none: see places.
//   - Descriptors run out: accepting pauses and backs off; a dial that fails for
//     it is tried again until the acquire timeout, and no backend is blamed.
//   - A slow reader: the engine stops reading its peer.
//
// # What it does not do
//
// It does not look into raw bytes, and therefore does not reuse a connection
// that a client has used, unless told to (see reuse.go). Of requests it sees where
// they end, their sequence ids and methods, and nothing else.
package proxy
