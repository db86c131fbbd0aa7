package e2e

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"forebay/proxy/admin"
	"forebay/proxy/proxytest"
)

// serveAdmin starts a forebay with an admin listener, and returns where that is.
func serveAdmin(t *testing.T, at string, args ...string) (s *server, addr string) {
	t.Helper()
	s = start(t, "serving", append([]string{"--listen", "127.0.0.1:0", "--admin", at}, args...)...)
	return s, s.logged("operators are answered")[0]["admin"].(string)
}

// get returns the status and the body of a page of the admin listener.
func get(t *testing.T, addr, path string) (status int, body string) {
	t.Helper()
	res, err := http.Get("http://" + addr + path)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func TestCtlShowsWhatIsServed(t *testing.T) {
	backend := proxytest.Serve(t, "tcp", echo).String()
	for _, at := range []string{"127.0.0.1:0", "unix:" + filepath.Join(t.TempDir(), "s")} {
		s, addr := serveAdmin(t, at, "--backend", backend+",max=3", "--min-idle", "0")
		c := s.dial(t)
		ask(t, c)
		status, out, errs := run(t, []string{"FOREBAY_ADMIN=" + addr}, "ctl", "--json", "pools")
		var p admin.Pools
		if err := json.Unmarshal([]byte(out), &p); status != 0 || err != nil {
			t.Fatalf("ctl pools: %d, %v\n%s%s", status, err, out, errs)
		}
		if b := p.Backends[0]; p.Sessions != 1 || b.Name != backend || b.Max != 3 || b.Leased != 1 || b.State != "up" {
			t.Errorf("pools of a proxy with one client = %+v", p)
		}
		if status, out, _ := run(t, nil, "ctl", "pools", "--admin", addr); status != 0 || !strings.Contains(out, backend) {
			t.Errorf("ctl pools: %d, %s", status, out)
		}
	}
}

func TestTopPrintsWhatIsServed(t *testing.T) {
	backend := proxytest.Serve(t, "tcp", echo).String()
	s, addr := serveAdmin(t, "127.0.0.1:0", "--backend", backend+",max=3", "--min-idle", "0")
	ask(t, s.dial(t))
	status, out, errs := run(t, nil, "top", "--once", "--interval", "10ms", "--admin", addr)
	for _, want := range []string{"forebay " + addr, "1 sessions", "1 of 1 up", "1 of 3 leased", backend, " 1/3 "} {
		if status != 0 || !strings.Contains(out, want) {
			t.Errorf("top: %d, %s; want %q in\n%s", status, errs, want, out)
		}
	}
}

// TestDashboardIsServed: what is on it is tested in a browser, by scripts/dashboard.
func TestDashboardIsServed(t *testing.T) {
	_, addr := serveAdmin(t, "127.0.0.1:0", "--backend", "127.0.0.1:1")
	for path, want := range map[string]string{"/": "<title>forebay</title>", "/dashboard/page.js": "api/pools"} {
		if status, body := get(t, addr, path); status != 200 || !strings.Contains(body, want) {
			t.Errorf("%s = %d, %.100s; want 200 and %q", path, status, body, want)
		}
	}
}

func TestCtlFailsWithOneLine(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, addr := serveAdmin(t, "127.0.0.1:0", "--backend", "127.0.0.1:1")
	tests := []struct {
		args []string
		want string
	}{
		{[]string{"ctl", "pause", "--admin", addr}, "changes are off"},
		{[]string{"top", "--once", "--admin", "unix:/nonexistent/s"}, "cannot reach the admin listener at unix:/nonexistent/s"},
		{[]string{"top", "--admin", addr}, "top needs a terminal"},
		{[]string{"ctl", "pools", "--admin", "unix:/nonexistent/s"}, "cannot reach the admin listener at unix:/nonexistent/s"},
		{[]string{"ctl", "pause", "--admin", addr, "--token-file", token}, "--token-file: " + token + ": a token has 16"},
		{[]string{"--listen", "127.0.0.1:0", "--backend", "h:1", "--admin", "127.0.0.1:0", "--admin-token-file", token}, "--admin-token-file: " + token},
		{[]string{"--listen", "127.0.0.1:0", "--backend", "h:1", "--admin", addr}, "--admin: cannot listen"},
	}
	for _, tt := range tests {
		status, out, errs := run(t, nil, tt.args...)
		if status != 1 || out != "" || !strings.HasPrefix(errs, "forebay: ") || !strings.Contains(errs, tt.want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: status %d, stdout %q, stderr %q; want 1 and one line with %q", tt.args, status, out, errs, tt.want)
		}
	}
}

// TestReadyFailsBeforeTheListenerCloses: a balancer in front has time to look elsewhere,
// and whoever still comes is served.
func TestReadyFailsBeforeTheListenerCloses(t *testing.T) {
	s, addr := serveAdmin(t, "127.0.0.1:0", "--backend", proxytest.Serve(t, "tcp", echo).String(), "--drain-delay", "1h")
	if status, body := get(t, addr, "/readyz"); status != 200 {
		t.Fatalf("readyz = %d, %s; want 200 while it serves", status, body)
	}
	s.signal(t)
	proxytest.Eventually(t, "readyz to fail", func() bool { status, _ := get(t, addr, "/readyz"); return status == 503 })
	late := s.dial(t)
	ask(t, late)
	if _, body := get(t, addr, "/metrics"); !strings.Contains(body, "\nforebay_sessions 1\n") {
		t.Error("the metrics have no session")
	}
	s.signal(t) // cuts, whatever is left of the delay
	if status := proxytest.Receive(t, s.exitc, "the exit"); status != 1 {
		t.Errorf("status = %d, want 1: a session was cut", status)
	}
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Error("the admin listener outlives the program")
	}
}
