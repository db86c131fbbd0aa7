//go:build !linux

package proxy

import (
	"net"
	"testing"
)

// hang is Linux's.
func hang(t testing.TB) net.Addr {
	t.Skip("no way known to have a connect hang")
	return nil
}

// shutdownUnlessReadable closes the connection: whether there is something to read
// is not known.
func shutdownUnlessReadable(c net.Conn) (readable bool) {
	c.Close()
	return false
}
