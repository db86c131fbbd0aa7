// Package proxy is the life of a session: one client connection, from accept to
// close.
//
//	client                                                        backend
//	  │ 1 accept    accept.go   entrance         a place, its descriptors     │
//	  │ 2 pick      queue.go    dispatcher       least load; reserves a slot  │
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
// The files are the steps, and session.go reads in their order. Package balance
// decides who serves next, package pool keeps the connections to one backend,
// package engine moves the bytes; each knows nothing of the others.
//
// # Who owns what
//
//   - The dispatcher owns every slot of every backend and the queue, under one
//     lock. A slot is taken before a dial begins and given back after the
//     connection is closed; nothing else opens or closes a backend connection.
//   - A session owns its client's connection and its lease. While the engine
//     relays, or drives the session's machine, the engine has both; between
//     Lease and Release of a machine the lease is the session's to end.
//   - An acquire (lease.go) has the session until it has an answer. At any time one
//     goroutine has the acquire: who asked, who granted it a slot, the one that dials.
//     The watch of the client, which runs beside these, only notes that the client has
//     left, and ends what is waited for: it has the acquire where it took it out of the
//     queue.
//   - The server owns the sessions and their goroutines (it waits for them) and the pools
//     (which end after the last session).
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
// The queue has one timer for all that wait (deadline.go). Each pool has its goroutines:
// Run, a prober while its backend is down, and one for each dial where the engine cannot
// connect without waiting (engine.Connector).
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
//   - A dial fails: the backend is down, the session tries each other backend
//     once. Where all are down it ends at once as no_backend.
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
