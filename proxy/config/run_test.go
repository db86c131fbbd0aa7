package config

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// A call is one Run with everything that it did.
type call struct {
	status         int
	stdout, stderr string

	// What the actions got; nil where the action did not run.
	serve *Serve
	demo  *Demo
	echo  *Echo
	load  *Load
	ctl   *Ctl
	top   *Top

	simulate *Simulate
}

// run runs forebay with a command line split at spaces, in an environment that
// holds env only. Every action returns err.
func run(t *testing.T, line string, env map[string]string, err error) call {
	t.Helper()
	return runArgs(t, strings.Fields(line), env, err)
}

func runArgs(t *testing.T, args []string, env map[string]string, err error) call {
	t.Helper()
	var c call
	var stdout, stderr strings.Builder
	process := Process{Stdout: &stdout, Stderr: &stderr, Getenv: func(k string) string { return env[k] }}
	c.status = Run(t.Context(), append([]string{"/tmp/some-name"}, args...), process, "1.2.3", Actions{
		Serve: func(_ context.Context, s Serve) error { c.serve = &s; return err },
		Demo:  func(_ context.Context, d Demo) error { c.demo = &d; return err },
		Echo:  func(_ context.Context, e Echo) error { c.echo = &e; return err },
		Load:  func(_ context.Context, l Load) error { c.load = &l; return err },
		Ctl:   func(_ context.Context, l Ctl) error { c.ctl = &l; return err },
		Top:   func(_ context.Context, l Top) error { c.top = &l; return err },

		Simulate: func(_ context.Context, s Simulate) error { c.simulate = &s; return err },
	})
	c.stdout, c.stderr = stdout.String(), stderr.String()
	return c
}

// acted tells whether any action ran.
func (c call) acted() bool {
	return c.serve != nil || c.demo != nil || c.echo != nil || c.load != nil || c.ctl != nil || c.top != nil || c.simulate != nil
}

// A statusError is an action's error that chooses the exit status.
type statusError struct {
	text   string
	status int
}

func (e statusError) Error() string { return e.text }
func (e statusError) ExitCode() int { return e.status }

func TestRunReportsWhatTheActionReturned(t *testing.T) {
	tests := []struct {
		name   string
		err    error
		status int
		stderr string
	}{
		{name: "nil is 0 and silent", err: nil, status: 0, stderr: ""},
		{name: "an error is 1 and one line", err: errors.New("address in use"), status: 1, stderr: "forebay: address in use\n"},
		{name: "joined errors stay on one line", err: errors.Join(errors.New("a"), errors.New("b")), status: 1, stderr: "forebay: a; b\n"},
		{name: "ExitCode chooses", err: statusError{"cut", 7}, status: 7, stderr: "forebay: cut\n"},
		{name: "ExitCode is found inside", err: fmt.Errorf("drain: %w", statusError{"cut", 3}), status: 3, stderr: "forebay: drain: cut\n"},
		{name: "no text prints nothing", err: statusError{"", 1}, status: 1, stderr: ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, line := range []string{"--backend a:1", "demo", "echo --listen :1", "load --target a:1", "ctl pools"} {
				c := run(t, line, nil, tt.err)
				if !c.acted() || c.status != tt.status || c.stderr != tt.stderr {
					t.Errorf("%s: acted %t, status %d, stderr %q; want true, %d, %q",
						line, c.acted(), c.status, c.stderr, tt.status, tt.stderr)
				}
			}
		})
	}
}

func TestRunPassesItsContextOn(t *testing.T) {
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "mine")
	var got any
	Run(ctx, []string{"forebay", "demo"}, Process{}, "", Actions{
		Demo: func(ctx context.Context, _ Demo) error { got = ctx.Value(key{}); return nil },
	})
	if got != "mine" {
		t.Errorf("value in the action's context = %v, want mine", got)
	}
}

func TestVersionIsPrintedWhateverElseIsWrong(t *testing.T) {
	for _, line := range []string{"--version", "--version --queue x"} {
		c := run(t, line, map[string]string{"FOREBAY_QUEUE": "x"}, nil)
		if c.acted() || c.status != 0 || c.stdout != "forebay 1.2.3\n" || c.stderr != "" {
			t.Errorf("%s: status %d, stdout %q, stderr %q; want 0, \"forebay 1.2.3\\n\", \"\"",
				line, c.status, c.stdout, c.stderr)
		}
	}
}

func TestBadInputIsOneOrTwoLinesAndStatus2(t *testing.T) {
	const see = "see forebay --help\n"
	tests := []struct {
		line   string
		env    map[string]string
		stderr string // without "forebay: "
	}{
		// Values.
		{line: "--acquire-timeout abc", stderr: `--acquire-timeout: got "abc"; takes a duration above 0, such as 3s or 500ms` + "\n"},
		{line: "--acquire-timeout 3", stderr: `--acquire-timeout: got "3"; takes a duration above 0, such as 3s or 500ms` + "\n"},
		{line: "--acquire-timeout 0", stderr: `--acquire-timeout: got "0"; takes a duration above 0, such as 3s or 500ms` + "\n"},
		{line: "--acquire-timeout=", stderr: `--acquire-timeout: got ""; takes a duration above 0, such as 3s or 500ms` + "\n"},
		{line: "--dial-timeout -1s", stderr: `--dial-timeout: got "-1s"; takes a duration above 0, such as 3s or 500ms` + "\n"},
		{line: "--virgin-timeout 9999h", stderr: `--virgin-timeout: got "9999h": more than 8760h; takes a duration above 0, such as 3s or 500ms` + "\n"},
		{line: "--drain-timeout -1s", stderr: `--drain-timeout: got "-1s"; takes a duration above 0, such as 3s or 500ms, or 0 (cut at once)` + "\n"},
		{line: "--max-lifetime x", stderr: `--max-lifetime: got "x"; takes a duration above 0, such as 3s or 500ms, or 0 (no limit)` + "\n"},
		{line: "--tcp-user-timeout 1us", stderr: `--tcp-user-timeout: got "1µs"; takes a duration from 1ms to 576h, or 0 (off)` + "\n"},
		{line: "--keepalive 10h", stderr: `--keepalive: got "10h": more than 9h; takes a duration from 1s to 9h, or 0 (off)` + "\n"},
		{line: "--queue -1", stderr: `--queue: got "-1"; takes a number from 0 to 10000000, or 0 (nobody waits)` + "\n"},
		{line: "--max-conns 0", stderr: `--max-conns: got "0"; takes a number from 1 to 65535` + "\n"},
		{line: "--dial-parallel 1.5", stderr: `--dial-parallel: got "1.5"; takes a number from 1 to 65535` + "\n"},
		{line: "--max-clients many", stderr: `--max-clients: got "many"; takes a number from 1 to 10000000, or 0 (what the descriptor limit allows)` + "\n"},
		{line: "--min-idle -1", stderr: `--min-idle: got "-1"; takes a number from 0 to 65535, or auto` + "\n"},
		{line: "--reuse always", stderr: `--reuse: got "always"; takes never, quiet or trust` + "\n"},
		{
			line: "--balance leastconn",
			stderr: `--balance: got "leastconn"; takes least-conn, round-robin, weighted-round-robin, random, weighted-random, ` +
				`random-two, source-hash, consistent-hash or first` + "\n",
		},
		{
			line: "--balance=", stderr: `--balance: got ""; takes least-conn, round-robin, weighted-round-robin, random, ` +
				`weighted-random, random-two, source-hash, consistent-hash or first` + "\n",
		},
		{line: "--backend a:1,backup=1", stderr: `--backend: got "a:1,backup=1": backup is true or false, not "1"; takes host:port[,max=N][,weight=N][,backup=true]` + "\n"},
		{
			line: "demo --balance hash", stderr: `--balance: got "hash"; takes least-conn, round-robin, weighted-round-robin, random, ` +
				`weighted-random, random-two, source-hash, consistent-hash or first` + "\n",
		},
		{line: "--protocol http", stderr: `--protocol: got "http"; takes raw, thrift or length` + "\n"},
		{line: "--engine kqueue", stderr: `--engine: got "kqueue"; takes auto, uring, epoll or net` + "\n"},
		{line: "--log-level loud", stderr: `--log-level: got "loud"; takes debug, info, warn or error` + "\n"},
		{line: "--log-format xml", stderr: `--log-format: got "xml"; takes auto, console or json` + "\n"},
		{line: "--abort-on-fin=maybe", stderr: `--abort-on-fin: got "maybe"; takes true or false` + "\n"},
		{line: "--listen 9000", stderr: `--listen: got "9000": the port is missing; takes host:port, :port, [v6]:port or unix:/path` + "\n"},
		{line: "--backend a:1,max=0", stderr: `--backend: got "a:1,max=0": max is a number from 1 to 65535, not "0"; takes host:port[,max=N][,weight=N][,backup=true]` + "\n"},
		{line: "echo --listen x", stderr: `--listen: got "x": the port is missing; takes host:port, :port, [v6]:port or unix:/path` + "\n"},
		{line: "echo --listen :1 --close-after -1", stderr: `--close-after: got "-1"; takes a number from 1, or 0 (never)` + "\n"},
		{line: "load --target :9000", stderr: `--target: got ":9000": the host is missing; takes host:port, [v6]:port or unix:/path` + "\n"},
		{line: "load --target a:1 --rate NaN", stderr: `--rate: got "NaN"; takes requests per second up to 1e9, such as 500, or 0 for as fast as replies come` + "\n"},
		{line: "load --target a:1 --size 15", stderr: `--size: got "15"; takes a number from 16 to 1073741824` + "\n"},
		{line: "load --target a:1 --protocol http", stderr: `--protocol: got "http"; takes raw or thrift` + "\n"},
		{line: "load --target a:1 --thrift-transport http", stderr: `--thrift-transport: got "http"; takes framed, unframed or header` + "\n"},
		{line: "load --target a:1 --thrift-protocol json", stderr: `--thrift-protocol: got "json"; takes binary or compact` + "\n"},
		{line: "load --target a:1 --method ping", stderr: `--method: got "ping"; takes echo or mix` + "\n"},
		{line: "echo --listen :1 --protocol thrift --twice -1", stderr: `--twice: got "-1"; takes a number from 1, or 0 (none)` + "\n"},
		{line: "demo --clients 0", stderr: `--clients: got "0"; takes a number from 1 to 1000000` + "\n"},

		// Values of the environment.
		{
			line: "--backend a:1", env: map[string]string{"FOREBAY_ACQUIRE_TIMEOUT": "abc"},
			stderr: `FOREBAY_ACQUIRE_TIMEOUT: got "abc"; takes a duration above 0, such as 3s or 500ms` + "\n",
		},
		{
			env:    map[string]string{"FOREBAY_BACKEND": "a:1 b:2,max=x"},
			stderr: `FOREBAY_BACKEND: got "b:2,max=x": max is a number from 1 to 65535, not "x"; takes host:port[,max=N][,weight=N][,backup=true]` + "\n",
		},
		{
			line: "--backend a:1", env: map[string]string{"FOREBAY_ABORT_ON_FIN": "maybe"},
			stderr: `FOREBAY_ABORT_ON_FIN: got "maybe"; takes true or false` + "\n",
		},

		// What no value shows by itself.
		{line: "", stderr: "--backend is required: host:port[,max=N][,weight=N][,backup=true], may be repeated\n"},
		{env: map[string]string{"FOREBAY_BACKEND": "  "}, stderr: "--backend is required: host:port[,max=N][,weight=N][,backup=true], may be repeated\n"},
		{line: "echo", stderr: "--listen is required: host:port, :port, [v6]:port or unix:/path, may be repeated\n"},
		{line: "load", stderr: "--target is required: host:port, [v6]:port or unix:/path\n"},
		{line: "--backend a:1 --backend A.:1,max=3", stderr: `--backend: got "a:1" and "A.:1"; takes each backend once` + "\n"},
		{line: "--backend [::1]:5 --backend [0:0::1]:5", stderr: `--backend: got "[::1]:5" and "[0:0::1]:5"; takes each backend once` + "\n"},
		{line: "--backend unix:/a/b --backend unix:/a//b", stderr: `--backend: got "unix:/a/b" and "unix:/a//b"; takes each backend once` + "\n"},
		{
			line:   "--backend a:1 --backend b:1,max=2 --min-idle 3",
			stderr: "--min-idle: got 3, above max=2 of backend b:1; takes at most the smallest max, or auto\n",
		},
		{
			line: "--backend a:1 --max-conns 5", env: map[string]string{"FOREBAY_MIN_IDLE": "6"},
			stderr: "FOREBAY_MIN_IDLE: got 6, above max=5 of backend a:1; takes at most the smallest max, or auto\n",
		},
		{
			line:   "--backend 127.0.0.1:9000",
			stderr: `--backend: got "127.0.0.1:9000", which is where --listen 127.0.0.1:9000 takes clients; takes an address of another program` + "\n",
		},
		{
			line: "--listen :7", env: map[string]string{"FOREBAY_BACKEND": "localhost:7"},
			stderr: `FOREBAY_BACKEND: got "localhost:7", which is where --listen :7 takes clients; takes an address of another program` + "\n",
		},
		{line: "echo --listen :1 --listen :1", stderr: `--listen: got ":1" twice; takes each address once` + "\n"},
		{line: "echo --listen :1 --wrong-id 2", stderr: `--wrong-id: got "2" beside --protocol raw; takes --protocol thrift` + "\n"},
		{line: "echo --listen :1 --answer-oneway", stderr: `--answer-oneway: got "true" beside --protocol raw; takes --protocol thrift` + "\n"},
		{line: "echo --listen :1 --twice 2", stderr: `--twice: got "2" beside --protocol raw; takes --protocol thrift` + "\n"},
		{line: "echo --listen :1 --half 2", stderr: `--half: got "2" beside --protocol raw; takes --protocol thrift` + "\n"},
		{line: "echo --listen :1 --early 2", stderr: `--early: got "2" beside --protocol raw; takes --protocol thrift` + "\n"},
		{line: "echo --listen :1 --after 2", stderr: `--after: got "2" beside --protocol raw; takes --protocol thrift` + "\n"},
		{line: "load --target a:1 --thrift-transport header", stderr: `--thrift-transport: got "header" beside --protocol raw; takes --protocol thrift` + "\n"},
		{line: "load --target a:1 --thrift-protocol compact", stderr: `--thrift-protocol: got "compact" beside --protocol raw; takes --protocol thrift` + "\n"},
		{line: "load --target a:1 --method mix", stderr: `--method: got "mix" beside --protocol raw; takes --protocol thrift` + "\n"},
		{line: "load --target a:1 --protocol thrift --size 31", stderr: `--size: got 31 beside --protocol thrift; takes a number from 32 to 13107200` + "\n"},
		{line: "load --target a:1 --requests 5 --duration 1s", stderr: "--requests: got 5 beside --duration 1s; takes the place of a duration\n"},

		{line: "--backend a:1 --admin 9901", stderr: `--admin: got "9901": the port is missing; takes host:port, :port, [v6]:port or unix:/path` + "\n"},
		{line: "--backend a:1 --admin 127.0.0.1:9000", stderr: `--admin: got "127.0.0.1:9000", which is where --listen takes clients; takes another address` + "\n"},
		{line: "--backend a:1 --admin-token-file /t", stderr: "--admin-token-file: there is no --admin for it; takes --admin beside it\n"},
		{line: "--backend a:1 --admin-host a", stderr: "--admin-host: there is no --admin for it; takes --admin beside it\n"},
		{
			line: "--backend a:1", env: map[string]string{"FOREBAY_ADMIN_PPROF": "on"},
			stderr: "FOREBAY_ADMIN_PPROF: there is no --admin for it; takes --admin beside it\n",
		},
		{line: "--backend a:1 --admin :1 --admin-host a:1", stderr: `--admin-host: got "a:1"; takes a host name or an IP address, without a port` + "\n"},
		{line: "--drain-delay x", stderr: `--drain-delay: got "x"; takes a duration above 0, such as 3s or 500ms, or 0 (none)` + "\n"},
		{line: "ctl pools --admin x", stderr: `--admin: got "x": the port is missing; takes host:port, :port, [v6]:port or unix:/path` + "\n"},
		{line: "ctl pools --admin :0", stderr: `--admin: got ":0"; takes the port that the listener has` + "\n"},
		{line: "ctl pools", env: map[string]string{"FOREBAY_ADMIN": "x"}, stderr: `FOREBAY_ADMIN: got "x": the port is missing; takes host:port, :port, [v6]:port or unix:/path` + "\n"},
		{line: "ctl weight a:1 0", stderr: `weight: N: got "0"; takes a number from 1 to 1000000` + "\n"},
		{line: "ctl max a:1 many", stderr: `max: N: got "many"; takes a number from 1 to 65535` + "\n"},
		{line: "ctl disconnect x", stderr: `disconnect: SESSION: got "x"; takes the id of a session, a number` + "\n"},
		{line: "ctl add a:1,max=x", stderr: `add: ADDR[,max=N][,weight=N][,backup=true]: got "a:1,max=x": max is a number from 1 to 65535, not "x"; takes host:port[,max=N][,weight=N][,backup=true]` + "\n"},
		{line: "ctl pools --limit 3", stderr: `--limit: got "3" beside pools; takes the command sessions` + "\n"},
		{line: "ctl sessions --limit 0", stderr: `--limit: got "0"; takes a number from 1 to 10000` + "\n"},

		// Flags, commands and arguments.
		{line: "ctl", stderr: "the command is missing\nsee forebay ctl --help\n"},
		{line: "ctl pool", stderr: `unknown command "pool" (did you mean pools?)` + "\nsee forebay ctl --help\n"},
		{line: "ctl drain", stderr: "drain: got 0 arguments; takes forebay ctl drain BACKEND\nsee forebay ctl --help\n"},
		{line: "ctl pause a:1", stderr: "pause: got 1 arguments; takes forebay ctl pause\nsee forebay ctl --help\n"},
		{line: "ctl pools --jsn", stderr: "unknown flag --jsn (did you mean --json?)\nsee forebay ctl --help\n"},
		{line: "ctl pools --admin", stderr: "--admin: got no value; takes host:port, :port, [v6]:port or unix:/path\nsee forebay ctl --help\n"},
		{line: "--lisen :1", stderr: "unknown flag --lisen (did you mean --listen?)\n" + see},
		{line: "--drain 3s", stderr: "unknown flag --drain (did you mean --drain-timeout?)\n" + see},
		{line: "--zebra", stderr: "unknown flag --zebra\n" + see},
		{line: "-x", stderr: "unknown flag -x\n" + see},
		{line: "---x", stderr: "bad flag syntax: ---x\n" + see},
		{line: "echo --backend a:1", stderr: "unknown flag --backend\nsee forebay echo --help\n"},
		{line: "load --request 3", stderr: "unknown flag --request (did you mean --requests?)\nsee forebay load --help\n"},
		{line: "--backend", stderr: "--backend: got no value; takes host:port[,max=N][,weight=N][,backup=true]\n" + see},
		{line: "echo --greet", stderr: "--greet: got no value; takes text\nsee forebay echo --help\n"},
		{line: "--listen --backend a:1", stderr: `--listen: got "--backend": the port is missing; takes host:port, :port, [v6]:port or unix:/path` + "\n"},
		{line: "ehco --listen :1", stderr: `unknown command "ehco" (did you mean echo?)` + "\n" + see},
		{line: "help", stderr: `unknown command "help"` + "\n" + see},
		{line: "--help nonsense", stderr: `unknown command "nonsense"` + "\n" + see},
		{line: "--backend a:1 b:2", stderr: `unknown command "b:2"` + "\n" + see},
		{line: "--abort-on-fin true --backend a:1", stderr: `unknown command "true"` + "\n" + see},
		{line: "echo --listen :1 :2", stderr: `unexpected argument ":2"; forebay echo takes flags only` + "\nsee forebay echo --help\n"},
		{
			line:   "--listen :1 echo",
			stderr: "--listen is a flag of serving; the flags of forebay echo follow its name\nsee forebay echo --help\n",
		},
		{
			line:   "--backend a:1 load --target a:1",
			stderr: "--backend is a flag of serving; the flags of forebay load follow its name\nsee forebay load --help\n",
		},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.line, tt.env), func(t *testing.T) {
			line := strings.ReplaceAll(tt.line, "1us", "1µs")
			c := run(t, line, tt.env, nil)
			if c.acted() || c.status != 2 || c.stdout != "" {
				t.Errorf("acted %t, status %d, stdout %q; want false, 2, \"\"", c.acted(), c.status, c.stdout)
			}
			if want := "forebay: " + tt.stderr; c.stderr != want {
				t.Errorf("stderr\n got %s want %s", c.stderr, want)
			}
			if n := strings.Count(c.stderr, "\n"); n > 2 {
				t.Errorf("stderr has %d lines, want at most 2", n)
			}
		})
	}
}

func TestBadInputStaysOnItsLine(t *testing.T) {
	tests := [][]string{
		{"--a\nb\nc"},
		{"--=\n\n"},
		{"a\n\nb"},
		{"--listen", "x\n\ny"},
		{"--backend", "a:1,\n\n\n"},
		{"echo", "--listen", ":1", "x\ny\nz"},
		{"--\n\n=x"},
		{""},
		{"echo", "--listen", ":1", ""},
	}
	for _, args := range tests {
		c := runArgs(t, args, nil, nil)
		if n := strings.Count(c.stderr, "\n"); c.status != 2 || n < 1 || n > 2 {
			t.Errorf("%q: status %d, stderr %q; want 2 and one or two lines", args, c.status, c.stderr)
		}
	}
}

func TestRunWithoutAProgramNameServes(t *testing.T) {
	var stderr strings.Builder
	status := Run(t.Context(), nil, Process{Stderr: &stderr, Getenv: func(string) string { return "" }}, "", Actions{})
	if status != 2 || !strings.Contains(stderr.String(), "--backend is required") {
		t.Errorf("status %d, stderr %q; want 2 and the required backend", status, stderr.String())
	}
}
