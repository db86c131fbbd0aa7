package proxy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"forebay/balance"
	"forebay/proxy/enginetest"
	"forebay/proxy/proxytest"
)

// census is a backend that counts, at each connection it accepts, those of its
// sockets that are established. One that is established when it is looked at was
// so when the look began, since all were accepted before: so many were open at
// once.
type census struct {
	max  int
	most atomic.Int64

	mu    sync.Mutex
	conns map[net.Conn]bool
}

func (c *census) serve(conn proxytest.Conn) {
	c.count(conn)
	defer c.forget(conn)
	b := make([]byte, 100)
	for {
		n, err := conn.Read(b)
		if err != nil {
			return
		}
		if string(b[:n]) == "slow close" {
			after(time.Duration(rand.IntN(10)) * time.Millisecond)
			return
		}
		conn.Write(b[:n])
	}
}

func (c *census) count(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns[conn] = true
	n := int64(0)
	for conn := range c.conns {
		if established(conn) {
			n++
		}
	}
	c.most.Store(max(c.most.Load(), n))
}

func (c *census) forget(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.conns, conn)
}

func established(c net.Conn) (yes bool) {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return false
	}
	raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		yes = err == nil && info.State == unix.BPF_TCP_ESTABLISHED
	})
	return yes
}

// flicker has the backend's listener come and go until stop is called.
func (c *census) flicker(t *testing.T, open func() net.Listener, rnd *rand.Rand) (stop func()) {
	var wg sync.WaitGroup
	stopc := make(chan struct{})
	rest := func(d time.Duration) bool {
		select {
		case <-stopc:
			return false
		case <-time.After(d):
			return true
		}
	}
	wg.Go(func() {
		for {
			ln := open()
			if ln == nil {
				return
			}
			var accepting sync.WaitGroup
			accepting.Go(func() {
				for {
					conn, err := ln.Accept()
					if err != nil {
						return
					}
					wg.Go(func() { defer conn.Close(); c.serve(conn.(proxytest.Conn)) })
				}
			})
			more := rest(time.Duration(50+rnd.IntN(300)) * time.Millisecond)
			ln.Close()
			accepting.Wait()
			if !more || !rest(time.Duration(rnd.IntN(60))*time.Millisecond) {
				return
			}
		}
	})
	return func() { close(stopc); wg.Wait() }
}

// tcpConns asks the kernel for the connections of this machine that are open, or
// opening, and returns the local ports of those to each of the remote addresses.
// (/proc/net/tcp has them too, behind thousands that wait for their time to end.)
func tcpConns(t *testing.T, remotes []netip.AddrPort) []map[uint16]bool {
	t.Helper()
	conns := make([]map[uint16]bool, len(remotes))
	for i := range conns {
		conns[i] = map[uint16]bool{}
	}
	for _, msg := range sockDiag(t) {
		if msg.Header.Type != sockDiagByFamily || len(msg.Data) < 40 {
			continue
		}
		local := binary.BigEndian.Uint16(msg.Data[4:])
		remote := netip.AddrPortFrom(netip.AddrFrom4([4]byte(msg.Data[24:28])), binary.BigEndian.Uint16(msg.Data[6:]))
		if i := slices.Index(remotes, remote); i >= 0 {
			conns[i][local] = true
		}
	}
	return conns
}

const sockDiagByFamily = 20

// sockDiag is the kernel's answer to struct inet_diag_req_v2 of <linux/inet_diag.h>.
func sockDiag(t *testing.T) (answer []syscall.NetlinkMessage) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer unix.Close(fd)
	req := make([]byte, 16+56)
	binary.NativeEndian.PutUint32(req, uint32(len(req)))
	binary.NativeEndian.PutUint16(req[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(req[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	req[16], req[17] = unix.AF_INET, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(req[20:], 1<<unix.BPF_TCP_ESTABLISHED|1<<unix.BPF_TCP_SYN_SENT|1<<unix.BPF_TCP_CLOSE_WAIT)
	if err := unix.Sendto(fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		t.Error(err)
		return nil
	}
	for b := make([]byte, 64<<10); ; {
		n, _, err := unix.Recvfrom(fd, b, 0)
		if err == unix.EINTR {
			continue
		}
		msgs, parseErr := syscall.ParseNetlinkMessage(slices.Clone(b[:max(n, 0)]))
		if err != nil || parseErr != nil {
			t.Error(err, parseErr)
			return nil
		}
		for _, m := range msgs {
			if m.Header.Type == unix.NLMSG_DONE || m.Header.Type == unix.NLMSG_ERROR {
				return answer
			}
			answer = append(answer, m)
		}
	}
}

func addrPort(t *testing.T, b Backend) netip.AddrPort {
	t.Helper()
	addr, err := netip.ParseAddrPort(b.Addr)
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// TestMaxHoldsAtTheSockets has hundreds of clients come and go in every manner, by any
// strategy, while backends go down and come up, connections are dialed ahead and expire,
// and at the end the proxy drains.
func TestMaxHoldsAtTheSockets(t *testing.T) {
	enginetest.Each(t, testMaxHoldsAtTheSockets)
}

func testMaxHoldsAtTheSockets(t *testing.T) {
	tests := []struct {
		minIdle int
		quiet   time.Duration
		life    time.Duration
		backup  bool // the one that stays up is one
	}{
		{minIdle: 2, life: time.Hour},
		{minIdle: -1, life: 20 * time.Millisecond},
		{minIdle: 1, quiet: time.Millisecond, life: time.Hour},
		{minIdle: 0, life: time.Hour, backup: true},
	}
	for seed, tt := range tests {
		t.Run(fmt.Sprintf("min idle %d, reuse quiet %v", tt.minIdle, tt.quiet), func(t *testing.T) {
			maxes := []int{2, 3, 8}
			var cfg Config
			var counts []*census
			var stops []func()
			for i, m := range maxes {
				c := &census{max: m, conns: map[net.Conn]bool{}}
				be, open := dead(t, m)
				be.Weight = 1 + i
				cfg.Backends = append(cfg.Backends, be)
				counts = append(counts, c)
				if i == len(maxes)-1 { // one stays up
					cfg.Backends[i].Backup = tt.backup
					proxytest.ServeOn(t, open(), c.serve)
				} else {
					stops = append(stops, c.flicker(t, open, rand.New(rand.NewPCG(uint64(seed), uint64(i)))))
				}
			}
			with := config(cfg.Backends...)
			with.MinIdle, with.ReuseQuiet, with.MaxLifetime = tt.minIdle, tt.quiet, tt.life
			with.VirginTimeout, with.IdleTimeout = 5*time.Millisecond, 5*time.Millisecond
			with.Balance = balance.Strategies[rand.IntN(len(balance.Strategies))]
			with.AcquireTimeout = 300 * time.Millisecond
			with.DialTimeout = 500 * time.Millisecond
			with.HalfCloseTimeout = 200 * time.Millisecond
			f := start(t, with)

			stopScan := scan(t, f)
			crowd(t, f, uint64(seed))
			stopScan()
			for _, stop := range stops {
				stop()
			}
			f.stop(t)
			for i, c := range counts {
				if most := c.most.Load(); most > int64(c.max) {
					t.Errorf("backend %d had %d connections established, max is %d", i, most, c.max)
				}
			}
			s := f.Stats()
			for i, b := range s.Backends {
				t.Logf("backend %d: at most %d, %d sessions, %d dials, %d failed, closed %v", i, counts[i].most.Load(), b.Sessions, b.Pool.Dials, b.Pool.DialErrors, b.Pool.Closed)
			}
			t.Logf("%s: sessions %v", with.Balance, s.Ended)
		})
	}
}

func TestKernelsTableIsRead(t *testing.T) {
	enginetest.Each(t, testKernelsTableIsRead)
}

func testKernelsTableIsRead(t *testing.T) {
	be, open := dead(t, 3)
	proxytest.ServeOn(t, open(), echo)
	f := start(t, config(be))
	for range 3 {
		f.occupy(t)
	}
	if n := len(tcpConns(t, []netip.AddrPort{addrPort(t, be)})[0]); n != 3 {
		t.Errorf("%d connections found, want 3", n)
	}
}

// scan looks at the kernel's table of connections again and again: those that
// are open in two looks were open between them, all at once.
func scan(t *testing.T, f *front) (stop func()) {
	var remotes []netip.AddrPort
	for _, b := range f.cfg.Backends {
		remotes = append(remotes, addrPort(t, b))
	}
	var wg sync.WaitGroup
	stopc := make(chan struct{})
	wg.Go(func() {
		seen := 0
		for {
			select {
			case <-stopc:
				t.Logf("the kernel's table has had %d connections in all", seen)
				return
			case <-time.After(40 * time.Millisecond):
			}
			before, now := tcpConns(t, remotes), tcpConns(t, remotes)
			for i, b := range f.cfg.Backends {
				n := 0
				for c := range now[i] {
					if before[i][c] {
						n++
					}
				}
				if n > b.Max {
					t.Errorf("the kernel has %d connections to %v open at once, max is %d", n, b, b.Max)
				}
				seen += n
			}
		}
	})
	return func() { close(stopc); wg.Wait() }
}

// crowd is 500 clients who come a few times each, and the drain while they still
// do.
func crowd(t *testing.T, f *front, seed uint64) {
	t.Helper()
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	for worker := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 100+worker))
		wg.Go(func() {
			for {
				select {
				case <-time.After(time.Duration(rnd.IntN(1500)) * time.Millisecond):
					visit(f, rnd)
				case <-ctx.Done():
					visit(f, rnd) // while it drains
					return
				}
			}
		})
	}
	<-ctx.Done()
	f.stop(t) // drains
	wg.Wait()
}

// visit is one session of some kind.
func visit(f *front, rnd *rand.Rand) {
	c, err := net.Dial("tcp", f.at.String())
	if err != nil {
		return // while the proxy drains
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	pause := func() { after(time.Duration(rnd.IntN(5)) * time.Millisecond) }
	answer := make([]byte, 5)
	switch rnd.IntN(8) {
	case 0: // leaves before a byte
		pause()
	case 1:
		pause()
		c.(*net.TCPConn).SetLinger(0)
	case 2:
		io.WriteString(c, "hello")
		c.(*net.TCPConn).SetLinger(0)
	case 3:
		io.WriteString(c, "slow close")
		io.ReadAll(c)
	case 4:
		io.WriteString(c, "hello")
		c.(proxytest.Conn).CloseWrite()
		io.ReadAll(c)
	case 5:
		io.WriteString(c, "hello")
		io.ReadFull(c, answer)
		after(time.Duration(50+rnd.IntN(100)) * time.Millisecond) // long enough for two looks
	default:
		for range 1 + rnd.IntN(3) {
			io.WriteString(c, "hello")
			if _, err := io.ReadFull(c, answer); err != nil {
				return
			}
			pause()
		}
	}
}

// A backend that does not read must not be left with the connections of sessions
// that have ended: their slots are free, and it gets new ones.
func TestConnectionThatABackendDoesNotReadEndsWithItsSlot(t *testing.T) {
	enginetest.Each(t, testConnectionThatABackendDoesNotReadEndsWithItsSlot)
}

func testConnectionThatABackendDoesNotReadEndsWithItsSlot(t *testing.T) {
	tests := []struct {
		name   string
		ends   func(cfg *Config)
		upload int
		then   func(t *testing.T, c, backend proxytest.Conn)
		reason Reason
	}{
		{name: "at the idle timeout", ends: func(cfg *Config) { cfg.SessionIdleTimeout = 300 * time.Millisecond },
			upload: 64 << 20, then: func(*testing.T, proxytest.Conn, proxytest.Conn) {}, reason: IdleTimeout},
		{name: "when both sides have finished", ends: func(cfg *Config) { cfg.HalfCloseTimeout = 300 * time.Millisecond },
			upload: 2 << 20, then: func(t *testing.T, c, backend proxytest.Conn) {
				backend.CloseWrite()
				wantAll(t, c, "")
			}, reason: Done},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			be, conns := puppets(t, 1)
			cfg := config(be)
			cfg.FirstByteWait = time.Hour // a session that was idle before its upload would leave a clean connection
			tt.ends(&cfg)
			f := start(t, cfg)
			c, data := f.dial(t), make([]byte, tt.upload)
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				c.Write(data)
				c.CloseWrite()
			}()
			held := proxytest.Receive(t, conns, "a connection")
			tt.then(t, c, held)
			f.ended(t, tt.reason, 1)
			proxytest.Eventually(t, "the backend's kernel to know", func() bool { return !established(held) })
			if _, err := io.Copy(io.Discard, held); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the backend read to %v; want a reset: it has not got all", err)
			}
			c.Close()
			proxytest.Receive(t, sent, "the client's end")
		})
	}
}
