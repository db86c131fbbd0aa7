package loadtest

import (
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait for something that should happen at once.
const patience = 10 * time.Second

// listen opens a listener on network, with an address of its own.
func listen(t testing.TB, network string) net.Listener {
	t.Helper()
	addr := "127.0.0.1:0"
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

// startEcho serves cfg on ln until the test ends.
func startEcho(t testing.TB, ln net.Listener, cfg EchoConfig) *Echo {
	t.Helper()
	e := NewEcho(cfg)
	done := make(chan error, 1)
	go func() { done <- e.Serve(ln) }()
	t.Cleanup(func() {
		e.Close()
		waitErr(t, done, nil)
	})
	return e
}

// waitErr waits for an error and compares it with want.
func waitErr(t testing.TB, c <-chan error, want error) {
	t.Helper()
	select {
	case err := <-c:
		if err != want {
			t.Errorf("error = %v, want %v", err, want)
		}
	case <-time.After(patience):
		t.Error("still running")
	}
}

// dial connects to ln with a deadline.
func dial(t testing.TB, ln net.Listener) net.Conn {
	t.Helper()
	conn, err := net.DialTimeout(ln.Addr().Network(), ln.Addr().String(), patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	return conn
}

func write(t testing.TB, conn net.Conn, s string) {
	t.Helper()
	if _, err := io.WriteString(conn, s); err != nil {
		t.Fatal(err)
	}
}

// wantRead reads as many bytes as want has and compares.
func wantRead(t testing.TB, conn net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v; want %q", got, err, want)
	}
}

// wantEnd reads and expects an error that says how the connection ended.
func wantEnd(t testing.TB, conn net.Conn, want string) {
	t.Helper()
	n, err := conn.Read(make([]byte, 1))
	if n != 0 || err == nil || causeOf(err) != want {
		t.Fatalf("read %d bytes, %v; want the end: %s", n, err, want)
	}
}
