package dashboard

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"forebay/proxy/admin/dashboard"
)

// canned answers what a test gives it, as the admin listener would, under the page.
type canned struct {
	*httptest.Server
	host string

	sessions string // set before the page is opened

	mu      sync.Mutex
	pools   object
	metrics string
	posts   []string
}

func can(t *testing.T, backends ...object) *canned {
	t.Helper()
	for i, b := range backends {
		backends[i] = object{"name": "127.0.0.1:9090", "state": "up", "up": true, "why": "", "backup": false, "weight": 1, "max": 8, "leased": 1,
			"idle": 2, "dialing": 0, "closing": 0, "sessions": 1, "requests": 0, "results": object{}, "bytes_up": 0, "bytes_down": 0,
			"dials": 1, "dialed": 1, "dial_errors": 0, "reused": 0, "closes": object{}, "last_error": ""}
		maps.Copy(backends[i], b)
	}
	c := &canned{sessions: "[]", pools: object{"sessions": 1, "ended": object{"done": 5}, "requests": 0, "errors": 0, "faults": object{},
		"queue":    object{"length": 0, "paused": false, "paused_ms": 0, "waits": 0, "wait_ms": 0, "max_ms": 0},
		"draining": false, "backends": backends}}
	page := dashboard.Handler()
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", page)
	mux.Handle("GET /dashboard/", page)
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		io.WriteString(w, c.metrics)
	})
	mux.HandleFunc("GET /api/sessions", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, c.sessions) })
	mux.HandleFunc("GET /api/pools", c.answer)
	mux.HandleFunc("POST /api/", c.change)
	c.Server = httptest.NewServer(mux)
	t.Cleanup(c.Close)
	u, err := url.Parse(c.URL)
	if err != nil {
		t.Fatal(err)
	}
	c.host = u.Host
	return c
}

func (c *canned) answer(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	json.NewEncoder(w).Encode(c.pools)
}

// change notes what is asked for.
func (c *canned) change(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Header.Get("Authorization") != "Bearer "+token {
		w.WriteHeader(http.StatusUnauthorized)
		json.NewEncoder(w).Encode(object{"error": "changes need <b>the token</b>"})
		return
	}
	c.posts = append(c.posts, strings.TrimPrefix(r.URL.EscapedPath(), "/api/"))
	w.WriteHeader(http.StatusNoContent)
}

func (c *canned) posted() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.posts, " ")
}

// set changes what is answered from now on.
func (c *canned) set(change func(pools object)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c.pools)
}

// measure sets what /metrics answers from now on.
func (c *canned) measure(metrics string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.metrics = metrics
}
