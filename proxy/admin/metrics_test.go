package admin

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"forebay/proxy"
)

var _ proxy.Observer = (*Metrics)(nil)

// scrape returns what Prometheus gets.
func (r *rig) scrape(t *testing.T) string {
	t.Helper()
	res, body := r.ask(t, "GET", "/metrics", "")
	if res.StatusCode != 200 {
		t.Fatalf("scrape = %s, %s", res.Status, body)
	}
	return body
}

// busy is a listener whose metrics have all been used.
func busy(t *testing.T) *rig {
	r := serve(t, nil)
	m := r.admin.cfg.Metrics
	m.QueueWaited(20 * time.Millisecond)
	m.Requests("a:1")(3 * time.Millisecond)
	return r
}

func TestMetricsAreTheSnapshotsNumbers(t *testing.T) {
	body := busy(t).scrape(t)
	for _, want := range []string{
		`forebay_sessions_total{reason="done"} 7`,
		`forebay_sessions_total{reason="cut"} 1`,
		`forebay_sessions_total{reason="queue_full"} 0`,
		`forebay_sessions 5`,
		`forebay_requests_total{backend="a:1",result="ok"} 97`,
		`forebay_requests_total{backend="a:1",result="stale"} 2`,
		`forebay_bytes_total{backend="a:1",direction="up"} 1000`,
		`forebay_bytes_total{backend="a:1",direction="down"} 2000`,
		`forebay_pool_connections{backend="a:1",state="leased"} 3`,
		`forebay_pool_connections{backend="a:1",state="idle"} 1`,
		`forebay_pool_connections{backend="a:1",state="dialing"} 2`,
		`forebay_pool_connections{backend="a:1",state="closing"} 2`,
		`forebay_pool_max{backend="a:1"} 8`,
		`forebay_queue_length 2`,
		`forebay_queue_wait_seconds_sum 0.02`,
		`forebay_queue_wait_seconds_bucket{le="0.025"} 1`,
		`forebay_dials_total{backend="a:1",result="ok"} 7`,
		`forebay_dials_total{backend="a:1",result="error"} 1`,
		`forebay_closes_total{backend="a:1",reason="used"} 4`,
		`forebay_closes_total{backend="a:1",reason="lifetime"} 0`,
		`forebay_backend_up{backend="a:1"} 1`,
		`forebay_backend_up{backend="unix:/run/b"} 0`,
		`forebay_request_seconds_sum{backend="a:1"} 0.003`,
		`forebay_request_seconds_bucket{backend="a:1",le="0.0025"} 0`,
		`forebay_request_seconds_bucket{backend="a:1",le="0.005"} 1`,
		`forebay_desync_total 3`,
		`forebay_build_info{engine="net",goversion="go`,
	} {
		if !strings.Contains(body, "\n"+want) {
			t.Errorf("metrics have no %s", want)
		}
	}
	for _, want := range []string{`version="v1.2.3"} 1`, "go_goroutines ", "go_gc_duration_seconds"} {
		if !strings.Contains(body, want) {
			t.Errorf("metrics have no %s", want)
		}
	}
}

func TestMetricsPassTheLinter(t *testing.T) {
	problems, err := promlint.New(strings.NewReader(busy(t).scrape(t))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// promtool returns the program of that name, which Debian has in the package prometheus.
func promtool(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed (Debian: apt-get install prometheus)")
	}
	return path
}

func TestMetricsPassPromtool(t *testing.T) {
	cmd := exec.Command(promtool(t), "check", "metrics")
	cmd.Stdin = strings.NewReader(busy(t).scrape(t))
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// TestLabelsOfARemovedBackendVanish with it, and come back empty when it does.
func TestLabelsOfARemovedBackendVanish(t *testing.T) {
	r := busy(t)
	both := r.stats.Backends
	if !strings.Contains(r.scrape(t), `forebay_request_seconds_count{backend="a:1"} 1`) {
		t.Fatal("the backend has no histogram")
	}
	r.stats.Backends = both[1:]
	if body := r.scrape(t); strings.Contains(body, `"a:1"`) {
		t.Errorf("a removed backend has metrics: %s", regexp.MustCompile(`.*"a:1".*`).FindString(body))
	}
	r.admin.cfg.Metrics.Requests("a:1")
	r.stats.Backends = both
	if !strings.Contains(r.scrape(t), `forebay_request_seconds_count{backend="a:1"} 0`) {
		t.Error("a backend that is added again does not begin anew")
	}
}

// TestBackendAddedAgainBeginsAnew, even where no scrape came between.
func TestBackendAddedAgainBeginsAnew(t *testing.T) {
	r := busy(t)
	r.admin.cfg.Metrics.Requests("a:1")
	if !strings.Contains(r.scrape(t), `forebay_request_seconds_count{backend="a:1"} 0`) {
		t.Error("it has the requests of the one before")
	}
}

// TestBackendThatIsJustAddedIsKept: the server asks for its observer before a snapshot
// has it.
func TestBackendThatIsJustAddedIsKept(t *testing.T) {
	r := serve(t, nil)
	done := r.admin.cfg.Metrics.Requests("c:1")
	r.scrape(t)
	done(time.Second)
	r.stats.Backends[0].Addr = "c:1"
	if !strings.Contains(r.scrape(t), `forebay_request_seconds_count{backend="c:1"} 1`) {
		t.Error("the scrape before it was in a snapshot has dropped it")
	}
}

func TestObservingAndScrapingAtOnce(t *testing.T) {
	r := serve(t, nil)
	m := r.admin.cfg.Metrics
	var observers sync.WaitGroup
	for range 4 {
		observers.Go(func() {
			done := m.Requests("a:1")
			for range 100 {
				m.QueueWaited(time.Millisecond)
				done(time.Millisecond)
			}
		})
	}
	for range 10 {
		r.scrape(t)
	}
	observers.Wait()
	if !strings.Contains(r.scrape(t), "forebay_queue_wait_seconds_count 400\n") {
		t.Error("waits are lost")
	}
}

// scripts is the folder of what operators take with them.
const scripts = "../../scripts/grafana"

// metricNames returns the names of our own metrics in a text, without the suffixes of
// histograms.
func metricNames(text string) []string {
	var names []string
	for _, name := range regexp.MustCompile(`forebay_[a-z_]+`).FindAllString(text, -1) {
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			name = strings.TrimSuffix(name, suffix)
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// TestDashboardAndAlertsUseMetricsThatExist, and the dashboard shows each of them.
func TestDashboardAndAlertsUseMetricsThatExist(t *testing.T) {
	exist := metricNames(busy(t).scrape(t))
	var shown []string
	for _, file := range []string{"forebay.json", "alerts.yml"} {
		text, err := os.ReadFile(filepath.Join(scripts, file))
		if err != nil {
			t.Fatal(err)
		}
		used := metricNames(string(text))
		for _, name := range used {
			if !slices.Contains(exist, name) {
				t.Errorf("%s uses %s, which no metric is called", file, name)
			}
		}
		if file == "forebay.json" {
			shown = used
		}
	}
	for _, name := range exist {
		if !slices.Contains(shown, name) {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
}

func TestDashboardIsJSONWithPanelsInRows(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(scripts, "forebay.json"))
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Title, UID string
		Panels     []struct {
			ID          int
			Type, Title string
			Targets     []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for i, p := range d.Panels {
		if i == 0 && p.Type != "row" {
			t.Error("the first panel stands in no row")
		}
		if ids[p.ID] || p.Title == "" || p.Type != "row" && (len(p.Targets) == 0 || p.Targets[0].Expr == "") {
			t.Errorf("panel %d (%q) shares its id, or has no title or no query", p.ID, p.Title)
		}
		ids[p.ID] = true
	}
	if d.Title == "" || d.UID == "" || len(d.Panels) < 10 {
		t.Errorf("dashboard %q %q has %d panels", d.Title, d.UID, len(d.Panels))
	}
}

func TestAlertsPassPromtool(t *testing.T) {
	out, err := exec.Command(promtool(t), "check", "rules", filepath.Join(scripts, "alerts.yml")).CombinedOutput()
	if err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
	if out, err := exec.Command(promtool(t), "test", "rules", filepath.Join(scripts, "alerts_test.yml")).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}
