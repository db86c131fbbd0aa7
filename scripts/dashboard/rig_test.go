package dashboard

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"forebay/proxy/admin"
	"forebay/proxy/proxytest"
)

const token = "a-token-of-the-test"

// program is the built binary; chromiumPath the browser, where there is one.
var program, chromiumPath string

func TestMain(m *testing.M) {
	var found bool
	if chromiumPath, found = findChromium(); !found {
		os.Exit(m.Run()) // the tests skip
	}
	path, remove := proxytest.BuildProgram()
	program = path
	status := m.Run()
	remove()
	os.Exit(status)
}

// start starts the program, for the time of the test or until stop is called, and
// returns what follows each of the marks on standard error, as soon as all came.
func start(t *testing.T, args []string, marks ...string) (found []string, stop func()) {
	t.Helper()
	cmd := exec.Command(program, args...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	var reading sync.WaitGroup
	stop = sync.OnceFunc(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Process.Signal(syscall.SIGTERM) // a second one cuts
		reading.Wait()
		cmd.Wait()
	})
	t.Cleanup(stop)
	for len(found) < len(marks) && lines.Scan() {
		if _, rest, ok := strings.Cut(lines.Text(), marks[len(found)]); ok {
			value, _, _ := strings.Cut(rest, `"`)
			found = append(found, value)
		}
	}
	reading.Go(func() {
		for lines.Scan() {
		}
	})
	if len(found) < len(marks) {
		t.Fatalf("forebay %v never wrote %q", args, marks[len(found)])
	}
	return found, stop
}

// rig is a proxy with three backends.
type rig struct {
	admin, clients string   // where it listens
	stop           []func() // each ends a backend
}

func serve(t *testing.T) rig {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(secret, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--protocol", "thrift", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
		"--admin-token-file", secret, "--log-format", "json"}
	var r rig
	for _, max := range []string{"2", "4", "8"} {
		at, stop := start(t, []string{"echo", "--protocol", "thrift", "--delay", "5ms", "--listen", "127.0.0.1:0"}, "listening on ")
		r.stop = append(r.stop, stop)
		args = append(args, "--backend", at[0]+",max="+max)
	}
	at, _ := start(t, args, `"admin":"`, `"listen":"`)
	r.admin, r.clients = at[0], at[1]
	return r
}

// load has clients call, until stop is called.
func (r rig) load(t *testing.T, args ...string) (stop func()) {
	t.Helper()
	_, stop = start(t, append([]string{"load", "--protocol", "thrift", "--target", r.clients, "--duration", "10m"}, args...))
	return stop
}

// pools asks the admin listener.
func (r rig) pools(t *testing.T) (p admin.Pools) {
	t.Helper()
	res, err := http.Get("http://" + r.admin + "/api/pools")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&p); err != nil {
		t.Fatal(err)
	}
	return p
}

func needChromium(t *testing.T) *browser {
	t.Helper()
	if chromiumPath == "" {
		t.Skip("no Chromium on the PATH; scripts/dashboard.sh installs Debian's")
	}
	return chromium(t, chromiumPath)
}
