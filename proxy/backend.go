package proxy

import (
	"context"
	"sync/atomic"
	"time"

	"forebay/balance/health"
	"forebay/pool"
	"forebay/proxy/engine"
)

// Backend is one server behind the proxy. All fields but Backup are required. A backup
// serves only clients that may use no other: each is down, drained or removed, or has failed
// to be dialed for them.
type Backend struct {
	Network string // "tcp" or "unix"
	Addr    string // host:port, or the path of the socket
	Max     int    // connections open to it at once, in whatever state
	Weight  int    // share, where the strategy of the choice regards it
	Backup  bool
}

// String returns the address as operators write it: the backend's name.
func (b Backend) String() string {
	if b.Network == "unix" {
		return "unix:" + b.Addr
	}
	return b.Addr
}

// backend is all that the server has of one backend. Leases and sessions refer to it,
// also when it is gone: their log lines name it.
type backend struct {
	name    string
	pool    *pool.Pool
	monitor *health.Monitor
	observe func(time.Duration) // a request; nil where nobody wants to know

	// index is its place in the account of slots. It is its own until it is gone, and
	// is used under the dispatcher's lock only.
	index int

	dispatched
	outage     outage
	checkWaits atomic.Bool // a check waits for a slot; written under the dispatcher's lock

	sessions, requests atomic.Int64 // that it has served
	traffic            traffic
}

// dispatched is the part of a backend that belongs to the dispatcher, under its lock.
type dispatched struct {
	Backend    // as it is now
	state      State
	removed    bool  // it is gone once its slots are free
	gone       bool  // its index is another's, or nobody's
	err        error // why it is down; nil while it is up
	ups        int   // changes between down and up
	recovering int   // dials that must still succeed before it counts as healthy
	checkReady bool  // a slot is reserved for the check that waited
	untold     bool  // see dispatcher.tellLater

	life context.Context    // of its pool and its monitor; nil before they run
	stop context.CancelFunc // ends that
}

// newBackend returns a backend that the dispatcher has yet to be given.
func (srv *Server) newBackend(be Backend) (*backend, error) {
	b := &backend{name: be.String(), dispatched: dispatched{Backend: be}}
	var err error
	b.pool, err = pool.New(pool.Config{
		MinIdle:       srv.cfg.MinIdle,
		VirginTimeout: srv.cfg.VirginTimeout,
		IdleTimeout:   srv.cfg.IdleTimeout,
		MaxLifetime:   srv.cfg.MaxLifetime,
		DialTimeout:   srv.cfg.DialTimeout,
		Slots:         slots{srv.dispatcher, b},
		Silent:        srv.requests != nil,
		Stray:         func(c pool.Conn) { srv.stray(b, c) },
		Connect:       srv.connector(be),
		Dial: func(ctx context.Context) (pool.Conn, error) {
			c, err := srv.cfg.Engine.Dial(ctx, be.Network, be.Addr)
			if err != nil {
				return nil, err
			}
			return srv.newBackendConn(c), nil
		},
	})
	if err != nil {
		return nil, err
	}
	b.monitor, err = srv.newMonitor(b)
	return b, err
}

// connector returns how an engine that can dials a backend without waiting, else nil.
func (srv *Server) connector(b Backend) func(context.Context, func(pool.Conn, error)) {
	e, ok := srv.cfg.Engine.(engine.Connector)
	if !ok {
		return nil
	}
	connect := e.Connector(b.Network, b.Addr, srv.cfg.DialTimeout)
	return func(ctx context.Context, done func(pool.Conn, error)) {
		connect(ctx, func(c engine.Conn, err error) {
			if err != nil {
				done(nil, err)
				return
			}
			done(srv.newBackendConn(c), nil)
		})
	}
}

// backendBegins has a backend's pool and monitor run, until the server or the backend
// has ended. The observer is asked here, where it is sure that there is a new backend: who
// adds one that is there already must not begin its times anew.
func (srv *Server) backendBegins(b *backend) {
	if o := srv.cfg.Observer; o != nil && srv.cfg.Requests != nil && !srv.cfg.Requests.Session {
		b.observe = o.Requests(b.name)
	}
	ctx, stop := context.WithCancel(srv.poolCtx)
	b.life, b.stop = ctx, stop
	srv.pools.Go(func() { srv.watch(ctx, b) })
	srv.pools.Go(func() {
		b.pool.Run(ctx)
		if srv.poolCtx.Err() == nil {
			srv.cfg.Log.Info().Str("backend", b.name).Msg("backend is gone")
			srv.resize()
		}
		stop()
	})
}

// backendHasRoom has a pool dial ahead what it could not before.
func (srv *Server) backendHasRoom(b *backend) { b.pool.TopUp() }

// backendHasSurplus has a pool close what lies idle for nobody.
func (srv *Server) backendHasSurplus(b *backend) { b.pool.Trim() }

// relayed counts a session of a client that was relayed.
func (b *backend) relayed(r engine.Result, client engine.Conn) {
	b.served(r, client)
	b.sessions.Add(1)
	b.traffic.moved(r.Up.Moved, r.Down.Moved)
}
