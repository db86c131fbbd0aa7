package loadtest

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latency is the distribution of the times to a right reply; requests that
// failed are not in it. All are 0 when there was no reply. Percentiles are
// exact to 3 digits, up to 60 seconds.
type Latency struct {
	P50, P90, P99, P999, Max, Mean time.Duration
}

// longestLatency is the highest value that a percentile can tell from others.
const longestLatency = time.Minute

// A recorder gathers the latencies of all clients.
type recorder struct {
	mu   sync.Mutex
	hist *hdrhistogram.Histogram // of microseconds
	sum  float64                 // nanoseconds
	max  time.Duration
}

func newRecorder() *recorder {
	return &recorder{hist: hdrhistogram.New(1, longestLatency.Microseconds(), 3)}
}

func (r *recorder) add(batch []time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range batch {
		r.sum += float64(d)
		r.max = max(r.max, d)
		// A value within the bounds of the histogram is never refused.
		_ = r.hist.RecordValue(min(max(d, time.Microsecond), longestLatency).Microseconds())
	}
}

func (r *recorder) latency() Latency {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.hist.TotalCount()
	if n == 0 {
		return Latency{}
	}
	return Latency{
		P50:  r.quantile(50),
		P90:  r.quantile(90),
		P99:  r.quantile(99),
		P999: r.quantile(99.9),
		Max:  r.max,
		Mean: time.Duration(r.sum / float64(n)),
	}
}

// quantile needs the lock. The histogram answers with the upper end of a range
// of values, which may lie above all that were seen.
func (r *recorder) quantile(q float64) time.Duration {
	return min(time.Duration(r.hist.ValueAtQuantile(q))*time.Microsecond, r.max)
}

// A batch holds the latest latencies of one client. A histogram for each of
// ten thousand clients would take 1.4 GB; batches take 1 KiB each, and the
// lock of the shared histogram once in so many requests.
type batch struct {
	to  *recorder
	n   int
	lat [128]time.Duration
}

func (b *batch) add(d time.Duration) {
	b.lat[b.n] = d
	b.n++
	if b.n == len(b.lat) {
		b.flush()
	}
}

func (b *batch) flush() {
	b.to.add(b.lat[:b.n])
	b.n = 0
}
