package proxy

import "time"

// alarm is the one timer for the deadlines of all who wait. Most are served long
// before, so it is set to the earliest deadline, and left alone when that one is
// served: under constant traffic it goes off about once in an acquire timeout.
type alarm struct {
	timer *time.Timer // nil before the first wait
	at    time.Time   // when it goes off; zero: it does not
}

// bringForward has ring called at t, if it would not be before.
func (a *alarm) bringForward(t time.Time, ring func()) {
	if !a.at.IsZero() && !t.Before(a.at) {
		return
	}
	a.at = t
	if a.timer == nil {
		a.timer = time.AfterFunc(time.Until(t), ring)
		return
	}
	a.timer.Reset(time.Until(t))
}

func (a *alarm) stop() {
	if a.timer != nil {
		a.timer.Stop()
	}
}

// expireAt sees to it that a wait ends at t. It is called with the lock held.
func (d *dispatcher) expireAt(t time.Time) { d.alarm.bringForward(t, d.expire) }

// expire ends the waits whose time is up, and has the next ones end in theirs.
func (d *dispatcher) expire() {
	d.mu.Lock()
	defer d.unlock()
	d.alarm.at = time.Time{}
	d.eachWaiter(func(w *waiter, now time.Time) (more bool) {
		if now.Before(w.deadline) {
			d.expireAt(w.deadline)
		} else {
			d.grant(w, choice{}, errAcquireTimeout)
		}
		return true
	})
}
