//go:build unix

package engine

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

var litter []byte

// TestTrim looks at when garbage is collected: in quiet, where there is some, and not
// soon again.
func TestTrim(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for _, tt := range []struct {
		name              string
		garbage           int
		used, rest        time.Duration
		collects, watches bool
	}{
		{"no garbage", 0, 0, 0, false, false},
		{"load", 2 << 20, trimTick, 0, false, true},
		{"rest", 2 << 20, 0, time.Hour, false, true},
		{"quiet", 2 << 20, 0, 0, true, false},
	} {
		runtime.GC()
		litter = make([]byte, tt.garbage)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		tr := &trimmer{used: processorTime() - tt.used, rest: time.Now().Add(tt.rest)}
		tr.watching.Store(true)
		tr.tick()
		runtime.ReadMemStats(&after)
		if collected := after.NumForcedGC > before.NumForcedGC; collected != tt.collects {
			t.Errorf("%s: collected %v, want %v", tt.name, collected, tt.collects)
		}
		if tr.watching.Load() != tt.watches {
			t.Errorf("%s: watches on %v, want %v", tt.name, !tt.watches, tt.watches)
		}
	}
}
