package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"forebay/proxy/proxytest"
)

// prometheus is a Prometheus that scrapes one forebay.
type prometheus struct {
	addr   string
	stderr bytes.Buffer
}

// startPrometheus starts one that scrapes target often, with the alert rules.
func startPrometheus(t *testing.T, target string) *prometheus {
	t.Helper()
	path, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("prometheus is not installed (Debian: apt-get install -y prometheus)")
	}
	rules, err := filepath.Abs("../grafana/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}\n"+
		"rule_files: [%q]\nscrape_configs: [{job_name: forebay, static_configs: [{targets: [%q]}]}]\n", rules, target)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &prometheus{addr: freeAddr(t)}
	cmd := exec.Command(path, "--config.file", config, "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", p.addr)
	cmd.Stderr = &p.stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Log(p.stderr.String())
		}
	})
	return p
}

// ask has the API answer into data. It reports false where that does not answer yet.
func (p *prometheus) ask(path string, data any) bool {
	res, err := http.Get("http://" + p.addr + "/api/v1/" + path)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	return json.NewDecoder(res.Body).Decode(&struct{ Data any }{data}) == nil && res.StatusCode == http.StatusOK
}

// query returns the value of each series that an expression gives, by the label.
func (p *prometheus) query(expr, label string) map[string]string {
	var vector struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any // the time, and the value as a text
		}
	}
	if !p.ask("query?query="+url.QueryEscape(expr), &vector) {
		return nil
	}
	values := make(map[string]string)
	for _, s := range vector.Result {
		values[s.Metric[label]], _ = s.Value[1].(string)
	}
	return values
}

func TestPrometheusScrapesAndTakesTheRules(t *testing.T) {
	e := start(t, "echo: listening on ", "echo", "--protocol", "thrift", "--listen", "127.0.0.1:0")
	s, addr := serveAdmin(t, "127.0.0.1:0", "--protocol", "thrift", "--backend", e.addr)
	p := startPrometheus(t, addr)
	if status, out, _ := run(t, nil, "load", "--protocol", "thrift", "--target", s.addr, "--clients", "2", "--requests", "20"); status != 0 {
		t.Fatalf("load: status %d\n%s", status, out)
	}
	proxytest.Eventually(t, "Prometheus to have what the load did", func() bool {
		return p.query("forebay_sessions_total", "reason")["done"] == "2" && p.query("forebay_requests_total", "result")["ok"] == "20"
	})
	have := p.query(`count by (__name__) ({__name__=~".+", job="forebay"})`, "__name__")
	for _, name := range []string{
		"up", "forebay_sessions_total", "forebay_sessions", "forebay_requests_total", "forebay_bytes_total", "forebay_pool_connections",
		"forebay_pool_max", "forebay_queue_length", "forebay_queue_wait_seconds_bucket", "forebay_dials_total", "forebay_closes_total",
		"forebay_backend_up", "forebay_request_seconds_bucket", "forebay_desync_total", "forebay_build_info", "go_goroutines",
		"process_open_fds",
	} {
		if have[name] == "" {
			t.Errorf("Prometheus has no %s", name)
		}
	}
	if up := p.query("forebay_backend_up", "backend"); up[e.addr] != "1" {
		t.Errorf("the backends that are up: %v", up)
	}
	p.findsNoFault(t)
}

// findsNoFault: each alert rule is evaluated, and fires for no proxy that is well.
func (p *prometheus) findsNoFault(t *testing.T) {
	t.Helper()
	type rule struct{ Name, Health, State, LastError string }
	var rules []rule
	proxytest.Eventually(t, "every rule to be evaluated", func() bool {
		var answer struct{ Groups []struct{ Rules []rule } }
		if !p.ask("rules", &answer) {
			return false
		}
		rules = nil
		for _, g := range answer.Groups {
			rules = append(rules, g.Rules...)
		}
		return len(rules) > 0 && !slices.ContainsFunc(rules, func(r rule) bool { return r.Health == "unknown" })
	})
	for _, r := range rules {
		if r.Health != "ok" || r.State != "inactive" {
			t.Errorf("rule %+v", r)
		}
	}
}
