package pool

import (
	"math"
	"sync"
	"time"
)

// TopUp begins to dial connections ahead, as many as are wanted and there is room
// for. The pool calls it as it goes; a caller does when it has freed a slot.
func (p *Pool) TopUp() {
	if p.ctx.Err() != nil || !p.rest.over().IsZero() {
		return
	}
	want := p.wanted(time.Now())
	for want > 0 && p.rest.unless(func() bool { return p.cfg.Slots.Ahead(want) }) {
		p.create(true, p.dialedAhead)
	}
}

func (p *Pool) wanted(now time.Time) int {
	if p.cfg.MinIdle >= 0 {
		return p.cfg.MinIdle
	}
	return p.demand.wanted(now, p.cfg.VirginTimeout)
}

func (p *Pool) dialedAhead(_ *pooled, err error) {
	if IsLocal(err) {
		p.rest.begin(time.Now()) // before the slot is free for the next one
	}
	p.cfg.Slots.AheadDone(err == nil)
	// The next one, where more are wanted than may be dialed at once. After an
	// error there is none, unless the dial began before an outage that is over.
	p.TopUp()
	p.sweepAt(p.rest.over())
}

// rateMemory is how fast the arrival rate forgets: a burst counts for a third
// after this.
const rateMemory = time.Second

// demand learns how many connections are worth having ahead. Clients that come
// at a rate r while a dial takes d find their connection ready if r×d are on
// their way; arrivals are bunched, so two standard deviations are added (of a
// Poisson count: the root of its mean).
type demand struct {
	mu       sync.Mutex
	last     time.Time // of the newest arrival
	rate     float64   // arrivals/s at last, each forgotten exponentially
	dialTime float64   // seconds; moving average over about eight dials
}

// note counts an arrival.
func (d *demand) note(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rate = d.rateAt(now) + 1/rateMemory.Seconds()
	d.last = now
}

// dialed learns the time of a dial.
func (d *demand) dialed(took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dialTime == 0 {
		d.dialTime = took.Seconds()
		return
	}
	d.dialTime += (took.Seconds() - d.dialTime) / 8
}

// wanted returns how many connections to have ahead: at least one, and none once
// nobody came for quiet.
func (d *demand) wanted(now time.Time, quiet time.Duration) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last.IsZero() || now.Sub(d.last) >= quiet {
		return 0
	}
	mean := d.rateAt(now) * d.dialTime
	return max(1, int(math.Ceil(mean+2*math.Sqrt(mean))))
}

func (d *demand) rateAt(now time.Time) float64 {
	return d.rate * math.Exp(-now.Sub(d.last).Seconds()/rateMemory.Seconds())
}
