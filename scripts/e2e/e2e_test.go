package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"forebay/proxy/enginetest"
	"forebay/proxy/proxytest"
)

// program is the built binary.
var program string

func TestMain(m *testing.M) {
	path, remove := proxytest.BuildProgram()
	program = path
	status := m.Run()
	remove()
	os.Exit(status)
}

// run runs the program to its end, and returns its exit status and output.
func run(t *testing.T, env []string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// server is a running forebay.
type server struct {
	cmd   *exec.Cmd
	addr  string
	exitc chan int

	mu  sync.Mutex
	log []map[string]any
}

// serve starts a forebay on a free port, with the engine that the test is for, and
// waits until it serves.
func serve(t *testing.T, args ...string) *server {
	t.Helper()
	return start(t, "serving", append([]string{"--engine", enginetest.Name(t), "--listen", "127.0.0.1:0"}, args...)...)
}

// start starts the program, and waits until it says ready and the address.
func start(t *testing.T, ready string, args ...string) *server {
	t.Helper()
	return startCommand(t, ready, exec.Command(program, args...))
}

func startCommand(t *testing.T, ready string, cmd *exec.Cmd) *server {
	t.Helper()
	s := &server{cmd: cmd, exitc: make(chan int, 1)}
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	addrc := make(chan string, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.readLog(stderr, ready, addrc)
		s.cmd.Wait()
		s.exitc <- s.cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		s.cmd.Process.Kill()
		proxytest.Receive(t, done, "the program to end")
	})
	s.addr = proxytest.Receive(t, addrc, "the line that says where it serves")
	return s
}

func (s *server) readLog(r io.Reader, ready string, addrc chan<- string) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		var line map[string]any
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			line = map[string]any{"message": lines.Text()}
		}
		s.mu.Lock()
		s.log = append(s.log, line)
		s.mu.Unlock()
		if addr, ok := strings.CutPrefix(lines.Text(), ready); ok {
			addrc <- addr
		} else if line["message"] == ready { // whoever waits for this may look for its line
			addrc <- line["listen"].(string)
		}
	}
}

// logged returns the lines with that message.
func (s *server) logged(message string) (lines []map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.log {
		if l["message"] == message {
			lines = append(lines, l)
		}
	}
	return lines
}

func (s *server) signal(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

func (s *server) dial(t *testing.T) proxytest.Conn {
	t.Helper()
	addr, err := net.ResolveTCPAddr("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	return proxytest.Dial(t, addr)
}

// echo is a backend that answers until its client is done.
func echo(c proxytest.Conn) { io.Copy(c, c) }

// ask sends a request and wants it back.
func ask(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := io.WriteString(c, "ping"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "ping" {
		t.Fatalf("reply = %q, %v; want \"ping\"", got, err)
	}
}

// The demo has no --engine: it is run once, with the one that serve would take.
func TestDemoLosesNothing(t *testing.T) {
	tests := []struct{ args, balance, connections string }{
		{"--protocol raw", "least-conn", "found ready"},
		{"--protocol raw --balance first", "first", "found ready"},
		{"--protocol thrift", "least-conn", "reused"},
		{"--protocol thrift --balance consistent-hash", "consistent-hash", "reused"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			status, out, errs := run(t, nil, strings.Fields("demo --duration 500ms "+tt.args)...)
			if status != 0 {
				t.Fatalf("status = %d, want 0\n%s%s", status, out, errs)
			}
			for _, want := range []string{"requests", "p99.9", "wait in the queue", "peak leased", ", " + tt.balance + " →", tt.connections} {
				if !strings.Contains(out, want) {
					t.Errorf("the report lacks %q:\n%s", want, out)
				}
			}
		})
	}
}

// The set-up of the README, with the included servers and load.
func TestManyThriftClientsShareFourConnections(t *testing.T) {
	enginetest.Each(t, testManyThriftClientsShareFourConnections)
}

func testManyThriftClientsShareFourConnections(t *testing.T) {
	var backends []string
	for range 2 {
		e := start(t, "echo: listening on ", "echo", "--protocol", "thrift", "--listen", "127.0.0.1:0")
		backends = append(backends, "--backend", e.addr+",max=2")
	}
	s := serve(t, append(backends, "--protocol", "thrift", "--oneway-method", "fire", "--acquire-timeout", "10s")...)
	status, out, _ := run(t, nil, "load", "--protocol", "thrift", "--method", "mix", "--target", s.addr, "--clients", "100", "--requests", "2000")
	if status != 0 {
		t.Errorf("load: status %d\n%s", status, out)
	}
	s.signal(t)
	if status := proxytest.Receive(t, s.exitc, "the exit"); status != 0 {
		t.Errorf("status = %d, want 0", status)
	}
	sum := s.logged("stopped")[0]
	if sum["requests"] != 2000.0 || sum["errors"] != 0.0 || len(sum["faults"].(map[string]any)) != 0 {
		t.Errorf("summed up as %v; want 2000 requests, no errors and no faults", sum)
	}
	for _, b := range sum["backends"].([]any) {
		dials := b.(map[string]any)["dials"].(float64)
		surplus, _ := b.(map[string]any)["closed"].(map[string]any)["surplus"].(float64) // closed for a check
		if dials > 2+surplus {
			t.Errorf("backend %v; want at most 2 dials, and one for each that was closed for a check", b)
		}
	}
}

func TestExitStatusAndOutput(t *testing.T) {
	taken := proxytest.Listen(t, "tcp").Addr().String()
	tests := []struct {
		name   string
		env    []string
		args   []string
		status int
		stderr string // a part of it
	}{
		{name: "version", args: []string{"--version"}, status: 0},
		{name: "help", args: []string{"--help"}, status: 0},
		{name: "no backend is a wrong use", status: 2, stderr: "--backend is required"},
		{name: "a wrong value names the flag", args: []string{"--backend", "h:1", "--queue", "few"}, status: 2, stderr: `--queue: got "few"`},
		{name: "a wrong variable is named", env: []string{"FOREBAY_QUEUE=few"}, args: []string{"--backend", "h:1"}, status: 2, stderr: `FOREBAY_QUEUE: got "few"`},
		{name: "an address in use is a failure", args: []string{"--listen", taken, "--backend", "127.0.0.1:1"}, status: 1, stderr: "address already in use"},
		{name: "load fails where nobody answers", args: []string{"load", "--target", "unix:/nonexistent/s", "--requests", "1"}, status: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			status, out, errs := run(t, tt.env, tt.args...)
			if status != tt.status || !strings.Contains(errs, tt.stderr) {
				t.Errorf("status = %d, stderr %q; want %d and %q\n%s", status, errs, tt.status, tt.stderr, out)
			}
			if n := strings.Count(errs, "\n"); n > 2 {
				t.Errorf("stderr has %d lines, want at most 2:\n%s", n, errs)
			}
		})
	}
}

func TestTermLetsSessionsEnd(t *testing.T) {
	enginetest.Each(t, testTermLetsSessionsEnd)
}

func testTermLetsSessionsEnd(t *testing.T) {
	s := serve(t, "--backend", proxytest.Serve(t, "tcp", echo).String())
	c := s.dial(t)
	ask(t, c)
	s.signal(t)
	proxytest.Eventually(t, "the listener to close", func() bool {
		late, err := net.Dial("tcp", s.addr)
		if err == nil {
			late.Close()
		}
		return err != nil
	})
	ask(t, c) // the session goes on
	c.Close()
	if status := proxytest.Receive(t, s.exitc, "the program to end"); status != 0 {
		t.Errorf("status = %d, want 0: every session has ended", status)
	}
}

func TestCutSessionsMakeTheStatusOne(t *testing.T) {
	enginetest.Each(t, testCutSessionsMakeTheStatusOne)
}

func testCutSessionsMakeTheStatusOne(t *testing.T) {
	tests := []struct {
		name    string
		drain   string
		signals int
	}{
		{name: "after the drain timeout", drain: "50ms", signals: 1},
		{name: "by a second signal", drain: "1h", signals: 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, "--backend", proxytest.Serve(t, "tcp", echo).String(), "--drain-timeout", tt.drain)
			c := s.dial(t)
			ask(t, c)
			for i := range tt.signals {
				s.signal(t)
				if i == 0 {
					proxytest.Eventually(t, "the drain to begin", func() bool {
						return len(s.logged("draining; a second signal cuts")) == 1
					})
				}
			}
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the client read %v, want a reset", err)
			}
			if status := proxytest.Receive(t, s.exitc, "the program to end"); status != 1 {
				t.Errorf("status = %d, want 1: a session was cut", status)
			}
		})
	}
}

func TestStartsWithABackendDown(t *testing.T) {
	enginetest.Each(t, testStartsWithABackendDown)
}

func testStartsWithABackendDown(t *testing.T) {
	dead := proxytest.Listen(t, "tcp")
	dead.Close()
	s := serve(t, "--backend", dead.Addr().String(), "--backend", proxytest.Serve(t, "tcp", echo).String())
	proxytest.Eventually(t, "the warning", func() bool { return len(s.logged("backend is down")) == 1 })
	for range 5 {
		c := s.dial(t)
		ask(t, c)
		c.Close()
	}
	s.signal(t)
	if status := proxytest.Receive(t, s.exitc, "the program to end"); status != 0 {
		t.Errorf("status = %d, want 0", status)
	}
}

func TestUnixSocketFileIsRemovedAtExit(t *testing.T) {
	enginetest.Each(t, testUnixSocketFileIsRemovedAtExit)
}

func testUnixSocketFileIsRemovedAtExit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "forebay.sock")
	s := serve(t, "--listen", "unix:"+path, "--backend", "unix:"+proxytest.Serve(t, "unix", echo).String())
	c := proxytest.Dial(t, &net.UnixAddr{Net: "unix", Name: path})
	ask(t, c)
	c.Close()
	s.signal(t)
	if status := proxytest.Receive(t, s.exitc, "the program to end"); status != 0 {
		t.Errorf("status = %d, want 0", status)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket file is still there: %v", err)
	}
}

// TestEchoAndLoad runs the README's example: more clients than connections, and
// nobody lost.
func TestEchoAndLoad(t *testing.T) {
	enginetest.Each(t, testEchoAndLoad)
}

func testEchoAndLoad(t *testing.T) {
	ports := []string{freeAddr(t), freeAddr(t)}
	servers := exec.Command(program, "echo", "--listen", ports[0], "--listen", ports[1], "--delay", "1ms")
	var report bytes.Buffer
	servers.Stdout = &report
	if err := servers.Start(); err != nil {
		t.Fatal(err)
	}
	defer servers.Process.Kill()
	for _, p := range ports {
		proxytest.Eventually(t, "the echo server", func() bool {
			c, err := net.DialTimeout("tcp", p, time.Second)
			if err == nil {
				c.Close()
			}
			return err == nil
		})
	}
	s := serve(t, "--backend", ports[0]+",max=2", "--backend", ports[1]+",max=2", "--log-level", "debug")
	status, out, errs := run(t, nil, "load", "--target", s.addr, "--clients", "50", "--requests", "1000", "--requests-per-client", "5", "--json")
	var res struct {
		OK                          bool
		Replies, Errors, Mismatches int
	}
	if err := json.Unmarshal([]byte(out), &res); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if status != 0 || !res.OK || res.Replies != 1000 {
		t.Errorf("status = %d, result %s %s; want 0 and 1000 replies", status, out, errs)
	}
	s.signal(t)
	proxytest.Receive(t, s.exitc, "forebay to end")
	if n := len(s.logged("session ended")); n < 200 {
		t.Errorf("%d session lines, want at least 200: one for each session", n)
	}
	servers.Process.Signal(syscall.SIGTERM)
	if err := servers.Wait(); err != nil || !strings.Contains(report.String(), ports[1]) {
		t.Errorf("echo ended with %v and the report %q", err, report.String())
	}
}

// freeAddr returns an address on which nobody listens.
func freeAddr(t *testing.T) string {
	t.Helper()
	ln := proxytest.Listen(t, "tcp")
	defer ln.Close()
	return ln.Addr().String()
}
