package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"forebay/proxy"
)

func TestEachChangeIsMadeOnce(t *testing.T) {
	r := serve(t, nil)
	tests := []struct{ method, path, body, want string }{
		{"POST", "/api/backends", `{"backend": "c:1"}`, "add c:1 max=7 weight=1"},
		{"DELETE", "/api/backends/a:1", "", "remove a:1"},
		{"DELETE", "/api/backends/unix:%2Frun%2Fb", "", "remove unix:/run/b"},
		{"POST", "/api/backends/a:1/drain", "", "drain a:1"},
		{"POST", "/api/backends/unix:%2Frun%2Fb/maintain", "", "maintain unix:/run/b"},
		{"POST", "/api/backends/[::1]:5/ready", "", "ready [::1]:5"},
		{"POST", "/api/backends/a:1/weight", `{"weight": 5}`, "weight a:1 5"},
		{"POST", "/api/backends/a:1/max", ` {"max":9} `, "max a:1 9"},
		{"POST", "/api/pause", "", "pause"},
		{"POST", "/api/resume", "", "resume"},
		{"DELETE", "/api/sessions/18446744073709551615", "", "disconnect 18446744073709551615"},
	}
	for _, tt := range tests {
		t.Run(tt.want, func(t *testing.T) {
			before := len(r.log.String())
			res, body := r.ask(t, tt.method, tt.path, tt.body, authorized, isJSON)
			if res.StatusCode != http.StatusNoContent || body != "" {
				t.Errorf("answer = %s, %q; want 204", res.Status, body)
			}
			if got := r.changes(); got != tt.want {
				t.Errorf("changes = %q, want %q", got, tt.want)
			}
			wantLine(t, r.log.String()[before:], strings.Fields(tt.want)[0], http.StatusNoContent, "")
		})
	}
}

// wantLine checks that the log has one line, of one change.
func wantLine(t *testing.T, log, change string, status int, err string) {
	t.Helper()
	var line struct {
		Level, Remote, Change, Error, Message string
		Status                                int
	}
	if e := json.Unmarshal([]byte(log), &line); e != nil {
		t.Fatalf("log is not one line: %q", log)
	}
	level := "info"
	if err != "" {
		level = "warn"
	}
	if line.Level != level || !strings.HasPrefix(line.Remote, "127.0.0.1:") || line.Change != change || line.Status != status ||
		!strings.Contains(line.Error, err) || line.Message != "admin change" {
		t.Errorf("log line = %s; want %s, status %d, error %q", log, change, status, err)
	}
}

func TestLogSaysWhatAChangeWas(t *testing.T) {
	r := serve(t, nil)
	r.ask(t, "POST", "/api/backends/a:1/weight", `{"weight": 5}`, authorized, isJSON)
	r.ask(t, "DELETE", "/api/sessions/4", "", authorized)
	for _, want := range []string{`"backend":"a:1","given":{"weight":5}`, `"session":"4"`} {
		if !strings.Contains(r.log.String(), want) {
			t.Errorf("log has no %s: %s", want, r.log)
		}
	}
}

func TestBadChangesAreRefusedAndNothingIsChanged(t *testing.T) {
	tests := []struct {
		name, method, path, body, header string
		want                             int
		text                             string
	}{
		{"no content type", "POST", "/api/backends", `{"backend": "c:1"}`, "X: y", 415, `content type is ""; takes application/json`},
		{"a form", "POST", "/api/backends", `backend=c:1`, "Content-Type: application/x-www-form-urlencoded", 415, "takes application/json"},
		{"an empty body", "POST", "/api/backends", "", isJSON, 400, `it is empty; takes {"backend": "ADDR[,max=N][,weight=N][,backup=true]"}`},
		{"not JSON", "POST", "/api/backends", "{", isJSON, 400, "unexpected EOF"},
		{"an unknown field", "POST", "/api/backends", `{"backend": "c:1", "max": 3}`, isJSON, 400, `unknown field "max"; takes {"backend"`},
		{"another type", "POST", "/api/backends/a:1/weight", `{"weight": "5"}`, isJSON, 400, `takes {"weight": N}`},
		{"a fraction", "POST", "/api/backends/a:1/max", `{"max": 1.5}`, isJSON, 400, `takes {"max": N}`},
		{"two objects", "POST", "/api/backends/a:1/weight", `{"weight": 5} {"weight": 6}`, isJSON, 400, "more follows the object"},
		{"junk behind", "POST", "/api/backends/a:1/weight", `{"weight": 5}x`, isJSON, 400, "more follows the object"},
		{"no number", "POST", "/api/backends/a:1/weight", `{}`, isJSON, 400, "weight is missing; takes a number from 1"},
		{"a weight of 0", "POST", "/api/backends/a:1/weight", `{"weight": 0}`, isJSON, 400, "weight: got 0; takes a number from 1"},
		{"a negative max", "POST", "/api/backends/a:1/max", `{"max": -1}`, isJSON, 400, "max: got -1; takes a number from 1"},
		{"an address without a port", "POST", "/api/backends", `{"backend": "c"}`, isJSON, 400, `backend: got "c": the port is missing`},
		{"a body where none is taken", "POST", "/api/pause", `{"for": "1h"}`, isJSON, 400, "there is a body; takes none"},
		{"a session that is no number", "DELETE", "/api/sessions/x", "", isJSON, 400, `session: got "x"; takes the id of a session`},
		{"too long a body", "POST", "/api/backends", `{"backend": "` + strings.Repeat("x", 70000) + `"}`, isJSON, 413, "too long; takes at most 65536 bytes"},
		{"too much behind", "POST", "/api/backends", `{"backend": "c:1"}` + strings.Repeat(" ", 70000), isJSON, 413, "too long"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := serve(t, nil)
			res, body := r.ask(t, tt.method, tt.path, tt.body, authorized, tt.header)
			var f failure
			err := json.Unmarshal([]byte(body), &f)
			if res.StatusCode != tt.want || err != nil || !strings.Contains(f.Error, tt.text) {
				t.Errorf("answer = %d, %s; want %d and an error with %q", res.StatusCode, body, tt.want, tt.text)
			}
			if got := r.changes(); got != "" {
				t.Errorf("changes = %q, want none", got)
			}
		})
	}
}

func TestErrorsOfTheProxyChooseTheStatus(t *testing.T) {
	tests := []struct {
		err  error
		want int
	}{
		{fmt.Errorf("%w: x:1", proxy.ErrNoBackend), 404},
		{fmt.Errorf("%w: 5", proxy.ErrNoSession), 404},
		{fmt.Errorf("%w: x:1", proxy.ErrExists), 409},
		{fmt.Errorf("%w: max 0", proxy.ErrInvalid), 400},
		{errBroken, 500},
	}
	for _, tt := range tests {
		r := serve(t, nil)
		r.fail(tt.err)
		for _, change := range [][3]string{
			{"POST", "/api/backends", `{"backend": "c:1"}`},
			{"DELETE", "/api/backends/a:1", ""},
			{"POST", "/api/backends/a:1/drain", ""},
			{"POST", "/api/backends/a:1/weight", `{"weight": 1}`},
			{"POST", "/api/pause", ""},
			{"DELETE", "/api/sessions/1", ""},
		} {
			res, body := r.ask(t, change[0], change[1], change[2], authorized, isJSON)
			var f failure
			if err := json.Unmarshal([]byte(body), &f); err != nil || res.StatusCode != tt.want || f.Error != tt.err.Error() {
				t.Errorf("%v with %v: %d, %s; want %d", change, tt.err, res.StatusCode, body, tt.want)
			}
		}
	}
}
