//go:build unix

package engine

import (
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The memory that a burst of clients leaves is given back when the process has become
// quiet. The runtime would keep it: it collects garbage once as much has been allocated
// as lives, which without new clients is never (but for every two minutes), and most of
// what that frees it holds for the next burst.
//
// A collection costs some milliseconds. One is made only where there is much garbage in
// proportion to what lives, never under load, and not often. Without clients that come
// there is nothing to look at, and no timer goes off.
const (
	trimTick  = 250 * time.Millisecond
	trimQuiet = trimTick / 10 // processor time in a tick: 10 % of one
	trimRest  = time.Second   // after a collection
	trimShare = 100           // or so many times what it took, if that is longer
	trimLeast = 512 << 10     // bytes of garbage
	trimPart  = 8             // and one in so many of what lives
)

// trimmer is a listener that gives memory back after its clients have come.
type trimmer struct {
	Listener
	Handler // of the listener

	watching atomic.Bool // a tick will come
	used     time.Duration
	rest     time.Time // until then
}

// Trimming returns ln, and has memory given back.
func Trimming(ln Listener) Listener { return &trimmer{Listener: ln} }

func (t *trimmer) Serve(h Handler) {
	t.Handler = h
	t.Listener.Serve(t)
}

// Accepted has it looked at soon what the client leaves.
func (t *trimmer) Accepted(c Conn) {
	if !t.watching.Load() && t.watching.CompareAndSwap(false, true) {
		t.used = processorTime()
		time.AfterFunc(trimTick, t.tick)
	}
	t.Handler.Accepted(c)
}

// tick comes until the process is quiet.
func (t *trimmer) tick() {
	used := processorTime()
	quiet := used-t.used < trimQuiet
	t.used = used
	rest := time.Until(t.rest)
	switch {
	case !quiet:
		time.AfterFunc(trimTick, t.tick)
	case !worthIt():
		t.watching.Store(false)
	case rest > 0:
		time.AfterFunc(rest, t.tick)
	default:
		debug.FreeOSMemory()
		t.rest = time.Now().Add(max(trimRest, trimShare*(processorTime()-used)))
		t.watching.Store(false)
	}
}

// worthIt reports whether much has been allocated since the last collection.
func worthIt() bool {
	samples := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(samples)
	objects, live := samples[0].Value.Uint64(), samples[1].Value.Uint64()
	return objects >= live+max(trimLeast, live/trimPart)
}

// processorTime is what the process has used, of all its threads.
func processorTime() time.Duration {
	var u unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
