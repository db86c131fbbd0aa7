package health

import (
	"errors"
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// full listens without ever accepting, and fills the backlog.
func full(t *testing.T, network string, domain int, sa syscall.Sockaddr) net.Addr {
	t.Helper()
	fd, err := syscall.Socket(domain, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, sa); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	var at net.Addr
	switch sa := sa.(type) {
	case *syscall.SockaddrUnix:
		at = &net.UnixAddr{Net: "unix", Name: sa.Name}
	default:
		got, err := syscall.Getsockname(fd)
		if err != nil {
			t.Fatal(err)
		}
		at = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: got.(*syscall.SockaddrInet4).Port}
	}
	c, err := net.Dial(network, at.String()) // one has room
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return at
}

func TestABlackHoleIsTheBackendsFault(t *testing.T) {
	at := full(t, "tcp", syscall.AF_INET, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	wantError(t, asks(t, at, nil, brief), "i/o timeout")
}

// A stopped program looks like this one to a check that only connects.
func TestAProgramThatDoesNotAcceptIsFoundByAskingIt(t *testing.T) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Listen(fd, 10); err != nil { // which binds it too
		t.Fatal(err)
	}
	got, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	at := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: got.(*syscall.SockaddrInet4).Port}
	wantError(t, asks(t, at, nil, time.Minute), "")
	wantError(t, asks(t, at, Thrift{}.Talk, brief), "i/o timeout")
}

// Which is a fault of this machine, where the owner says so.
func TestAFullBacklogOfAUnixSocketFailsAtOnce(t *testing.T) {
	at := full(t, "unix", syscall.AF_UNIX, &syscall.SockaddrUnix{Name: filepath.Join(t.TempDir(), "s")})
	if err := asks(t, at, nil, time.Minute); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("a check of a full Unix socket = %v, want EAGAIN", err)
	}
}
