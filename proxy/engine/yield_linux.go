package engine

import (
	"time"

	"golang.org/x/sys/unix"
)

// yielding has a loop of the ring that is mostly asleep give its processor to those who
// wait for it (sched_yield(2)) before it sleeps. Those are, on a machine that runs clients
// or backends too, often the very ones that it has just written to: the scheduler then
// seems to leave them where they are, where waking them needs no interrupt of another, idle
// processor, which is charged to the writer. Where nobody waits the call does nothing, for
// 0.3 µs of the 20 that a sleep costs. A loop that is busy does not yield: it would only
// sleep more often.
type yielding struct {
	slept, worked time.Duration // of late: a quarter of it goes with each wait
	since         time.Duration // when it slept or woke last
	rest          time.Duration // until when it does not yield
}

// Somebody who computes keeps the processor for a time slice, some milliseconds, in which
// the loop's clients wait. After a long time a loop does not yield for so many times that.
const (
	longYield = 100 * time.Microsecond
	restAfter = 500
)

// asleep begins a wait, and reports whether to yield first.
func (y *yielding) asleep(now time.Duration) bool {
	y.worked += now - y.since - y.worked/4
	y.since = now
	return now >= y.rest && y.slept > 2*y.worked
}

// awake ends it.
func (y *yielding) awake(now time.Duration) {
	y.slept += now - y.since - y.slept/4
	y.since = now
}

// yield gives the processor away, at now.
func (y *yielding) yield(l *loop, now time.Duration) {
	unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	y.yielded(now, time.Since(l.epoch))
}

func (y *yielding) yielded(now, back time.Duration) {
	if away := back - now; away > longYield {
		y.rest = back + restAfter*away
	}
}
