package admin

import (
	"cmp"
	"fmt"
	"net/http"
	"net/http/pprof"
	"net/url"
	"strconv"
	"strings"
)

// defaultSessions and maxSessions are how many sessions /api/sessions shows.
const (
	defaultSessions = 100
	maxSessions     = 10000
)

// handler returns what answers on a listener. private tells that only the owner of the
// process can reach it.
func (a *Admin) handler(private bool) http.Handler {
	mux := http.NewServeMux()
	a.routeReading(mux)
	a.routeChanges(mux, private)
	if a.cfg.Pprof {
		routePprof(mux)
	}
	if a.cfg.Page != nil {
		mux.Handle("GET /{$}", a.cfg.Page)
		mux.Handle("GET /dashboard/", a.cfg.Page)
	}
	return a.guard(unrouted(mux))
}

func (a *Admin) routeReading(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", a.readyz)
	mux.Handle("GET /metrics", a.cfg.Metrics.handler(a.cfg.Log))
	mux.HandleFunc("GET /api/pools", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, a.pools()) })
	mux.HandleFunc("GET /api/queue", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, a.queue()) })
	mux.HandleFunc("GET /api/sessions", a.getSessions)
}

func routePprof(mux *http.ServeMux) {
	mux.HandleFunc("GET /debug/pprof/", pprof.Index) // and the profiles by name
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
}

func plain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	fmt.Fprintln(w, text)
}

func (a *Admin) readyz(w http.ResponseWriter, _ *http.Request) {
	if err := a.ready(); err != nil {
		plain(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	plain(w, http.StatusOK, "ready")
}

func (a *Admin) getSessions(w http.ResponseWriter, r *http.Request) {
	limit, backend, err := sessionsQuery(r.URL.Query())
	if err != nil {
		fail(w, status(err), err)
		return
	}
	answer(w, http.StatusOK, a.sessions(limit, backend))
}

// sessionsQuery reads what sessions are asked for.
func sessionsQuery(q url.Values) (limit int, backend string, err error) {
	for name := range q {
		if name != "limit" && name != "backend" {
			return 0, "", badRequest("unknown parameter %q; takes limit and backend", name)
		}
	}
	limit, err = strconv.Atoi(cmp.Or(q.Get("limit"), strconv.Itoa(defaultSessions)))
	if err != nil || limit < 1 || limit > maxSessions {
		return 0, "", badRequest("limit: got %q; takes a number from 1 to %d", q.Get("limit"), maxSessions)
	}
	return limit, q.Get("backend"), nil
}

// unrouted words what mux does not serve as JSON, like every other error.
func unrouted(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		found := &statusOnly{ResponseWriter: w}
		h.ServeHTTP(found, r)
		if allow := w.Header().Get("Allow"); found.code == http.StatusMethodNotAllowed && allow != "" {
			fail(w, found.code, fmt.Errorf("%s takes %s, not %s", r.URL.Path, strings.ReplaceAll(allow, ", ", " or "), r.Method))
			return
		}
		fail(w, http.StatusNotFound, fmt.Errorf("nothing is at %s", r.URL.Path))
	})
}

// statusOnly keeps the status and the header of an answer.
type statusOnly struct {
	http.ResponseWriter
	code int
}

func (s *statusOnly) WriteHeader(code int)        { s.code = code }
func (s *statusOnly) Write(b []byte) (int, error) { return len(b), nil }
