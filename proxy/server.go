package proxy

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"forebay/balance"
	"forebay/pool"
	"forebay/proxy/engine"
)

// ErrServerClosed is what Serve returns after Shutdown.
var ErrServerClosed = errors.New("proxy: the server is closed")

// Backend is one server behind the proxy. All fields are required.
type Backend struct {
	Network string // "tcp" or "unix"
	Addr    string // host:port, or the path of the socket
	Max     int    // connections open to it at once, in whatever state
	Weight  int    // share of ties
}

// String returns the address as operators write it.
func (b Backend) String() string {
	if b.Network == "unix" {
		return "unix:" + b.Addr
	}
	return b.Addr
}

// Config describes a Server. What is said of no zero value is required.
type Config struct {
	Backends []Backend
	Engine   engine.Engine
	Log      zerolog.Logger // the zero value says nothing

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

	// Requests, if not nil, has sessions lease for each request.
	Requests *Requests
}

// Server is a proxy in front of a set of backends. Create it with New; it serves
// one listener, once.
type Server struct {
	cfg        Config
	dispatcher *dispatcher
	pools      []*pool.Pool
	names      []string

	epoch    time.Time
	ids      atomic.Uint64 // of sessions
	tickets  atomic.Uint64 // for the queue
	places   places
	running  atomic.Int64   // sessions
	sessions sync.WaitGroup // these, and the goroutines that wait for them
	counters counters
	served   []atomic.Int64  // sessions of each backend
	requests *requestPooling // nil without
	outages  []outage
	faults   repeated // of accepting
	crowds   repeated // times at MaxClients

	drainCtx context.Context // ends when Shutdown begins: nobody waits any more
	drain    context.CancelCauseFunc
	cutCtx   context.Context // ends when what is left is cut
	cut      context.CancelCauseFunc

	mu       sync.Mutex
	listener engine.Listener // nil before Serve
	donec    chan struct{}   // closed when Serve is over
}

// New returns a Server. It opens nothing before Serve.
func New(cfg Config) (*Server, error) {
	if cfg.Engine == nil {
		return nil, errors.New("proxy: Engine is required")
	}
	if cfg.ReuseQuiet > 0 && runtime.GOOS != "linux" {
		return nil, errors.New("--reuse quiet needs Linux: elsewhere nothing tells whether bytes wait on a connection")
	}
	srv := &Server{cfg: cfg, epoch: time.Now(), donec: make(chan struct{})}
	srv.outages, srv.served = make([]outage, len(cfg.Backends)), make([]atomic.Int64, len(cfg.Backends))
	srv.places.most = int64(srv.maxClients())
	srv.drainCtx, srv.drain = context.WithCancelCause(context.Background())
	srv.cutCtx, srv.cut = context.WithCancelCause(context.Background())

	members := make([]balance.Backend, len(cfg.Backends))
	for i, b := range cfg.Backends {
		members[i] = balance.Backend{Max: b.Max, Weight: b.Weight}
	}
	bal, err := balance.New(members)
	if err != nil {
		return nil, err
	}
	srv.dispatcher = newDispatcher(bal, len(members), max(1, cfg.DialParallel), cfg.Queue, srv)
	if cfg.Requests != nil {
		srv.requests = srv.newRequestPooling(*cfg.Requests)
	}
	for i, b := range cfg.Backends {
		p, err := srv.newPool(i, b)
		if err != nil {
			return nil, err
		}
		srv.pools = append(srv.pools, p)
		srv.names = append(srv.names, b.String())
	}
	return srv, nil
}

// clock returns a time in one word, for sessions.
func (srv *Server) clock() time.Duration { return time.Since(srv.epoch) }

// backendHasRoom has a pool dial ahead what it could not before.
func (srv *Server) backendHasRoom(i int) { srv.pools[i].TopUp() }

func (srv *Server) newPool(i int, b Backend) (*pool.Pool, error) {
	return pool.New(pool.Config{
		Max:           b.Max,
		MinIdle:       srv.cfg.MinIdle,
		VirginTimeout: srv.cfg.VirginTimeout,
		IdleTimeout:   srv.cfg.IdleTimeout,
		MaxLifetime:   srv.cfg.MaxLifetime,
		DialTimeout:   srv.cfg.DialTimeout,
		Slots:         slots{srv.dispatcher, i},
		Silent:        srv.requests != nil,
		Stray:         func(c pool.Conn) { srv.stray(i, c) },
		Connect:       srv.connector(b),
		Dial: func(ctx context.Context) (pool.Conn, error) {
			c, err := srv.cfg.Engine.Dial(ctx, b.Network, b.Addr)
			if err != nil {
				return nil, err
			}
			return srv.newBackendConn(c), nil
		},
	})
}

// connector returns how an engine that can dials a backend without waiting, else nil.
func (srv *Server) connector(b Backend) func(context.Context, func(pool.Conn, error)) {
	e, ok := srv.cfg.Engine.(engine.Connector)
	if !ok {
		return nil
	}
	return func(ctx context.Context, done func(pool.Conn, error)) {
		e.Connect(ctx, b.Network, b.Addr, srv.cfg.DialTimeout, func(c engine.Conn, err error) {
			if err != nil {
				done(nil, err)
				return
			}
			done(srv.newBackendConn(c), nil)
		})
	}
}

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

	ctx, cancel := context.WithCancel(context.Background())
	var pools sync.WaitGroup
	for _, p := range srv.pools {
		pools.Go(func() { p.Run(ctx) })
	}
	ln.Serve(&entrance{Server: srv})
	srv.sessions.Wait()
	srv.dispatcher.cut() // nobody waits: it ends with its timer
	cancel()
	pools.Wait()
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
