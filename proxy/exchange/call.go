package exchange

import (
	"math/rand/v2"
	"time"

	"forebay/proxy/frame"
)

// A Conn is what is known of one backend connection over all its leases. It is
// handed to the machine with the lease, and belongs to it until the release.
type Conn struct {
	// Reused tells that the connection has answered before.
	Reused bool

	next   uint64  // the next sequence id
	ghosts []ghost // the newest oneway calls; their answers are nobody's
}

// ghost is a call whose answer, if there is one, nobody waits for.
type ghost struct {
	id   uint64
	head frame.Head
}

// maxGhosts is how many oneway calls a connection remembers. One on which a client has
// made more in one lease is not kept: an answer to the first of them would fail the
// next client's request.
const maxGhosts = 64

// NewConn returns the Conn of a new connection. Its sequence ids begin anywhere,
// so that no client can guess them.
func NewConn() *Conn { return &Conn{next: rand.Uint64()} }

// maxIDStep is the largest step between two ids, where they are wide enough. They are
// not consecutive, so that a backend which confuses neighbours gives itself away.
const maxIDStep = 1 << 12

// newID returns an id that is unique on the connection, of so many bits. Those of
// Thrift are positive.
func (c *Conn) newID(bits int) frame.ID {
	c.next++
	if bits >= 32 {
		c.next += rand.Uint64N(maxIDStep)
	}
	seq := c.next
	switch {
	case bits == 32:
		seq &= 1<<31 - 1
	case bits < 64:
		seq &= 1<<bits - 1
	}
	return frame.ID{Seq: seq, Outer: uint32(seq)}
}

func (c *Conn) haunt(x *call) {
	if len(c.ghosts) == maxGhosts {
		c.ghosts = append(c.ghosts[:0], c.ghosts[1:]...)
	}
	c.ghosts = append(c.ghosts, ghost{x.id.Seq, x.head})
}

// Disowned reports whether what came on a connection while nobody had it begins with a
// reply to a call that nobody waits for. If the call was not typed oneway, its method
// was taken for oneway in error, and is not any more.
func (cfg *Config) Disowned(c *Conn, bytes []byte) bool {
	replies := cfg.Codec.Replies()
	if _, err := replies.Scan(bytes); err != nil || replies.Head() == nil {
		return false
	}
	call := c.ghost(replies.Head())
	if call != nil {
		cfg.disown(call, replies.Head())
	}
	return call != nil
}

// disown draws the conclusion from a reply to a call that nobody waits for.
func (cfg *Config) disown(call, reply *frame.Head) {
	if call.Type != frame.Oneway && reply.Type == frame.Reply {
		cfg.Methods.answered(call.Name)
	}
}

func (c *Conn) ghost(h *frame.Head) *frame.Head {
	for i := range c.ghosts {
		g := &c.ghosts[i]
		if h.IDBits > 0 && g.id == h.ID.Seq && (h.Name == g.head.Name || h.Name == g.head.Method()) {
			return &g.head
		}
	}
	return nil
}

// call is a request that is out, or on its way, on the leased connection.
type call struct {
	head     frame.Head
	id       frame.ID  // on the connection; head has the client's
	raw      queue     // the request as it came, to be sent again; empty where that is out of question
	attempts int       // connections that were proved not to have got it
	repeated bool      // it was sent once more since its method is idempotent
	oneway   bool      // no reply comes; it is out until its quarantine ends
	learned  bool      // that is only known because it was learned
	passed   bool      // a later call was answered first
	sent     bool      // all of it was given to the kernel
	deadline time.Time // of the reply, or of the quarantine; set once it is sent
	known    bool      // its method is known to have replies
	witness  bool      // passed, and a proof that the method is oneway unless it is answered soon
	proof    time.Time // when it is; or when a call that may be oneway is looked at again
}

// awaited reports whether the client waits for its reply.
func (x *call) awaited() bool { return !x.oneway && !x.passed }

// answeredBy reports whether a reply with such a head is this call's.
func (x *call) answeredBy(h *frame.Head, trust bool) bool {
	switch {
	case h.Type != frame.Reply && h.Type != frame.Exception:
		return false
	case x.head.IDBits == 0:
		return trust
	case h.IDBits == 0 || x.id.Seq != h.ID.Seq:
		return false
	}
	// Some servers give the full name in the replies they make for errors.
	return h.Name == x.head.Method() || h.Name == x.head.Name
}

// A Fault is why a connection is not to be kept.
type Fault int

// The faults. WrongReply and StrayBytes should never happen.
const (
	NoFault         Fault = iota
	WrongReply            // a reply whose sequence id or method is of no call that is out
	StrayBytes            // bytes while no call was out, or behind the last reply
	OnewayAnswered        // a reply to a oneway call
	MalformedReply        // bytes that are no reply
	EarlyReply            // a reply before its request was complete
	ReplyTimeout          // no reply in time
	BackendEnded          // the backend ended the connection, or it failed
	BadException          // an exception after which servers may be out of step
	UnfinishedWrite       // the client left in the middle of its request
	UnreadReply           // the client left or sent what is no request, and the reply had not come
	Stale                 // the backend had ended the connection before the request
	UnreadRequest         // the backend does not take the oneway calls that were written
	Interrupted           // the session was cut
	NumFaults
)

var faultNames = [NumFaults]string{"none", "wrong_reply", "stray_bytes", "oneway_answered", "malformed_reply",
	"early_reply", "reply_timeout", "backend_ended", "bad_exception", "unfinished_request", "unread_reply", "stale", "unread_request", "cut"}

// String returns the name of the fault, as logs and counters have it.
func (f Fault) String() string { return faultNames[f] }

// Facts are what decides whether a connection may serve another client.
type Facts struct {
	Fault       Fault // the first one
	Outstanding int   // calls whose reply, or quarantine, has not come to its end
	MidRequest  bool  // part of a request was written, not all
	MidReply    bool  // part of a reply was read, not all
	Used        bool  // a byte of a request was written
	Crowded     bool  // there were more calls without a reply than are remembered
}
