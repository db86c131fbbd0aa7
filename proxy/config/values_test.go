package config

import (
	"reflect"
	"testing"
	"time"
)

// defaultServe is what `forebay --backend a:1` serves.
func defaultServe() Serve {
	return Serve{
		Listen:             Address{"tcp", "127.0.0.1:9000"},
		Backends:           []Backend{{Address{"tcp", "a:1"}, 64, 1, false}},
		MaxConns:           64,
		Balance:            "least-conn",
		DialTimeout:        2 * time.Second,
		DialParallel:       4,
		MinIdle:            MinIdleAuto,
		VirginTimeout:      10 * time.Second,
		IdleTimeout:        time.Minute,
		MaxLifetime:        time.Hour,
		Reuse:              "never",
		ReuseQuiet:         20 * time.Millisecond,
		AcquireTimeout:     3 * time.Second,
		Queue:              1024,
		SessionIdleTimeout: 10 * time.Minute,
		HalfCloseTimeout:   30 * time.Second,
		TCPUserTimeout:     30 * time.Second,
		KeepAlive:          30 * time.Second,
		DrainTimeout:       30 * time.Second,
		PauseTimeout:       30 * time.Second,
		Health: Health{Check: "tcp", Interval: 2 * time.Second, Timeout: time.Second, Fall: 3, Rise: 2,
			Method: "forebay_health_check", SlowStart: 10 * time.Second, OnDown: "leave", AllDown: "fail"},
		Protocol:  "raw",
		Requests:  defaultRequests(),
		Engine:    "auto",
		Workers:   1,
		LogLevel:  "info",
		LogFormat: "auto",
	}
}

// TestServeTakesItsValuesFromFlagsAndEnvironment gives each value both ways.
func TestServeTakesItsValuesFromFlagsAndEnvironment(t *testing.T) {
	tests := []struct {
		flag, env, value string
		set              func(*Serve)
	}{
		{"--listen", "FOREBAY_LISTEN", "unix:/run/x", func(s *Serve) { s.Listen = Address{"unix", "/run/x"} }},
		{"--max-clients", "FOREBAY_MAX_CLIENTS", "5", func(s *Serve) { s.MaxClients = 5 }},
		{"--max-clients", "FOREBAY_MAX_CLIENTS", "0", func(s *Serve) { s.MaxClients = 0 }},
		{"--max-conns", "FOREBAY_MAX_CONNS", "7", func(s *Serve) { s.MaxConns, s.Backends[0].Max = 7, 7 }},
		{"--balance", "FOREBAY_BALANCE", "consistent-hash", func(s *Serve) { s.Balance = "consistent-hash" }},
		{"--dial-timeout", "FOREBAY_DIAL_TIMEOUT", "100ms", func(s *Serve) { s.DialTimeout = 100 * time.Millisecond }},
		{"--dial-parallel", "FOREBAY_DIAL_PARALLEL", "1", func(s *Serve) { s.DialParallel = 1 }},
		{"--min-idle", "FOREBAY_MIN_IDLE", "0", func(s *Serve) { s.MinIdle = 0 }},
		{"--min-idle", "FOREBAY_MIN_IDLE", "64", func(s *Serve) { s.MinIdle = 64 }},
		{"--min-idle", "FOREBAY_MIN_IDLE", "auto", func(s *Serve) { s.MinIdle = MinIdleAuto }},
		{"--virgin-timeout", "FOREBAY_VIRGIN_TIMEOUT", "1s", func(s *Serve) { s.VirginTimeout = time.Second }},
		{"--idle-timeout", "FOREBAY_IDLE_TIMEOUT", "1s", func(s *Serve) { s.IdleTimeout = time.Second }},
		{"--max-lifetime", "FOREBAY_MAX_LIFETIME", "0", func(s *Serve) { s.MaxLifetime = 0 }},
		{"--reuse", "FOREBAY_REUSE", "quiet", func(s *Serve) { s.Reuse = "quiet" }},
		{"--reuse-quiet", "FOREBAY_REUSE_QUIET", "1s", func(s *Serve) { s.ReuseQuiet = time.Second }},
		{"--acquire-timeout", "FOREBAY_ACQUIRE_TIMEOUT", "1m30s", func(s *Serve) { s.AcquireTimeout = 90 * time.Second }},
		{"--drain-delay", "FOREBAY_DRAIN_DELAY", "5s", func(s *Serve) { s.DrainDelay = 5 * time.Second }},
		{"--admin", "FOREBAY_ADMIN", ":9901", func(s *Serve) { s.Admin.Listen = Address{"tcp", ":9901"} }},
		{"--queue", "FOREBAY_QUEUE", "0", func(s *Serve) { s.Queue = 0 }},
		{"--first-byte-wait", "FOREBAY_FIRST_BYTE_WAIT", "1s", func(s *Serve) { s.FirstByteWait = time.Second }},
		{"--abort-on-fin", "FOREBAY_ABORT_ON_FIN", "true", func(s *Serve) { s.AbortOnFin = true }},
		{"--abort-on-fin", "FOREBAY_ABORT_ON_FIN", "on", func(s *Serve) { s.AbortOnFin = true }},
		{"--abort-on-fin", "FOREBAY_ABORT_ON_FIN", "0", func(s *Serve) { s.AbortOnFin = false }},
		{"--session-idle-timeout", "FOREBAY_SESSION_IDLE_TIMEOUT", "0", func(s *Serve) { s.SessionIdleTimeout = 0 }},
		{"--half-close-timeout", "FOREBAY_HALF_CLOSE_TIMEOUT", "1s", func(s *Serve) { s.HalfCloseTimeout = time.Second }},
		{"--tcp-user-timeout", "FOREBAY_TCP_USER_TIMEOUT", "0s", func(s *Serve) { s.TCPUserTimeout = 0 }},
		{"--keepalive", "FOREBAY_KEEPALIVE", "0", func(s *Serve) { s.KeepAlive = 0 }},
		{"--drain-timeout", "FOREBAY_DRAIN_TIMEOUT", "0", func(s *Serve) { s.DrainTimeout = 0 }},
		{"--protocol", "FOREBAY_PROTOCOL", "raw", func(s *Serve) { s.Protocol = "raw" }},
		{"--engine", "FOREBAY_ENGINE", "net", func(s *Serve) { s.Engine = "net" }},
		{"--workers", "FOREBAY_WORKERS", "3", func(s *Serve) { s.Workers = 3 }},
		{"--log-level", "FOREBAY_LOG_LEVEL", "debug", func(s *Serve) { s.LogLevel = "debug" }},
		{"--log-format", "FOREBAY_LOG_FORMAT", "json", func(s *Serve) { s.LogFormat = "json" }},
	}
	for _, tt := range tests {
		t.Run(tt.flag+"="+tt.value, func(t *testing.T) {
			want := defaultServe()
			tt.set(&want)
			checkServe(t, "--backend a:1 "+tt.flag+"="+tt.value, nil, want)
			checkServe(t, "--backend a:1", map[string]string{tt.env: tt.value}, want)
		})
	}
}

func checkServe(t *testing.T, line string, env map[string]string, want Serve) {
	t.Helper()
	c := run(t, line, env, nil)
	if c.serve == nil {
		t.Errorf("forebay %s %v does not serve: %s", line, env, c.stderr)
		return
	}
	if !reflect.DeepEqual(*c.serve, want) {
		t.Errorf("forebay %s %v\n got %+v\nwant %+v", line, env, *c.serve, want)
	}
}

func TestFlagsOverrideEnvironmentOverridesDefaults(t *testing.T) {
	tests := []struct {
		name, line string
		env        map[string]string
		set        func(*Serve)
	}{
		{name: "defaults", line: "--backend a:1", set: func(*Serve) {}},
		{
			name: "a flag over the environment", line: "--backend a:1 --queue 1",
			env: map[string]string{"FOREBAY_QUEUE": "2"},
			set: func(s *Serve) { s.Queue = 1 },
		},
		{
			name: "a flag over a wrong variable", line: "--backend a:1 --queue 1",
			env: map[string]string{"FOREBAY_QUEUE": "x"},
			set: func(s *Serve) { s.Queue = 1 },
		},
		{
			name: "a toggle switched off over the environment", line: "--backend a:1 --abort-on-fin=false",
			env: map[string]string{"FOREBAY_ABORT_ON_FIN": "true"},
			set: func(*Serve) {},
		},
		{
			name: "a toggle that stands alone", line: "--abort-on-fin --backend a:1",
			set: func(s *Serve) { s.AbortOnFin = true },
		},
		{
			name: "an empty variable is unset", line: "--backend a:1",
			env: map[string]string{"FOREBAY_QUEUE": "", "FOREBAY_LISTEN": "", "FOREBAY_ABORT_ON_FIN": "", "FOREBAY_BACKEND": ""},
			set: func(*Serve) {},
		},
		{
			name: "the last of a flag given twice", line: "--queue 1 --backend a:1 --queue 2",
			set: func(s *Serve) { s.Queue = 2 },
		},
		{
			name: "one dash will do", line: "-backend a:1 -queue=2",
			set: func(s *Serve) { s.Queue = 2 },
		},
		{
			name: "backends of the environment are split at spaces",
			env:  map[string]string{"FOREBAY_BACKEND": " b:1,max=2,weight=3  unix:/x\n[::1]:5 "},
			set: func(s *Serve) {
				s.Backends = []Backend{{Address{"tcp", "b:1"}, 2, 3, false}, {Address{"unix", "/x"}, 64, 1, false}, {Address{"tcp", "[::1]:5"}, 64, 1, false}}
			},
		},
		{
			name: "backends given replace the environment's", line: "--backend c:1,max=9 --backend d:1",
			env: map[string]string{"FOREBAY_BACKEND": "a:1 b:1"},
			set: func(s *Serve) {
				s.Backends = []Backend{{Address{"tcp", "c:1"}, 9, 1, false}, {Address{"tcp", "d:1"}, 64, 1, false}}
			},
		},
		{
			name: "what Kubernetes sets for a service of that name is not ours", line: "--backend a:1",
			env: map[string]string{"FOREBAY_PORT": "tcp://10.0.0.1:9000", "FOREBAY_SERVICE_HOST": "10.0.0.1"},
			set: func(*Serve) {},
		},
		{
			name: "a listener on a free port does not meet a backend", line: "--listen :0 --backend localhost:80 --backend a:1",
			set: func(s *Serve) {
				s.Listen = Address{"tcp", ":0"}
				s.Backends = []Backend{{Address{"tcp", "localhost:80"}, 64, 1, false}, {Address{"tcp", "a:1"}, 64, 1, false}}
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := defaultServe()
			tt.set(&want)
			checkServe(t, tt.line, tt.env, want)
		})
	}
}

func TestOtherCommandsTakeFlagsOnly(t *testing.T) {
	// Right and wrong values for serving: neither may matter to the others.
	env := map[string]string{"FOREBAY_BACKEND": "a:1", "FOREBAY_LISTEN": ":7", "FOREBAY_QUEUE": "abc", "FOREBAY_LOG_LEVEL": "loud"}

	demo := Demo{Duration: 10 * time.Second, Balance: "least-conn", Clients: 64, RequestsPerClient: 20, Protocol: "raw", LogLevel: "warn", LogFormat: "auto"}
	chosen := demo
	chosen.Balance, chosen.Clients = "round-robin", 8
	persistent := demo
	persistent.Protocol, persistent.RequestsPerClient = "thrift", 0
	load := Load{
		Target: Address{"tcp", "a:1"}, Clients: 64, Size: 64, Duration: 10 * time.Second, Timeout: 30 * time.Second,
		Protocol: "raw", ThriftTransport: "framed", ThriftProtocol: "binary", Method: "echo",
	}
	counted := load
	counted.Duration, counted.Requests = 0, 1000000
	tests := []struct {
		line string
		want call
	}{
		{line: "demo", want: call{demo: &demo}},
		{
			line: "demo --listen :0 --duration 1s --keep --balance first --clients 3 --requests-per-client 4 --log-level debug --log-format json",
			want: call{demo: &Demo{Address{"tcp", ":0"}, time.Second, true, "first", 3, 4, "raw", "debug", "json"}},
		},
		{line: "demo --balance round-robin", want: call{demo: &chosen}},
		{line: "demo --protocol thrift", want: call{demo: &persistent}},
		{
			line: "demo --listen :0 --duration 1s --clients 3 --requests-per-client 4 --protocol thrift --log-level debug --log-format json",
			want: call{demo: &Demo{Address{"tcp", ":0"}, time.Second, false, "least-conn", 3, 4, "thrift", "debug", "json"}},
		},
		{line: "echo --listen :1", want: call{echo: &Echo{Listen: []Address{{"tcp", ":1"}}, Protocol: "raw"}}},
		{
			line: "echo --listen :0 --listen :0 --listen unix:/x,y --delay 1s --late 2s --greet hello --close-after 3 --reset-after 4 --silent",
			want: call{echo: &Echo{
				Listen: []Address{{"tcp", ":0"}, {"tcp", ":0"}, {"unix", "/x,y"}},
				Delay:  time.Second, Late: 2 * time.Second, Greet: "hello", CloseAfter: 3, ResetAfter: 4, Silent: true,
				Protocol: "raw",
			}},
		},
		{
			line: "echo --listen :1 --protocol thrift --wrong-id 1 --answer-oneway --twice 2 --half 3 --early 4 --after 5",
			want: call{echo: &Echo{
				Listen: []Address{{"tcp", ":1"}}, Protocol: "thrift",
				WrongID: 1, AnswerOneway: true, Twice: 2, Half: 3, Early: 4, After: 5,
			}},
		},
		{line: "load --target a:1", want: call{load: &load}},
		{
			line: "load --target unix:/x --clients 1 --size 16 --duration 3s --requests-per-client 4 --rate 5.5 --think 8s --timeout 6s --skip 7 --json",
			want: call{load: &Load{
				Target: Address{"unix", "/x"}, Clients: 1, Size: 16, Duration: 3 * time.Second,
				RequestsPerClient: 4, Rate: 5.5, Think: 8 * time.Second, Timeout: 6 * time.Second, Skip: 7, JSON: true,
				Protocol: "raw", ThriftTransport: "framed", ThriftProtocol: "binary", Method: "echo",
			}},
		},
		{
			line: "load --target unix:/x --clients 1 --size 32 --duration 3s --timeout 6s --protocol thrift --thrift-transport header --thrift-protocol compact --method mix",
			want: call{load: &Load{
				Target: Address{"unix", "/x"}, Clients: 1, Size: 32, Duration: 3 * time.Second, Timeout: 6 * time.Second,
				Protocol: "thrift", ThriftTransport: "header", ThriftProtocol: "compact", Method: "mix",
			}},
		},
		{
			line: "load --target a:1 --requests 1000000",
			want: call{load: &counted},
		},
	}
	for _, tt := range tests {
		t.Run(tt.line, func(t *testing.T) {
			if got := run(t, tt.line, env, nil); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("status %d, stderr %q\n got %+v %+v %+v\nwant %+v %+v %+v", got.status, got.stderr,
					got.demo, got.echo, got.load, tt.want.demo, tt.want.echo, tt.want.load)
			}
		})
	}
}

func TestClosestSuggestsOnlyWhatIsNear(t *testing.T) {
	names := []string{"listen", "backend", "requests-per-client", "requests", "echo", "log-level"}
	tests := []struct{ got, want string }{
		{"lisen", "listen"},
		{"listne", "listen"},
		{"backends", "backend"},
		{"request", "requests"},
		{"requests-per-c", "requests-per-client"},
		{"ehco", "echo"},
		{"log", "log-level"},
		{"zebra", ""},
		{"l", ""},
		{"", ""},
	}
	for _, tt := range tests {
		if got := closest(tt.got, names); got != tt.want {
			t.Errorf("closest(%q) = %q, want %q", tt.got, got, tt.want)
		}
	}
}
