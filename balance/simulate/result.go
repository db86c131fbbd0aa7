package simulate

import (
	"math"
	"slices"
	"time"

	"forebay/balance"
)

// A Result is what a strategy made of a scenario. Served and Refused together are all
// that arrived.
type Result struct {
	Strategy balance.Strategy
	Served   int
	Refused  int // by the acquire timeout, or a full queue

	// Wait is the time from the arrival until a worker of a backend begins with the
	// request: in the queue of the proxy, in that of the backend, and until a stalled
	// backend goes on. Response is the time from the arrival until the request is done.
	// Both are of those that were served.
	Wait, Response Times

	// PeakLoad is the highest active/max of any backend at any time, and Peak the first
	// backend that had it.
	PeakLoad float64
	Peak     int

	// Fairness is the index of Jain, Chiu and Hawe (A Quantitative Measure of Fairness
	// and Discrimination, 1984) over the utilisations of the backends: (Σx)² / nΣx². It is
	// 1 where all are equally utilised, and 1/n where one does everything. 0: nothing
	// was served.
	Fairness float64

	Backends []BackendResult

	// Waiting is how many were in the queue of the proxy, on average over each Step of
	// the scenario's duration.
	Waiting []float64
	Step    time.Duration
}

// Times sum up a number of durations. They are 0 where there are none.
type Times struct {
	Mean, P50, P99, Max time.Duration
}

// A BackendResult is what a strategy made of one backend.
type BackendResult struct {
	Served int // requests
	Peak   int // the most slots that were in use at once

	// Utilisation is the work that it was given over what it can do in the scenario's
	// duration without a stall. Above 1, some was done later.
	Utilisation float64

	// Active is how many slots were in use, on average over each Step.
	Active []float64
}

func (r *run) result(s balance.Strategy) Result {
	res := Result{Strategy: s, Served: len(r.waits), Refused: r.refused,
		Wait: timesOf(r.waits), Response: timesOf(r.responses),
		Waiting: r.waiting.means(), Step: r.waiting.step}
	for i, s := range r.servers {
		be := BackendResult{Served: s.served, Peak: r.bal.Load(i).PeakLeased, Active: s.active.means(),
			Utilisation: s.given.Seconds() / s.capacity() / r.Duration.Seconds()}
		res.Backends = append(res.Backends, be)
		if load := float64(be.Peak) / float64(s.Max); load > res.PeakLoad {
			res.PeakLoad, res.Peak = load, i
		}
	}
	res.Fairness = fairness(res.Backends)
	return res
}

// fairness is Jain's index.
func fairness(backends []BackendResult) float64 {
	var sum, squares float64
	for _, be := range backends {
		sum += be.Utilisation
		squares += be.Utilisation * be.Utilisation
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(backends)) * squares)
}

// timesOf sums ds up, and sorts it. A percentile is the lowest that so many are not above.
func timesOf(ds []time.Duration) Times {
	if len(ds) == 0 {
		return Times{}
	}
	slices.Sort(ds)
	var sum float64
	for _, d := range ds {
		sum += float64(d)
	}
	at := func(share float64) time.Duration { return ds[int(math.Ceil(share*float64(len(ds))))-1] }
	return Times{Mean: span(sum / float64(len(ds))), P50: at(0.50), P99: at(0.99), Max: ds[len(ds)-1]}
}

// Round returns d with three digits: enough to compare by, and no more than is sure.
func Round(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}

// steps is into how many a scenario's duration is divided, to see how a number changes.
const steps = 100

// level is a number that changes in time, and its average over each step of a duration.
type level struct {
	duration time.Duration
	step     time.Duration
	sums     []float64 // of the number times nanoseconds, by step
	now      int
	since    time.Duration
}

func newLevel(duration time.Duration) level { return newLevelBy(duration, (duration+steps-1)/steps) }

// newLevelBy has a last step that ends with the duration.
func newLevelBy(duration, step time.Duration) level {
	return level{duration: duration, step: step, sums: make([]float64, (duration+step-1)/step)}
}

// set has the number be n from t on.
func (l *level) set(t time.Duration, n int) {
	for end := min(t, l.duration); l.since < end; {
		i := l.since / l.step
		until := min(end, (i+1)*l.step)
		l.sums[i] += float64(l.now) * float64(until-l.since)
		l.since = until
	}
	l.now = n
}

// means returns the averages.
func (l *level) means() []float64 {
	l.set(l.duration, l.now)
	means := make([]float64, len(l.sums))
	for i, sum := range l.sums {
		means[i] = sum / float64(min(l.step, l.duration-time.Duration(i)*l.step))
	}
	return means
}
