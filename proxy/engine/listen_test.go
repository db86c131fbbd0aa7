package engine

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"forebay/proxy/proxytest"
)

func testListen(t *testing.T, newEngine func(Config) Engine) {
	tests := []struct {
		name    string
		prepare func(t *testing.T, path string)
		want    string // in the error; empty: it listens
		left    bool   // the file is still there
	}{
		{"a new file", func(*testing.T, string) {}, "", false},
		{"a stale socket file is replaced", func(t *testing.T, path string) {
			ln, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			ln.(*net.UnixListener).SetUnlinkOnClose(false)
			ln.Close()
		}, "", false},
		{"a live one is refused", func(t *testing.T, path string) {
			ln, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ln.Close() })
		}, "another process listens there", true},
		{"a file is refused and kept", func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "not a socket", true},
		{"a directory is refused and kept", func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, "not a socket", true},
		{"a link to a socket is refused and kept", func(t *testing.T, path string) {
			ln, err := net.Listen("unix", path+".real")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ln.Close() })
			if err := os.Symlink(path+".real", path); err != nil {
				t.Fatal(err)
			}
		}, "not a socket", true},
	}
	for _, tt := range tests {
		t.Run("unix/"+tt.name, func(t *testing.T) {
			b := newBench(t, newEngine)
			path := filepath.Join(t.TempDir(), "sock")
			tt.prepare(t, path)
			ln, err := b.engine.Listen(t.Context(), "unix", path)
			switch {
			case tt.want == "" && err != nil:
				t.Fatal(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path)):
				t.Fatalf("Listen: %v; want %q and the path", err, tt.want)
			case err == nil:
				b.expectAccepts(ln)
				ln.Close()
			}
			if _, err := os.Lstat(path); (err == nil) != tt.left {
				t.Errorf("the file afterwards: %v", err)
			}
		})
	}

	t.Run("unix/abstract", func(t *testing.T) {
		b := newBench(t, newEngine)
		name := fmt.Sprintf("@forebay-test-%d", os.Getpid())
		ln, err := b.engine.Listen(t.Context(), "unix", name)
		if err != nil && runtime.GOOS != "linux" {
			t.Skip("only Linux has abstract sockets: ", err)
		} else if err != nil {
			t.Fatal(err)
		}
		b.expectAccepts(ln)
		if _, err := b.engine.Listen(t.Context(), "unix", name); err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("a second listener: %v", err)
		}
		ln.Close()
	})

	t.Run("tcp/an address in use", func(t *testing.T) {
		b := newBench(t, newEngine)
		addr := b.listen("tcp").Addr().String()
		if _, err := b.engine.Listen(t.Context(), "tcp", addr); err == nil || !strings.Contains(err.Error(), addr) {
			t.Errorf("a second listener: %v", err)
		}
	})

	for _, network := range []string{"tcp", "unix"} {
		t.Run(network+"/Accept ends at Close", func(t *testing.T) {
			ln := newBench(t, newEngine).listen(network)
			errc := async(func() error {
				_, err := ln.Accept()
				return err
			})
			ln.Close()
			if err := proxytest.Receive(t, errc, "Accept to end"); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Accept: %v", err)
			}
			if _, err := ln.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Accept after Close: %v", err)
			}
		})
	}
}

func (b *bench) expectAccepts(ln Listener) {
	b.Helper()
	cc, client := b.clientOf(ln)
	bc, backend := b.backend("unix")
	r := b.relay(cc, bc, RelayConfig{})
	write(b, client, "x")
	client.CloseWrite()
	expectEOF(b, backend, "x")
	backend.Close()
	r.close()
}
