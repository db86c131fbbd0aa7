package proxy

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// hang returns an address at which connects get no answer: its listener's backlog
// is full, and nobody accepts.
func hang(t testing.TB) net.Addr {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: sa.(*unix.SockaddrInet4).Port}
	for range 4 {
		c, err := net.DialTimeout("tcp", addr.String(), 200*time.Millisecond)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { c.Close() })
	}
	t.Fatal("a full backlog takes more connections")
	return nil
}

// shutdownUnlessReadable ends a connection as close does, with its descriptor
// kept: a FIN goes out, and what comes later is answered with a reset. It reports
// true, and does nothing, where there is something to read.
func shutdownUnlessReadable(c net.Conn) (readable bool) {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return false
	}
	raw.Control(func(fd uintptr) {
		if n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil && n > 0 {
			readable = true
			return
		}
		unix.Shutdown(int(fd), unix.SHUT_RDWR)
	})
	return readable
}
