package proxy

import (
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// sayAgain is how long a fault that goes on is counted before it is said again.
const sayAgain = 10 * time.Second

// repeated says a fault once, and sums what follows soon after.
type repeated struct {
	mu   sync.Mutex
	last time.Time
	more int
}

// say calls log with how often the fault came unsaid since it was last said,
// unless that was a moment ago.
func (r *repeated) say(log func(more int)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); r.last.IsZero() || now.Sub(r.last) >= sayAgain {
		log(r.more)
		r.last, r.more = now, 0
		return
	}
	r.more++
}

// outage is what the log has to say about one backend.
type outage struct {
	mu     sync.Mutex
	since  time.Time // zero while the backend is up
	dials  int       // failed since
	silent bool      // its beginning was not said, so its end is not
	said   repeated
}

// backendDown says that a backend is down, once an outage. Where nothing checks it, so
// that dials alone decide and outages come as fast as they do, not before the next line is
// due. Dials that fail later are summed.
func (srv *Server) backendDown(b *backend, err error) {
	o := &b.outage
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		o.since, o.silent = time.Now(), true
	}
	srv.failedAgain(b, err)
}

// backendStillDown counts a dial that failed, if the backend is down.
func (srv *Server) backendStillDown(b *backend, err error) {
	o := &b.outage
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.since.IsZero() {
		srv.failedAgain(b, err)
	}
}

// failedAgain counts a failure of an outage, with its lock held, and says it if the line is
// due still that the backend is down.
func (srv *Server) failedAgain(b *backend, err error) {
	o := &b.outage
	o.dials++
	if !o.silent {
		return
	}
	line := func(more int) {
		o.silent = false
		summed(srv.cfg.Log.Warn(), more).Str("backend", b.name).Err(err).Msg("backend is down")
	}
	if srv.cfg.Health.Interval > 0 {
		line(0) // the health monitor dampens a backend that flaps: each change is worth a line
		return
	}
	o.said.say(line)
}

// summed adds how often a fault came unsaid.
func summed(e *zerolog.Event, more int) *zerolog.Event {
	if more > 0 {
		e.Int("repeated", more)
	}
	return e
}

// backendUp says that it is up again, and for how long it was not.
func (srv *Server) backendUp(b *backend) {
	o := &b.outage
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.silent && !o.since.IsZero() {
		srv.cfg.Log.Info().Str("backend", b.name).Dur("down_ms", time.Since(o.since)).
			Int("failed_dials", o.dials).Msg("backend is up again")
	}
	o.since, o.dials = time.Time{}, 0
}

// backupsServe says that no other backend is up, or that one is again.
func (srv *Server) backupsServe(begun bool) {
	if begun {
		srv.cfg.Log.Warn().Msg("no backend is up but backups: they serve")
		return
	}
	srv.cfg.Log.Info().Msg("backups serve no longer")
}
