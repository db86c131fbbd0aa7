package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"forebay/proxy/proxytest"
)

// churn is a proxy whose sessions are short and end in every way, so that a descriptor
// that is closed is at once that of another session.
type churn struct {
	*bench
	backend net.Addr
	rough   bool // it ends sessions by itself
	serving sync.WaitGroup
}

func (c *churn) Admit() bool                { return true }
func (c *churn) Failed(error) time.Duration { return time.Millisecond }
func (c *churn) Accepted(client Conn) {
	c.serving.Add(1)
	go c.serve(client)
}

// front returns where a churn listens, until the test ends.
func (b *bench) front(network string, backend net.Addr, rough bool) net.Addr {
	b.Helper()
	addr := "127.0.0.1:0"
	if network == "unix" {
		addr = b.TempDir() + "/s"
	}
	ln, err := b.engine.Listen(b.Context(), network, addr)
	if err != nil {
		b.Fatal(err)
	}
	c := &churn{bench: b, backend: backend, rough: rough}
	served := make(chan struct{})
	go func() { defer close(served); ln.Serve(c) }()
	b.Cleanup(func() { ln.Close(); <-served; c.serving.Wait() })
	return ln.Addr()
}

// serve watches the client while it dials, relays, and closes both, sometimes on the
// engine's goroutine and sometimes on its own.
func (c *churn) serve(client Conn) {
	defer c.serving.Done()
	ctx, cancel, cfg := context.Background(), func() {}, RelayConfig{IdleTimeout: patience, HalfCloseTimeout: patience}
	if c.rough {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(rand.IntN(2000))*time.Microsecond)
		cfg.IdleTimeout = time.Duration(1+rand.IntN(2)) * time.Millisecond
	}
	defer cancel()
	stop := client.Watch(func(bool, error) bool { return rand.IntN(2) > 0 })
	backend, err := c.engine.Dial(ctx, c.backend.Network(), c.backend.String())
	stop()
	if err != nil {
		if !c.rough {
			c.Errorf("dial: %v", err)
		}
		client.Close()
		return
	}
	if rand.IntN(2) > 0 {
		backend.Watch(func(bool, error) bool { return true })()
	}
	donec, onLoop := make(chan struct{}), rand.IntN(2) > 0
	closeBoth := func() { client.Close(); backend.Close() }
	c.engine.Relay(ctx, client, backend, cfg, func(Result) {
		if onLoop {
			closeBoth()
		}
		close(donec)
	})
	<-donec
	if !onLoop {
		closeBoth()
	}
}

// The ways in which the sessions of a churn end, by their numbers.
const (
	churnWhole       = iota // both have all, and the client leaves
	churnClientReset        // in the middle
	churnClientGone         // the client closes, and reads nothing
	churnBackendReset
	churnBackendGone
	churnRough // the proxy cuts it, or finds it idle, or dials in vain
	churnWays
)

// churnBackend echoes what a session sends, which has to be the session's.
func churnBackend(t testing.TB) func(c proxytest.Conn) {
	return func(c proxytest.Conn) {
		c.SetDeadline(time.Now().Add(patience))
		var head [8]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		id := binary.NativeEndian.Uint32(head[:])
		if id != ^binary.NativeEndian.Uint32(head[4:]) {
			t.Errorf("a session began with %x", head)
			return
		}
		limit := 1 << 30
		if way := id % churnWays; way == churnBackendReset || way == churnBackendGone {
			limit = rand.IntN(4000)
		}
		err := echoPattern(c, pattern(int(id)), limit)
		switch {
		case errors.Is(err, errForeign):
			t.Errorf("session %d: %v", id, err)
		case id%churnWays == churnBackendReset:
			reset0(c)
		}
	}
}

// reset0 closes a connection with a RST where there is such a thing.
func reset0(c net.Conn) {
	if c, ok := c.(*net.TCPConn); ok {
		c.SetLinger(0)
	}
	c.Close()
}

var errForeign = errors.New("foreign bytes")

// echoPattern echoes some limit bytes of s.
func echoPattern(c net.Conn, s stream, limit int) error {
	buf := make([]byte, 3000)
	for n := 0; n < limit; {
		m, err := c.Read(buf)
		if n+m > len(s) || !bytes.Equal(buf[:m], s[n:n+m]) {
			return errForeign
		}
		if n += m; err != nil {
			return err
		}
		if _, err := c.Write(buf[:m]); err != nil {
			return err
		}
	}
	return nil
}

// churnClient is the client of session id.
func churnClient(addr net.Addr, id int) error {
	c, err := net.Dial(addr.Network(), addr.String())
	way, s := id%churnWays, pattern(id)
	if err != nil && way != churnWhole && errors.Is(err, syscall.ECONNRESET) {
		return nil // it was ended before the dial had returned
	}
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	head := binary.NativeEndian.AppendUint32(nil, uint32(id))
	head = binary.NativeEndian.AppendUint32(head, ^uint32(id))
	n := 1 + rand.IntN(1+rand.IntN(20000))
	sent := async(func() error {
		_, err := c.Write(append(head, s[:n]...))
		return err
	})
	if way == churnClientGone {
		<-sent
		return nil
	}
	got, err := io.ReadAll(io.LimitReader(c, int64(readsOf(way, n))))
	if way == churnClientReset {
		reset0(c)
	}
	wrote := <-sent
	switch {
	case !bytes.HasPrefix(s, got):
		return fmt.Errorf("way %d: %w within %d of %d", way, errForeign, len(got), n)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(wrote, os.ErrDeadlineExceeded):
		return fmt.Errorf("way %d: it hangs after %d of %d", way, len(got), n)
	case way == churnWhole && (err != nil || wrote != nil || len(got) != n):
		return fmt.Errorf("got %d bytes of %d, %v, %v", len(got), n, err, wrote)
	}
	return nil
}

// readsOf is how much the client of a session of n bytes reads.
func readsOf(way, n int) int {
	if way == churnClientReset {
		return rand.IntN(n)
	}
	return n
}

// churn has so many sessions pass, many at once.
func (b *bench) churn(sessions int) {
	b.Helper()
	var fronts [2][2]net.Addr
	for i, network := range []string{"tcp", "unix"} {
		backend := proxytest.Serve(b, network, churnBackend(b))
		fronts[i] = [2]net.Addr{b.front(network, backend, false), b.front(network, backend, true)}
	}
	var clients errgroup.Group
	clients.SetLimit(30)
	for id := range sessions {
		front := fronts[min(1, id/churnWays%4/3)] // every fourth over a Unix socket
		clients.Go(func() error {
			if id%churnWays == churnRough {
				return churnClient(front[1], id)
			}
			return churnClient(front[0], id)
		})
	}
	if err := clients.Wait(); err != nil {
		b.Error(err)
	}
}

func TestReusedDescriptorsAreNotMistaken(t *testing.T) {
	const sessions = 3000
	t.Run("", func(t *testing.T) {
		onEngines(t, func(t *testing.T, newEngine func(Config) Engine) {
			for _, workers := range []int{1, 3} {
				t.Run(fmt.Sprintf("%d loops", workers), func(t *testing.T) {
					e := newEngine(Config{Workers: workers})
					t.Cleanup(e.Close)
					(&bench{t, e}).churn(sessions)
				})
			}
		})
	})
	t.Run("uring with tiny queues and groups", func(t *testing.T) {
		sizes(t, ringConfig{entries: 4, completions: 8}, 2)
		b, s := newUringBench(t, Config{})
		b.churn(sessions)
		if s.overflows.Load() == 0 {
			t.Error("the completions never overflowed")
		}
	})
}

// A connection that nobody uses is told of by one loop, while a relay begins that has it
// on another.
func TestConnectionsMoveBetweenLoops(t *testing.T) { onEngines(t, testConnectionsMoveBetweenLoops) }

func testConnectionsMoveBetweenLoops(t *testing.T, newEngine func(Config) Engine) {
	e := newEngine(Config{Workers: 3})
	t.Cleanup(e.Close)
	b := &bench{t, e}
	front, back := b.listen("unix"), proxytest.Listen(t, "unix")
	for i := range 300 {
		bc, backend := b.backendOf(back)
		stop := bc.Watch(func(bool, error) bool { return i%2 > 0 })
		cc, client := b.clientOf(front)
		want := pattern(i)[:100]
		sent := async(func() error { return want.send(backend, len(want), fixed(1)) })
		stop()
		r := b.relay(cc, bc, RelayConfig{Replay: i%3 == 0})
		expect(t, client, string(want))
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		client.CloseWrite()
		expectEOF(t, backend, "")
		backend.Close()
		expectEOF(t, client, "")
		expectEnd(t, r.close(), Finished)
		client.Close()
	}
}
