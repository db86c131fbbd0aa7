package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"forebay/proxy/admin"
	"forebay/proxy/loadtest"
	"forebay/proxy/proxytest"
)

// chaos is a forebay with three backends, and what its clients have come to.
type chaos struct {
	*server
	protocol string
	admin    string   // where it answers operators
	backends []string // by name
	victim   string   // the one of them that breaks

	mu    sync.Mutex
	total sum
}

// serveChaos starts a forebay with two backends of its own beside the one at victim.
func serveChaos(t *testing.T, protocol, victim string) *chaos {
	t.Helper()
	f := &chaos{protocol: protocol, victim: victim, backends: []string{victim}}
	for range 2 {
		f.backends = append(f.backends, startEcho(t, protocol, "127.0.0.1:0").addr)
	}
	args := []string{"--protocol", protocol, "--health-interval", checkEvery.String(), "--health-timeout", checkTimeout.String(),
		"--health-fall", strconv.Itoa(checkFall), "--slow-start", slowStart.String(), "--dial-timeout", "500ms",
		"--idle-timeout", "300ms", "--virgin-timeout", "300ms", "--acquire-timeout", "10s", "--admin-pprof"}
	for _, b := range f.backends {
		args = append(args, "--backend", fmt.Sprintf("%s,max=%d", b, chaosMax))
	}
	if protocol == "thrift" {
		args = append(args, "--health", "thrift", "--reply-timeout", untilDown.String())
	} else { // a client that gives up has half closed, for all that its backend hears
		args = append(args, "--health", "send-expect", "--health-send", "ping", "--health-expect", "ping", "--half-close-timeout", "300ms")
	}
	f.server, f.admin = serveAdmin(t, "127.0.0.1:0", args...)
	return f
}

// startEcho starts a backend at addr. It takes a moment to answer, as backends do.
func startEcho(t *testing.T, protocol, addr string) *server {
	t.Helper()
	return start(t, "echo: listening on ", echoArgs(protocol, addr)...)
}

func echoArgs(protocol, addr string) []string {
	return []string{"echo", "--protocol", protocol, "--delay", "20ms", "--listen", addr}
}

// config is a load that asks often enough to meet all that happens, and leaves the
// machine time for everything else.
func (f *chaos) config() loadtest.LoadConfig {
	cfg := loadtest.LoadConfig{Network: "tcp", Addr: f.addr, Thrift: f.protocol == "thrift", Size: 64, Think: 10 * time.Millisecond,
		Timeout: untilDown, Duration: time.Hour}
	if cfg.Thrift {
		cfg.Timeout *= 2 // forebay's patience is over before, and its exception says so
	}
	return cfg
}

// run makes a load, and adds what came of it to the sums.
func (f *chaos) run(ctx context.Context, t *testing.T, cfg loadtest.LoadConfig, sums ...*sum) loadtest.Result {
	res, err := loadtest.Run(ctx, cfg)
	if err != nil {
		t.Error(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range append(sums, &f.total) {
		s.add(res)
	}
	return res
}

// load makes requests of new clients, all of which are served.
func (f *chaos) load(t *testing.T, requests int64) {
	t.Helper()
	cfg := f.config()
	cfg.Clients, cfg.Requests, cfg.RequestsPerClient = 8, requests, 5
	if res := f.run(t.Context(), t, cfg); !res.OK() || res.Replies != requests {
		t.Errorf("of %d requests %d were answered: %v", requests, res.Replies, res.Faults)
	}
}

// begin makes two loads until end is called, which returns what they came to: nine
// clients that leave after a few requests and come anew, and six that stay. For raw bytes
// the session of one that stays is one backend's, so those on the backends that are well
// must not notice anything.
func (f *chaos) begin(t *testing.T) (end func(*testing.T) *sum) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var (
		all     sum
		passing sync.WaitGroup
		stayers []*stayer
	)
	for range 6 {
		stayers = append(stayers, f.stay(ctx, t, &all))
	}
	for range 9 {
		passing.Go(func() { f.comeAndGo(ctx, t, &all) })
	}
	proxytest.Eventually(t, "the load to be there", func() bool { return pools(t, f.admin).Sessions > 10 })
	return func(t *testing.T) *sum {
		t.Helper()
		cancel()
		passing.Wait()
		for _, s := range stayers {
			f.unharmed(t, s, &all)
		}
		return &all
	}
}

// comeAndGo is a client after the other. None is cut short, as the end of a larger load
// would: then it were not known which have connected.
func (f *chaos) comeAndGo(ctx context.Context, t *testing.T, all *sum) {
	cfg := f.config()
	cfg.Clients, cfg.Requests = 1, 5
	for ctx.Err() == nil {
		f.run(t.Context(), t, cfg, all)
	}
}

// A stayer is a client that keeps its connection.
type stayer struct {
	backend string // of its session; empty where each request has its own
	result  chan loadtest.Result
}

// stay starts one. Nothing else may go on, or it could not be told which backend has it.
func (f *chaos) stay(ctx context.Context, t *testing.T, all *sum) *stayer {
	t.Helper()
	s := &stayer{result: make(chan loadtest.Result, 1)}
	before := pools(t, f.admin)
	cfg := f.config()
	cfg.Clients = 1
	go func() { s.result <- f.run(ctx, t, cfg, all) }()
	proxytest.Eventually(t, "its session", func() bool {
		now := pools(t, f.admin)
		for i, b := range now.Backends {
			if f.protocol == "raw" && b.Leased > before.Backends[i].Leased {
				s.backend = b.Name
			}
		}
		return now.Sessions > before.Sessions && (f.protocol == "thrift" || s.backend != "")
	})
	return s
}

// unharmed waits for the end of one that stays. Where it was not on the backend that
// broke it must have noticed nothing: no error, or where each request has a backend of
// its own, no end of its session.
func (f *chaos) unharmed(t *testing.T, s *stayer, all *sum) {
	t.Helper()
	res := proxytest.Receive(t, s.result, "the end of a client that stays")
	if s.backend == f.victim {
		return
	}
	if res.Sessions != 1 || f.protocol == "raw" && !res.OK() {
		t.Errorf("a session on a backend that was well: %d connections, %v", res.Sessions, res.Faults)
	}
	if s.backend != "" {
		all.others = max(all.others, res.Latency.P99)
	}
}

// says waits for a line of the log, and returns how long after from it came.
func (f *chaos) says(t *testing.T, message string, from time.Time) time.Duration {
	t.Helper()
	proxytest.Eventually(t, message, func() bool { return len(f.logged(message)) > 0 })
	return time.Since(from)
}

// broken is the backend that breaks.
func (f *chaos) broken(t *testing.T) admin.Backend {
	t.Helper()
	return pools(t, f.admin).Backends[0]
}

func pools(t *testing.T, addr string) admin.Pools {
	t.Helper()
	p, err := admin.NewClient("tcp", addr, admin.Token{}).Pools(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// rests waits until no session and no connection is left.
func (f *chaos) rests(t *testing.T) {
	t.Helper()
	proxytest.Eventually(t, "the end of all sessions and connections", func() bool {
		m := f.metrics(t)
		open := m.sum("forebay_pool_connections") - m.sum("forebay_pool_connections", `state="dialing"`) // or checking
		return m.sum("forebay_sessions ")+open == 0
	})
}

// resources are what a program that does nothing should not have more of than it had.
type resources struct{ goroutines, descriptors int64 }

// resources reads the goroutines from a profile: go_goroutines has those of the scrape.
func (f *chaos) resources(t *testing.T) (r resources) {
	t.Helper()
	_, profile := get(t, f.admin, "/debug/pprof/goroutine?debug=1")
	if _, err := fmt.Sscanf(profile, "goroutine profile: total %d", &r.goroutines); err != nil {
		t.Fatalf("%v: %.100s", err, profile)
	}
	r.descriptors = f.metrics(t).sum("process_open_fds ")
	return r
}

// atRest returns the least that the program has at rest: a check has something for a
// moment, and so has who looks at it.
func (f *chaos) atRest(t *testing.T) resources {
	t.Helper()
	f.rests(t)
	least := f.resources(t)
	for range 50 {
		now := f.resources(t)
		least = resources{min(least.goroutines, now.goroutines), min(least.descriptors, now.descriptors)}
	}
	return least
}

// metrics is what a scrape gets: a line for each.
type metrics []string

func (f *chaos) metrics(t *testing.T) metrics {
	t.Helper()
	_, body := get(t, f.admin, "/metrics")
	return strings.Split(body, "\n")
}

// sum adds up the metrics that begin with name and have the labels.
func (m metrics) sum(name string, labels ...string) (sum int64) {
	for _, line := range m {
		if !strings.HasPrefix(line, name) || !containsAll(line, labels) {
			continue
		}
		n, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			panic(line)
		}
		sum += int64(n)
	}
	return sum
}

func containsAll(s string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(s, p) {
			return false
		}
	}
	return true
}
