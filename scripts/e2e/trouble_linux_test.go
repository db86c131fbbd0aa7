package e2e

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"forebay/proxy/proxytest"
)

// killed is a backend whose program is killed, and started again at the same address:
// one from which no client on this machine dials, so that nobody else has the port then.
func killed(t *testing.T, protocol string) trouble {
	e := startEcho(t, protocol, "127.0.0.9:0")
	return trouble{
		addr: e.addr,
		lost: chaosMax,
		begin: func(t *testing.T) {
			e.send(t, syscall.SIGKILL)
			proxytest.Receive(t, e.exitc, "the end of the backend")
		},
		end: func(t *testing.T) { startEcho(t, protocol, e.addr) },
	}
}

// stopped is a backend whose program is stopped, while its kernel goes on accepting.
func stopped(t *testing.T, protocol string) trouble {
	e := startEcho(t, protocol, "127.0.0.1:0")
	return trouble{
		addr:  e.addr,
		lost:  chaosMax,
		begin: func(t *testing.T) { e.send(t, syscall.SIGSTOP) },
		end:   func(t *testing.T) { e.send(t, syscall.SIGCONT) },
	}
}

func (s *server) send(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// blackHoled is a backend in a network namespace, from which no packet comes back, and
// into which none gets: the kernel takes none from where it has no way back to.
func blackHoled(t *testing.T, protocol string) trouble {
	n := newNamespace(t)
	e := startCommand(t, "echo: listening on ", exec.Command("ip", append([]string{"netns", "exec", n.name, program},
		echoArgs(protocol, n.inside+":0")...)...))
	route := func(t *testing.T, verb string) {
		if err := ip("-n", n.name, "route", verb, "blackhole", n.outside); err != nil {
			t.Fatal(err)
		}
	}
	return trouble{
		addr:  e.addr,
		lost:  chaosMax,
		begin: func(t *testing.T) { route(t, "add") },
		end:   func(t *testing.T) { route(t, "del") },
	}
}

// namespace is a network namespace, with an address inside and ours, next to it.
type namespace struct{ name, inside, outside string }

// newNamespace makes a namespace for the test, in a part of the addresses that are kept
// free for tests of networks (RFC 2544); in which part goes by the process.
func newNamespace(t *testing.T) namespace {
	t.Helper()
	part := os.Getpid() % (1 << 15) * 4
	at := func(host int) string { return fmt.Sprintf("198.%d.%d.%d", 18+part>>16, part>>8&255, part&255+host) }
	n := namespace{name: fmt.Sprintf("fb%d", os.Getpid()), outside: at(1), inside: at(2)}
	if err := ip("netns", "add", n.name); err != nil {
		t.Skip("no network namespace here: ", err)
	}
	t.Cleanup(func() {
		ip("link", "del", n.name)
		ip("netns", "del", n.name)
	})
	for _, args := range [][]string{
		{"link", "add", n.name, "type", "veth", "peer", "name", "eth0", "netns", n.name},
		{"addr", "add", n.outside + "/30", "dev", n.name},
		{"link", "set", n.name, "up"},
		{"-n", n.name, "addr", "add", n.inside + "/30", "dev", "eth0"},
		{"-n", n.name, "link", "set", "eth0", "up"},
	} {
		if err := ip(args...); err != nil {
			t.Skip("no network namespace here: ", err)
		}
	}
	return n
}

func ip(args ...string) error {
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// slow is a backend that takes much longer than a check waits, but not longer than a
// client does: what it gets goes a way on which it lingers.
func slow(t *testing.T, protocol string) trouble {
	e := startEcho(t, protocol, "127.0.0.1:0")
	var lag atomic.Int64
	way := proxytest.Serve(t, "tcp", func(c proxytest.Conn) {
		b, err := net.Dial("tcp", e.addr)
		if err != nil {
			return
		}
		defer b.Close()
		go func() {
			io.Copy(c, b)
			c.CloseWrite()
		}()
		linger(b, c, &lag)
		b.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, b)
	})
	return trouble{
		addr:  way.String(),
		begin: func(*testing.T) { lag.Store(int64(2 * checkTimeout)) },
		end:   func(*testing.T) { lag.Store(0) },
	}
}

// linger copies, each piece as late as lag says.
func linger(to io.Writer, from io.Reader, lag *atomic.Int64) {
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		time.Sleep(time.Duration(lag.Load())) // this is what is tested, not a wait for it
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
