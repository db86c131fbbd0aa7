package ctl

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"forebay/balance"
	"forebay/proxy"
	"forebay/proxy/admin"
	"forebay/proxy/proxytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "a-secret-that-nobody-guesses"

// fake is a proxy that notes the newest change.
type fake struct{ done string }

func (f *fake) change(format string, args ...any) error {
	f.done = fmt.Sprintf(format, args...)
	if strings.HasSuffix(f.done, "nobody") {
		return fmt.Errorf("%w: nobody", proxy.ErrNoBackend)
	}
	return nil
}

func (f *fake) Stats() proxy.Stats {
	return proxy.Stats{Clients: 5, Balance: "random-two", Waiting: 2, Queued: 4, QueueSum: time.Second, QueueMax: 600 * time.Millisecond, Paused: time.Now().Add(-time.Minute),
		Backends: []proxy.BackendStats{{Backend: proxy.Backend{Network: "unix", Addr: "/run/b"}, Status: "up", Sessions: 12, BytesUp: 2500000},
			{Backend: proxy.Backend{Network: "tcp", Addr: "b:1"}, Status: "down", Load: balance.Load{Backend: balance.Backend{Backup: true}}}}}
}

func (f *fake) Sessions(int) []proxy.SessionInfo {
	return []proxy.SessionInfo{{ID: 7, Client: "c:1", State: proxy.Waiting, Age: 1500 * time.Millisecond},
		{ID: 8, Client: "c:2", Backend: "unix:/run/b", State: proxy.Leased, BytesDown: 99}}
}
func (f *fake) Add(b proxy.Backend) error                 { return f.change("add %v", b) }
func (f *fake) Remove(name string) error                  { return f.change("remove %s", name) }
func (f *fake) SetState(name string, s proxy.State) error { return f.change("%v %s", s, name) }
func (f *fake) SetWeight(name string, n int) error        { return f.change("weight %s %d", name, n) }
func (f *fake) SetMax(name string, n int) error           { return f.change("max %s %d", name, n) }
func (f *fake) Pause() error                              { return f.change("pause") }
func (f *fake) Resume()                                   { f.change("resume") }
func (f *fake) Disconnect(id uint64) error                { return f.change("disconnect %d", id) }

// serve starts an admin listener for a fake.
func serve(t *testing.T, network, addr string, token admin.Token) (*fake, net.Addr) {
	t.Helper()
	f := new(fake)
	a, err := admin.New(admin.Config{Proxy: f, Metrics: admin.NewMetrics("", ""), Token: token,
		ParseBackend: func(s string) (proxy.Backend, error) { return proxy.Backend{Network: "tcp", Addr: s}, nil }})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := admin.Listen(t.Context(), network, addr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx, ln) }()
	t.Cleanup(func() {
		stop()
		proxytest.Receive(t, done, "the end of Run")
	})
	return f, ln.Addr()
}

func token(t *testing.T) admin.Token {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	token, err := admin.ReadToken(path)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestEachCommandOverTCPAndUnix(t *testing.T) {
	tests := []struct {
		command Command
		want    string
	}{
		{Command{Name: "add", Backend: "c:1"}, "add c:1"},
		{Command{Name: "remove", Backend: "unix:/run/b"}, "remove unix:/run/b"},
		{Command{Name: "drain", Backend: "a:1"}, "drain a:1"},
		{Command{Name: "maintain", Backend: "[::1]:5"}, "maintain [::1]:5"},
		{Command{Name: "ready", Backend: "a:1"}, "ready a:1"},
		{Command{Name: "weight", Backend: "a:1", Number: 5}, "weight a:1 5"},
		{Command{Name: "max", Backend: "a:1", Number: 9}, "max a:1 9"},
		{Command{Name: "pause"}, "pause"},
		{Command{Name: "resume"}, "resume"},
		{Command{Name: "disconnect", ID: 1<<64 - 1}, "disconnect 18446744073709551615"},
	}
	tok := token(t)
	byTCP, tcp := serve(t, "tcp", "127.0.0.1:0", tok)
	byUnix, unix := serve(t, "unix", filepath.Join(t.TempDir(), "s"), admin.Token{})
	for _, tt := range tests {
		t.Run(tt.want, func(t *testing.T) {
			for f, client := range map[*fake]*admin.Client{
				byTCP:  admin.NewClient("tcp", tcp.String(), tok),
				byUnix: admin.NewClient("unix", unix.String(), admin.Token{}),
			} {
				var out strings.Builder
				if err := Run(t.Context(), client, tt.command, &out); err != nil || out.Len() > 0 || f.done != tt.want {
					t.Errorf("Run = %v, printed %q, did %q; want %q and silence", err, out.String(), f.done, tt.want)
				}
			}
		})
	}
}

// printed runs a command that shows something.
func printed(t *testing.T, c Command) string {
	t.Helper()
	_, addr := serve(t, "tcp", "127.0.0.1:0", admin.Token{})
	var out strings.Builder
	if err := Run(t.Context(), admin.NewClient("tcp", addr.String(), admin.Token{}), c, &out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestTablesAreForReaders(t *testing.T) {
	tests := []struct {
		command Command
		want    []string // lines, with single spaces
	}{
		{Command{Name: "queue"}, []string{"length paused waits mean longest", "2 1m0s 4 250ms 600ms"}},
		{Command{Name: "sessions", Number: 100}, []string{"id client backend state age bytes up bytes down requests",
			"7 c:1 - waiting 1.5s 0 0 0", "8 c:2 unix:/run/b leased 0s 0 99 0"}},
		{Command{Name: "pools"}, []string{"backend state leased idle dialing closing max weight sessions requests MB up MB down dials failed reused why",
			"unix:/run/b up 0 0 0 0 0 0 12 0 2.5 0.0 0 0 0 -", "b:1 down,backup 0 0 0 0 0 0 0 0 0.0 0.0 0 0 0 -",
			"5 sessions, 2 in the queue, balance random-two, paused for 1m0s"}},
	}
	for _, tt := range tests {
		t.Run(tt.command.Name, func(t *testing.T) {
			var got []string
			for line := range strings.Lines(printed(t, tt.command)) {
				got = append(got, strings.Join(strings.Fields(line), " "))
			}
			text := regexp.MustCompile(`\b1m[0-9.]+s`).ReplaceAllString(strings.Join(got, "\n"), "1m0s") // the pause goes on
			if want := strings.Join(tt.want, "\n"); text != want {
				t.Errorf("printed\n%s\nwant\n%s", text, want)
			}
		})
	}
}

func TestJSONIsTheListeners(t *testing.T) {
	var p admin.Pools
	if err := json.Unmarshal([]byte(printed(t, Command{Name: "pools", JSON: true})), &p); err != nil || p.Sessions != 5 || p.Backends[0].Sessions != 12 {
		t.Errorf("pools = %+v, %v", p, err)
	}
	var q admin.Queue
	if err := json.Unmarshal([]byte(printed(t, Command{Name: "queue", JSON: true})), &q); err != nil || q.Length != 2 {
		t.Errorf("queue = %+v, %v", q, err)
	}
	var s []admin.Session
	if err := json.Unmarshal([]byte(printed(t, Command{Name: "sessions", Number: 1, JSON: true})), &s); err != nil || len(s) != 1 || s[0].ID != 7 {
		t.Errorf("sessions = %+v, %v", s, err)
	}
}

func TestErrorsAreOneLineThatTellsWhoSaidIt(t *testing.T) {
	tok := token(t)
	f, addr := serve(t, "tcp", "127.0.0.1:0", tok)
	gone := proxytest.Listen(t, "tcp")
	gone.Close()
	other := proxytest.Serve(t, "tcp", func(c proxytest.Conn) {
		http.ReadRequest(bufio.NewReader(c))
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
	})
	tests := []struct {
		name    string
		at      net.Addr
		token   admin.Token
		command Command
		want    string
	}{
		{"nobody listens", gone.Addr(), tok, Command{Name: "pools"}, "cannot reach the admin listener at " + gone.Addr().String()},
		{"no token", addr, admin.Token{}, Command{Name: "pause"}, "the admin listener at " + addr.String() + ": changes need the header Authorization"},
		{"no such backend", addr, tok, Command{Name: "drain", Backend: "nobody"}, "no such backend: nobody"},
		{"another program", other, tok, Command{Name: "pools"}, "answered what is not forebay's"},
		{"no such command", addr, tok, Command{Name: "dance"}, `unknown command "dance"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f.done = ""
			var out strings.Builder
			err := Run(t.Context(), admin.NewClient("tcp", tt.at.String(), tt.token), tt.command, &out)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), secret) {
				t.Errorf("error = %v; want one line with %q", err, tt.want)
			}
			if out.Len() > 0 || tt.name == "no token" && f.done != "" {
				t.Errorf("printed %q, did %q", out.String(), f.done)
			}
		})
	}
}
