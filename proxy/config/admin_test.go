package config

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestServeTakesTheFlagsOfItsAdminListener(t *testing.T) {
	c := run(t, "--backend a:1 --admin unix:/run/a --admin-token-file /t --admin-host proxy --admin-host 10.0.0.1 --admin-pprof", nil, nil)
	want := Admin{Listen: Address{"unix", "/run/a"}, TokenFile: "/t", Hosts: []string{"proxy", "10.0.0.1"}, Pprof: true}
	if c.serve == nil || !reflect.DeepEqual(c.serve.Admin, want) {
		t.Errorf("serve = %+v, %s; want %+v", c.serve, c.stderr, want)
	}
}

func TestServeFillsInABackendThatIsAddedLater(t *testing.T) {
	s := run(t, "--backend a:1 --max-conns 7", nil, nil).serve
	tests := []struct{ text, want, err string }{
		{text: "b:2", want: "b:2,max=7"},
		{text: "b:2,max=3,weight=2", want: "b:2,max=3,weight=2"},
		{text: "b:2,backup=true", want: "b:2,max=7,backup=true"},
		{text: "b", err: "the port is missing"},
		{text: "localhost:9000", err: "the proxy itself"},
	}
	for _, tt := range tests {
		b, err := s.ParseBackend(tt.text)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s: %v, want an error with %q", tt.text, err, tt.err)
			}
		} else if err != nil || b.String() != tt.want {
			t.Errorf("%s: %v, %v; want %s", tt.text, b, err, tt.want)
		}
	}
}

func TestCtlTakesFlagsBetweenItsArguments(t *testing.T) {
	local := Address{"tcp", "127.0.0.1:9901"}
	env := map[string]string{"FOREBAY_ADMIN": "unix:/run/a", "FOREBAY_ADMIN_TOKEN_FILE": "/t"}
	tests := []struct {
		line string
		env  map[string]string
		want Ctl
	}{
		{line: "ctl pools", want: Ctl{Admin: local, Command: "pools"}},
		{line: "ctl --json queue", want: Ctl{Admin: local, Command: "queue", JSON: true}},
		{line: "ctl sessions", want: Ctl{Admin: local, Command: "sessions", Number: 100}},
		{line: "ctl sessions --limit 5 --backend a:1", want: Ctl{Admin: local, Command: "sessions", Number: 5, Backend: "a:1"}},
		{line: "ctl weight --admin h:1 a:1 --json 5 --token-file /x", want: Ctl{Admin: Address{"tcp", "h:1"}, TokenFile: "/x", JSON: true,
			Command: "weight", Backend: "a:1", Number: 5}},
		{line: "ctl max unix:/b 9", env: env, want: Ctl{Admin: Address{"unix", "/run/a"}, TokenFile: "/t", Command: "max", Backend: "unix:/b", Number: 9}},
		{line: "ctl add a:1,max=2", want: Ctl{Admin: local, Command: "add", Backend: "a:1,max=2"}},
		{line: "ctl disconnect 18446744073709551615", want: Ctl{Admin: local, Command: "disconnect", ID: 1<<64 - 1}},
		{line: "ctl resume", want: Ctl{Admin: local, Command: "resume"}},
	}
	for _, tt := range tests {
		t.Run(tt.line, func(t *testing.T) {
			c := run(t, tt.line, tt.env, nil)
			if c.ctl == nil || *c.ctl != tt.want {
				t.Errorf("ctl = %+v, stderr %q; want %+v", c.ctl, c.stderr, tt.want)
			}
		})
	}
}

func TestTopTakesFlagsOnly(t *testing.T) {
	env := map[string]string{"FOREBAY_ADMIN": "unix:/run/a", "FOREBAY_ADMIN_TOKEN_FILE": "/t"}
	tests := []struct {
		line string
		env  map[string]string
		want Top
		err  string
	}{
		{line: "top", want: Top{Admin: Address{"tcp", "127.0.0.1:9901"}, Interval: time.Second}},
		{line: "top --once --interval 2s", env: env, want: Top{Admin: Address{"unix", "/run/a"}, TokenFile: "/t", Interval: 2 * time.Second, Once: true}},
		{line: "top --interval 0", err: "--interval"},
		{line: "top --admin :0", err: "takes the port that the listener has"},
		{line: "top pools", err: "takes flags only"},
	}
	for _, tt := range tests {
		t.Run(tt.line, func(t *testing.T) {
			c := run(t, tt.line, tt.env, nil)
			if tt.err != "" {
				if c.acted() || c.status != 2 || !strings.Contains(c.stderr, tt.err) {
					t.Errorf("status %d, stderr %q; want 2 and %q", c.status, c.stderr, tt.err)
				}
			} else if c.top == nil || *c.top != tt.want {
				t.Errorf("top = %+v, stderr %q; want %+v", c.top, c.stderr, tt.want)
			}
		})
	}
}
