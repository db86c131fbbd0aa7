package command

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"forebay/proxy"
	"forebay/proxy/admin"
	"forebay/proxy/config"
	"forebay/proxy/engine"
)

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
	metrics := admin.NewMetrics(Version(), eng.Name())
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

// signaled waits for d, and reports whether a signal came before.
func signaled(signals <-chan os.Signal, d time.Duration) bool {
	select {
	case <-signals:
		return true
	case <-time.After(d):
		return false
	}
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
		backup := ""
		if b.Backup {
			backup = ",backup=true"
		}
		backends.Str(fmt.Sprintf("%s,max=%d,weight=%d%s", b.Addr, b.Max, b.Weight, backup))
	}
	log.Info().Stringer("listen", config.Address{Network: addr.Network(), Addr: addr.String()}).Array("backends", backends).
		Str("balance", cfg.Balance).Str("version", Version()).
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
	for _, w := range balanceWarnings(cfg) {
		log.Warn().Msg(w)
	}
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
