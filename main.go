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
	"time"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"forebay/balance/health"
	"forebay/proxy"
	"forebay/proxy/admin"
	"forebay/proxy/admin/ctl"
	"forebay/proxy/admin/dashboard"
	"forebay/proxy/admin/top"
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
		Ctl:   untilSignal(control),
		Top:   untilSignal(watch),
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

// gcPercent is Go's GOGC for serving, where the environment has none: short sessions and
// waits in the queue leave garbage, of which little lives at any time. Half as many
// collections are 1 to 2 % of a short session; what a burst leaves is given back when the
// proxy is quiet (engine.Trimming).
const gcPercent = 200

// serve is the proxy: it serves until a signal, then drains.
func serve(ctx context.Context, cfg config.Serve) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
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
	metrics := admin.NewMetrics(version(), eng.Name())
	p.Registry = p.Health.CutOnDown
	if cfg.Admin.Listen != (config.Address{}) {
		p.Observer, p.Registry = metrics, true
	}
	srv, err := proxy.New(p)
	if err != nil {
		return err
	}
	ln, err := eng.Listen(ctx, cfg.Listen.Network, cfg.Listen.Addr)
	if err != nil {
		return fmt.Errorf("cannot listen: %w", err)
	}
	adm, err := newAdmin(cfg, srv, metrics, log)
	if err != nil {
		ln.Close()
		return err
	}
	stopAdmin, err := runAdmin(ctx, adm, cfg.Admin.Listen, log)
	if err != nil {
		ln.Close()
		return err
	}
	defer stopAdmin()
	logStart(log, cfg, eng, ln.Addr(), srv)

	var serving sync.WaitGroup
	serving.Go(func() { srv.Serve(engine.Trimming(ln)) })
	log.Info().Stringer("signal", <-signals).Int("clients", srv.Stats().Clients).
		Dur("drain_delay_ms", cfg.DrainDelay).Dur("drain_timeout_ms", cfg.DrainTimeout).Msg("draining; a second signal cuts")
	adm.Drain()
	timeout := cfg.DrainTimeout
	if signaled(signals, cfg.DrainDelay) {
		timeout = 0
	}
	drain(srv, timeout, signals)
	serving.Wait()
	return logEnd(log, srv)
}

// newAdmin returns what answers operators.
func newAdmin(cfg config.Serve, srv *proxy.Server, metrics *admin.Metrics, log zerolog.Logger) (*admin.Admin, error) {
	token, err := readToken("--admin-token-file", cfg.Admin.TokenFile)
	if err != nil {
		return nil, err
	}
	return admin.New(admin.Config{
		Proxy:   srv,
		Metrics: metrics,
		Log:     log,
		Token:   token,
		Hosts:   cfg.Admin.Hosts,
		Pprof:   cfg.Admin.Pprof,
		Page:    dashboard.Handler(),
		ParseBackend: func(text string) (proxy.Backend, error) {
			b, err := cfg.ParseBackend(text)
			return proxyBackend(b), err
		},
	})
}

// readToken reads the token that a flag names, if it names one.
func readToken(flag, path string) (admin.Token, error) {
	if path == "" {
		return admin.Token{}, nil
	}
	token, err := admin.ReadToken(path)
	if err != nil {
		return admin.Token{}, fmt.Errorf("%s: %w", flag, err)
	}
	return token, nil
}

// runAdmin has operators answered, where there is a listener for them, until stop is
// called. A fault of theirs is logged, and the proxy goes on.
func runAdmin(ctx context.Context, adm *admin.Admin, at config.Address, log zerolog.Logger) (stop func(), err error) {
	if at == (config.Address{}) {
		return func() {}, nil
	}
	ln, err := admin.Listen(ctx, at.Network, at.Addr)
	if err != nil {
		return nil, fmt.Errorf("--admin: cannot listen: %w", err)
	}
	log.Info().Stringer("admin", config.Address{Network: at.Network, Addr: ln.Addr().String()}).Msg("operators are answered")
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		if err := adm.Run(ctx, ln); err != nil {
			log.Error().Err(err).Msg("the admin listener has failed")
		}
	})
	return func() { cancel(); running.Wait() }, nil
}

// signaled waits for d, and reports whether a signal came before.
func signaled(signals <-chan os.Signal, d time.Duration) bool {
	select {
	case <-signals:
		return true
	case <-time.After(d):
		return false
	}
}

// newClient returns a client of a forebay's admin listener.
func newClient(at config.Address, tokenFile string) (*admin.Client, error) {
	token, err := readToken("--token-file", tokenFile)
	if err != nil {
		return nil, err
	}
	return admin.NewClient(at.Network, at.Addr, token), nil
}

// watch shows a forebay in the terminal.
func watch(ctx context.Context, cfg config.Top) error {
	client, err := newClient(cfg.Admin, cfg.TokenFile)
	if err != nil {
		return err
	}
	view := top.Config{Source: client, Address: cfg.Admin.String(), Interval: cfg.Interval,
		Changes: cfg.TokenFile != "" || cfg.Admin.Network == "unix"}
	if cfg.Once {
		return top.Once(ctx, view, os.Stdout)
	}
	if !isatty.IsTerminal(os.Stdin.Fd()) || !isatty.IsTerminal(os.Stdout.Fd()) {
		return errors.New("top needs a terminal; --once prints one frame without")
	}
	return top.Run(ctx, view)
}

// control has a forebay do one thing.
func control(ctx context.Context, cfg config.Ctl) error {
	client, err := newClient(cfg.Admin, cfg.TokenFile)
	if err != nil {
		return err
	}
	return ctl.Run(ctx, client, ctl.Command{Name: cfg.Command, Backend: cfg.Backend, Number: cfg.Number, ID: cfg.ID, JSON: cfg.JSON}, os.Stdout)
}

// drain returns when the server has ended: by itself, or cut after the timeout or by
// another signal.
func drain(srv *proxy.Server, timeout time.Duration, signals <-chan os.Signal) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
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
		PauseTimeout:       cfg.PauseTimeout,
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
	var err error
	if p.Health, err = healthConfig(cfg); err != nil {
		return p, err
	}
	for _, b := range cfg.Backends {
		p.Backends = append(p.Backends, proxyBackend(b))
	}
	if cfg.Protocol == "raw" {
		return p, nil
	}
	codec, err := newCodec(cfg.Protocol, cfg.Requests)
	p.Requests = requestsConfig(cfg.Requests, codec, cfg.Reuse == "trust")
	return p, err
}

// healthConfig returns how the backends are checked.
func healthConfig(cfg config.Serve) (proxy.Health, error) {
	h := cfg.Health
	p := proxy.Health{SlowStart: h.SlowStart, CutOnDown: h.OnDown == "cut", TryAllDown: h.AllDown == "try"}
	if h.Check == "off" {
		return p, nil
	}
	p.Interval, p.Timeout, p.Fall, p.Rise = h.Interval, h.Timeout, h.Fall, h.Rise
	switch h.Check {
	case "send-expect":
		send, err := health.Unescape(h.Send)
		if err != nil {
			return p, fmt.Errorf("--health-send: %w", err)
		}
		expect, err := health.Unescape(h.Expect)
		if err != nil {
			return p, fmt.Errorf("--health-expect: %w", err)
		}
		p.Talk = health.SendExpect{Send: send, Expect: expect}.Talk
	case "thrift":
		p.Talk = health.Thrift{Method: h.Method, Unframed: cfg.Requests.ThriftTransport == "unframed",
			Compact: cfg.Requests.ThriftProtocol == "compact"}.Talk
	}
	return p, nil
}

func proxyBackend(b config.Backend) proxy.Backend {
	return proxy.Backend{Network: b.Addr.Network, Addr: b.Addr.Addr, Max: b.Max, Weight: b.Weight}
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
