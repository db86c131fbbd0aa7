package proxy

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"forebay/proxy/engine"
)

func TestNewTellsWhatIsMissing(t *testing.T) {
	tests := []struct {
		name   string
		change func(cfg *Config)
		want   string
	}{
		{name: "an engine", change: func(cfg *Config) { cfg.Engine = nil }, want: "Engine"},
		{name: "backends", change: func(cfg *Config) { cfg.Backends = nil }, want: "no backends"},
		{name: "a max", change: func(cfg *Config) { cfg.Backends[0].Max = 0 }, want: "max 0"},
		{name: "a strategy", change: func(cfg *Config) { cfg.Balance = "fair" }, want: `no strategy "fair"`},
		{name: "a weight", change: func(cfg *Config) { cfg.Backends[0].Weight = 0 }, want: "weight 0"},
		{name: "each backend once", change: func(cfg *Config) { cfg.Backends = append(cfg.Backends, cfg.Backends[0]) }, want: "already"},
		{name: "a dial timeout", change: func(cfg *Config) { cfg.DialTimeout = 0 }, want: "DialTimeout"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config(Backend{Network: "tcp", Addr: "127.0.0.1:1", Max: 1, Weight: 1})
			cfg.Engine = engine.NewNet(engine.Config{})
			tt.change(&cfg)
			if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("New = %v, want an error that has %q in it", err, tt.want)
			}
		})
	}
}

func TestBackendIsWrittenAsOperatorsDo(t *testing.T) {
	for want, b := range map[string]Backend{
		"10.0.0.1:80":   {Network: "tcp", Addr: "10.0.0.1:80"},
		"[::1]:80":      {Network: "tcp", Addr: "[::1]:80"},
		"unix:/run/app": {Network: "unix", Addr: "/run/app"},
	} {
		if got := b.String(); got != want {
			t.Errorf("String = %s, want %s", got, want)
		}
	}
}

// poorListener is one of a process that has no descriptors, as long as the test
// wants.
type poorListener struct {
	mu     sync.Mutex
	tries  []time.Time
	closed bool
}

func (l *poorListener) Serve(h engine.Handler) {
	if !h.Admit() {
		panic("there is no place")
	}
	for {
		l.mu.Lock()
		closed := l.closed
		l.tries = append(l.tries, time.Now())
		l.mu.Unlock()
		if closed {
			return
		}
		time.Sleep(h.Failed(syscall.EMFILE))
	}
}

func (l *poorListener) Resume() {}

func (l *poorListener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	return nil
}

func (l *poorListener) Addr() net.Addr { return &net.TCPAddr{} }

func TestAcceptErrorsAreSaidOnceAndRestedAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{}
		cfg := config(Backend{Network: "tcp", Addr: "127.0.0.1:1", Max: 1, Weight: 1})
		cfg.Engine, cfg.Log = engine.NewNet(engine.Config{}), zerolog.New(b)
		srv, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ln := &poorListener{}
		begin := time.Now()
		done := make(chan error, 1)
		go func() { done <- srv.Serve(ln) }()
		time.Sleep(25 * time.Second)
		if err := srv.Shutdown(context.Background()); err != nil {
			t.Errorf("Shutdown = %v, want nil", err)
		}
		if err := <-done; err != ErrServerClosed {
			t.Errorf("Serve = %v, want ErrServerClosed", err)
		}
		var rests []time.Duration
		for _, try := range ln.tries[:11] {
			rests = append(rests, try.Sub(begin))
			begin = try
		}
		if got, want := fmt.Sprint(rests), "[0s 5ms 10ms 20ms 40ms 80ms 160ms 320ms 640ms 1s 1s]"; got != want {
			t.Errorf("pauses %v, want %v", got, want)
		}
		lines := b.with("cannot accept clients; trying on")
		if len(lines) != 3 { // at 0 s, and as soon as 10 s have passed since
			t.Errorf("said %d times, want 3: %v", len(lines), lines)
		}
		if n := srv.places.taken.Load(); n > 1 {
			t.Errorf("%d places were lost", n)
		}
	})
}

func TestRestEndsWithTheWait(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errClientLeft)
	a := &acquire{ctx: ctx, pause: time.Hour}
	if err := a.rest(false); err != errClientLeft {
		t.Errorf("rest = %v, want errClientLeft", err)
	}
	b := &acquire{ctx: t.Context(), pause: time.Millisecond}
	if err := b.rest(false); err != nil || b.pause != 2*time.Millisecond {
		t.Errorf("rest = %v, next %v; want nil and 2ms", err, b.pause)
	}
}
