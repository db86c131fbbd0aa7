package proxy

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"forebay/balance"
	"forebay/proxy/engine"
)

// ErrServerClosed is what Serve returns after Shutdown.
var ErrServerClosed = errors.New("proxy: the server is closed")

// Config describes a Server. What is said of no zero value is required.
type Config struct {
	Backends []Backend
	Engine   engine.Engine
	Log      zerolog.Logger // the zero value says nothing

	// Balance is how a backend is chosen. Empty: balance.LeastConn.
	Balance balance.Strategy

	// What each pool does: see pool.Config.
	MinIdle       int
	VirginTimeout time.Duration
	IdleTimeout   time.Duration
	MaxLifetime   time.Duration
	DialTimeout   time.Duration

	// DialParallel bounds the dials ahead that are under way at once for a
	// backend, and those of clients while it recovers from being down.
	DialParallel int

	// AcquireTimeout is the longest that a client waits for a lease.
	AcquireTimeout time.Duration

	// PauseTimeout is how long the time of a client that waits stands still, in all,
	// while the server is paused. Zero: it runs on.
	PauseTimeout time.Duration

	// Health is how it is found out which backends are down.
	Health Health

	// Queue is how many clients may wait at once, over all backends. Zero means
	// that none may: a client that finds every backend full is refused.
	Queue int

	// AbortOnFIN takes a client that has sent its FIN while it waits for one
	// that has left, even after bytes.
	AbortOnFIN bool

	// FirstByteWait is how long a client is held without a lease until its
	// first byte. Zero leases at once.
	FirstByteWait time.Duration

	// MaxClients bounds the sessions at once; further clients stay in the
	// kernel's backlog. Zero means as many as the descriptor limit allows, which
	// also lowers a higher number.
	MaxClients int

	// SessionIdleTimeout and HalfCloseTimeout: see engine.RelayConfig.
	SessionIdleTimeout time.Duration
	HalfCloseTimeout   time.Duration

	// ReuseQuiet is how long a session must have been quiet at its end for its
	// connection to serve another client; see verdict. Zero means never. It
	// needs Linux.
	ReuseQuiet time.Duration

	// Observer, if not nil, is told how long things took.
	Observer Observer

	// Registry keeps a list of the sessions, for Sessions and Disconnect.
	Registry bool

	// Requests, if not nil, has sessions lease for each request.
	Requests *Requests
}

// Server is a proxy in front of a set of backends. Create it with New; it serves
// one listener, once.
type Server struct {
	cfg        Config
	dispatcher *dispatcher

	epoch    time.Time
	ids      atomic.Uint64 // of sessions
	tickets  atomic.Uint64 // for the queue
	places   places
	registry registry       // of sessions, if they are to be known one by one
	running  atomic.Int64   // sessions
	sessions sync.WaitGroup // these, and the goroutines that wait for them
	counters counters
	requests *requestPooling // nil without
	pools    sync.WaitGroup  // the runs of these; begun under the dispatcher's lock, unless it is closed
	faults   repeated        // of accepting
	crowds   repeated        // times at MaxClients

	drainCtx context.Context // ends when Shutdown begins: nobody waits any more
	drain    context.CancelCauseFunc
	cutCtx   context.Context // ends when what is left is cut
	cut      context.CancelCauseFunc
	poolCtx  context.Context // ends when no session is left
	endPools context.CancelFunc

	mu       sync.Mutex
	listener engine.Listener // nil before Serve
	donec    chan struct{}   // closed when Serve is over
}

// New returns a Server. It opens nothing before Serve.
func New(cfg Config) (*Server, error) {
	if cfg.Engine == nil {
		return nil, errors.New("proxy: Engine is required")
	}
	if len(cfg.Backends) == 0 {
		return nil, errors.New("proxy: no backends given")
	}
	if cfg.ReuseQuiet > 0 && runtime.GOOS != "linux" {
		return nil, errors.New("--reuse quiet needs Linux: elsewhere nothing tells whether bytes wait on a connection")
	}
	cfg.Balance = cmp.Or(cfg.Balance, balance.LeastConn)
	cfg.Registry = cfg.Registry || cfg.Health.CutOnDown // to find them
	srv := &Server{cfg: cfg, epoch: time.Now(), donec: make(chan struct{})}
	srv.drainCtx, srv.drain = context.WithCancelCause(context.Background())
	srv.cutCtx, srv.cut = context.WithCancelCause(context.Background())
	srv.poolCtx, srv.endPools = context.WithCancel(context.Background())
	bal, err := balance.New(balance.Config{Strategy: cfg.Balance, Seed: rand.Uint64(), TryDown: cfg.Health.TryAllDown})
	if err != nil {
		return nil, err
	}
	srv.dispatcher = newDispatcher(bal, max(1, cfg.DialParallel), cfg.Queue, srv)
	srv.dispatcher.checks = cfg.Health.Interval > 0
	if cfg.Requests != nil {
		srv.requests = srv.newRequestPooling(*cfg.Requests)
	}
	for _, be := range cfg.Backends {
		b, err := srv.newBackend(be)
		if err != nil {
			return nil, err
		}
		if err := srv.dispatcher.add(b); err != nil {
			return nil, err
		}
	}
	srv.resize()
	srv.warnOfClients()
	return srv, nil
}

// clock returns a time in one word, for sessions.
func (srv *Server) clock() time.Duration { return time.Since(srv.epoch) }

// Serve accepts clients from ln, which it closes, until Shutdown. Then it
// returns ErrServerClosed, once every session has ended and every backend
// connection is closed.
func (srv *Server) Serve(ln engine.Listener) error {
	defer close(srv.donec)
	defer ln.Close()
	srv.mu.Lock()
	srv.listener = ln
	srv.mu.Unlock()
	if srv.drainCtx.Err() != nil {
		ln.Close() // Shutdown came first, and knew of none
	}

	srv.dispatcher.begin()
	ln.Serve(&entrance{Server: srv})
	srv.sessions.Wait()
	srv.dispatcher.cut() // nobody waits: it ends with its timer, and no backend is added
	srv.endPools()
	srv.pools.Wait()
	return ErrServerClosed
}

// Shutdown stops accepting, refuses the clients that wait, and lets the others
// end by themselves. When ctx ends first it cuts those that are left and returns
// ctx's error. It returns when Serve is over. Where Serve has not begun it returns
// at once, and so will Serve.
func (srv *Server) Shutdown(ctx context.Context) error {
	srv.drain(errShutdown)
	srv.dispatcher.close()
	srv.mu.Lock()
	ln := srv.listener
	srv.mu.Unlock()
	if ln == nil {
		return nil
	}
	ln.Close()
	select {
	case <-srv.donec:
		return nil
	case <-ctx.Done():
		srv.cut(errCut)
		srv.dispatcher.cut()
		<-srv.donec
		return ctx.Err()
	}
}

// Addr returns the address on which the server listens, nil before Serve.
func (srv *Server) Addr() net.Addr {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	if srv.listener == nil {
		return nil
	}
	return srv.listener.Addr()
}
