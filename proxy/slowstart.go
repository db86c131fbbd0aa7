package proxy

import "time"

// startSteps is in how many steps a slow start raises what a backend may have.
const startSteps = 20

// backendRises begins the slow start of a backend that has come up, for the time in
// which nothing changes that. It is called with the dispatcher's lock.
func (srv *Server) backendRises(b *backend, ups int) {
	if srv.cfg.Health.SlowStart <= 0 {
		return
	}
	srv.dispatcher.startStep(b, 1)
	srv.pools.Go(func() { srv.startSlowly(b, ups) })
}

// startSlowly raises what a backend may have, step by step.
func (srv *Server) startSlowly(b *backend, ups int) {
	tick := time.NewTicker(max(1, srv.cfg.Health.SlowStart/startSteps))
	defer tick.Stop()
	for step := 2; step <= startSteps; step++ {
		select {
		case <-b.life.Done():
			return
		case <-tick.C:
		}
		if !srv.dispatcher.starts(b, ups, step) {
			return
		}
	}
}

// starts makes a step of a slow start. It reports false where that is over.
func (d *dispatcher) starts(b *backend, ups, step int) bool {
	d.mu.Lock()
	if b.gone || b.ups != ups {
		d.mu.Unlock()
		return false
	}
	d.startStep(b, step)
	d.serve()
	d.unlock(b)
	return true
}

// startStep gives a backend its part of max, with the lock held.
func (d *dispatcher) startStep(b *backend, step int) {
	limit := 0 // all of it
	if step < startSteps {
		limit = max(1, b.Max*step/startSteps)
	}
	d.bal.SetLimit(b.index, limit)
}
