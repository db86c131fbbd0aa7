package proxy

import (
	"time"

	"forebay/balance"
)

// Pause has no lease begin, anywhere, until Resume: clients are accepted and wait in the
// queue, each in its place, and with request pooling sessions wait between two requests.
// Leases that run go on to their end, and so do dials that clients wait for; what lies
// idle is closed, so that nothing is left of a backend that is about to be replaced. The
// acquire timeout of those who wait stands still; see Config.PauseTimeout. The queue is
// as long as ever. To pause twice is to pause once.
func (srv *Server) Pause() error {
	begun, err := srv.dispatcher.pause()
	if begun {
		srv.cfg.Log.Info().Msg("paused")
	}
	return err
}

// Resume ends a pause: those who wait are served in order, as far as there is room.
func (srv *Server) Resume() {
	if after := srv.dispatcher.resume(); after > 0 {
		srv.cfg.Log.Info().Dur("paused_ms", after).Msg("resumed")
	}
}

// pause reports whether there was no pause yet.
func (d *dispatcher) pause() (begun bool, err error) {
	d.mu.Lock()
	defer d.unlock()
	switch {
	case d.closed:
		return false, ErrServerClosed
	case !d.paused.IsZero():
		return false, nil
	}
	d.paused = time.Now()
	d.eachWaiter(func(w *waiter, now time.Time) (more bool) {
		w.standStill(now)
		return true
	})
	for _, b := range d.backends {
		if b != nil {
			d.tidy(b)
		}
	}
	return true, nil
}

// resume returns how long the pause was; 0: there was none.
func (d *dispatcher) resume() (after time.Duration) {
	d.mu.Lock()
	if d.paused.IsZero() {
		d.mu.Unlock()
		return 0
	}
	after = time.Since(d.paused)
	d.runOn()
	d.answerAll()
	d.unlock(d.backends...)
	return max(1, after)
}

// runOn ends the pause, with the lock held.
func (d *dispatcher) runOn() {
	d.paused = time.Time{}
	d.eachWaiter(func(w *waiter, now time.Time) (more bool) {
		w.runOn(now)
		d.expireAt(w.deadline)
		return true
	})
}

// standing is how the time of a waiter stands still: for so long its deadline is put
// off when it begins to stand, and what it did not need of that is taken back when it
// runs on.
type standing struct {
	left  time.Duration // how long it may still stand
	since time.Time
}

func (w *waiter) standStill(now time.Time) {
	w.standing.since = now
	w.deadline = w.deadline.Add(w.standing.left)
}

func (w *waiter) runOn(now time.Time) {
	s := &w.standing
	unused := s.left - min(s.left, now.Sub(s.since))
	w.deadline = w.deadline.Add(-unused)
	s.left = unused
}

// surplus returns how many idle connections are more than there may be.
func (d *dispatcher) surplus(b *backend) int {
	switch {
	case b.gone:
		return 0
	case !d.paused.IsZero():
		return d.bal.Count(b.index, balance.Idle)
	case d.lacksSlot(b):
		return max(1, d.bal.Surplus(b.index))
	}
	return d.bal.Surplus(b.index)
}
