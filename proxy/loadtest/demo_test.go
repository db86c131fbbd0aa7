package loadtest

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"forebay/balance"
	"forebay/proxy"
	"forebay/proxy/engine"
	"forebay/proxy/enginetest"
	"forebay/proxy/frame"
)

// demoProxy is what a demo needs of a proxy.
func demoProxy(eng engine.Engine) proxy.Config {
	return proxy.Config{
		Engine: eng, Log: zerolog.Nop(),
		VirginTimeout: time.Minute, IdleTimeout: time.Minute, DialTimeout: patience, DialParallel: 4,
		AcquireTimeout: patience, Queue: 100, SessionIdleTimeout: time.Minute, HalfCloseTimeout: time.Minute,
	}
}

func TestDemoOfCallsReportsTheRequestsOfEachBackend(t *testing.T) {
	enginetest.Each(t, testDemoOfCallsReportsTheRequestsOfEachBackend)
}

func testDemoOfCallsReportsTheRequestsOfEachBackend(t *testing.T) {
	eng := enginetest.New(t)
	defer eng.Close()
	cfg := demoProxy(eng)
	cfg.Requests = &proxy.Requests{
		Codec: frame.NewThrift(frame.Thrift{}), ReplyTimeout: patience,
		Quarantine: time.Millisecond, ReplyBuffer: 64 << 10, BufferMemory: 64 << 20,
	}
	var out strings.Builder
	ok, err := Demo(t.Context(), DemoConfig{
		Proxy:  cfg,
		Thrift: true, Duration: 200 * time.Millisecond, Clients: 64, Out: &out,
	})
	if !ok || err != nil {
		t.Fatalf("Demo = %v, %v; want all well:\n%s", ok, err, out.String())
	}
	if want := "64 clients, each with one connection for all its calls → forebay"; !strings.HasPrefix(out.String(), want) {
		t.Errorf("the report begins otherwise than %q:\n%s", want, out.String())
	}
	_, table, found := strings.Cut(out.String(), "share  peak leased  dials  reused\n")
	if !found {
		t.Fatalf("the report has no table of calls:\n%s", out.String())
	}
	var all, counted int
	for line := range strings.Lines(table) {
		var backend, share string
		var most, weight, requests, peak, dials, reused int
		if _, err := fmt.Sscan(line, &backend, &most, &weight, &requests, &share, &peak, &dials, &reused); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		if dials == 0 || dials > most || requests == 0 || reused < requests-dials {
			t.Errorf("line %q, want requests that reuse at most %d connections", line, most)
		}
		counted += requests
	}
	_, rest, _ := strings.Cut(out.String(), "\nrequests ")
	if fmt.Sscan(rest, &all); all == 0 || counted != all {
		t.Errorf("the backends had %d requests of %d:\n%s", counted, all, out.String())
	}
}

func TestDemoShowsWhatAStrategyDoes(t *testing.T) { enginetest.Each(t, testDemoShowsWhatAStrategyDoes) }

// Of eight clients, and 4, 8 and 8 connections. A session may count twice while its old
// connection is being closed: the shares are not exact.
func testDemoShowsWhatAStrategyDoes(t *testing.T) {
	tests := []struct {
		strategy balance.Strategy
		network  string // of the listener; empty: a loopback port
		header   string
		shares   func(a, b, c int) bool
	}{
		{strategy: balance.First, header: ", first → 3 backends", shares: func(a, b, c int) bool { return a > 4*c && b > 4*c }},
		{strategy: balance.RoundRobin, header: ", round-robin → 3", shares: func(a, b, c int) bool { return 2*a > c && 2*c > a }},
		{strategy: balance.WeightedRoundRobin, header: ", weighted-round-robin → 3", shares: func(a, b, c int) bool { return c > b && b > a }},
		{strategy: balance.SourceHash, header: "the next of 250 loopback addresses", shares: func(a, b, c int) bool { return a > 0 && b > a && c > a }},
		{strategy: balance.ConsistentHash, network: "unix", header: "all clients have one address", shares: func(a, b, c int) bool { return a+b+c > 0 }},
	}
	for _, tt := range tests {
		t.Run(string(tt.strategy)+tt.network, func(t *testing.T) {
			if tt.strategy == balance.SourceHash && runtime.GOOS != "linux" {
				t.Skip("there is one loopback address")
			}
			eng := enginetest.New(t)
			defer eng.Close()
			cfg := demoProxy(eng)
			cfg.Balance = tt.strategy
			var out strings.Builder
			d := DemoConfig{Proxy: cfg, Duration: 300 * time.Millisecond, Clients: 8, RequestsPerClient: 5, Out: &out}
			if tt.network != "" {
				d.Network, d.Addr = tt.network, filepath.Join(t.TempDir(), "s")
			}
			ok, err := Demo(t.Context(), d)
			if !ok || err != nil {
				t.Fatalf("Demo = %v, %v; want all well:\n%s", ok, err, out.String())
			}
			n := sessionsOf(t, out.String())
			if !tt.shares(n[0], n[1], n[2]) || !strings.Contains(out.String(), tt.header) {
				t.Errorf("the backends had %v sessions; the report, in which %q should be:\n%s", n, tt.header, out.String())
			}
		})
	}
}

// sessionsOf reads how many each backend had from the report.
func sessionsOf(t *testing.T, report string) (n [3]int) {
	t.Helper()
	_, table, _ := strings.Cut(report, "found ready\n")
	for i := range n {
		var name, most, weight string
		_, err := fmt.Sscan(table, &name, &most, &weight, &n[i])
		if err != nil {
			t.Fatalf("the report has no line of backend %d: %v\n%s", i, err, report)
		}
		_, table, _ = strings.Cut(table, "\n")
	}
	return n
}
