package loadtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// defaultTimeout is Timeout's when that is 0.
	defaultTimeout = 30 * time.Second

	// cancelGrace is what a request under way, or a clean close, still gets
	// when the run is cancelled.
	cancelGrace = 500 * time.Millisecond

	// maxRate is one request every nanosecond, the resolution of the plan.
	maxRate = 1e9

	// progressEvery is the time between two calls of Progress.
	progressEvery = time.Second
)

// LoadConfig describes a load. Network, Addr, Clients, Size and one of
// Duration and Requests are required; the zero value of every other field is a
// working default.
type LoadConfig struct {
	// Network is "tcp", "tcp4", "tcp6" or "unix", and Addr the address to
	// dial.
	Network, Addr string

	// From are the addresses that connections come from, in turn. Empty: the one that
	// the kernel chooses.
	From []net.IP

	// Clients is how many connections there are at once, at least 1.
	Clients int

	// Size is the length of each request and reply in bytes, at least 16.
	Size int

	// Duration is how long requests are started. Those under way are then
	// finished.
	Duration time.Duration

	// Requests is how many requests are made in all; Duration is then
	// ignored. Zero: by Duration.
	Requests int64

	// RequestsPerClient closes a connection cleanly after so many requests
	// and dials again. Zero keeps it.
	RequestsPerClient int64

	// Rate is the requests per second of all clients together: an open loop,
	// in which a slow server does not slow down the plan; at most 1e9. Latency then counts
	// from when a request was planned, a dial included. Zero: a closed loop,
	// each client asks again once it has the reply, and latency counts from
	// the write.
	Rate float64

	// Timeout is the longest wait for a dial, for a greeting, for one reply
	// or for the end of a connection. Zero means 30 seconds.
	Timeout time.Duration

	// Skip is how many bytes of greeting to read and ignore at the start of
	// every connection.
	Skip int

	// Think is how long each client waits between its requests. Zero: not at
	// all.
	Think time.Duration

	// Thrift makes each request a call of the echo service, whose text or
	// binary has Size bytes, at least 32. The form of the calls is
	// ThriftTransport, "framed" (the default), "unframed" or "header", and
	// ThriftProtocol, "binary" (the default) or "compact". Method is "echo"
	// (the default) or "mix", all that the service has, at random.
	Thrift          bool
	ThriftTransport string
	ThriftProtocol  string
	Method          string

	// Progress is called once a second while Run runs, by the goroutine that
	// called Run. Nil: none.
	Progress func(Snapshot)
}

// A Snapshot is the state of a run. The counts are those of Result.
type Snapshot struct {
	Elapsed    time.Duration // since the start
	Open       int64         // connections open now
	Requests   int64
	Sessions   int64
	Errors     int64
	Mismatches int64
}

// check names the first thing that is wrong with the config.
func (cfg *LoadConfig) check() error {
	switch {
	case !isNetwork(cfg.Network):
		return fmt.Errorf("loadtest: network is %q, want tcp, tcp4, tcp6 or unix", cfg.Network)
	case cfg.Addr == "":
		return errors.New("loadtest: no address to dial")
	case cfg.Clients < 1:
		return fmt.Errorf("loadtest: %d clients, want at least 1", cfg.Clients)
	case cfg.Size < idSize:
		return fmt.Errorf("loadtest: size is %d bytes, want at least %d", cfg.Size, idSize)
	case cfg.Requests < 0 || cfg.Requests == 0 && cfg.Duration <= 0:
		return errors.New("loadtest: neither requests nor duration is positive")
	case cfg.RequestsPerClient < 0:
		return fmt.Errorf("loadtest: %d requests per client, want 0 or more", cfg.RequestsPerClient)
	case !(cfg.Rate >= 0 && cfg.Rate <= maxRate): // so that NaN is none either
		return fmt.Errorf("loadtest: rate is %v requests per second, want 0 to %v", cfg.Rate, float64(maxRate))
	case cfg.Timeout < 0:
		return fmt.Errorf("loadtest: timeout is %v, want 0 or more", cfg.Timeout)
	case cfg.Skip < 0:
		return fmt.Errorf("loadtest: %d bytes to skip, want 0 or more", cfg.Skip)
	case cfg.Think < 0:
		return fmt.Errorf("loadtest: think is %v, want 0 or more", cfg.Think)
	case cfg.Thrift:
		return cfg.checkThrift()
	}
	return nil
}

// checkThrift also puts the defaults in.
func (cfg *LoadConfig) checkThrift() error {
	cfg.ThriftTransport = cmp.Or(cfg.ThriftTransport, "framed")
	cfg.ThriftProtocol = cmp.Or(cfg.ThriftProtocol, "binary")
	cfg.Method = cmp.Or(cfg.Method, "echo")
	if _, ok := transports[cfg.ThriftTransport]; !ok {
		return fmt.Errorf("loadtest: Thrift transport is %q, want framed, unframed or header", cfg.ThriftTransport)
	}
	if _, ok := encodings[cfg.ThriftProtocol]; !ok {
		return fmt.Errorf("loadtest: Thrift protocol is %q, want binary or compact", cfg.ThriftProtocol)
	}
	switch {
	case cfg.Method != "echo" && cfg.Method != "mix":
		return fmt.Errorf("loadtest: method is %q, want echo or mix", cfg.Method)
	case cfg.Size < minText || cfg.Size > maxSize:
		return fmt.Errorf("loadtest: size is %d bytes, want %d to %d with Thrift", cfg.Size, minText, maxSize)
	}
	return nil
}

func isNetwork(s string) bool {
	return s == "tcp" || s == "tcp4" || s == "tcp6" || s == "unix"
}

// A run is one call of Run: what its clients share.
type run struct {
	cfg       LoadConfig
	plan      plan
	dialer    net.Dialer
	dials     atomic.Uint64 // that came from one of cfg.From
	clients   []*client
	tally     tally
	latencies *recorder
	cutAfter  time.Duration // when the run was cancelled, since its start; 0: not
}

// Run makes the load that cfg describes and returns what came of it. The error
// tells what is wrong with cfg; the faults of the run itself are counted in the
// Result.
//
// When ctx is done, requests under way get half a second to finish and are then
// abandoned. Every goroutine has ended and every connection is closed when Run
// returns.
func Run(ctx context.Context, cfg LoadConfig) (Result, error) {
	if err := cfg.check(); err != nil {
		return Result{}, err
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	r := newRun(cfg)
	starting, cancel := r.starting(ctx)
	defer cancel()

	var wg sync.WaitGroup
	for _, c := range r.clients {
		wg.Go(func() { c.work(ctx, starting.Done()) })
	}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		wg.Wait()
	}()
	r.watch(ctx, finished)
	return r.result(), nil
}

func newRun(cfg LoadConfig) *run {
	r := &run{
		cfg:       cfg,
		dialer:    net.Dialer{Timeout: cfg.Timeout, KeepAlive: -1}, // no keep-alive: saves four system calls a session
		latencies: newRecorder(),
	}
	// Two load generators may share a proxy: their clients must not look alike.
	base := uint64(rand.Uint32()) << 32
	for i := range cfg.Clients {
		r.clients = append(r.clients, newClient(r, base+uint64(i)))
	}
	r.plan.requests = cfg.Requests
	r.plan.duration = cfg.Duration
	r.plan.rate = cfg.Rate
	r.plan.start = time.Now()
	return r
}

// starting returns the context in which new requests may be started.
func (r *run) starting(ctx context.Context) (context.Context, context.CancelFunc) {
	if r.cfg.Requests > 0 {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, r.plan.start.Add(r.cfg.Duration))
}

// watch returns when finished is closed. Until then it reports progress and,
// once ctx is done, has the clients come to an end.
func (r *run) watch(ctx context.Context, finished <-chan struct{}) {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for cancelled := ctx.Done(); ; {
		select {
		case <-finished:
			return
		case <-tick.C:
			r.report()
		case <-cancelled:
			cancelled = nil
			r.cut()
		}
	}
}

func (r *run) report() {
	if r.cfg.Progress != nil {
		r.cfg.Progress(r.tally.snapshot(time.Since(r.plan.start)))
	}
}

func (r *run) cut() {
	now := time.Now()
	r.cutAfter = now.Sub(r.plan.start)
	for _, c := range r.clients {
		c.cut(now.Add(cancelGrace))
	}
}

// result sums up, after all clients have ended.
func (r *run) result() Result {
	res := r.tally.result()
	res.Elapsed = time.Since(r.plan.start)
	res.Latency = r.latencies.latency()
	if r.cfg.Rate > 0 {
		// Those planned and not even begun are part of the abandoned.
		res.Abandoned = max(res.Abandoned, r.plan.planned(r.startedFor())-res.Requests)
	}
	return res
}

// startedFor returns how long requests of an open loop were started.
func (r *run) startedFor() time.Duration {
	switch {
	case r.cutAfter > 0:
		return r.cutAfter
	case r.cfg.Requests > 0:
		return math.MaxInt64
	default:
		return r.cfg.Duration
	}
}
