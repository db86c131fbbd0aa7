package admin

import (
	"encoding/json"
	"net"
	"strings"
	"testing"

	"forebay/proxy/proxytest"
)

func TestForeignNamesAndOriginsAreRefused(t *testing.T) {
	tests := []struct {
		name   string
		header string
		ok     bool
	}{
		{name: "localhost", header: "Host: localhost", ok: true},
		{name: "localhost in capitals, with a port and a dot", header: "Host: LocalHost.:9901", ok: true},
		{name: "a loopback address", header: "Host: 127.0.0.1:80", ok: true},
		{name: "another loopback address", header: "Host: 127.8.8.8", ok: true},
		{name: "the loopback of IPv6", header: "Host: [::1]:9901", ok: true},
		{name: "a name of --admin-host", header: "Host: Proxy.internal:9901", ok: true},
		{name: "the page's own origin", header: "Origin: http://localhost", ok: true},
		{name: "the page's own requests", header: "Sec-Fetch-Site: same-origin", ok: true},
		{name: "an address typed by hand", header: "Sec-Fetch-Site: none", ok: true},

		{name: "a name that somebody made point here", header: "Host: evil.example"},
		{name: "such a name with the right port", header: "Host: evil.example:9901"},
		{name: "a name that begins like a loopback one", header: "Host: localhost.evil.example"},
		{name: "an address that begins like a loopback one", header: "Host: 127.0.0.1.evil.example"},
		{name: "an address that is not the listener's", header: "Host: 10.1.2.3:9901"},
		{name: "a name that ends like that of --admin-host", header: "Host: evil-proxy.internal"},
		{name: "another origin", header: "Origin: http://evil.example"},
		{name: "another port of the same host", header: "Origin: http://localhost:8080"},
		{name: "an origin that is none", header: "Origin: null"},
		{name: "another site's request", header: "Sec-Fetch-Site: cross-site"},
		{name: "another host of the site", header: "Sec-Fetch-Site: same-site"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := serve(t, func(c *Config) { c.Hosts = []string{"proxy.internal"} })
			for _, ask := range [][2]string{{"GET", "/metrics"}, {"GET", "/api/pools"}, {"GET", "/healthz"}, {"POST", "/api/pause"}} {
				res, body := r.ask(t, ask[0], ask[1], "", tt.header, authorized)
				if tt.ok != (res.StatusCode/100 == 2) {
					t.Errorf("%s %s = %s, want it taken: %t", ask[0], ask[1], res.Status, tt.ok)
				}
				var f failure
				if !tt.ok && (res.StatusCode != 403 || json.Unmarshal([]byte(body), &f) != nil || !strings.Contains(f.Error, "takes")) {
					t.Errorf("%s %s = %s, %s; want 403 and what is accepted", ask[0], ask[1], res.Status, body)
				}
			}
			if got := r.changes(); (got != "") != tt.ok {
				t.Errorf("changes = %q, want some: %t", got, tt.ok)
			}
		})
	}
}

// TestListenersOwnAddressIsTaken: the address that a request arrived at, which is how
// a listener on all addresses is called.
func TestListenersOwnAddressIsTaken(t *testing.T) {
	at := &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 9901}
	for host, want := range map[string]bool{"10.1.2.3": true, "::ffff:10.1.2.3": true, "10.1.2.4": false, "name": false, "": false} {
		if got := isAddress(host, at); got != want {
			t.Errorf("isAddress(%q) = %t, want %t", host, got, want)
		}
	}
}

func TestChangesNeedTheToken(t *testing.T) {
	none := func(c *Config) { c.Token = Token{} }
	tests := []struct {
		name   string
		cfg    func(*Config)
		header string
		want   int
		text   string
	}{
		{name: "none given", header: "X: y", want: 401, text: "Authorization: Bearer"},
		{name: "another", header: "Authorization: Bearer another-secret-of-some-length", want: 401, text: "Authorization: Bearer"},
		{name: "a part", header: "Authorization: Bearer " + secret[:20], want: 401, text: "Authorization: Bearer"},
		{name: "more than it", header: authorized + "x", want: 401, text: "Authorization: Bearer"},
		{name: "an empty one", header: "Authorization: Bearer ", want: 401, text: "Authorization: Bearer"},
		{name: "another scheme", header: "Authorization: Basic " + secret, want: 401, text: "Authorization: Bearer"},
		{name: "no scheme", header: "Authorization: " + secret, want: 401, text: "Authorization: Bearer"},
		{name: "no token is configured", cfg: none, header: authorized, want: 403, text: "--admin-token-file"},
		{name: "an empty one where none is configured", cfg: none, header: "Authorization: Bearer ", want: 403, text: "--admin-token-file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := serve(t, tt.cfg)
			for _, change := range [][3]string{
				{"POST", "/api/backends", `{"backend": "c:1"}`}, {"DELETE", "/api/backends/a:1", ""},
				{"POST", "/api/backends/a:1/drain", ""}, {"POST", "/api/backends/a:1/maintain", ""}, {"POST", "/api/backends/a:1/ready", ""},
				{"POST", "/api/backends/a:1/weight", `{"weight": 1}`}, {"POST", "/api/backends/a:1/max", `{"max": 1}`},
				{"POST", "/api/pause", ""}, {"POST", "/api/resume", ""}, {"DELETE", "/api/sessions/1", ""},
			} {
				res, body := r.ask(t, change[0], change[1], change[2], tt.header, isJSON)
				var f failure
				if err := json.Unmarshal([]byte(body), &f); err != nil || res.StatusCode != tt.want || !strings.Contains(f.Error, tt.text) {
					t.Errorf("%v = %d, %s; want %d and an error with %q", change, res.StatusCode, body, tt.want, tt.text)
				}
				if (res.Header.Get("WWW-Authenticate") != "") != (tt.want == 401) {
					t.Errorf("%v: WWW-Authenticate is %q", change, res.Header.Get("WWW-Authenticate"))
				}
			}
			if got := r.changes(); got != "" {
				t.Errorf("changes = %q, want none", got)
			}
		})
	}
}

func TestSchemeOfTheTokenHasNoCase(t *testing.T) {
	r := serve(t, nil)
	if res, _ := r.ask(t, "POST", "/api/pause", "", "Authorization: bearer "+secret); res.StatusCode != 204 {
		t.Errorf("answer = %s, want 204", res.Status)
	}
}

// TestRefusalsDoNotFillTheLog: whoever reaches the listener can have them.
func TestRefusalsDoNotFillTheLog(t *testing.T) {
	r := serve(t, nil)
	for range 5 * maxRefusals {
		r.ask(t, "POST", "/api/pause", "")
	}
	if n := strings.Count(r.log.String(), "\n"); n < 1 || n > maxRefusals {
		t.Errorf("%d lines for %d refusals, want 1 to %d", n, 5*maxRefusals, maxRefusals)
	}
	r.ask(t, "POST", "/api/pause", "", authorized)
	if !strings.Contains(r.log.String(), `"status":204`) {
		t.Error("the change that was made is not in the log")
	}
}

func TestSecretIsNeverLoggedOrShown(t *testing.T) {
	r := serve(t, func(c *Config) { c.Pprof = true })
	shown := ""
	for _, ask := range [][3]string{
		{"GET", "/metrics", ""}, {"GET", "/api/pools", ""}, {"GET", "/api/nothing", ""}, {"GET", "/debug/pprof/cmdline", ""},
		{"POST", "/api/pause", ""}, {"POST", "/api/backends", `{"backend": "c:1"}`}, {"POST", "/api/backends", "{"},
		{"POST", "/api/backends/a:1/weight", `{"weight": 0}`}, {"DELETE", "/api/sessions/x", ""},
	} {
		for _, header := range []string{authorized, authorized + "x", "Authorization: Basic " + secret} {
			_, body := r.ask(t, ask[0], ask[1], ask[2], header, isJSON)
			shown += body
		}
	}
	r.fail(errBroken)
	r.ask(t, "POST", "/api/pause", "", authorized)
	if log := r.log.String(); log == "" || strings.Contains(log+shown, secret) {
		t.Errorf("the log, or an answer, has the token:\n%s", log)
	}
}

func TestAnswersAreHardened(t *testing.T) {
	r := serve(t, nil)
	for _, path := range []string{"/healthz", "/api/pools", "/nothing", "/metrics"} {
		res, _ := r.ask(t, "GET", path, "", "Accept: text/html")
		for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "X-Frame-Options": "DENY"} {
			if got := res.Header.Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", path, name, got, want)
			}
		}
		if csp := res.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || !strings.Contains(csp, "frame-ancestors 'none'") {
			t.Errorf("%s: policy %q", path, csp)
		}
		if strings.Contains(res.Header.Get("Access-Control-Allow-Origin"), "*") {
			t.Errorf("%s lets other origins read it", path)
		}
	}
}

// TestRequestsWithoutAHostAreTaken: old health checkers send none, and browsers always.
func TestRequestsWithoutAHostAreTaken(t *testing.T) {
	r := serve(t, nil)
	c := proxytest.Dial(t, r.addr)
	c.Write([]byte("GET /healthz HTTP/1.0\r\n\r\n"))
	line := make([]byte, len("HTTP/1.0 200"))
	if _, err := c.Read(line); err != nil || string(line) != "HTTP/1.0 200" {
		t.Errorf("answer = %q, %v; want 200", line, err)
	}
}
