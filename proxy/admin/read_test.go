package admin

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"forebay/balance"
)

func TestReadingNeedsNoToken(t *testing.T) {
	r := serve(t, nil)
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/api/pools", "/api/queue", "/api/sessions"} {
		if res, body := r.ask(t, "GET", path, ""); res.StatusCode != http.StatusOK || body == "" {
			t.Errorf("%s: %s, %q; want 200 and something", path, res.Status, body)
		}
	}
}

func TestPoolsAreTheSnapshot(t *testing.T) {
	r := serve(t, nil)
	_, body := r.ask(t, "GET", "/api/pools", "")
	var p Pools
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		t.Fatal(err)
	}
	if p.Sessions != 5 || p.Ended["done"] != 7 || p.Ended["cut"] != 1 || p.Requests != 100 || p.Errors != 3 || p.Desyncs != 3 || p.Draining || p.Balance != "random-two" {
		t.Errorf("pools = %s", body)
	}
	if n, ok := p.Ended["queue_full"]; n != 0 || !ok {
		t.Errorf("a reason that no session had is missing: %v", p.Ended)
	}
	a, b := p.Backends[0], p.Backends[1]
	if a.Name != "a:1" || a.State != "up" || !a.Up || a.Max != 8 || a.Weight != 2 || a.Leased != 3 || a.Idle != 1 || a.Dialing != 2 || a.Closing != 2 || a.Backup {
		t.Errorf("connections of the first = %+v", a)
	}
	if a.Sessions != 6 || a.Requests != 99 || a.Results["ok"] != 97 || a.BytesUp != 1000 || a.BytesDown != 2000 ||
		a.Dials != 9 || a.Dialed != 7 || a.DialErrors != 1 || a.Reused != 5 || a.Closes["used"] != 4 {
		t.Errorf("counts of the first = %+v", a)
	}
	if h := a.Health; h.State != "up" || h.Checks != 7 || a.LastError != "refused" || len(h.History) != 2 || h.History[0].Up || !h.History[1].Up {
		t.Errorf("health of the first = %+v", h)
	}
	if b.Name != "unix:/run/b" || b.State != "down" || b.Up || b.Why != "no answer" || b.Health.State != "down" || b.Health.Needed != 2 || !b.Backup {
		t.Errorf("the second = %+v", b)
	}
}

func TestQueueTellsOfThePause(t *testing.T) {
	r := serve(t, nil)
	r.stats.Paused = time.Now().Add(-time.Minute)
	_, body := r.ask(t, "GET", "/api/queue", "")
	var q Queue
	if err := json.Unmarshal([]byte(body), &q); err != nil {
		t.Fatal(err)
	}
	if q.Length != 2 || q.Waits != 10 || q.WaitMS != 3000 || q.MaxMS != 1500 || !q.Paused || q.PausedMS < 60000 {
		t.Errorf("queue = %+v", q)
	}
}

func TestSessionsAreLimitedAndFiltered(t *testing.T) {
	r := serve(t, nil)
	tests := []struct {
		name, query string
		want        []uint64
	}{
		{name: "all without a query", query: "", want: []uint64{1, 2, 3}},
		{name: "the limit counts", query: "?limit=2", want: []uint64{1, 2}},
		{name: "a backend selects", query: "?backend=a:1", want: []uint64{1}},
		{name: "the limit counts what is selected", query: "?backend=unix:/run/b&limit=1", want: []uint64{3}},
		{name: "none is an empty list", query: "?backend=no", want: []uint64{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, body := r.ask(t, "GET", "/api/sessions"+tt.query, "")
			var got []Session
			if err := json.Unmarshal([]byte(body), &got); err != nil || got == nil || len(got) != len(tt.want) {
				t.Fatalf("sessions = %s, want those of %v", body, tt.want)
			}
			for i, id := range tt.want {
				if got[i].ID != id {
					t.Errorf("session %d is %d, want %d", i, got[i].ID, id)
				}
			}
			if len(got) == 3 && got[0] != (Session{1, "c:1", "a:1", "leased", 1500, 3, 4, 5}) {
				t.Errorf("session = %+v", got[0])
			}
		})
	}
}

// up has a backend of the fake up, or down.
func up(r *rig, i int, up bool) {
	r.stats.Backends[i].Load.Out = balance.Down
	if up {
		r.stats.Backends[i].Load.Out = 0
	}
}

func TestReadyTellsWhyNot(t *testing.T) {
	tests := []struct {
		name string
		set  func(*rig)
		want int
		text string
	}{
		{name: "a backend up is enough", want: 200, text: "ready\n"},
		{name: "a backup that is up is enough", set: func(r *rig) { up(r, 0, false); up(r, 1, true) }, want: 200, text: "ready\n"},
		{name: "nothing is up, backups neither", set: func(r *rig) { up(r, 0, false) }, want: 503, text: "none of 2 backends is up\n"},
		{name: "no backend is up", set: func(r *rig) { r.stats.Backends = r.stats.Backends[1:] }, want: 503, text: "none of 1 backends is up\n"},
		{name: "draining", set: func(r *rig) { r.admin.Drain() }, want: 503, text: "draining\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := serve(t, nil)
			if tt.set != nil {
				tt.set(r)
			}
			if res, body := r.ask(t, "GET", "/readyz", ""); res.StatusCode != tt.want || body != tt.text {
				t.Errorf("readyz = %d, %q; want %d, %q", res.StatusCode, body, tt.want, tt.text)
			}
			if res, body := r.ask(t, "GET", "/healthz", ""); res.StatusCode != 200 || body != "ok\n" {
				t.Errorf("healthz = %d, %q; want 200, whatever readyz says", res.StatusCode, body)
			}
		})
	}
}

func TestWhatIsNotServedIsSaidInJSON(t *testing.T) {
	tests := []struct {
		name, method, path string
		want               int
		text               string
	}{
		{name: "no such path", method: "GET", path: "/nothing", want: 404, text: "nothing is at /nothing"},
		{name: "no dashboard", method: "GET", path: "/", want: 404, text: "nothing is at /"},
		{name: "no profiles unless asked for", method: "GET", path: "/debug/pprof/", want: 404, text: "nothing is at"},
		{name: "another method", method: "PUT", path: "/api/pools", want: 405, text: "/api/pools takes GET or HEAD, not PUT"},
		{name: "reading a change", method: "GET", path: "/api/pause", want: 405, text: "takes POST, not GET"},
		{name: "an unknown parameter", method: "GET", path: "/api/sessions?max=3", want: 400, text: `unknown parameter "max"; takes limit and backend`},
		{name: "a limit of none", method: "GET", path: "/api/sessions?limit=0", want: 400, text: `limit: got "0"; takes a number from 1 to 10000`},
		{name: "a limit of too many", method: "GET", path: "/api/sessions?limit=10001", want: 400, text: "takes a number from 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res, body := serve(t, nil).ask(t, tt.method, tt.path, "", authorized)
			var f failure
			err := json.Unmarshal([]byte(body), &f)
			if res.StatusCode != tt.want || err != nil || !strings.Contains(f.Error, tt.text) {
				t.Errorf("%s %s: %d, %s; want %d and an error with %q", tt.method, tt.path, res.StatusCode, body, tt.want, tt.text)
			}
		})
	}
}

func TestDashboardIsThePageGiven(t *testing.T) {
	r := serve(t, func(c *Config) {
		c.Page = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Security-Policy", "mine")
			w.Write([]byte("the page"))
		})
	})
	for _, path := range []string{"/", "/dashboard/page.js"} {
		if res, body := r.ask(t, "GET", path, ""); body != "the page" || res.Header.Get("Content-Security-Policy") != "mine" {
			t.Errorf("%s = %q with policy %q", path, body, res.Header.Get("Content-Security-Policy"))
		}
	}
	if res, _ := r.ask(t, "GET", "/other", ""); res.StatusCode != 404 {
		t.Errorf("/other = %s, want 404", res.Status)
	}
}

func TestProfilesAreServedWhereAskedFor(t *testing.T) {
	r := serve(t, func(c *Config) { c.Pprof = true })
	for _, path := range []string{"", "heap?debug=1", "goroutine?debug=1", "cmdline"} {
		if res, body := r.ask(t, "GET", "/debug/pprof/"+path, ""); res.StatusCode != 200 || body == "" {
			t.Errorf("%s = %s, %d bytes", path, res.Status, len(body))
		}
	}
}

// TestProfilesTakeLongerThanOtherAnswers: the limits of a request would cut them short.
func TestProfilesTakeLongerThanOtherAnswers(t *testing.T) {
	r := serve(t, func(c *Config) { c.Pprof = true }, func(l *limits) { l.read, l.write = short, short })
	begun := time.Now()
	res, body := r.ask(t, "GET", "/debug/pprof/trace?seconds=1", "")
	if d := time.Since(begun); res.StatusCode != 200 || body == "" || d < time.Second {
		t.Errorf("trace = %s, %d bytes after %v; want all of a second", res.Status, len(body), d)
	}
}
