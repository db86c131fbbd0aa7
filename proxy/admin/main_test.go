package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"forebay/balance"
	"forebay/balance/health"
	"forebay/pool"
	"forebay/proxy"
	"forebay/proxy/proxytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "a-secret-that-nobody-guesses"

// fake is a proxy that notes what it is asked to do.
type fake struct {
	mu       sync.Mutex
	stats    proxy.Stats
	sessions []proxy.SessionInfo
	done     []string // changes
	err      error    // that every change returns
}

// newFake returns a proxy with two backends, the second of which is down.
func newFake() *fake {
	load := balance.Load{Backend: balance.Backend{Max: 8, Weight: 2}}
	load.Slots[balance.Leased], load.Slots[balance.Idle], load.Slots[balance.Free] = 3, 1, 0
	load.Slots[balance.Dialing], load.Slots[balance.DialingAhead] = 1, 1
	load.Slots[balance.Closing], load.Slots[balance.Expiring] = 1, 1
	down := balance.Load{Backend: balance.Backend{Max: 4, Weight: 1, Backup: true}, Out: balance.Down}
	return &fake{
		stats: proxy.Stats{
			Clients: 5, Waiting: 2, Queued: 10, QueueSum: 3 * time.Second, QueueMax: 1500 * time.Millisecond,
			Ended:    map[string]int64{"done": 7, "cut": 1},
			Requests: 100, Errors: 3, Balance: balance.RandomTwo,
			Faults: map[string]int64{"wrong_reply": 1, "stray_bytes": 2, "stale": 4},
			Backends: []proxy.BackendStats{
				{
					Backend: proxy.Backend{Network: "tcp", Addr: "a:1", Max: 8, Weight: 2}, Load: load,
					Status: "up", Health: health.Snapshot{Up: true, Record: health.Record{Checks: 7, LastError: "refused"},
						History: []health.Transition{{At: time.Now(), Why: "refused"}, {At: time.Now(), Up: true}}},
					Sessions: 6, Requests: 99, Results: map[string]int64{"ok": 97, "stale": 2}, BytesUp: 1000, BytesDown: 2000,
					Pool: pool.Stats{Dials: 9, Dialed: 7, DialErrors: 1, Ready: 5, Closed: map[string]int64{"used": 4}},
				},
				{Backend: proxy.Backend{Network: "unix", Addr: "/run/b", Max: 4, Weight: 1}, Load: down, Status: "down",
					Health: health.Snapshot{Why: "no answer", Needed: 2}},
			},
		},
		sessions: []proxy.SessionInfo{
			{ID: 1, Client: "c:1", Backend: "a:1", State: proxy.Leased, Age: 1500 * time.Millisecond, BytesUp: 3, BytesDown: 4, Requests: 5},
			{ID: 2, Client: "c:2", State: proxy.Waiting},
			{ID: 3, Client: "c:3", Backend: "unix:/run/b", State: proxy.Leased},
		},
	}
}

func (f *fake) change(format string, args ...any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.done = append(f.done, fmt.Sprintf(format, args...))
	}
	return f.err
}

// changes returns what was done, and forgets it.
func (f *fake) changes() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	done := strings.Join(f.done, "; ")
	f.done = nil
	return done
}

func (f *fake) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *fake) Stats() proxy.Stats { return f.stats }
func (f *fake) Sessions(limit int) []proxy.SessionInfo {
	if limit == 0 {
		return f.sessions
	}
	return f.sessions[:min(limit, len(f.sessions))]
}
func (f *fake) Add(b proxy.Backend) error {
	return f.change("add %v max=%d weight=%d", b, b.Max, b.Weight)
}
func (f *fake) Remove(name string) error                  { return f.change("remove %s", name) }
func (f *fake) SetState(name string, s proxy.State) error { return f.change("%v %s", s, name) }
func (f *fake) SetWeight(name string, n int) error        { return f.change("weight %s %d", name, n) }
func (f *fake) SetMax(name string, n int) error           { return f.change("max %s %d", name, n) }
func (f *fake) Pause() error                              { return f.change("pause") }
func (f *fake) Resume()                                   { f.change("resume") }
func (f *fake) Disconnect(id uint64) error                { return f.change("disconnect %d", id) }

// parseBackend takes host:port alone.
func parseBackend(s string) (proxy.Backend, error) {
	if _, _, err := net.SplitHostPort(s); err != nil {
		return proxy.Backend{}, fmt.Errorf("got %q: the port is missing", s)
	}
	return proxy.Backend{Network: "tcp", Addr: s, Max: 7, Weight: 1}, nil
}

// book keeps the log.
type book struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *book) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *book) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// rig is a listener that serves a fake.
type rig struct {
	*fake
	admin *Admin
	log   *book
	addr  net.Addr
	stop  func() // ends Run, and waits for it; the clean-up does so too
}

// serve starts a listener on TCP, with a token. set, if not nil, changes its config,
// and each of limit what it bounds.
func serve(t *testing.T, set func(*Config), limit ...func(*limits)) *rig {
	t.Helper()
	ln, err := Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, ln, set, limit...)
}

func serveOn(t *testing.T, ln net.Listener, set func(*Config), limit ...func(*limits)) *rig {
	t.Helper()
	r := &rig{fake: newFake(), log: new(book), addr: ln.Addr()}
	cfg := Config{Proxy: r.fake, ParseBackend: parseBackend,
		Metrics: NewMetrics("v1.2.3", "net"), Log: zerolog.New(r.log), Token: Token{secret}}
	if set != nil {
		set(&cfg)
	}
	var err error
	if r.admin, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	for _, set := range limit {
		set(&r.admin.limits)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.admin.Run(ctx, ln) }()
	r.stop = sync.OnceFunc(func() {
		stop()
		if err := proxytest.Receive(t, done, "the end of Run"); err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// ask sends a request, and returns the answer with its body. header are lines, "A: b".
func (r *rig) ask(t *testing.T, method, path, body string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		if name == "Host" {
			req.Host = value
		} else {
			req.Header.Set(name, value)
		}
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, r.addr.Network(), r.addr.String())
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(got)
}

// The header lines of a change.
const (
	authorized = "Authorization: Bearer " + secret
	isJSON     = "Content-Type: application/json"
)

var errBroken = errors.New("it is broken")
