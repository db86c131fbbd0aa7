package engine

import (
	"testing"
	"time"
)

func TestYielding(t *testing.T) {
	tests := []struct {
		name          string
		works, sleeps time.Duration // in each turn
		rest          time.Duration // from the beginning
		want          bool
	}{
		{"a loop that is mostly asleep yields", 10 * time.Microsecond, 100 * time.Microsecond, 0, true},
		{"a loop that works half of the time does not", 50 * time.Microsecond, 50 * time.Microsecond, 0, false},
		{"a loop that never sleeps for long does not", 100 * time.Microsecond, time.Microsecond, 0, false},
		{"nor does one that rests", 10 * time.Microsecond, 100 * time.Microsecond, time.Second, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			y := yielding{rest: tt.rest}
			now, got := time.Duration(0), false
			for range 100 {
				now += tt.works
				got = y.asleep(now)
				now += tt.sleeps
				y.awake(now)
			}
			if got != tt.want {
				t.Errorf("yields: %t, want %t", got, tt.want)
			}
		})
	}

	t.Run("a loop that becomes busy stops soon", func(t *testing.T) {
		var y yielding
		now, turns := time.Duration(0), 0
		for range 100 {
			y.asleep(now)
			now += time.Millisecond
			y.awake(now)
		}
		for now += 100 * time.Microsecond; y.asleep(now); turns++ {
			y.awake(now)
			now += 100 * time.Microsecond
		}
		if turns > 20 {
			t.Errorf("it yields for %d turns more", turns)
		}
	})
	t.Run("a time slice is given away rarely", func(t *testing.T) {
		y := yielding{slept: time.Hour}
		y.yielded(0, 3*time.Millisecond)
		if y.asleep(1400*time.Millisecond) || !y.asleep(1600*time.Millisecond) {
			t.Errorf("it rests until %v", y.rest)
		}
	})
}
