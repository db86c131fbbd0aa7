package proxy

import (
	"sync/atomic"
	"testing"
	"time"

	"forebay/proxy/engine"
	"forebay/proxy/enginetest"
	"forebay/proxy/proxytest"
)

// A client's request meets a stale connection and is then refused (acquire timeout).
// Its later requests must queue like anybody's.
func TestLaterRequestsDoNotOvertakeAfterARefusedRetry(t *testing.T) {
	enginetest.Each(t, testLaterRequestsDoNotOvertakeAfterARefusedRetry)
}

func testLaterRequestsDoNotOvertakeAfterARefusedRetry(t *testing.T) {
	be, conns := puppets(t, 1)
	cfg := requestsConfig(be)
	cfg.AcquireTimeout = 300 * time.Millisecond
	remember := &remembering{Engine: enginetest.New(t), adopted: make(chan engine.Conn, 10)}
	reached, proceed := make(chan struct{}), make(chan struct{})
	var armed atomic.Bool
	cfg.Engine = &interposed{Engine: remember, leased: func() {
		if armed.CompareAndSwap(true, false) {
			close(reached)
			<-proceed
		}
	}}
	f := start(t, cfg)
	a, d, e := f.dial(t), f.dial(t), f.dial(t)
	server := f.warm(t, conns)
	armed.Store(true)
	send(t, a, call(1, "a1"))
	proxytest.Receive(t, reached, "the lease")
	server.Close()
	leased := proxytest.Receive(t, remember.adopted, "the proxy's end")
	proxytest.Eventually(t, "the proxy's kernel to know", func() bool { _, end := leased.Peek(); return end != nil })
	send(t, d, call(1, "d1"))
	f.waiting(t, 1)
	close(proceed)
	sd := proxytest.Receive(t, conns, "d's connection")
	got := wantCall(t, sd, call(1, "d1"))
	wantException(t, a, call(1, "a1"), 6, "waited")

	send(t, e, call(1, "e1"))
	f.waiting(t, 1)
	send(t, a, call(2, "a2"))
	f.waiting(t, 2)
	send(t, sd, got.reply("d1"))
	wantReply(t, d, call(1, "d1"), "d1")
	next, err := readMessage(sd)
	if err != nil || next.text != "e1" {
		t.Errorf("the next request to be served is %v, %v; want e1, which came first", next, err)
	}
}
