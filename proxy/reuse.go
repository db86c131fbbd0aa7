package proxy

import (
	"time"

	"forebay/balance"
	"forebay/pool"
	"forebay/proxy/engine"
	"forebay/proxy/exchange"
)

// verdict decides whether the connection of a relay that ended may serve another
// client. It is the one place where that is decided, and says no unless it is
// sure.
//
// Raw bytes have no boundaries: a connection that a client has used may still
// owe that client a reply, and the next client would read it. So a connection is
// kept only where nothing has passed (untouched: it is as virgin as before).
//
// With quiet above 0 the operator has vouched that backends answer each request
// and keep no state between them, and a used connection is kept where all of
// this holds: the client ended with a FIN, which was withheld from the backend;
// the last byte that moved came from the backend; every byte taken from either
// side was delivered, and the backend's kernel has acknowledged all it was sent;
// nothing moved for quiet; nothing ever failed, and the backend has sent no FIN.
// That nothing waits to be read is looked at by the pool, now and again when the
// connection is leased. None of it proves that no reply is still to come.
func verdict(r engine.Result, quiet time.Duration) (keep, used bool) {
	if r.Untouched() && !r.Down.FIN && untouchable(r.End) {
		return true, false
	}
	clean := r.End == engine.Quiet &&
		r.Err == nil &&
		r.Up.FIN && !r.Up.FINSent &&
		!r.Down.FIN &&
		r.LastDown &&
		r.Up.Taken == r.Up.Moved && r.Down.Taken == r.Down.Moved && r.Unacked == 0 &&
		quiet > 0 && r.QuietFor >= quiet
	return clean, true
}

// untouchable reports whether a relay that ended so leaves its backend's
// connection alone. What ended because of that connection does not.
func untouchable(end engine.End) bool {
	switch end {
	case engine.Quiet, engine.ClientReset, engine.ClientFailed, engine.IdleTimeout:
		return true
	default:
		return false
	}
}

// reusable decides the same for a connection of request pooling, where it is known
// which bytes belong to which request. All of this must hold: no reply is
// outstanding, nor the quarantine of a oneway call, and no more of those were made
// than are remembered; both directions are at a message's end; nothing that came was
// other than what was asked for, and nothing ever failed, which includes the end of
// the connection. That nothing waits to be
// read, and that its time is not up, is looked at by the pool, now and again when
// the connection is leased.
func reusable(f exchange.Facts) bool {
	return f.Outstanding == 0 && !f.Crowded && !f.MidRequest && !f.MidReply && f.Fault == exchange.NoFault
}

// releaseRequests ends a lease as reusable allows, and counts what was wrong with it.
func (srv *Server) releaseRequests(l *lease, f exchange.Facts) {
	l.backend.traffic.results[f.Fault].Add(1)
	if f.Fault != exchange.NoFault {
		srv.requests.faults[f.Fault].Add(1)
	}
	if abandoned(f) {
		l.conn().Abort()
	}
	switch {
	case reusable(f):
		srv.keep(l, f.Used)
	case f.Fault == exchange.Stale:
		srv.discard(l, pool.BackendClosed)
	case f.Fault == exchange.StrayBytes, f.Fault == exchange.OnewayAnswered:
		srv.discard(l, pool.StrayBytes)
	case f.Fault != exchange.NoFault && f.Fault != exchange.Interrupted && f.Fault != exchange.UnfinishedWrite:
		srv.discard(l, pool.Failed)
	default:
		srv.discard(l, pool.Used)
	}
}

// The pauses of a lease whose last oneway calls the backend's kernel has not taken,
// and how long there may be some.
const (
	firstArrivalPause = time.Millisecond
	lastArrivalPause  = 20 * time.Millisecond
	arrivalTime       = time.Second
)

// releaseArrived is releaseRequests once all that was written has arrived. It waits for
// that, and has a goroutine.
func (srv *Server) releaseArrived(l *lease, f exchange.Facts) {
	if !srv.arrived(l.conn()) {
		f.Fault = exchange.UnreadRequest
	}
	srv.releaseRequests(l, f)
}

// arrived waits until the backend's kernel has all that was written, and reports
// whether it has. No reply shows it after a oneway call, and what it has not taken
// keeps the connection open there when its slot is free already.
func (srv *Server) arrived(c engine.Conn) bool {
	end := time.Now().Add(arrivalTime)
	for pause := firstArrivalPause; c.Unacked() > 0; pause = min(2*pause, lastArrivalPause) {
		if time.Now().After(end) || srv.cutCtx.Err() != nil {
			return false
		}
		time.Sleep(pause)
	}
	return true
}

// abandoned reports whether the backend may still be at work on what nobody waits
// for any more, or has yet to read it. Then a reset ends the connection there too,
// where a FIN would leave it open, beside those that take its slot. Oneway calls that
// may lie unread in front of a plain end are not for a reset to discard.
func abandoned(f exchange.Facts) bool {
	switch f.Fault {
	case exchange.NoFault, exchange.OnewayAnswered, exchange.BadException, exchange.BackendEnded, exchange.Stale:
		return f.MidRequest || f.MidReply
	}
	return true
}

// release ends a lease as its relay allows.
func (srv *Server) release(l *lease, r engine.Result) {
	keep, used := verdict(r, srv.cfg.ReuseQuiet)
	switch {
	case keep:
		srv.keep(l, used)
	case r.End == engine.Stale:
		srv.discard(l, pool.BackendClosed)
	case r.End == engine.BackendReset, r.End == engine.BackendFailed:
		srv.discard(l, pool.Failed)
	default:
		srv.discard(l, pool.Used)
	}
}

// keep gives a connection back to its pool, if that will have it.
func (srv *Server) keep(l *lease, used bool) {
	if l.backend.checkWaits.Load() && srv.dispatcher.closesForCheck(l.backend) {
		l.Close(pool.Surplus)
		srv.dispatcher.move(l.backend, balance.Closing, balance.Free)
		return
	}
	if l.Keep(used) {
		srv.dispatcher.move(l.backend, balance.Leased, balance.Idle)
		return
	}
	srv.dispatcher.move(l.backend, balance.Leased, balance.Free)
}

// discard closes a connection; its slot is free after that.
func (srv *Server) discard(l *lease, reason pool.Reason) {
	srv.dispatcher.move(l.backend, balance.Leased, balance.Closing)
	l.Close(reason)
	srv.dispatcher.move(l.backend, balance.Closing, balance.Free)
}
