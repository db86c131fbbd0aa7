//go:build unix

package admin

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

func listenUnix(t *testing.T, path string) net.Listener {
	t.Helper()
	ln, err := Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

func TestUnixSocketIsItsOwnersAlone(t *testing.T) {
	old := syscall.Umask(0) // which keeps nothing from anybody
	defer syscall.Umask(old)
	path := filepath.Join(t.TempDir(), "s")
	ln := listenUnix(t, path)
	if info, err := os.Lstat(path); err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("mode = %v, %v; want a socket of mode 0600", info.Mode(), err)
	}
	if mask := syscall.Umask(0); mask != 0 {
		t.Errorf("the umask is %o afterwards, want it back", mask)
	}
	ln.Close()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the file is left: %v", err)
	}
}

// A file that somebody else may have put where the process runs tells nothing of it.
func TestAbstractSocketIsNotPrivateBecauseOfAFile(t *testing.T) {
	t.Chdir(t.TempDir())
	ln := listenUnix(t, "./@admin")
	if err := os.Chmod("./@admin", 0o600); err != nil || !isPrivate(ln.Addr()) {
		t.Fatalf("there is no such file: %v", err)
	}
	if isPrivate(&net.UnixAddr{Net: "unix", Name: "@admin"}) {
		t.Error("an abstract socket passes for its owner's alone")
	}
}

// TestUnixSocketIsMadeSoAtOnce: a chmod would come too late for who connects before.
func TestUnixSocketIsMadeSoAtOnce(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	path := filepath.Join(t.TempDir(), "s")
	ln, err := privately(func() (net.Listener, error) { return net.Listen("unix", path) })
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if !isPrivate(ln.Addr()) {
		t.Error("the socket is not private")
	}
}

func TestStaleSocketIsReplacedAndALiveOneIsNot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	listenUnix(t, path)
	if _, err := Listen(t.Context(), "unix", path); err == nil || !strings.Contains(err.Error(), "another process listens there") {
		t.Errorf("second Listen = %v, want another process", err)
	}
}

func TestUnixSocketNeedsNoToken(t *testing.T) {
	for _, cfg := range []func(*Config){nil, func(c *Config) { c.Token = Token{} }} {
		r := serveOn(t, listenUnix(t, filepath.Join(t.TempDir(), "s")), cfg)
		res, body := r.ask(t, "POST", "/api/backends/a:1/drain", "", "Host: whatever")
		if got := r.changes(); res.StatusCode != 204 || got != "drain a:1" {
			t.Errorf("answer = %s, %s, changes %q; want the drain", res.Status, body, got)
		}
		if !strings.Contains(r.log.String(), `"remote":"unix"`) {
			t.Errorf("log = %s, want the remote unix", r.log)
		}
	}
}

func TestSocketsOthersCanOpenNeedTheToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	open := listenUnix(t, path)
	if err := os.Chmod(path, 0o660); err != nil {
		t.Fatal(err)
	}
	listeners := map[string]net.Listener{"of mode 0660": open}
	if runtime.GOOS == "linux" {
		listeners["without a file"] = listenUnix(t, "@forebay-admin-"+filepath.Base(t.TempDir())+t.Name())
	}
	for name, ln := range listeners {
		r := serveOn(t, ln, nil)
		if res, _ := r.ask(t, "POST", "/api/pause", ""); res.StatusCode != 401 || r.changes() != "" {
			t.Errorf("a socket %s: %s without a token, want 401", name, res.Status)
		}
		if res, _ := r.ask(t, "POST", "/api/pause", "", authorized); res.StatusCode != 204 {
			t.Errorf("a socket %s: %s with the token, want 204", name, res.Status)
		}
	}
}
