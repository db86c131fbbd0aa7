package e2e

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"forebay/proxy/loadtest"
	"forebay/proxy/proxytest"
)

// How the backends are checked while one of them breaks: often, so that the test is
// short, and with more time for an answer than a busy machine takes.
const (
	checkEvery   = 400 * time.Millisecond
	checkTimeout = 400 * time.Millisecond
	checkFall    = 3
	slowStart    = 2 * time.Second
)

// untilDown is what it may take until a backend that broke is down: as many checks as
// make it so, one interval apart, the timeout of the last, and what a busy machine adds.
const untilDown = checkFall*checkEvery + checkTimeout + 2*time.Second

// chaosMax is how many connections each backend may have.
const chaosMax = 8

// A trouble is what befalls one of the backends.
type trouble struct {
	addr       string // of the backend
	begin, end func(t *testing.T)

	// lost bounds the errors that clients see, in all. What was out on the backend
	// when it broke may be lost, and what went out to it until it was down. Each of
	// these holds a connection for as long as its client is patient, which is untilDown
	// at least: so no connection fails two clients, and lost is max. It is 0 where the
	// backend answers in the end, before their patience is over.
	lost int64
}

// TestChaos breaks one of three backends under load, in each way in which they break,
// and heals it. Those of one protocol are broken at the same time, each behind a forebay
// of its own.
func TestChaos(t *testing.T) {
	kinds := map[string]func(*testing.T, string) trouble{
		"killed": killed, "stopped": stopped, "black-holed": blackHoled, "slow": slow}
	for _, protocol := range []string{"raw", "thrift"} {
		t.Run(protocol, func(t *testing.T) {
			var wg sync.WaitGroup
			defer wg.Wait()
			for name, kind := range kinds {
				wg.Go(func() { t.Run(name, func(t *testing.T) { testChaos(t, protocol, kind(t, protocol)) }) })
			}
		})
	}
}

func testChaos(t *testing.T, protocol string, trouble trouble) {
	f := serveChaos(t, protocol, trouble.addr)
	f.load(t, 100)
	before := f.atRest(t)

	end := f.begin(t)
	trouble.begin(t)
	broke := time.Now()
	down := f.says(t, "backend is down", broke)
	if down > untilDown {
		t.Errorf("it was down after %v, want %v at most: %+v", down, untilDown, f.broken(t).Health)
	}
	f.isAvoided(t)
	if trouble.lost > 0 {
		proxytest.Eventually(t, "clients to leave the backend", func() bool { return f.broken(t).Leased == 0 })
	}
	left := f.broken(t).Leased
	healed := time.Now()
	trouble.end(t)
	up := f.says(t, "backend is up again", healed)
	f.startsSlowly(t, left)
	sum := end(t)
	f.errors(t, sum, trouble.lost)
	f.load(t, 500)
	f.addsUp(t, before)
	t.Logf("down after %v, up after %v; of %d requests %d failed %v; p99 %v (sessions on the others: %v)",
		down.Round(time.Millisecond), up.Round(time.Millisecond), sum.Requests, sum.Errors, sum.byKind, sum.p99, sum.others)
}

// isAvoided makes a load that loses nothing, and nothing of it comes to the backend
// that is down.
func (f *chaos) isAvoided(t *testing.T) {
	t.Helper()
	f.load(t, 50) // a dial that had been decided on before has begun by now
	before := f.broken(t)
	f.load(t, 200)
	after := f.broken(t)
	if after.Dials != before.Dials || after.Reused != before.Reused || after.State != "down" {
		t.Errorf("the backend that is down was given %d dials and %d leases, and is %s now",
			after.Dials-before.Dials, after.Reused-before.Reused, after.State)
	}
}

// startsSlowly watches a backend come back: until it has a share again, it has never
// more than slow start allows. Of those that never left it there are left.
func (f *chaos) startsSlowly(t *testing.T, left int) {
	t.Helper()
	const share = 3 // of 15 clients, a third of whom would be its part
	proxytest.Eventually(t, "its share of the load", func() bool {
		b := f.broken(t)
		since := time.Duration(b.Health.SinceMS * float64(time.Millisecond))
		step := 1 + int(since/(slowStart/20))
		if limit := max(1, chaosMax*step/20); b.Leased > limit+left {
			t.Errorf("%v after it came up the backend has %d clients; want %d at most, beside the %d that it had",
				since, b.Leased, limit, left)
			return true
		}
		return b.Leased >= left+share || since > slowStart && b.Leased >= share
	})
}

// errors looks at what the clients met that were there all the time. Of a session of
// raw bytes whose backend closes there is no telling that a reply was owed: it is done.
// Any other error is in the log; where each request has a backend, no session ends of it.
func (f *chaos) errors(t *testing.T, sum *sum, most int64) {
	t.Helper()
	if sum.Errors > most || sum.Mismatches > 0 {
		t.Errorf("clients saw %d errors, want %d at most, and %d mismatches: %v", sum.Errors, most, sum.Mismatches, sum.byKind)
	}
	var want int64
	if f.protocol == "raw" {
		want = sum.Errors - sum.byKind["reply_eof"]
	}
	faults := f.logged("session ended") // of the others it is said at debug
	if int64(len(faults)) != want {
		t.Errorf("%d sessions ended by a fault, want %d: %v", len(faults), want, faults)
	}
	for _, line := range slices.Concat(faults, f.logged("backend is down")) {
		if line["backend"] != f.victim {
			t.Errorf("of a backend that was well the log has: %v", line)
		}
	}
}

// addsUp compares the metrics with each other, with what the clients have counted, and
// with those of before.
func (f *chaos) addsUp(t *testing.T, before resources) {
	t.Helper()
	f.rests(t)
	proxytest.Eventually(t, fmt.Sprintf("no more than %+v", before), func() bool {
		now := f.resources(t)
		return now.goroutines <= before.goroutines && now.descriptors <= before.descriptors
	})
	m := f.metrics(t)
	if got, want := m.sum("forebay_sessions_total"), f.total.Sessions; got != want || m.sum("forebay_sessions ") != 0 {
		t.Errorf("%d sessions ended and %d are open; %d clients connected", got, m.sum("forebay_sessions "), want)
	}
	for _, b := range f.backends {
		if dialed, closed := m.sum("forebay_dials_total", b, `result="ok"`), m.sum("forebay_closes_total", b); dialed != closed {
			t.Errorf("%s: %d dials, %d closes, and no connection is open", b, dialed, closed)
		}
	}
	if f.protocol == "thrift" {
		f.requestsAddUp(t, m)
	}
}

// requestsAddUp: each request has had one lease, and one more for each time that this
// turned out to be stale. Those that ended otherwise are the errors that clients saw,
// and all are of one backend.
func (f *chaos) requestsAddUp(t *testing.T, m metrics) {
	t.Helper()
	const total = "forebay_requests_total"
	served := m.sum(total) - m.sum(total, `result="stale"`)
	failed := served - m.sum(total, `result="ok"`)
	if served != f.total.Requests || failed != f.total.Errors {
		t.Errorf("clients made %d requests, of which %d failed; the metrics have %d and %d", f.total.Requests, f.total.Errors, served, failed)
	}
	for _, b := range f.backends {
		if all, ok := m.sum(total, b), m.sum(total, b, `result="ok"`); b != f.victim && all != ok {
			t.Errorf("%s was well, and of %d requests it answered %d", b, all, ok)
		}
	}
}

// TestGarbageTakesNoBackendDown: the backend resets who sends garbage, and answers others.
func TestGarbageTakesNoBackendDown(t *testing.T) {
	backend := proxytest.Serve(t, "tcp", proxytest.ResetGarbage).String()
	for _, health := range [][]string{{"tcp"}, {"send-expect", "--health-send", "ping", "--health-expect", "ping"}} {
		t.Run(health[0], func(t *testing.T) {
			s, addr := serveAdmin(t, "127.0.0.1:0", append([]string{"--backend", backend, "--health-interval", "50ms", "--health"}, health...)...)
			for range 30 {
				for _, from := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.4"} {
					proxytest.SendGarbage(t, from, s.addr)
				}
			}
			b := pools(t, addr).Backends[0]
			if len(s.logged("backend is down")) > 0 || b.State != "up" || b.Health.ClientFaults < 90 {
				t.Errorf("it is %s, with %d faults of clients: %v", b.State, b.Health.ClientFaults, b.Health.History)
			}
			ask(t, s.dial(t))
		})
	}
}

// sum adds up what loads came to.
type sum struct {
	loadtest.Result
	byKind map[string]int64
	p99    time.Duration // the highest of the loads
	others time.Duration // of these, of sessions on backends that were well
}

func (s *sum) add(r loadtest.Result) {
	s.Requests += r.Requests
	s.Sessions += r.Sessions
	s.Errors += r.Errors
	s.Mismatches += r.Mismatches
	s.Abandoned += r.Abandoned
	s.p99 = max(s.p99, r.Latency.P99)
	if s.byKind == nil {
		s.byKind = make(map[string]int64)
	}
	for _, f := range r.Faults {
		s.byKind[f.Kind] += f.Count
	}
}
