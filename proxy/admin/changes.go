package admin

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/rs/zerolog"

	"forebay/proxy"
)

// A change is what a request asks for: it checks the request, then does it. given is
// what the log shows of the body, nil where there was none.
type change func(r *http.Request) (given any, err error)

func (a *Admin) routeChanges(mux *http.ServeMux, private bool) {
	handle := func(pattern, name string, do change) { mux.Handle(pattern, a.changing(name, private, do)) }
	p := a.cfg.Proxy
	handle("POST /api/backends", "add", a.add)
	handle("DELETE /api/backends/{name}", "remove", simple(func(r *http.Request) error { return p.Remove(r.PathValue("name")) }))
	for _, state := range []proxy.State{proxy.Ready, proxy.Drain, proxy.Maintain} {
		handle("POST /api/backends/{name}/"+state.String(), state.String(),
			simple(func(r *http.Request) error { return p.SetState(r.PathValue("name"), state) }))
	}
	handle("POST /api/backends/{name}/weight", "weight", a.weight)
	handle("POST /api/backends/{name}/max", "max", a.max)
	handle("POST /api/pause", "pause", simple(func(*http.Request) error { return p.Pause() }))
	handle("POST /api/resume", "resume", simple(func(*http.Request) error { p.Resume(); return nil }))
	handle("DELETE /api/sessions/{id}", "disconnect", simple(a.disconnect))
}

// changing answers a request for a change: whoever may not is told so before anything
// is read of it, and what is done is one line of the log.
func (a *Admin) changing(name string, private bool, do change) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if code, err := a.authorize(r, private); err != nil {
			if code == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", `Bearer realm="forebay"`)
			}
			a.logChange(a.refusals.Warn(), name, r, nil, code, err)
			fail(w, code, err)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, a.limits.bodyBytes)
		given, err := do(r)
		if err != nil {
			code := status(err)
			a.logChange(a.cfg.Log.Warn(), name, r, given, code, err)
			fail(w, code, err)
			return
		}
		a.logChange(a.cfg.Log.Info(), name, r, given, http.StatusNoContent, nil)
		w.WriteHeader(http.StatusNoContent)
	})
}

// logChange says who asked for what, and what became of it.
func (a *Admin) logChange(e *zerolog.Event, name string, r *http.Request, given any, code int, err error) {
	e.Str("remote", remote(r)).Str("change", name)
	for _, of := range []struct{ value, field string }{{"name", "backend"}, {"id", "session"}} {
		if v := r.PathValue(of.value); v != "" {
			e.Str(of.field, v)
		}
	}
	if given != nil {
		e.Interface("given", given)
	}
	e.Int("status", code).Err(err).Msg("admin change")
}

// remote names who sent a request. On a Unix socket that is whoever could open it.
func remote(r *http.Request) string {
	if r.RemoteAddr == "" || r.RemoteAddr == "@" {
		return "unix"
	}
	return r.RemoteAddr
}

// simple is a change whose request has no body.
func simple(do func(*http.Request) error) change {
	return func(r *http.Request) (any, error) {
		if err := empty(r); err != nil {
			return nil, err
		}
		return nil, do(r)
	}
}

// The bodies of changes.
type (
	addBody struct {
		Backend string `json:"backend"`
	}
	weightBody struct {
		Weight *int `json:"weight"`
	}
	maxBody struct {
		Max *int `json:"max"`
	}
)

func (a *Admin) add(r *http.Request) (any, error) {
	var body addBody
	if err := decode(r, &body, `{"backend": "ADDR[,max=N][,weight=N][,backup=true]"}`); err != nil {
		return nil, err
	}
	b, err := a.cfg.ParseBackend(body.Backend)
	if err != nil {
		return body, badRequest("backend: %w", err)
	}
	return body, a.cfg.Proxy.Add(b)
}

func (a *Admin) weight(r *http.Request) (any, error) {
	var body weightBody
	if err := decode(r, &body, `{"weight": N}`); err != nil {
		return nil, err
	}
	return body, set("weight", body.Weight, r, a.cfg.Proxy.SetWeight)
}

func (a *Admin) max(r *http.Request) (any, error) {
	var body maxBody
	if err := decode(r, &body, `{"max": N}`); err != nil {
		return nil, err
	}
	return body, set("max", body.Max, r, a.cfg.Proxy.SetMax)
}

// set sets a number of a backend; nil: the body has none.
func set(what string, n *int, r *http.Request, to func(name string, n int) error) error {
	if n == nil {
		return badRequest("%s is missing; takes a number from 1", what)
	}
	if *n < 1 {
		return badRequest("%s: got %d; takes a number from 1", what, *n)
	}
	return to(r.PathValue("name"), *n)
}

func (a *Admin) disconnect(r *http.Request) error {
	id, err := strconv.ParseUint(r.PathValue("id"), 10, 64)
	if err != nil {
		return badRequest("session: got %q; takes the id of a session, a number", r.PathValue("id"))
	}
	return a.cfg.Proxy.Disconnect(id)
}

// ready returns why the proxy should get no clients, or nil.
func (a *Admin) ready() error {
	if a.draining.Load() {
		return errors.New("draining")
	}
	stats := a.cfg.Proxy.Stats()
	for _, b := range stats.Backends {
		if b.Load.Out == 0 {
			return nil
		}
	}
	return fmt.Errorf("none of %d backends is up", len(stats.Backends))
}
