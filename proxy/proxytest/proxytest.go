// Package proxytest is what forebay's tests share: pairs of real connections,
// servers that end with their test, and waits that are bounded. It is to package
// proxy what net/http/httptest is to net/http.
package proxytest

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait of a test. Nothing that works takes as long.
const patience = 20 * time.Second

// Conn is what TCP and Unix connections have in common: each direction can end
// by itself.
type Conn interface {
	net.Conn
	CloseWrite() error
}

// Listen returns a listener on a free address of network ("tcp", which is IPv4
// here, "tcp6" or "unix"), which is closed with the test.
func Listen(t testing.TB, network string) net.Listener {
	t.Helper()
	addr := map[string]string{"tcp": "127.0.0.1:0", "tcp6": "[::1]:0"}[network]
	if network == "unix" {
		addr = filepath.Join(t.TempDir(), "s")
	}
	ln, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

// Dial connects to addr, until the test ends.
func Dial(t testing.TB, addr net.Addr) Conn {
	t.Helper()
	c, err := net.DialTimeout(addr.Network(), addr.String(), patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience)) // so that no read or write hangs the test
	return c.(Conn)
}

// Pair returns the two ends of a connection over network. The accepted end has
// no deadline, as a server would have it.
func Pair(t testing.TB, network string) (dialed, accepted Conn) {
	t.Helper()
	ln := Listen(t, network)
	dialed = Dial(t, ln.Addr())
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return dialed, c.(Conn)
}

// Serve runs handle for each connection to a listener of network, and returns
// its address. handle need not close the connection. When the test ends the
// connections are closed, and Serve's clean-up waits for handle to return.
func Serve(t testing.TB, network string, handle func(Conn)) net.Addr {
	t.Helper()
	ln := Listen(t, network)
	ServeOn(t, ln, handle)
	return ln.Addr()
}

// ServeOn is Serve on a listener of the caller's.
func ServeOn(t testing.TB, ln net.Listener, handle func(Conn)) {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		conns = map[net.Conn]bool{}
	)
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns[c] = true
			mu.Unlock()
			wg.Go(func() {
				defer func() {
					mu.Lock()
					defer mu.Unlock()
					delete(conns, c)
					c.Close()
				}()
				handle(c.(Conn))
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		mu.Lock()
		for c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
}

// Receive returns the next value of c, or fails the test: what names what did
// not come. A closed channel gives its zero value.
func Receive[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case v := <-c:
		return v
	case <-timer.C:
		t.Fatalf("waited %v in vain for %s", patience, what)
		panic("unreachable")
	}
}

// Eventually waits until ok reports true, or fails the test: what names what did
// not come. It is for state that nothing tells of, such as a counter.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		if ok() {
			return
		}
	}
	t.Fatalf("waited %v in vain for %s", patience, what)
}

// BuildProgram builds forebay, for the main function of tests that run it, and returns
// its path and what removes it.
func BuildProgram() (path string, remove func()) {
	dir, err := os.MkdirTemp("", "forebay-test")
	if err != nil {
		panic(err)
	}
	path = filepath.Join(dir, "forebay")
	if out, err := exec.Command("go", "build", "-o", path, "forebay").CombinedOutput(); err != nil {
		panic(string(out))
	}
	return path, func() { os.RemoveAll(dir) }
}

// ResetGarbage handles a connection as an echo that resets whoever sends "garbage".
func ResetGarbage(c Conn) {
	buf := make([]byte, 64)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		if string(buf[:n]) == "garbage" {
			c.(*net.TCPConn).SetLinger(0)
			return
		}
		c.Write(buf[:n])
	}
}

// SendGarbage sends that to a TCP address, as a client of the loopback address from, and
// wants to be reset. Where a client may have one loopback address alone (that is not so on
// Linux) it skips the test.
func SendGarbage(t testing.TB, from, to string) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: patience}
	c, err := d.Dial("tcp", to)
	if err != nil && runtime.GOOS != "linux" {
		t.Skipf("no client from %s here: %v", from, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	io.WriteString(c, "garbage")
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("garbage ended with %v, want a reset", err)
	}
}
