package proxy

import (
	"sync/atomic"
	"time"

	"forebay/proxy/engine"
)

// places are the sessions that there may be at once. Each is reserved before its
// client is accepted, with the descriptors that it will need.
type places struct {
	most     atomic.Int64
	taken    atomic.Int64
	starving atomic.Int64 // sessions that wait for a descriptor to dial with
	refused  atomic.Bool  // the listener was told that there is none, and waits to hear of one
}

// reserve takes a place, if there is one. While sessions starve there is none: a new
// client would take the next descriptor that is free.
func (p *places) reserve() bool { return p.take() || p.refuse() }

// refuse says that there is no place, unless there is one by now: it reports whether it
// has taken it.
//
// No wake-up is lost. Who makes room (forget, starve) does so first, and looks at refused
// after that; here refused is said first, and the places are looked at after that. So
// one of the two sees the other. Where both do, a Resume comes that changes nothing.
func (p *places) refuse() bool {
	p.refused.Store(true)
	return p.take()
}

func (p *places) take() bool {
	for p.starving.Load() == 0 {
		n := p.taken.Load()
		if n >= p.most.Load() {
			return false
		}
		if p.taken.CompareAndSwap(n, n+1) {
			return true
		}
	}
	return false
}

// crowded reports whether every place is taken.
func (p *places) crowded() bool { return p.taken.Load() >= p.most.Load() }

// entrance is the server as its listener sees it.
type entrance struct {
	*Server
	pause atomic.Int64 // after the newest fault; 0: none since a client was accepted
}

var _ engine.Handler = (*entrance)(nil)

// The pauses after an accept error, as net/http has them.
const (
	firstAcceptPause = 5 * time.Millisecond
	lastAcceptPause  = time.Second
)

// Admit reserves a place.
func (e *entrance) Admit() bool {
	if e.places.reserve() {
		return true
	}
	if e.places.crowded() {
		e.crowds.say(func(more int) {
			summed(e.cfg.Log.Warn(), more).Int("max_clients", e.MaxClients()).
				Msg("as many clients as there may be; more wait in the accept backlog")
		})
	}
	return false
}

// Accepted begins the session of a client.
func (e *entrance) Accepted(client engine.Conn) {
	if e.pause.Load() != 0 {
		e.pause.Store(0)
	}
	e.sessions.Add(1) // forget tells when it has ended
	e.running.Add(1)
	e.newSession(client).run()
}

func (srv *Server) newSession(client engine.Conn) *session {
	if !srv.cfg.Registry {
		return &session{srv: srv, id: srv.ids.Add(1), client: client, start: srv.clock()}
	}
	r := &registered{session: session{srv: srv, id: srv.ids.Add(1), client: client, start: srv.clock()}}
	srv.register(r)
	return &r.session
}

// Failed says that clients cannot be accepted, and has the listener rest, longer each
// time.
func (e *entrance) Failed(err error) time.Duration {
	if e.drainCtx.Err() == nil {
		e.faults.say(func(more int) {
			summed(e.cfg.Log.Warn(), more).Err(err).Msg("cannot accept clients; trying on")
		})
	}
	pause := min(max(2*time.Duration(e.pause.Load()), firstAcceptPause), lastAcceptPause)
	e.pause.Store(int64(pause))
	return pause
}

// forget is the last thing of a session.
func (srv *Server) forget() {
	srv.running.Add(-1)
	srv.places.taken.Add(-1)
	srv.makeRoom()
	srv.sessions.Done()
}

// starve counts a session (-1: no more) that waits for a descriptor.
func (srv *Server) starve(n int64) {
	if srv.places.starving.Add(n) == 0 {
		srv.makeRoom()
	}
}

// makeRoom has the listener look again, if it was told that there is no place.
func (srv *Server) makeRoom() {
	if !srv.places.refused.Load() || !srv.places.refused.CompareAndSwap(true, false) {
		return
	}
	srv.mu.Lock()
	ln := srv.listener
	srv.mu.Unlock()
	if ln != nil {
		ln.Resume()
	}
}
