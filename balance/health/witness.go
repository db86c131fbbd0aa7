package health

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// A Fault is how a backend failed a client that was connected to it. It may as well be
// how the client failed the backend: garbage has the same effect.
type Fault int

// The faults.
const (
	FaultReset   Fault = iota // the backend ended the connection before the first byte of a reply
	FaultTimeout              // no reply came in time
)

// String says what happened.
func (f Fault) String() string {
	switch f {
	case FaultReset:
		return "connection ended before the first byte of a reply"
	case FaultTimeout:
		return "no reply in time"
	default:
		return fmt.Sprintf("fault %d", int(f))
	}
}

const (
	// enough is how many clients must have met a fault, with no success of anybody
	// between, before it is held against the backend. Three that send garbage are
	// not to be enough.
	enough = 4

	// memory is how long a fault that a client met counts.
	memory = 30 * time.Second
)

// witness is a client that was not served.
type witness struct {
	client netip.Addr
	fault  Fault
	at     time.Time
}

// witnesses are those of the newest faults, each client once, the newest last. More
// than enough of them would add nothing.
type witnesses []witness

// add takes a fault; it replaces an older one of the same client.
func (ws *witnesses) add(w witness) {
	list := slices.DeleteFunc(*ws, func(old witness) bool { return old.client == w.client })
	if len(list) == enough {
		list = slices.Delete(list, 0, 1)
	}
	*ws = append(list, w)
}

// count is how many still count.
func (ws witnesses) count(now time.Time) (n int) {
	for _, w := range ws {
		if now.Sub(w.at) < memory {
			n++
		}
	}
	return n
}

// network is what a client counts as: its address, however many connections it has;
// for IPv6 the /64, of which one machine may use every address. So all who come from
// behind one NAT are one, and cannot be enough: what they meet brings the next check
// forward, and that decides. Clients without an address (of a Unix socket) are one too.
func network(client netip.Addr) netip.Addr {
	client = client.Unmap()
	if !client.Is6() {
		return client
	}
	p, _ := client.Prefix(64) // which fails for no IPv6 address
	return p.Addr()
}
