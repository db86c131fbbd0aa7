package proxy

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"time"
)

// A SessionState is what a session is about.
type SessionState uint8

// The states of a session.
const (
	Idle    SessionState = iota // it asks for nothing: before its first byte, or between two requests
	Waiting                     // in the queue
	Dialing                     // a connection is dialed for it
	Leased                      // it has one
)

var sessionStateNames = [...]string{"idle", "waiting", "dialing", "leased"}

// String returns the name of the state.
func (s SessionState) String() string { return sessionStateNames[s] }

// SessionInfo is a snapshot of one session.
type SessionInfo struct {
	ID      uint64
	Client  string
	Backend string // of its newest lease; empty: it had none
	State   SessionState
	Age     time.Duration

	// Of sessions that lease for each request, as of the newest lease's end.
	Requests, BytesUp, BytesDown int64
}

// Sessions returns snapshots of the oldest sessions, at most limit; 0: of all. Without
// Config.Registry there are none to see.
func (srv *Server) Sessions(limit int) []SessionInfo {
	var infos []SessionInfo
	for _, e := range srv.registry.oldest(limit) {
		if info, ok := e.info(); ok {
			infos = append(infos, info)
		}
	}
	return infos
}

// Disconnect ends a session at once, whatever it is about: its reason is Disconnected.
func (srv *Server) Disconnect(id uint64) error {
	if !srv.cfg.Registry {
		return errors.New("nothing is known of single sessions: Config.Registry is off")
	}
	if e := srv.registry.find(id); e == nil || !e.end(errDisconnected) {
		return wrongf(ErrNoSession, "there is no session %d, or not any more", id)
	}
	srv.cfg.Log.Info().Uint64("session", id).Msg("session is disconnected by the operator")
	return nil
}

// cutSessions ends the sessions that have a lease of a backend, and returns how many.
func (srv *Server) cutSessions(b *backend) (n int) {
	for _, e := range srv.registry.oldest(0) {
		if e.endIf(errBackendDown, func() bool { return e.state == Leased && e.backend == b }) {
			n++
		}
	}
	return n
}

// registry has the sessions that are under way, each in the shard of its id: sessions
// that come and go at once seldom meet at a lock.
type registry struct{ shards [16]shard }

type shard struct {
	mu   sync.Mutex
	head entry // of a ring, the oldest first; nil pointers: it is empty
}

// entry is a session's place in the registry, and what others may know of the session.
type entry struct {
	next, prev *entry // under the shard's lock
	s          *session

	mu       sync.Mutex
	state    SessionState
	over     bool  // the session is about to close its client
	cut      error // why it was ended before that; nil: it was not
	waits    leaver
	backend  *backend
	requests int64
	up, down int64
}

// leaver is what a session waits for, to be ended because of why.
type leaver interface{ leave(why error) }

// registered is a session and its entry: one allocation.
type registered struct {
	session
	entry entry
}

// register puts a session into the registry.
func (srv *Server) register(r *registered) {
	s, e := &r.session, &r.entry
	s.entry, e.s = e, s
	sh := srv.registry.shard(s.id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.head.next == nil {
		sh.head.next, sh.head.prev = &sh.head, &sh.head
	}
	e.next, e.prev = &sh.head, sh.head.prev
	e.prev.next, sh.head.prev = e, e
}

func (r *registry) shard(id uint64) *shard { return &r.shards[id%uint64(len(r.shards))] }

func (r *registry) remove(e *entry) {
	sh := r.shard(e.s.id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e.prev.next, e.next.prev = e.next, e.prev
	e.next, e.prev = nil, nil
}

func (r *registry) find(id uint64) (found *entry) {
	r.shard(id).each(func(e *entry) (more bool) {
		if e.s.id == id {
			found = e
		}
		return found == nil
	})
	return found
}

func (r *registry) oldest(limit int) []*entry {
	var all []*entry
	for i := range r.shards {
		n := 0
		r.shards[i].each(func(e *entry) (more bool) {
			all = append(all, e)
			n++
			return n != limit
		})
	}
	slices.SortFunc(all, func(a, b *entry) int { return cmp.Compare(a.s.id, b.s.id) })
	if limit > 0 && len(all) > limit {
		return all[:limit]
	}
	return all
}

// each calls f with the entries, the oldest first, until it returns false.
func (sh *shard) each(f func(*entry) (more bool)) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for e := sh.head.next; e != nil && e != &sh.head && f(e); e = e.next {
	}
}

func (e *entry) info() (info SessionInfo, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	info = SessionInfo{ID: e.s.id, Client: e.s.client.RemoteAddr().String(), State: e.state, Age: e.s.srv.clock() - e.s.start,
		Requests: e.requests, BytesUp: e.up, BytesDown: e.down}
	if e.backend != nil {
		info.Backend = e.backend.name
	}
	return info, !e.over
}

// end ends what the session waits for, and the relay or drive that it is in, because of
// why. It reports false where the session was over, or ended so, before.
func (e *entry) end(why error) bool { return e.endIf(why, func() bool { return true }) }

// endIf is end where is says so, which is asked with the lock: the session must not have
// gone on meanwhile.
func (e *entry) endIf(why error, is func() bool) bool {
	e.mu.Lock()
	if e.over || e.cut != nil || !is() {
		e.mu.Unlock()
		return false
	}
	e.cut = why
	waits := e.waits
	e.s.client.Cut() // with the lock, so that the client is not closed yet
	e.mu.Unlock()
	if waits != nil {
		waits.leave(why)
	}
	return true
}

// shows says what the session is about.
func (s *session) shows(state SessionState) {
	if e := s.entry; e != nil {
		e.mu.Lock()
		e.state, e.backend = state, s.backend
		e.mu.Unlock()
	}
}

// waitsFor says what is to be ended with the session, nil for nothing. Where the session
// has been ended already it returns why: then it is for the caller to end that.
func (s *session) waitsFor(w leaver) (why error) {
	e := s.entry
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waits = w
	return e.cut
}

// begun is called when the engine has been given the client: a Disconnect before that
// has found nothing to cut. The session may be over by now.
func (s *session) begun() {
	if e := s.entry; e != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.cut != nil && !e.over {
			s.client.Cut()
		}
	}
}

// leavesRegistry is called before the client is closed. It returns why the session was
// ended by others; nil: it was not.
func (s *session) leavesRegistry() (why error) {
	e := s.entry
	if e == nil {
		return nil
	}
	s.srv.registry.remove(e)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over = true
	return e.cut
}
