package proxy

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"forebay/proxy/enginetest"
	"forebay/proxy/proxytest"
)

// counted is a Thrift backend that echoes, and counts its connections as a census
// does.
type counted struct {
	*echoServer
	census
}

func (c *counted) serve(conn proxytest.Conn) {
	c.count(conn)
	defer c.forget(conn)
	c.echoServer.serve(conn)
}

// crowdSize is how many clients the descriptors of this process allow: each is two
// of them.
func crowdSize(t *testing.T, want int) int {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	const spare = 500
	if most := (int(min(limit.Cur, 1<<20)) - spare) / 2; most < want {
		t.Logf("%d clients in place of %d: the limit is %d descriptors", most, want, limit.Cur)
		return most
	}
	return want
}

func descriptorsOpen(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestThousandsOfClientsShareThirtyTwoConnections: they call now and then; all are
// served, over connections of which there are never more than there may be, and
// none of which is closed meanwhile.
func TestThousandsOfClientsShareThirtyTwoConnections(t *testing.T) {
	enginetest.Each(t, testThousandsOfClientsShareThirtyTwoConnections)
}

func testThousandsOfClientsShareThirtyTwoConnections(t *testing.T) {
	n, calls := 5000, 2
	if testing.Short() {
		n = 500
	}
	clients := crowdSize(t, n)
	before := descriptorsOpen(t)
	var backends []Backend
	var counts []*counted
	for range 2 {
		c := &counted{echoServer: newEchoServer(), census: census{conns: map[net.Conn]bool{}}}
		backends = append(backends, testBackend(t, 16, c.serve))
		counts = append(counts, c)
	}
	cfg := requestsConfig(backends...)
	cfg.Queue = clients
	f := start(t, cfg)
	var wg sync.WaitGroup
	connecting := make(chan struct{}, 64) // so that the backlog is enough
	for client := range clients {
		wg.Go(func() {
			connecting <- struct{}{}
			c, err := net.Dial("tcp", f.at.String())
			<-connecting
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(60 * time.Second))
			for i := range calls {
				m := call(uint32(i), fmt.Sprintf("client %d, call %d", client, i))
				if got, err := ask(c, m); err != nil || got != m.reply(m.text) {
					t.Errorf("%v is answered with %v, %v", m, got, err)
					return
				}
				after(rand.N(500 * time.Millisecond))
			}
		})
	}
	wg.Wait()
	f.ended(t, Done, int64(clients))
	s := f.Stats()
	for i, c := range counts {
		if most, dials := c.most.Load(), s.Backends[i].Pool.Dials; most > 16 || dials > 16 {
			t.Errorf("backend %d had %d connections at once, by %d dials; want 16 at most", i, most, dials)
		}
	}
	if s.Requests != int64(clients*calls) || s.Errors != 0 || s.Stale != 0 || len(s.Faults) != 0 {
		t.Errorf("%d requests, %d errors, %d stale, faults %v; want %d and none", s.Requests, s.Errors, s.Stale, s.Faults, clients*calls)
	}
	f.stop(t)
	const listeners = 10 // and what else the test itself still has
	proxytest.Eventually(t, "all descriptors to be closed", func() bool { return descriptorsOpen(t) <= before+listeners })
	t.Logf("%d clients, %d waits in the queue, of %v at most", clients, s.Queued, s.QueueMax)
}
