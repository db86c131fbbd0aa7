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
	"forebay/proxy/exchange"
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

	ids      atomic.Uint64 // of sessions
	tickets  atomic.Uint64 // for the queue
	clients  chan struct{} // one place for each session, and for the next one
	running  atomic.Int64  // sessions
	starving atomic.Int64  // of these, waiting for a descriptor to dial with
	sessions sync.WaitGroup
	counters counters
	served   []atomic.Int64  // sessions of each backend
	requests *requestPooling // nil without
	outages  []outage
	faults   repeated // of Accept
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
	srv := &Server{cfg: cfg, outages: make([]outage, len(cfg.Backends)), served: make([]atomic.Int64, len(cfg.Backends)), donec: make(chan struct{})}
	srv.clients = make(chan struct{}, srv.maxClients())
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

// backendHasRoom has a pool dial ahead what it could not before.
func (srv *Server) backendHasRoom(i int) { srv.pools[i].TopUp() }

func (srv *Server) newPool(i int, b Backend) (*pool.Pool, error) {
	dial := pool.NetDial(b.Network, b.Addr)
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
		Dial: func(ctx context.Context) (pool.Conn, error) {
			c, err := dial(ctx)
			if err != nil {
				return nil, err
			}
			return srv.adopt(c)
		},
	})
}

// adopt gives a dialed connection to the engine.
func (srv *Server) adopt(c net.Conn) (pool.Conn, error) {
	adopted, err := srv.cfg.Engine.Adopt(c)
	if err != nil {
		return nil, err
	}
	b := &backendConn{Conn: adopted}
	if srv.requests != nil {
		b.exchange = exchange.NewConn()
	}
	return b, nil
}

// Serve accepts clients from ln, which it closes, until Shutdown. Then it
// returns ErrServerClosed, once every session has ended and every backend
// connection is closed.
func (srv *Server) Serve(ln engine.Listener) error {
	defer close(srv.donec)
	srv.mu.Lock()
	srv.listener = ln
	srv.mu.Unlock()

	ctx, cancel := context.WithCancel(context.Background())
	var pools sync.WaitGroup
	for _, p := range srv.pools {
		pools.Go(func() { p.Run(ctx) })
	}
	srv.accept(ln)
	srv.sessions.Wait()
	cancel()
	pools.Wait()
	return ErrServerClosed
}

// accept starts a session for each client until Shutdown.
func (srv *Server) accept(ln engine.Listener) {
	defer ln.Close()
	pause := time.Duration(0)
	for srv.admit() {
		c, err := ln.Accept()
		if err == nil {
			pause = 0
			srv.sessions.Add(1)
			srv.running.Add(1)
			s := &session{srv: srv, id: srv.ids.Add(1), client: c, start: time.Now()}
			go s.run() // forget tells sessions when it has ended
			continue
		}
		<-srv.clients
		if srv.drainCtx.Err() != nil {
			return
		}
		srv.faults.say(func(more int) {
			summed(srv.cfg.Log.Warn(), more).Err(err).Msg("cannot accept clients; trying on")
		})
		pause = min(max(2*pause, firstAcceptPause), lastAcceptPause)
		srv.rest(pause)
	}
}

// The pauses after an accept error, as net/http has them.
const (
	firstAcceptPause = 5 * time.Millisecond
	lastAcceptPause  = time.Second
)

// admit waits for a place, and with it the descriptors, for one more client. It
// reports false at shutdown.
func (srv *Server) admit() bool {
	select {
	case srv.clients <- struct{}{}:
	default:
		srv.crowds.say(func(more int) {
			summed(srv.cfg.Log.Warn(), more).Int("max_clients", cap(srv.clients)).
				Msg("as many clients as there may be; more wait in the accept backlog")
		})
		select {
		case srv.clients <- struct{}{}:
		case <-srv.drainCtx.Done():
			return false
		}
	}
	for srv.starving.Load() > 0 && srv.drainCtx.Err() == nil {
		srv.rest(firstAcceptPause)
	}
	return srv.drainCtx.Err() == nil
}

func (srv *Server) rest(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-srv.drainCtx.Done():
	}
}

// forget is the last thing of a session.
func (srv *Server) forget() {
	srv.running.Add(-1)
	<-srv.clients
	srv.sessions.Done()
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
