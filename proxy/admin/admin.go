// Package admin is what operators see of a running forebay, and how they change it:
// health, metrics and the state of the pools over HTTP, and the client for it that
// `forebay ctl` is.
//
//	GET  /healthz /readyz                   is it alive, should it get clients
//	GET  /metrics                           for Prometheus
//	GET  /api/pools /api/queue /api/sessions
//	GET  /debug/pprof/                      where asked for
//	GET  / /dashboard/                      the dashboard, where there is one
//
//	POST   /api/backends                    {"backend": "ADDR[,max=N][,weight=N][,backup=true]"}
//	DELETE /api/backends/{name}
//	POST   /api/backends/{name}/drain       likewise maintain and ready
//	POST   /api/backends/{name}/weight      {"weight": N}
//	POST   /api/backends/{name}/max         {"max": N}
//	POST   /api/pause                       likewise resume
//	DELETE /api/sessions/{id}
//
// A backend's name is its address, as --backend has it; in a path its slashes are
// written %2F. Changes answer 204, errors are JSON: {"error": "..."}. /readyz is 200 while
// any backend is up, backups among them: they serve.
//
// Reading is for everybody who reaches the listener. A change needs the token, or a
// Unix socket that only its owner can open. What a browser can be tricked into, by
// another page or by a name that is made to point here, is refused, reading too.
//
// The package reads snapshots and calls methods of the server: nothing of it is on
// the path of the bytes, but for Metrics as a proxy.Observer.
package admin

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/net/netutil"

	"forebay/proxy"
)

// A Proxy is what the listener shows and changes. *proxy.Server is one, with its
// Config.Registry set. The errors of its methods wrap those of package proxy that say
// what is wrong with a request (ErrNoBackend and so on).
type Proxy interface {
	Stats() proxy.Stats
	Sessions(limit int) []proxy.SessionInfo
	Disconnect(id uint64) error
	Add(proxy.Backend) error
	Remove(name string) error
	SetState(name string, s proxy.State) error
	SetWeight(name string, n int) error
	SetMax(name string, n int) error
	Pause() error
	Resume()
}

// Config describes an Admin. What is said of no zero value is required.
type Config struct {
	Proxy   Proxy
	Metrics *Metrics
	Log     zerolog.Logger // the zero value says nothing

	// ParseBackend reads what POST /api/backends adds.
	ParseBackend func(string) (proxy.Backend, error)

	// Token is what changes need. The zero Token: changes are refused, but for those
	// through a Unix socket of mode 0600.
	Token Token

	// Hosts are the names by which the listener may be called, besides those of the
	// loopback and the address that a request arrived at.
	Hosts []string

	// Pprof serves /debug/pprof/.
	Pprof bool

	// Page is the dashboard, at / and below /dashboard/. Nil: there is none. It may
	// set a Content-Security-Policy of its own; the one it finds allows nothing.
	Page http.Handler
}

// Admin serves operators. Create it with New.
type Admin struct {
	cfg      Config
	limits   limits
	refusals zerolog.Logger // samples: whoever can connect can make these lines
	draining atomic.Bool
}

// limits bound what strangers can have the listener hold for them.
type limits struct {
	connections  int
	header       time.Duration // to send the head of a request
	read, write  time.Duration // to send a request, and to take its answer; pprof adds its own time
	idle         time.Duration
	headerBytes  int
	bodyBytes    int64
	shutdownWait time.Duration // for requests that are being answered at the end
}

// maxRefusals is how many refused changes are logged in each of refusalPeriod.
const (
	maxRefusals   = 10
	refusalPeriod = 10 * time.Second
)

// New returns an Admin. It opens nothing before Run.
func New(cfg Config) (*Admin, error) {
	if cfg.Proxy == nil || cfg.Metrics == nil || cfg.ParseBackend == nil {
		return nil, errors.New("admin: Proxy, Metrics and ParseBackend are required")
	}
	a := &Admin{cfg: cfg, limits: limits{
		connections:  64,
		header:       5 * time.Second,
		read:         10 * time.Second,
		write:        10 * time.Second,
		idle:         30 * time.Second,
		headerBytes:  16 << 10,
		bodyBytes:    64 << 10,
		shutdownWait: time.Second,
	}}
	a.refusals = cfg.Log.Sample(&zerolog.BurstSampler{Burst: maxRefusals, Period: refusalPeriod})
	cfg.Metrics.source.Store(&source{a.pools})
	return a, nil
}

// Drain makes /readyz fail from now on, so that whoever balances over several proxies
// sends no more clients here before the listener closes.
func (a *Admin) Drain() { a.draining.Store(true) }

// Run answers operators on ln, which it closes, until ctx ends; then it returns nil,
// once the requests of that moment are answered, or cut after a second. It returns early
// where ln fails.
func (a *Admin) Run(ctx context.Context, ln net.Listener) error {
	serving, stop := context.WithCancel(ctx) // requests end with it: profiles take long
	defer stop()
	srv := &http.Server{
		Handler:           a.handler(isPrivate(ln.Addr())),
		ReadHeaderTimeout: a.limits.header,
		ReadTimeout:       a.limits.read,
		WriteTimeout:      a.limits.write,
		IdleTimeout:       a.limits.idle,
		MaxHeaderBytes:    a.limits.headerBytes,
		BaseContext:       func(net.Listener) context.Context { return serving },
		ErrorLog:          log.New(warnings{a.cfg.Log}, "", 0),
	}
	donec := make(chan error, 1) // buffered: Serve may end by itself
	go func() { donec <- srv.Serve(netutil.LimitListener(ln, a.limits.connections)) }()
	select {
	case err := <-donec:
		srv.Close()
		return err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.limits.shutdownWait)
	defer cancel()
	if srv.Shutdown(end) != nil {
		srv.Close()
	}
	<-donec
	return nil
}

// warnings has the lines of net/http logged.
type warnings struct{ log zerolog.Logger }

func (w warnings) Write(b []byte) (int, error) {
	w.log.Warn().Msg("admin listener: " + strings.TrimSpace(string(b)))
	return len(b), nil
}
