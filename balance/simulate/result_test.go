package simulate

import (
	"container/heap"
	"slices"
	"testing"
	"time"
)

func TestAStallStopsWhatIsBegunAndHoldsBackWhatIsNot(t *testing.T) {
	tests := []struct {
		name         string
		at, work     time.Duration
		speed        float64
		begun, ended time.Duration
	}{
		{name: "done before", at: 0, work: 9, begun: 0, ended: 9},
		{name: "done as it begins", at: 0, work: 10, begun: 0, ended: 10},
		{name: "stopped", at: 5, work: 10, begun: 5, ended: 20},
		{name: "held back", at: 10, work: 3, begun: 15, ended: 18},
		{name: "held back at the end of it", at: 14, work: 3, begun: 15, ended: 18},
		{name: "after", at: 15, work: 3, begun: 15, ended: 18},
		{name: "stopped at half the speed", at: 5, work: 4, speed: 0.5, begun: 5, ended: 18},
		{name: "done before at twice the speed", at: 5, work: 10, speed: 2, begun: 5, ended: 10},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := &server{Backend: Backend{Speed: tt.speed, Stall: Stall{From: 10, For: 5}}.withDefaults()}
			if begun, ended := s.work(tt.at, tt.work); begun != tt.begun || ended != tt.ended {
				t.Errorf("from %d to %d, want from %d to %d", begun, ended, tt.begun, tt.ended)
			}
		})
	}
}

func TestPercentilesAreTheLowestThatSoManyAreNotAbove(t *testing.T) {
	count := func(n int) []time.Duration { // n to 1
		ds := make([]time.Duration, n)
		for i := range ds {
			ds[i] = time.Duration(n - i)
		}
		return ds
	}
	tests := []struct {
		name string
		ds   []time.Duration
		want Times
	}{
		{name: "none", ds: nil, want: Times{}},
		{name: "one", ds: count(1), want: Times{Mean: 1, P50: 1, P99: 1, Max: 1}},
		{name: "two", ds: count(2), want: Times{Mean: 2, P50: 1, P99: 2, Max: 2}},
		{name: "a hundred", ds: count(100), want: Times{Mean: 51, P50: 50, P99: 99, Max: 100}},
		{name: "two hundred", ds: count(200), want: Times{Mean: 101, P50: 100, P99: 198, Max: 200}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := timesOf(tt.ds); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestRoundLeavesThreeDigits(t *testing.T) {
	tests := map[time.Duration]string{0: "0s", 999: "999ns", 1234: "1.23µs", 19349321: "19.3ms", 999600000: "1s", 3973100000: "3.97s"}
	for d, want := range tests {
		if got := Round(d).String(); got != want {
			t.Errorf("%d is %s, want %s", d, got, want)
		}
	}
}

func TestFairnessIsJains(t *testing.T) {
	tests := []struct {
		name         string
		utilisations []float64
		want         float64
	}{
		{name: "nothing", utilisations: []float64{0, 0}, want: 0},
		{name: "one backend", utilisations: []float64{0.3}, want: 1},
		{name: "all equal", utilisations: []float64{0.5, 0.5, 0.5}, want: 1},
		{name: "one does everything", utilisations: []float64{0, 0.5, 0, 0}, want: 0.25},
		{name: "1 and 3", utilisations: []float64{1, 3}, want: 0.8},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var backends []BackendResult
			for _, u := range tt.utilisations {
				backends = append(backends, BackendResult{Utilisation: u})
			}
			if got := fairness(backends); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestALevelIsItsAverageOverEachStep(t *testing.T) {
	type set struct {
		at time.Duration
		n  int
	}
	tests := []struct {
		name     string
		duration time.Duration
		step     time.Duration
		sets     []set
		want     []float64
	}{
		{name: "never set", duration: 2, step: 1, want: []float64{0, 0}},
		{name: "within a step", duration: 10, step: 10, sets: []set{{2, 5}, {4, 0}}, want: []float64{1}},
		{name: "over steps", duration: 30, step: 10, sets: []set{{5, 2}, {25, 0}}, want: []float64{1, 2, 1}},
		{name: "to the end", duration: 20, step: 10, sets: []set{{15, 4}}, want: []float64{0, 2}},
		{name: "beyond the end", duration: 20, step: 10, sets: []set{{15, 4}, {100, 7}, {120, 0}}, want: []float64{0, 2}},
		{name: "a last step that is cut", duration: 15, step: 10, sets: []set{{0, 3}}, want: []float64{3, 3}},
		{name: "beyond a last step that is cut", duration: 15, step: 10, sets: []set{{0, 3}, {40, 0}}, want: []float64{3, 3}},
		{name: "twice at the same time", duration: 10, step: 10, sets: []set{{5, 9}, {5, 2}}, want: []float64{1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLevelBy(tt.duration, tt.step)
			for _, s := range tt.sets {
				l.set(s.at, s.n)
			}
			if got := l.means(); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestStepsCoverTheDuration(t *testing.T) {
	for _, d := range []time.Duration{1, 7, steps - 1, steps, steps + 1, time.Second, 20*time.Second + 1} {
		l := newLevel(d)
		if n := len(l.sums); n < 1 || n > steps || time.Duration(n)*l.step < d || time.Duration(n-1)*l.step >= d {
			t.Errorf("%v has %d steps of %v", d, n, l.step)
		}
	}
}

func TestAFifoKeepsTheOrder(t *testing.T) {
	var q fifo[int]
	in, out := 0, 0
	for round := range 50 {
		for range round % 7 {
			q.push(in)
			in++
		}
		for range min(q.len(), round%5) {
			if x := q.oldest(); x != out {
				t.Fatalf("the oldest is %d, want %d", x, out)
			}
			if x := q.pop(); x != out {
				t.Fatalf("popped %d, want %d", x, out)
			}
			out++
		}
		if q.len() != in-out {
			t.Fatalf("length %d, want %d", q.len(), in-out)
		}
		if len(q.items) > 2*q.len()+1 {
			t.Fatalf("keeps %d places for %d", len(q.items), q.len())
		}
	}
}

func TestWorksEndInTime(t *testing.T) {
	var works endings
	for _, e := range []struct{ at, arrived time.Duration }{{9, 1}, {5, 4}, {5, 2}, {5, 3}, {7, 0}} {
		heap.Push(&works, ending{at: e.at, request: &request{arrived: e.arrived}})
	}
	var got []time.Duration
	for len(works) > 0 {
		e := heap.Pop(&works).(ending)
		got = append(got, e.at, e.arrived)
	}
	if want := []time.Duration{5, 2, 5, 3, 5, 4, 7, 0, 9, 1}; !slices.Equal(got, want) {
		t.Errorf("ends, and arrivals of those that end: %d, want %d", got, want)
	}
}

func TestZeroOfABackendIsItsDefault(t *testing.T) {
	got := Backend{Max: 7}.withDefaults()
	if want := (Backend{Max: 7, Weight: 1, Workers: 7, Speed: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	all := Backend{Name: "a", Max: 1, Weight: 2, Workers: 3, Speed: 4, Stall: Stall{From: 5, For: 6}}
	if got := all.withDefaults(); got != all {
		t.Errorf("got %+v, want %+v", got, all)
	}
}
