package proxy

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"forebay/proxy/enginetest"
	"forebay/proxy/proxytest"
)

// A backend that reads nothing for a while, a client that fires oneway calls, and a
// connection whose time is up: its slot is free while the kernel still holds the
// connection open for what the backend has not taken.
func TestMaxHoldsWhereOnewayCallsLieInTheKernel(t *testing.T) {
	enginetest.Each(t, testMaxHoldsWhereOnewayCallsLieInTheKernel)
}

func testMaxHoldsWhereOnewayCallsLieInTheKernel(t *testing.T) {
	c := &census{max: 1, conns: map[net.Conn]bool{}}
	release := make(chan struct{})
	be := testBackend(t, 1, func(conn proxytest.Conn) {
		c.count(conn)
		defer c.forget(conn)
		<-release // reads nothing
	})
	t.Cleanup(func() { close(release) })
	cfg := requestsConfig(be)
	cfg.Requests.Quarantine = 10 * time.Millisecond
	cfg.Requests.ReplyTimeout = 200 * time.Millisecond
	cfg.MaxLifetime = 50 * time.Millisecond // or IdleTimeout, or a client that ends with calls out
	cfg.AcquireTimeout = time.Second
	f := start(t, cfg)
	for i := range 6 {
		cl := f.dial(t)
		for j := range 12 {
			cl.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			cl.Write(oneway(uint32(j), fmt.Sprintf("%02d", i)+strings.Repeat("x", 50<<10)).bytes())
		}
		cl.CloseWrite()
		after(100 * time.Millisecond)
	}
	if c.most.Load() > 1 {
		t.Errorf("%d connections established at once, max is 1", c.most.Load())
	}
}
