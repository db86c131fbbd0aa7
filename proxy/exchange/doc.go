// Package exchange is request pooling as a pure state machine: what one client's
// bytes, the bytes of the backend connections leased for it, their ends, leases
// and the clock come to, as actions. It does no I/O, starts no goroutine and reads
// no clock, so that any engine can drive it, and a test can drive it into
// anything.
//
// # An exchange
//
//	client                     Machine                            backend
//	  │ bytes ──► request.go   until the request is whole            │
//	  │           Lease        … or larger than 64 KiB               │
//	  │           call.go      another sequence id ────── request ──►│
//	  │           reply.go     whose reply is it? ◄───────── reply ──│
//	  │           Release      as soon as its end is read            │
//	  │ ◄── the client's own sequence id                             │
//
// One request of a client is out at a time; those that it has sent behind it wait,
// and are answered in order. A reply is forwarded only once its sequence id and
// method are those of a request that is out on its connection, and it is whole
// (or longer than 64 KiB).
//
// # Oneway calls
//
// A oneway call has no reply, but every server answers a two-way method that was
// called as oneway. So its connection stays with its client for the quarantine,
// and who is given it later knows the sequence id as one that nobody waits for.
//
// Some clients send a oneway call typed as a call (every Go client does). Where
// nobody has seen an answer to a method yet, the client's next message goes out
// behind it on the same connection; if that is answered, the first is passed over.
// That it is not answered for another second is a proof, and after a few of them the
// method is known as oneway (methods.go). Should an
// answer come after all, the client has it, as it waits.
//
// # What happens when
//
//   - The client is gone: a request that is not out yet costs nothing; one that is
//     partly out ends its connection; the reply to one that is out is read and
//     dropped, for a short time, so that its connection can be kept. A FIN means
//     that no more requests follow: those that came before it are answered.
//   - The backend is gone: a request that is proved undelivered goes to another
//     connection, as does once a method named idempotent; otherwise the client
//     gets an exception, or where it has part of the reply, a reset.
//   - Both at once: the connection is not kept, the session ends.
//   - No reply in time: an exception, and the connection is not kept.
//   - Anything that is not the reply: likewise, and a fault is noted (Facts).
//   - A session that has its lease for all its requests ends with that. A fault
//     that only the next client would mind does not end it.
//   - A slow reader: its replies are read up to Config.ReplyBuffer ahead, within
//     the Budget of all, and the lease ends with the reply; beyond that the lease
//     lasts and the backend waits. Its next request is not read meanwhile.
//   - Shutdown: what is out is answered, then the session ends.
//   - Descriptors exhausted: the lease is refused, the client told.
//
// # Who owns what
//
// A Machine belongs to one client; its methods are called by one goroutine at a
// time. A Conn belongs to a backend connection and is handed on with its lease.
// Methods and Budget are shared by all.
package exchange
