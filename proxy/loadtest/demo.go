package loadtest

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"text/tabwriter"
	"time"

	"forebay/proxy"
	"forebay/proxy/engine"
)

// demoBackends are the demo's servers: capacity differs, and so does weight.
var demoBackends = []struct{ max, weight int }{{4, 1}, {8, 2}, {8, 3}}

// demoSize is the bytes of a request of the demo.
const demoSize = 64

// DemoConfig describes a demo. All fields but those with a zero value to them are
// required.
type DemoConfig struct {
	// Proxy is how the proxy is set; the demo brings the backends.
	Proxy proxy.Config

	// Thrift makes the backends an echo service and the requests its calls,
	// framed and binary.
	Thrift bool

	// Network and Addr are where the proxy listens. Empty: a free loopback port.
	Network, Addr string

	Duration          time.Duration // of the load
	Clients           int           // at once
	RequestsPerClient int           // before a client connects anew; 0: it does not

	// Keep goes on serving after the load, until the context ends.
	Keep bool

	// Out gets the report, and a line of progress each second where Progress is
	// set.
	Out      io.Writer
	Progress bool
}

// Demo runs echo servers, the proxy in front of them and a load against it, all
// in this process, and reports. ok tells that no request was lost and no reply
// was wrong. The error is one of starting or of Out.
func Demo(ctx context.Context, cfg DemoConfig) (ok bool, err error) {
	d := &demo{DemoConfig: cfg}
	defer d.stop()
	if err := d.start(ctx); err != nil {
		return false, err
	}
	load := d.load()
	fmt.Fprintf(d.Out, "%s → forebay %s, %s → %d backends, %d connections\n",
		d.clients(), d.listener.Addr(), d.srv.Stats().Balance, len(demoBackends), demoSlots())
	if d.Proxy.Balance.Hashes() {
		fmt.Fprintln(d.Out, sources(load.From))
	}
	res, err := Run(ctx, load)
	if err != nil {
		return false, err
	}
	if err := d.report(res, d.srv.Stats()); err != nil {
		return false, err
	}
	if d.Keep {
		fmt.Fprintf(d.Out, "\nserving on %s until interrupted\n", d.listener.Addr())
		<-ctx.Done()
	}
	return res.OK(), nil
}

// clients describes them.
func (d *demo) clients() string {
	what := "requests"
	if d.Thrift {
		what = "calls"
	}
	if d.RequestsPerClient == 0 {
		return fmt.Sprintf("%d clients, each with one connection for all its %s", d.Clients, what)
	}
	return fmt.Sprintf("%d clients of %d %s each", d.Clients, d.RequestsPerClient, what)
}

// sources tells where the clients are, to a strategy that goes by it.
func sources(from []net.IP) string {
	if len(from) == 0 {
		return "all clients have one address: they are one client"
	}
	return fmt.Sprintf("each connection comes from the next of %d loopback addresses, as if from another client", len(from))
}

func demoSlots() (n int) {
	for _, b := range demoBackends {
		n += b.max
	}
	return n
}

// demo is what a demo has started.
type demo struct {
	DemoConfig
	echoes   []*Echo
	srv      *proxy.Server
	listener engine.Listener
	running  sync.WaitGroup
}

func (d *demo) start(ctx context.Context) error {
	for _, b := range demoBackends {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return fmt.Errorf("start an echo server: %w", err)
		}
		e := NewEcho(EchoConfig{Thrift: d.Thrift})
		d.echoes = append(d.echoes, e)
		d.running.Go(func() { e.Serve(ln) })
		d.Proxy.Backends = append(d.Proxy.Backends,
			proxy.Backend{Network: "tcp", Addr: ln.Addr().String(), Max: b.max, Weight: b.weight})
	}
	srv, err := proxy.New(d.Proxy)
	if err != nil {
		return err
	}
	if d.Addr == "" {
		d.Network, d.Addr = "tcp", "127.0.0.1:0"
	}
	d.listener, err = d.Proxy.Engine.Listen(ctx, d.Network, d.Addr)
	if err != nil {
		return fmt.Errorf("cannot listen: %w", err)
	}
	d.srv = srv
	d.running.Go(func() { srv.Serve(d.listener) })
	return nil
}

// stop ends what start began, the proxy first.
func (d *demo) stop() {
	if d.srv != nil {
		ctx, cancel := context.WithTimeout(context.Background(), cancelGrace)
		defer cancel()
		d.srv.Shutdown(ctx)
	}
	for _, e := range d.echoes {
		e.Close()
	}
	d.running.Wait()
}

func (d *demo) load() LoadConfig {
	addr := d.listener.Addr()
	cfg := LoadConfig{
		Network: addr.Network(), Addr: addr.String(), Size: demoSize,
		Clients: d.Clients, Duration: d.Duration, RequestsPerClient: int64(d.RequestsPerClient),
		Thrift: d.Thrift,
	}
	if d.Proxy.Balance.Hashes() {
		cfg.From = loopbackSources(addr)
	}
	if d.Progress {
		cfg.Progress = d.progress
	}
	return cfg
}

func (d *demo) progress(s Snapshot) {
	st := d.srv.Stats()
	leased := 0
	for _, b := range st.Backends {
		leased += b.Load.Active()
	}
	fmt.Fprintf(d.Out, "%3.0fs  %8d requests  %6d sessions  %2d active  %2d waiting  %d errors  %d mismatches\n",
		s.Elapsed.Seconds(), s.Requests, s.Sessions, leased, st.Waiting, s.Errors, s.Mismatches)
}

// report prints the tables.
func (d *demo) report(res Result, st proxy.Stats) error {
	fmt.Fprintln(d.Out)
	if err := res.WriteTable(d.Out); err != nil {
		return err
	}
	mean := time.Duration(0)
	if st.Queued > 0 {
		mean = st.QueueSum / time.Duration(st.Queued)
	}
	what, ready := "sessions", "found ready"
	served := func(b proxy.BackendStats) int64 { return b.Sessions }
	if d.Thrift { // calls are shared out one by one
		what, ready = "requests", "reused"
		served = func(b proxy.BackendStats) int64 { return b.Requests }
	}
	fmt.Fprintf(d.Out, "\nwait in the queue: %d %s waited, mean %v, longest %v\n\n",
		st.Queued, what, mean.Round(time.Microsecond), st.QueueMax.Round(time.Microsecond))
	w := tabwriter.NewWriter(d.Out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "backend\tmax\tweight\t%s\tshare\tpeak leased\tdials\t%s\t\n", what, ready)
	var all int64
	for _, b := range st.Backends {
		all += served(b)
	}
	for _, b := range st.Backends {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%.1f%%\t%d\t%d\t%d\t\n", b, b.Max, b.Weight, served(b),
			100*float64(served(b))/float64(max(all, 1)), b.Load.PeakLeased, b.Pool.Dials, b.Pool.Ready)
	}
	return w.Flush()
}
