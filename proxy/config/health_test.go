package config

import (
	"strings"
	"testing"
	"time"
)

func TestServeTakesTheFlagsOfItsChecks(t *testing.T) {
	c := run(t, `--backend a:1 --health send-expect --health-send PING\r\n --health-expect +PONG --health-interval 500ms --health-timeout 200ms `+
		`--health-fall 2 --health-rise 4 --slow-start 0 --on-down cut --all-down try`, map[string]string{"FOREBAY_HEALTH_RISE": "9"}, nil)
	want := Health{Check: "send-expect", Interval: 500 * time.Millisecond, Timeout: 200 * time.Millisecond, Fall: 2, Rise: 4,
		Send: `PING\r\n`, Expect: "+PONG", Method: "forebay_health_check", OnDown: "cut", AllDown: "try"}
	if c.serve == nil || c.serve.Health != want {
		t.Errorf("serve = %+v, %s; want %+v", c.serve, c.stderr, want)
	}
}

func TestFlagsOfChecksThatDoNotGoTogetherAreRefused(t *testing.T) {
	tests := []struct{ line, want string }{
		{`--health http`, `--health: got "http"; takes tcp, send-expect, thrift or off`},
		{`--health-send x`, `--health-send: got "x" beside --health tcp; takes --health send-expect`},
		{`--health thrift --health-expect x`, `--health-expect: got "x" beside --health thrift; takes --health send-expect`},
		{`--health send-expect`, `--health-expect is required beside --health send-expect`},
		{`--health send-expect --health-expect x --health-method m`, `--health-method: got "m" beside --health send-expect; takes --health thrift`},
		{`--health thrift --protocol length`, `--health: got "thrift" beside --protocol length; takes tcp, send-expect or off there`},
		{`--health-interval 0`, `--health-interval: got "0"`},
		{`--health-fall 0`, `--health-fall: got "0"; takes a number from 1 to 1000`},
		{`--on-down kill`, `--on-down: got "kill"; takes leave or cut`},
		{`--all-down open`, `--all-down: got "open"; takes fail or try`},
	}
	for _, tt := range tests {
		t.Run(tt.line, func(t *testing.T) {
			c := run(t, "--backend a:1 "+tt.line, nil, nil)
			if c.acted() || c.status != 2 || !strings.Contains(c.stderr, tt.want) {
				t.Errorf("acted %t, status %d, stderr %q; want %q", c.acted(), c.status, c.stderr, tt.want)
			}
		})
	}
}
