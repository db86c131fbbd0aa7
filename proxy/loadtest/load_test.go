package loadtest

import (
	"context"
	"math"
	"net"
	"strings"
	"testing"
	"time"
)

// load runs cfg against ln and fails the test on a bad config.
func load(t *testing.T, ln net.Listener, cfg LoadConfig) Result {
	t.Helper()
	cfg.Network, cfg.Addr = ln.Addr().Network(), ln.Addr().String()
	res, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestRunAgainstAGoodServerCountsExactly(t *testing.T) {
	tests := []struct {
		name     string
		cfg      LoadConfig
		sessions int64 // 0: any number
	}{
		{name: "one client, smallest request", cfg: LoadConfig{Clients: 1, Size: 16, Requests: 100}, sessions: 1},
		{name: "one short session for each request", cfg: LoadConfig{Clients: 8, Size: 64, Requests: 200, RequestsPerClient: 1}, sessions: 200},
		{name: "one client, sessions of 10 and the rest", cfg: LoadConfig{Clients: 1, Size: 64, Requests: 95, RequestsPerClient: 10}, sessions: 10},
		{name: "many clients", cfg: LoadConfig{Clients: 20, Size: 100, Requests: 5000}},
		{name: "fewer requests than clients", cfg: LoadConfig{Clients: 20, Size: 33, Requests: 3}},
		{name: "larger than every buffer", cfg: LoadConfig{Clients: 2, Size: 8 << 20, Requests: 4}},
		{name: "open loop", cfg: LoadConfig{Clients: 4, Size: 47, Requests: 100, Rate: 2000}},
	}
	for _, network := range networks {
		for _, tt := range tests {
			t.Run(network+": "+tt.name, func(t *testing.T) {
				ln := listen(t, network)
				e := startEcho(t, ln, EchoConfig{})
				res := load(t, ln, tt.cfg)
				if !res.OK() || res.Requests != tt.cfg.Requests || res.Replies != tt.cfg.Requests || res.Abandoned != 0 {
					t.Errorf("result = %+v, want %d requests and all well", res, tt.cfg.Requests)
				}
				if tt.sessions != 0 && res.Sessions != tt.sessions {
					t.Errorf("sessions = %d, want %d", res.Sessions, tt.sessions)
				}
				if s := e.Stats(); s.Accepted != res.Sessions || s.BytesIn != tt.cfg.Requests*int64(tt.cfg.Size) {
					t.Errorf("the server saw %+v, want %d sessions", s, res.Sessions)
				}
			})
		}
	}
}

func TestRunReadsPastTheGreeting(t *testing.T) {
	greet := strings.Repeat("welcome ", 20)
	ln := listen(t, "tcp")
	startEcho(t, ln, EchoConfig{Greet: greet})
	res := load(t, ln, LoadConfig{Clients: 2, Size: 16, Requests: 20, RequestsPerClient: 3, Skip: len(greet)})
	if !res.OK() || res.Requests != 20 {
		t.Errorf("result = %+v, want 20 requests and all well", res)
	}
}

func TestRunFinishesWhatIsUnderWayAfterDuration(t *testing.T) {
	ln := listen(t, "tcp")
	e := startEcho(t, ln, EchoConfig{Delay: 40 * time.Millisecond})
	res := load(t, ln, LoadConfig{Clients: 3, Size: 16, Duration: 100 * time.Millisecond})
	if !res.OK() || res.Abandoned != 0 || res.Elapsed < 100*time.Millisecond {
		t.Errorf("result = %+v, want all well after 100 ms", res)
	}
	if in := e.Stats().BytesIn; in != 16*res.Replies {
		t.Errorf("the server got %d bytes, want %d for the replies", in, 16*res.Replies)
	}
}

func TestRunOpenLoopLatencyIncludesTheQueueing(t *testing.T) {
	const delay = 20 * time.Millisecond
	ln := listen(t, "tcp")
	startEcho(t, ln, EchoConfig{Delay: delay})
	// Request i is due at i ms and begun at 20*i ms or later.
	res := load(t, ln, LoadConfig{Clients: 1, Size: 16, Requests: 20, Rate: 1000})
	if !res.OK() {
		t.Fatalf("result = %+v, want all well", res)
	}
	if want := 20*delay - 19*time.Millisecond; res.Latency.Max < want {
		t.Errorf("max = %v, want at least %v", res.Latency.Max, want)
	}
	if want := 10*delay - 9*time.Millisecond; res.Latency.P50 < want {
		t.Errorf("p50 = %v, want at least %v", res.Latency.P50, want)
	}
}

func TestRunOpenLoopKeepsItsPace(t *testing.T) {
	ln := listen(t, "tcp")
	startEcho(t, ln, EchoConfig{})
	res := load(t, ln, LoadConfig{Clients: 4, Size: 16, Requests: 50, Rate: 500})
	if want := 49 * 2 * time.Millisecond; !res.OK() || res.Elapsed < want {
		t.Errorf("50 requests at 500/s took %v, want at least %v", res.Elapsed, want)
	}
}

func TestRunOpenLoopCountsTheRequestsThatNoClientGotTo(t *testing.T) {
	ln := listen(t, "tcp")
	startEcho(t, ln, EchoConfig{Delay: 50 * time.Millisecond})
	res := load(t, ln, LoadConfig{Clients: 1, Size: 16, Duration: 200 * time.Millisecond, Rate: 1000})
	if !res.OK() || res.Requests > 8 || res.Requests+res.Abandoned != 200 {
		t.Errorf("result = %+v, want 200 requests, few of them begun", res)
	}
}

func TestRunStopsSoonWhenCancelled(t *testing.T) {
	ln := listen(t, "tcp")
	heard := make(chan struct{})
	serveBad(t, ln, func(conns [2]net.Conn, size int) {
		readRequest(conns[0], size)
		close(heard) // and never answer
		readRequest(conns[0], size)
	}, 64)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-heard
		cancel()
	}()
	start := time.Now()
	cfg := LoadConfig{Network: "tcp", Addr: ln.Addr().String(), Clients: 1, Size: 64, Requests: 10, Timeout: time.Hour}
	res, err := Run(ctx, cfg)
	if err != nil || res.Abandoned != 1 || res.Requests != 0 || res.Errors != 0 || res.OK() {
		t.Errorf("result = %+v, %v; want one request abandoned", res, err)
	}
	if took := time.Since(start); took > patience {
		t.Errorf("the cancelled run took %v", took)
	}
}

func TestRunReportsProgress(t *testing.T) {
	ln := listen(t, "tcp")
	startEcho(t, ln, EchoConfig{})
	var seen []Snapshot
	res := load(t, ln, LoadConfig{
		Clients: 2, Size: 16, Requests: 130, Rate: 100,
		Progress: func(s Snapshot) { seen = append(seen, s) },
	})
	if !res.OK() || len(seen) == 0 {
		t.Fatalf("%d snapshots of %+v, want one a second", len(seen), res)
	}
	s := seen[0]
	if s.Elapsed < time.Second || s.Requests < 50 || s.Sessions != 2 || s.Open != 2 || s.Errors != 0 || s.Mismatches != 0 {
		t.Errorf("snapshot = %+v, want most of 100 requests of 2 sessions", s)
	}
}

func TestRunNamesWhatIsWrongWithTheConfig(t *testing.T) {
	tests := []struct {
		want   string
		change func(*LoadConfig)
	}{
		{want: "network", change: func(c *LoadConfig) { c.Network = "udp" }},
		{want: "address", change: func(c *LoadConfig) { c.Addr = "" }},
		{want: "0 clients", change: func(c *LoadConfig) { c.Clients = 0 }},
		{want: "size is 15", change: func(c *LoadConfig) { c.Size = 15 }},
		{want: "neither requests nor duration", change: func(c *LoadConfig) { c.Requests = 0 }},
		{want: "neither requests nor duration", change: func(c *LoadConfig) { c.Requests, c.Duration = -1, time.Second }},
		{want: "requests per client", change: func(c *LoadConfig) { c.RequestsPerClient = -1 }},
		{want: "rate is -1", change: func(c *LoadConfig) { c.Rate = -1 }},
		{want: "rate is NaN", change: func(c *LoadConfig) { c.Rate = math.NaN() }},
		{want: "rate is +Inf", change: func(c *LoadConfig) { c.Rate = math.Inf(1) }},
		{want: "timeout", change: func(c *LoadConfig) { c.Timeout = -1 }},
		{want: "skip", change: func(c *LoadConfig) { c.Skip = -1 }},
		{want: "think", change: func(c *LoadConfig) { c.Think = -1 }},
		{want: "transport", change: func(c *LoadConfig) { c.Thrift, c.Size, c.ThriftTransport = true, 32, "http" }},
		{want: "protocol", change: func(c *LoadConfig) { c.Thrift, c.Size, c.ThriftProtocol = true, 32, "json" }},
		{want: "method", change: func(c *LoadConfig) { c.Thrift, c.Size, c.Method = true, 32, "ping" }},
		{want: "size is 31", change: func(c *LoadConfig) { c.Thrift, c.Size = true, 31 }},
		{want: "size is 13107201", change: func(c *LoadConfig) { c.Thrift, c.Size = true, maxSize+1 }},
	}
	for _, tt := range tests {
		cfg := LoadConfig{Network: "tcp", Addr: "127.0.0.1:1", Clients: 1, Size: 16, Requests: 1}
		tt.change(&cfg)
		if _, err := Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("error = %v, want one that names %q", err, tt.want)
		}
	}
}

func BenchmarkRequest(b *testing.B) {
	ln := listen(b, "tcp")
	startEcho(b, ln, EchoConfig{})
	b.ReportAllocs()
	res, err := Run(b.Context(), LoadConfig{
		Network: "tcp", Addr: ln.Addr().String(), Clients: 1, Size: 256, Requests: int64(b.N),
	})
	if err != nil || !res.OK() {
		b.Fatalf("result = %+v, %v", res, err)
	}
}

func BenchmarkSession(b *testing.B) {
	ln := listen(b, "tcp")
	startEcho(b, ln, EchoConfig{})
	b.ReportAllocs()
	res, err := Run(b.Context(), LoadConfig{
		Network: "tcp", Addr: ln.Addr().String(), Clients: 16, Size: 256, Requests: int64(b.N), RequestsPerClient: 1,
	})
	if err != nil || !res.OK() {
		b.Fatalf("result = %+v, %v", res, err)
	}
}
