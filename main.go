// Command forebay is a layer-4 TCP proxy that keeps a bounded pool of
// connections to each backend. See README.md, and package proxy for how it works.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"text/tabwriter"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"forebay/proxy"
	"forebay/proxy/config"
	"forebay/proxy/engine"
	"forebay/proxy/frame"
	"forebay/proxy/loadtest"
)

func main() {
	os.Exit(config.Run(context.Background(), os.Args, config.Process{}, version(), config.Actions{
		Serve: serve,
		Demo:  untilSignal(demo),
		Echo:  untilSignal(echo),
		Load:  untilSignal(load),
	}))
}

// version is what the build recorded: a tag, or the commit.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(unknown)"
}

// errReported makes the exit status 1 where the output has told why already.
var errReported = errors.New("")

var stopSignals = []os.Signal{syscall.SIGINT, syscall.SIGTERM}

// untilSignal returns action with a context that the first signal ends; a second
// one ends the process.
func untilSignal[T any](action func(context.Context, T) error) func(context.Context, T) error {
	return func(ctx context.Context, cfg T) error {
		ctx, stop := signal.NotifyContext(ctx, stopSignals...)
		defer stop()
		context.AfterFunc(ctx, stop)
		return action(ctx, cfg)
	}
}

// serve is the proxy: it serves until a signal, then drains.
func serve(ctx context.Context, cfg config.Serve) error {
	signals := make(chan os.Signal, 2) // the first drains, the second cuts
	signal.Notify(signals, stopSignals...)
	defer signal.Stop(signals)

	log := newLogger(cfg.LogLevel, cfg.LogFormat)
	eng, err := newEngine(cfg, log)
	if err != nil {
		return err
	}
	defer eng.Close()
	p, err := proxyConfig(cfg, eng, log)
	if err != nil {
		return err
	}
	srv, err := proxy.New(p)
	if err != nil {
		return err
	}
	ln, err := eng.Listen(ctx, cfg.Listen.Network, cfg.Listen.Addr)
	if err != nil {
		return fmt.Errorf("cannot listen: %w", err)
	}
	logStart(log, cfg, eng, ln.Addr(), srv)

	var serving sync.WaitGroup
	serving.Go(func() { srv.Serve(engine.Trimming(ln)) })
	log.Info().Stringer("signal", <-signals).Int("clients", srv.Stats().Clients).
		Dur("drain_timeout_ms", cfg.DrainTimeout).Msg("draining; a second signal cuts")
	drain(srv, cfg, signals)
	serving.Wait()
	return logEnd(log, srv)
}

// drain returns when the server has ended: by itself, or cut after the drain
// timeout or by another signal.
func drain(srv *proxy.Server, cfg config.Serve, signals <-chan os.Signal) {
	ctx, cancel := context.WithTimeout(context.Background(), cfg.DrainTimeout)
	defer cancel()
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-signals:
			cancel()
		case <-ctx.Done():
		}
	})
	srv.Shutdown(ctx)
	cancel()
	watching.Wait()
}

func logStart(log zerolog.Logger, cfg config.Serve, eng engine.Engine, addr net.Addr, srv *proxy.Server) {
	minIdle := fmt.Sprint(cfg.MinIdle)
	if cfg.MinIdle == config.MinIdleAuto {
		minIdle = "auto"
	}
	backends := zerolog.Arr()
	for _, b := range cfg.Backends {
		backends.Str(fmt.Sprintf("%s,max=%d,weight=%d", b.Addr, b.Max, b.Weight))
	}
	log.Info().Stringer("listen", config.Address{Network: addr.Network(), Addr: addr.String()}).Array("backends", backends).Str("version", version()).
		Str("protocol", cfg.Protocol).Str("engine", eng.Name()).Str("reuse", cfg.Reuse).
		Int("max_clients", srv.MaxClients()).Int("queue", cfg.Queue).
		Str("min_idle", minIdle).Dur("acquire_timeout_ms", cfg.AcquireTimeout).Dur("first_byte_wait_ms", cfg.FirstByteWait).
		Dur("session_idle_timeout_ms", cfg.SessionIdleTimeout).Dur("drain_timeout_ms", cfg.DrainTimeout).
		Func(func(e *zerolog.Event) {
			if r := cfg.Requests; cfg.Protocol != "raw" {
				e.Str("pooling", r.Pooling).Dur("reply_timeout_ms", r.ReplyTimeout).Bool("learn_oneway", r.LearnOneway).
					Strs("oneway_methods", r.OnewayMethods)
			}
		}).
		Msg("serving")
	if cfg.Reuse == "trust" {
		log.Warn().Msg("--reuse trust cannot verify whose a reply is: a backend that answers a request twice, or not " +
			"at all, shows one client's bytes to another")
	}
	if cfg.Reuse == "quiet" {
		log.Warn().Dur("reuse_quiet_ms", cfg.ReuseQuiet).Msg("--reuse quiet cannot be proved safe for raw bytes: " +
			"a backend that answers late or twice shows one client's bytes to another")
	}
}

// logEnd sums the server up. Its error makes the exit status 1: sessions were cut.
func logEnd(log zerolog.Logger, srv *proxy.Server) error {
	s := srv.Stats()
	e := log.Info().Dict("sessions", counts(s.Ended))
	if s.Requests > 0 {
		e.Int64("requests", s.Requests).Int64("oneways", s.Oneways).Int64("errors", s.Errors).
			Int64("repeats", s.Repeats).Dict("faults", counts(s.Faults))
	}
	backends := zerolog.Arr()
	for _, b := range s.Backends {
		backends.Dict(zerolog.Dict().Stringer("backend", b).Int64("sessions", b.Sessions).Int64("requests", b.Requests).
			Int64("dials", b.Pool.Dials).Int64("reused", b.Pool.Ready).Dict("closed", counts(b.Pool.Closed)))
	}
	e.Array("backends", backends).Msg("stopped")
	if s.Ended[proxy.Cut.String()] > 0 {
		return errReported
	}
	return nil
}

func counts(by map[string]int64) *zerolog.Event {
	d := zerolog.Dict()
	for _, name := range slices.Sorted(maps.Keys(by)) {
		d.Int64(name, by[name])
	}
	return d
}

// newEngine returns the engine that is asked for. At debug it says why auto took none of
// those before.
func newEngine(cfg config.Serve, log zerolog.Logger) (engine.Engine, error) {
	eng, refused, err := engine.New(cfg.Engine, engine.Config{Workers: cfg.Workers, KeepAlive: cfg.KeepAlive, UserTimeout: cfg.TCPUserTimeout})
	if err != nil {
		return nil, err
	}
	for _, e := range refused {
		log.Debug().Err(e).Msg("an engine does not run here")
	}
	return eng, nil
}

func proxyConfig(cfg config.Serve, eng engine.Engine, log zerolog.Logger) (proxy.Config, error) {
	p := proxy.Config{
		Engine:             eng,
		Log:                log,
		MinIdle:            cfg.MinIdle,
		VirginTimeout:      cfg.VirginTimeout,
		IdleTimeout:        cfg.IdleTimeout,
		MaxLifetime:        cfg.MaxLifetime,
		DialTimeout:        cfg.DialTimeout,
		DialParallel:       cfg.DialParallel,
		AcquireTimeout:     cfg.AcquireTimeout,
		Queue:              cfg.Queue,
		AbortOnFIN:         cfg.AbortOnFin,
		FirstByteWait:      cfg.FirstByteWait,
		MaxClients:         cfg.MaxClients,
		SessionIdleTimeout: cfg.SessionIdleTimeout,
		HalfCloseTimeout:   cfg.HalfCloseTimeout,
	}
	if cfg.Reuse == "quiet" {
		p.ReuseQuiet = cfg.ReuseQuiet
	}
	for _, b := range cfg.Backends {
		p.Backends = append(p.Backends, proxy.Backend{Network: b.Addr.Network, Addr: b.Addr.Addr, Max: b.Max, Weight: b.Weight})
	}
	if cfg.Protocol == "raw" {
		return p, nil
	}
	codec, err := newCodec(cfg.Protocol, cfg.Requests)
	p.Requests = requestsConfig(cfg.Requests, codec, cfg.Reuse == "trust")
	return p, err
}

func requestsConfig(cfg config.Requests, codec frame.Codec, trust bool) *proxy.Requests {
	return &proxy.Requests{
		Codec:        codec,
		Session:      cfg.Pooling == "session",
		Trust:        trust,
		Oneway:       cfg.OnewayMethods,
		LearnOneway:  cfg.LearnOneway,
		Idempotent:   cfg.IdempotentMethods,
		ReplyTimeout: cfg.ReplyTimeout,
		Quarantine:   cfg.OnewayQuarantine,
		ReplyBuffer:  int(cfg.ReplyBuffer),
		BufferMemory: cfg.BufferMemory,
	}
}

// newCodec returns what finds the messages of a protocol that has some.
func newCodec(protocol string, cfg config.Requests) (frame.Codec, error) {
	if protocol == "length" {
		return frame.NewLength(frame.Length{Offset: cfg.LengthField.Offset, Width: cfg.LengthField.Width,
			Little: cfg.LengthField.Little, Adjust: cfg.LengthField.Adjust,
			IDOffset: cfg.LengthID.Offset, IDWidth: cfg.LengthID.Width, MaxFrame: cfg.MaxFrame})
	}
	transports := map[string]frame.Transport{"framed": frame.Framed, "unframed": frame.Unframed, "header": frame.Header}
	protocols := map[string]frame.Protocol{"binary": frame.Binary, "binary-old": frame.BinaryOld, "compact": frame.Compact}
	return frame.NewThrift(frame.Thrift{Transport: transports[cfg.ThriftTransport], Protocol: protocols[cfg.ThriftProtocol],
		MaxFrame: cfg.MaxFrame, MaxMessage: cfg.MaxMessage, Strict: cfg.CheckFrames}), nil
}

// newLogger writes to standard error. level is one that config has checked.
func newLogger(level, format string) zerolog.Logger {
	zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000Z07:00"
	terminal := isatty.IsTerminal(os.Stderr.Fd())
	var w io.Writer = os.Stderr
	if format == "console" || format == "auto" && terminal {
		w = zerolog.ConsoleWriter{Out: os.Stderr, TimeFormat: "15:04:05.000", NoColor: !terminal}
	}
	l, err := zerolog.ParseLevel(level)
	if err != nil {
		panic(err)
	}
	return zerolog.New(w).Level(l).With().Timestamp().Logger()
}

// demo is backends, proxy and load in one process.
func demo(ctx context.Context, cfg config.Demo) error {
	settings := config.Defaults()
	settings.Protocol = cfg.Protocol
	log := newLogger(cfg.LogLevel, cfg.LogFormat)
	eng, err := newEngine(settings, log)
	if err != nil {
		return err
	}
	defer eng.Close()
	p, err := proxyConfig(settings, eng, log)
	if err != nil {
		return err
	}
	ok, err := loadtest.Demo(ctx, loadtest.DemoConfig{
		Proxy:             p,
		Thrift:            cfg.Protocol == "thrift",
		Network:           cfg.Listen.Network,
		Addr:              cfg.Listen.Addr,
		Duration:          cfg.Duration,
		Clients:           cfg.Clients,
		RequestsPerClient: cfg.RequestsPerClient,
		Keep:              cfg.Keep,
		Out:               os.Stdout,
		Progress:          isatty.IsTerminal(os.Stdout.Fd()),
	})
	if err == nil && !ok {
		err = errReported
	}
	return err
}

// echo is the echo server.
func echo(ctx context.Context, cfg config.Echo) error {
	servers := make([]*loadtest.Echo, len(cfg.Listen))
	listeners := make([]net.Listener, len(cfg.Listen))
	for i, addr := range cfg.Listen {
		ln, err := net.Listen(addr.Network, addr.Addr)
		if err != nil {
			return fmt.Errorf("cannot listen: %w", err)
		}
		defer ln.Close()
		listeners[i] = ln
		servers[i] = loadtest.NewEcho(loadtest.EchoConfig{Delay: cfg.Delay, Late: cfg.Late, Greet: cfg.Greet,
			CloseAfter: cfg.CloseAfter, ResetAfter: cfg.ResetAfter, Silent: cfg.Silent,
			Thrift: cfg.Protocol == "thrift", WrongID: cfg.WrongID, AnswerOneway: cfg.AnswerOneway,
			Twice: cfg.Twice, Half: cfg.Half, Early: cfg.Early, After: cfg.After})
		fmt.Fprintf(os.Stderr, "echo: listening on %s\n", config.Address{Network: addr.Network, Addr: ln.Addr().String()})
	}
	err := serveEchoes(ctx, servers, listeners)
	return errors.Join(err, printEchoes(servers, listeners))
}

func printEchoes(servers []*loadtest.Echo, listeners []net.Listener) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "address\tconnections\tmost at once\tcalls\toneways\treplies\tfaults\tbytes in\tbytes out\t")
	for i, s := range servers {
		st := s.Stats()
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n", listeners[i].Addr(), st.Accepted, st.PeakOpen,
			st.Calls, st.Oneways, st.Replies, st.Faults, st.BytesIn, st.BytesOut)
	}
	return w.Flush()
}

// serveEchoes returns when ctx has ended, or a server failed.
func serveEchoes(ctx context.Context, servers []*loadtest.Echo, listeners []net.Listener) error {
	group, ctx := errgroup.WithContext(ctx)
	for i, s := range servers {
		group.Go(func() error { return s.Serve(listeners[i]) })
		group.Go(func() error {
			<-ctx.Done()
			s.Close()
			return nil
		})
	}
	return group.Wait()
}

// load is the load generator.
func load(ctx context.Context, cfg config.Load) error {
	res, err := loadtest.Run(ctx, loadtest.LoadConfig{Network: cfg.Target.Network, Addr: cfg.Target.Addr,
		Clients: cfg.Clients, Size: cfg.Size, Duration: cfg.Duration, Requests: cfg.Requests,
		RequestsPerClient: cfg.RequestsPerClient, Rate: cfg.Rate, Think: cfg.Think, Timeout: cfg.Timeout, Skip: cfg.Skip,
		Thrift: cfg.Protocol == "thrift", ThriftTransport: cfg.ThriftTransport, ThriftProtocol: cfg.ThriftProtocol,
		Method: cfg.Method})
	if err != nil {
		return err
	}
	if cfg.JSON {
		err = json.NewEncoder(os.Stdout).Encode(res)
	} else {
		err = res.WriteTable(os.Stdout)
	}
	if err == nil && !res.OK() {
		err = errReported
	}
	return err
}
