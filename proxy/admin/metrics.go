package admin

import (
	"log"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"
)

// Metrics are what Prometheus scrapes. Counters and gauges are read from the proxy's
// snapshot when they are scraped, so that no number is kept in two places; only the
// histograms are filled as things happen: Metrics is the proxy.Observer for that.
type Metrics struct {
	registry  *prometheus.Registry
	queueWait prometheus.Histogram
	requests  *prometheus.HistogramVec // by backend
	source    atomic.Pointer[source]   // nil before New

	mu   sync.Mutex
	seen map[string]bool // the backends of requests: whether a snapshot has had them
}

// source is where the snapshot is from.
type source struct{ pools func() Pools }

// queueWaits and requestTimes are the upper bounds of the histograms' buckets, in
// seconds: around the acquire timeout of 3 s, and around the times of RPC calls.
var (
	queueWaits   = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2, 3, 5, 10, 30}
	requestTimes = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
)

// NewMetrics returns the metrics of one proxy, whose numbers they have once they are
// given to New. version and engine are what forebay_build_info tells.
func NewMetrics(version, engine string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		queueWait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "forebay_queue_wait_seconds", Buckets: queueWaits,
			Help: "How long clients, or requests, waited in the queue for a lease, those refused in the end included.",
		}),
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "forebay_request_seconds", Buckets: requestTimes,
			Help: "How long requests took from their lease until their reply was read, by backend.",
		}, []string{"backend"}),
		seen: make(map[string]bool),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "forebay_build_info", Help: "Always 1; the labels tell which forebay this is, and the engine that moves its bytes.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version(), "engine": engine},
	})
	build.Set(1)
	m.registry.MustRegister(m, build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// QueueWaited observes a wait in the queue that has ended.
func (m *Metrics) QueueWaited(d time.Duration) { m.queueWait.Observe(d.Seconds()) }

// Requests returns what observes how long the requests of a backend took. Asked for
// again, it begins anew: the backend has been removed and added since.
func (m *Metrics) Requests(backend string) func(time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests.DeleteLabelValues(backend)
	m.seen[backend] = false
	h := m.requests.WithLabelValues(backend)
	return func(d time.Duration) { h.Observe(d.Seconds()) }
}

// forget drops the histograms of the backends that were in a snapshot before this one
// and are not in it. One that no snapshot has had was added just now.
func (m *Metrics) forget(p Pools) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := make(map[string]bool, len(p.Backends))
	for _, b := range p.Backends {
		now[b.Name] = true
	}
	for name, seen := range m.seen {
		if seen && !now[name] {
			m.requests.DeleteLabelValues(name)
			delete(m.seen, name)
		} else {
			m.seen[name] = seen || now[name]
		}
	}
}

// handler answers a scrape. What cannot be told is left out, and logged.
func (m *Metrics) handler(l zerolog.Logger) http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorLog: log.New(warnings{l}, "", 0), ErrorHandling: promhttp.ContinueOnError})
}

// Describe and Collect make Metrics a prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descs {
		ch <- d
	}
	m.queueWait.Describe(ch)
	m.requests.Describe(ch)
}

// Collect takes one snapshot for all that it sends.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	if s := m.source.Load(); s != nil {
		p := s.pools()
		m.forget(p)
		collect(p, ch)
	}
	m.queueWait.Collect(ch)
	m.requests.Collect(ch)
}

// descs are the metrics of the snapshot.
var descs []*prometheus.Desc

func desc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(name, help, labels, nil)
	descs = append(descs, d)
	return d
}

var (
	sessionsTotal   = desc("forebay_sessions_total", "Sessions that ended, by reason.", "reason")
	sessionsNow     = desc("forebay_sessions", "Sessions open now.")
	requestsTotal   = desc("forebay_requests_total", "Requests given to a backend that ended, by result.", "backend", "result")
	bytesTotal      = desc("forebay_bytes_total", "Bytes delivered: up to the backend, down to its clients.", "backend", "direction")
	poolConnections = desc("forebay_pool_connections", "Connections of the pool, by state.", "backend", "state")
	poolMax         = desc("forebay_pool_max", "Connections that the pool may have open at once, in whatever state.", "backend")
	queueLength     = desc("forebay_queue_length", "Clients, or requests, that wait for a lease now.")
	dialsTotal      = desc("forebay_dials_total", "Dials that ended, by result.", "backend", "result")
	closesTotal     = desc("forebay_closes_total", "Connections that the pool closed, by reason.", "backend", "reason")
	backendUp       = desc("forebay_backend_up", "Whether the backend may be picked, as far as its health goes: 1 or 0.", "backend")
	desyncTotal     = desc("forebay_desync_total", "Times that a backend sent what no request asked for; nobody got it. It should stay 0.")
)

// collect sends the metrics of a snapshot.
func collect(p Pools, ch chan<- prometheus.Metric) {
	gauge, counter := sender(ch, prometheus.GaugeValue), sender(ch, prometheus.CounterValue)
	for reason, n := range p.Ended {
		counter(sessionsTotal, n, reason)
	}
	gauge(sessionsNow, int64(p.Sessions))
	gauge(queueLength, int64(p.Queue.Length))
	counter(desyncTotal, p.Desyncs)
	for _, b := range p.Backends {
		collectBackend(b, gauge, counter)
	}
}

// send sends one value, with the values of its labels.
type send func(d *prometheus.Desc, n int64, labels ...string)

func sender(ch chan<- prometheus.Metric, t prometheus.ValueType) send {
	return func(d *prometheus.Desc, n int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, float64(n), labels...)
	}
}

func collectBackend(b Backend, gauge, counter send) {
	for result, n := range b.Results {
		counter(requestsTotal, n, b.Name, result)
	}
	counter(bytesTotal, b.BytesUp, b.Name, "up")
	counter(bytesTotal, b.BytesDown, b.Name, "down")
	gauge(poolConnections, int64(b.Leased), b.Name, "leased")
	gauge(poolConnections, int64(b.Idle), b.Name, "idle")
	gauge(poolConnections, int64(b.Dialing), b.Name, "dialing")
	gauge(poolConnections, int64(b.Closing), b.Name, "closing")
	gauge(poolMax, int64(b.Max), b.Name)
	counter(dialsTotal, b.Dialed, b.Name, "ok")
	counter(dialsTotal, b.DialErrors, b.Name, "error")
	for reason, n := range b.Closes {
		counter(closesTotal, n, b.Name, reason)
	}
	gauge(backendUp, one(b.Up), b.Name)
}

func one(yes bool) int64 {
	if yes {
		return 1
	}
	return 0
}
