package pool

import (
	"math/rand/v2"
	"time"
)

// The back-off of the prober doubles from the first to the last of these. Each
// wait is drawn between 0 and the back-off (full jitter), so that many proxies
// do not come back to a backend in step.
const (
	firstBackoff = 100 * time.Millisecond
	lastBackoff  = 5 * time.Second
)

// down takes the backend out of the choice after a dial that began in epoch failed,
// and starts the prober. A dial that began before the backend last went down, or
// came up, tells nothing new.
func (p *Pool) down(epoch int64, err error) {
	p.health.Lock()
	defer p.health.Unlock()
	if p.epoch.Load() != epoch || p.probing {
		return
	}
	p.probing = true
	p.epoch.Add(1)
	p.generation.Add(1)
	p.cfg.Slots.Down(err)
	p.nudge() // closes the idle connections, which are of an older generation now
	p.wg.Go(p.probe)
}

// up puts the backend back. The next failure starts a new prober.
func (p *Pool) up() {
	p.health.Lock()
	defer p.health.Unlock()
	p.probing = false
	p.epoch.Add(1)
	p.cfg.Slots.Up()
}

// probe dials until it succeeds, one dial at a time. Its connection is the first
// idle one of the recovered backend.
func (p *Pool) probe() {
	for backoff := firstBackoff; p.pause(rand.N(backoff)); backoff = min(2*backoff, lastBackoff) {
		if !p.cfg.Slots.Probe() {
			continue // every slot is in use: nobody could dial anyway
		}
		errc := make(chan error, 1)
		p.create(true, func(_ *pooled, err error) { errc <- err })
		err := <-errc
		p.cfg.Slots.AheadDone(err == nil)
		if err == nil {
			p.up()
			p.TopUp()
			return
		}
		if p.ctx.Err() == nil && !IsLocal(err) {
			p.cfg.Slots.Down(err)
		}
	}
}
