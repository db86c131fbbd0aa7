package proxy

import (
	"net"
	"net/netip"

	"forebay/balance/health"
	"forebay/proxy/engine"
	"forebay/proxy/exchange"
)

// The evidence of clients. A request, or a session, counts as served where a reply has
// come; as not served where the backend reset its connection, or let the reply timeout
// pass, before that.

// served tells the monitor how a relayed session ended.
func (b *backend) served(r engine.Result, client engine.Conn) {
	switch {
	case r.Down.Moved > 0:
		b.monitor.Served()
	case r.End == engine.BackendReset && r.Up.Moved > 0:
		b.monitor.ClientFault(addrOf(client), health.FaultReset)
	}
}

// ended tells the monitor how a lease for requests ended.
func (b *backend) ended(f exchange.Facts, answered bool, client engine.Conn) {
	switch {
	case answered:
		b.monitor.Served()
	case f.Fault == exchange.ReplyTimeout:
		b.monitor.ClientFault(addrOf(client), health.FaultTimeout)
	case f.Fault == exchange.BackendEnded && f.Outstanding > 0 && !f.MidReply:
		b.monitor.ClientFault(addrOf(client), health.FaultReset)
	}
}

// addrOf returns a client's address; the zero Addr where it has none.
func addrOf(c engine.Conn) netip.Addr {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr()
	}
	return netip.Addr{}
}
