package loadtest

import (
	"context"
	"net"
	"runtime"
)

// dial opens a connection, from the next of the addresses that connections are to come
// from.
func (r *run) dial(ctx context.Context) (net.Conn, error) {
	d := r.dialer
	if n := uint64(len(r.cfg.From)); n > 0 {
		d.LocalAddr = &net.TCPAddr{IP: r.cfg.From[(r.dials.Add(1)-1)%n]}
	}
	return d.DialContext(ctx, r.cfg.Network, r.cfg.Addr)
}

// loopbackSources returns addresses of this machine from which to connect to one that
// listens on addr, or nil where there is only one: Linux alone has all of 127.0.0.0/8.
func loopbackSources(addr net.Addr) (from []net.IP) {
	at, ok := addr.(*net.TCPAddr)
	if !ok || at.IP.To4() == nil || !at.IP.IsLoopback() || runtime.GOOS != "linux" {
		return nil
	}
	for last := byte(2); last < 252; last++ {
		from = append(from, net.IPv4(127, 0, 0, last))
	}
	return from
}
