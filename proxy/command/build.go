package command

import (
	"fmt"
	"io"
	"os"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"

	"forebay/balance"
	"forebay/balance/health"
	"forebay/proxy"
	"forebay/proxy/config"
	"forebay/proxy/engine"
	"forebay/proxy/frame"
)

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
		Balance:            balance.Strategy(cfg.Balance),
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
	return proxy.Backend{Network: b.Addr.Network, Addr: b.Addr.Addr, Max: b.Max, Weight: b.Weight, Backup: b.Backup}
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
