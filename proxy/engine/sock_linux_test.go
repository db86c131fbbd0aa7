package engine

import (
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"forebay/proxy/proxytest"
)

// ioctlInt asks for a number about the socket of a peer.
func ioctlInt(t testing.TB, c net.Conn, req uint) (n int) {
	t.Helper()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	ctlErr := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), req) })
	if ctlErr != nil || err != nil {
		t.Fatal(ctlErr, err)
	}
	return n
}

// outQueue returns how many bytes sent on c its peer's kernel has not taken.
func outQueue(t testing.TB, c net.Conn) int { return ioctlInt(t, c, unix.SIOCOUTQ) }

// stateLost returns what skips a test whose premise did not hold since: the kernel had no
// room for the state of connections that end (tcp_max_tw_buckets), as where a hundred
// thousand ended within a minute, and did not acknowledge what had come on them; or it
// dropped packets, of which one may have been such an acknowledgement.
func stateLost(t testing.TB) func(testing.TB) {
	overflows, drops := timeWaitOverflows(t), packetDrops(t)
	return func(t testing.TB) {
		t.Helper()
		overflows, drops := timeWaitOverflows(t)-overflows, packetDrops(t)-drops
		if overflows > 0 || drops > 0 {
			t.Skipf("the kernel had no room for the end of %d connections, and dropped %d packets: they prove nothing", overflows, drops)
		}
	}
}

// packetDrops counts the packets that this machine has dropped as too many waited
// (netdev_max_backlog): the second column of each processor.
func packetDrops(t testing.TB) (sum int64) {
	t.Helper()
	text, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		n, err := strconv.ParseInt(strings.Fields(line)[1], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// timeWaitOverflows counts the connections for whose end this network namespace had no
// room.
func timeWaitOverflows(t testing.TB) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/net/netstat")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	for i, line := range lines[:len(lines)-1] {
		at := slices.Index(strings.Fields(line), "TCPTimeWaitOverflow")
		if at < 0 {
			continue
		}
		n, err := strconv.Atoi(strings.Fields(lines[i+1])[at])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Fatal("the kernel does not count TCPTimeWaitOverflow")
	return 0
}

// inQueue returns how many bytes can be read from c.
func inQueue(t testing.TB, c net.Conn) int { return ioctlInt(t, c, unix.TIOCINQ) }

// setSendBuffer limits what the kernel takes of what an engine writes to c.
func setSendBuffer(t testing.TB, c Conn, size int) {
	t.Helper()
	set := func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, size) }
	switch c := c.(type) {
	case *netConn:
		c.raw.conn.Control(set)
	case *loopConn:
		set(uintptr(c.fd))
	}
}

// awaitAcked waits until all that was sent on c has left.
func awaitAcked(t testing.TB, c net.Conn) {
	t.Helper()
	proxytest.Eventually(t, "the bytes to leave", func() bool { return outQueue(t, c) == 0 })
}

// socket returns the descriptor, in this process, of the TCP connection with
// these addresses, whoever holds it.
func socket(t testing.TB, local, remote net.Addr) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		l, lerr := unix.Getsockname(fd)
		r, rerr := unix.Getpeername(fd)
		if lerr == nil && rerr == nil && sameAddr(l, local) && sameAddr(r, remote) {
			return fd
		}
	}
	t.Fatalf("no socket from %v to %v", local, remote)
	return -1
}

func sameAddr(a unix.Sockaddr, b net.Addr) bool {
	want, ok := b.(*net.TCPAddr)
	if !ok {
		return false
	}
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return a.Port == want.Port && net.IP(a.Addr[:]).Equal(want.IP)
	case *unix.SockaddrInet6:
		return a.Port == want.Port && net.IP(a.Addr[:]).Equal(want.IP)
	default:
		return false
	}
}

func testOptions(t *testing.T, newEngine func(Config) Engine) {
	tests := []struct {
		name                         string
		cfg                          Config
		keepAlive, idle, userTimeout int
	}{
		{"none", Config{}, 0, -1, 0},
		{"30 seconds", Config{KeepAlive: 30 * time.Second, UserTimeout: 30 * time.Second}, 1, 30, 30000},
		{"the least", Config{KeepAlive: time.Millisecond, UserTimeout: time.Microsecond}, 1, 1, 1},
	}
	for _, network := range []string{"tcp", "tcp6"} {
		for _, tt := range tests {
			t.Run(network+"/"+tt.name, func(t *testing.T) {
				e := newEngine(tt.cfg)
				t.Cleanup(e.Close)
				b := &bench{t, e}
				_, client := b.client(network)
				_, backend := b.backend(network)
				for side, peer := range map[string]net.Conn{"accepted": client, "adopted": backend} {
					fd := socket(t, peer.RemoteAddr(), peer.LocalAddr())
					for _, opt := range []struct {
						name         string
						level, which int
						want         int
					}{
						{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, tt.keepAlive},
						{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, tt.idle},
						{"TCP_USER_TIMEOUT", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, tt.userTimeout},
						{"TCP_NODELAY", unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
						{"SO_PROTOCOL", unix.SOL_SOCKET, unix.SO_PROTOCOL, unix.IPPROTO_TCP}, // not MPTCP
					} {
						got, err := unix.GetsockoptInt(fd, opt.level, opt.which)
						if opt.want >= 0 && (err != nil || got != opt.want) {
							t.Errorf("%s %s = %d, %v; want %d", side, opt.name, got, err, opt.want)
						}
					}
				}
			})
		}
	}
}

func TestPeekBytesLeavesWhatItCopies(t *testing.T) {
	onEngines(t, testPeekBytesLeavesWhatItCopies)
}

func testPeekBytesLeavesWhatItCopies(t *testing.T, newEngine func(Config) Engine) {
	b := newBench(t, newEngine)
	c, peer := b.backend("tcp")
	p := make([]byte, 3)
	if n := c.PeekBytes(p); n != 0 {
		t.Errorf("%d bytes where none came", n)
	}
	write(t, peer, "hello")
	proxytest.Eventually(t, "bytes", func() bool { bytes, _ := c.Peek(); return bytes })
	for range 2 {
		if n := c.PeekBytes(p); n != 3 || string(p) != "hel" {
			t.Errorf("got %d bytes, %q; want 3, hel", n, p[:n])
		}
	}
}

// A FIN that arrives as Peek looks is not a byte.
func TestPeekTakesNoFINForBytes(t *testing.T) {
	ln := proxytest.Listen(t, "tcp")
	e := NewNet(Config{})
	wrong, n := 0, 0
	for end := time.Now().Add(time.Second); time.Now().Before(end); n++ {
		d, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		a, _ := ln.Accept()
		c := e.newConn(a)
		go d.(*net.TCPConn).CloseWrite()
		for {
			bytes, end := c.Peek()
			if end == io.EOF {
				break
			}
			if bytes {
				wrong++
			}
		}
		a.Close()
		d.(*net.TCPConn).SetLinger(0)
		d.Close()
	}
	if wrong > 0 {
		t.Errorf("%d times of %d Peek told of bytes where there was only a FIN", wrong, n)
	}
}

// listenAgain changes the length of a listener's backlog.
func listenAgain(fd, backlog int) error { return unix.Listen(fd, backlog) }

// refusal tells why this kernel refuses io_uring, if it does.
func refusal() error { return probeRing() }
