package engine

import (
	"sync"
	"sync/atomic"
	"time"
)

// grace is how long a wait of a drive is one for the likeliest thing only, and one
// without a time limit: twice this where nothing else waits, otherwise between once
// and twice. Most backends that many requests are made to answer within that, and
// nobody notices it who waits for the other things.
const grace = time.Millisecond

// pacer ends the waits that outlast their grace. One timer serves all drives of an
// engine, and runs while there are such waits: to set and to clear a deadline for each
// of them costs more, and the setting often wakes a thread.
type pacer struct {
	ticks atomic.Uint64

	mu     sync.Mutex
	timer  *time.Timer
	drives []*drive // that may be in such a wait
}

// add begins to pace d.
func (p *pacer) add(d *drive) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drives = append(p.drives, d)
	switch {
	case p.timer == nil:
		p.timer = time.AfterFunc(grace, p.tick)
	case len(p.drives) == 1:
		p.timer.Reset(grace)
	}
}

func (p *pacer) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.ticks.Add(1)
	kept := p.drives[:0]
	for _, d := range p.drives {
		if d.pace(now) {
			kept = append(kept, d)
		}
	}
	clear(p.drives[len(kept):])
	p.drives = kept
	if len(kept) > 0 {
		p.timer.Reset(grace)
	}
}

func (p *pacer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
	}
}

// paced is what the pacer knows of a drive, under its mu.
type paced struct {
	by     *pacer
	wait   want   // of the wait that is under way, or nothing
	since  uint64 // the tick at which the last wait began
	listed bool   // the pacer has the drive
	over   bool   // the wait has been ended
}

// waitBriefly waits for w until the grace is over, and reports false if nothing
// happened.
func (d *drive) waitBriefly(w want, s *Step) bool {
	d.beginGrace(w)
	o := d.attempt(w, s)
	d.endGrace(w)
	d.report(w, o)
	return o.happened() || d.pending.Load() != 0
}

func (d *drive) beginGrace(w want) {
	d.mu.Lock()
	d.paced.wait, d.paced.since = w, d.paced.by.ticks.Load()
	listed := d.paced.listed
	d.paced.listed = true
	d.mu.Unlock()
	if !listed {
		d.paced.by.add(d)
	}
}

func (d *drive) endGrace(w want) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.paced.over && d.pending.Load() == 0 {
		d.conn(w).setDeadline(w.isWrite(), time.Time{})
	}
	d.paced.wait, d.paced.over = nothing, false
}

// pace ends the wait of a drive that has lasted for the grace. It reports whether to
// come again.
func (d *drive) pace(now uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := &d.paced
	if now-p.since < 2 {
		return true
	}
	if w := p.wait; w != nothing {
		d.conn(w).endWait(w.isWrite())
		p.wait, p.over = nothing, true
	}
	p.listed = false
	return false
}
