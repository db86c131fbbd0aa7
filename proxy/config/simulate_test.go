package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// defaultSimulate is what `forebay simulate` simulates.
func defaultSimulate() Simulate {
	return Simulate{
		Strategies: []string{"least-conn", "round-robin", "weighted-round-robin", "random", "weighted-random", "random-two",
			"source-hash", "consistent-hash", "first"},
		Rate: 400, Duration: 20 * time.Second, Service: "exponential", ServiceTime: 20 * time.Millisecond, Clients: 100,
		Backends: []SimBackend{
			{Max: 64, Workers: 4, Weight: 2, Speed: 1},
			{Max: 64, Workers: 4, Weight: 2, Speed: 1},
			{Max: 64, Workers: 4, Weight: 1, Speed: 0.5},
			{Max: 64, Workers: 4, Weight: 2, Speed: 1, StallFrom: 8 * time.Second, StallFor: 4 * time.Second},
		},
		AcquireTimeout: 3 * time.Second, Queue: 1024, Seed: 1,
	}
}

func TestSimulateTakesItsFlags(t *testing.T) {
	tests := []struct {
		line string
		set  func(*Simulate)
	}{
		{"", func(*Simulate) {}},
		{"--balance first --balance random", func(s *Simulate) { s.Strategies = []string{"first", "random"} }},
		{"--rate 0.5", func(s *Simulate) { s.Rate = 0.5 }},
		{"--rate 100 --duration 5h", func(s *Simulate) { s.Rate, s.Duration = 100, 5*time.Hour }},
		{"--service bimodal --service-time 1s", func(s *Simulate) { s.Service, s.ServiceTime = "bimodal", time.Second }},
		{"--clients 1", func(s *Simulate) { s.Clients = 1 }},
		{"--backend max=2 --backend speed=3", func(s *Simulate) {
			s.Backends = []SimBackend{{Max: 2, Workers: 2, Weight: 1, Speed: 1}, {Max: 64, Workers: 64, Weight: 1, Speed: 3}}
		}},
		{strings.Repeat(" --backend max=1", 9), func(s *Simulate) {
			s.Backends = slices.Repeat([]SimBackend{{Max: 1, Workers: 1, Weight: 1, Speed: 1}}, 9)
		}},
		{"--acquire-timeout 1s --queue 0", func(s *Simulate) { s.AcquireTimeout, s.Queue = time.Second, 0 }},
		{"--seed 0", func(s *Simulate) { s.Seed = 0 }},
		{"--plot a/b.svg --json", func(s *Simulate) { s.Plot, s.JSON = "a/b.svg", true }},
	}
	for _, tt := range tests {
		t.Run(tt.line, func(t *testing.T) {
			want := defaultSimulate()
			tt.set(&want)
			c := run(t, "simulate "+tt.line, map[string]string{"FOREBAY_QUEUE": "7", "FOREBAY_BALANCE": "first"}, nil)
			if c.simulate == nil || !reflect.DeepEqual(*c.simulate, want) {
				t.Errorf("status %d, stderr %q\n got %+v\nwant %+v", c.status, c.stderr, c.simulate, want)
			}
		})
	}
}

func TestSimulateSaysWhatIsWrong(t *testing.T) {
	tests := []struct{ line, stderr string }{
		{"--balance best", `--balance: got "best"; takes least-conn, round-robin, weighted-round-robin, random, weighted-random, random-two, source-hash, consistent-hash or first`},
		{"--balance first --balance first", `--balance: got "first" twice; takes each strategy once`},
		{"--rate 0", `--rate: got "0"; takes requests per second above 0, up to 1e9, such as 400`},
		{"--rate NaN", `--rate: got "NaN"; takes requests per second above 0, up to 1e9, such as 400`},
		{"--rate 2e9", `--rate: got "2e9"; takes requests per second above 0, up to 1e9, such as 400`},
		{"--rate 1e6", "--rate: got 1e+06 for 20s, 20000000 requests; takes at most 2000000 in all"},
		{"--duration 0", `--duration: got "0"; takes a duration above 0, up to 24h, such as 20s`},
		{"--duration 25h", `--duration: got "25h": more than 24h; takes a duration above 0, up to 24h, such as 20s`},
		{"--service pareto", `--service: got "pareto"; takes constant, exponential, lognormal or bimodal`},
		{"--clients 0", `--clients: got "0"; takes a number from 1 to 1000000`},
		{"--seed -1", `--seed: got "-1"; takes a number from 0`},
		{"--queue -1", `--queue: got "-1"; takes a number from 1 to 1000000, or 0 (none waits)`},
		{"--plot a.png", `--plot: got "a.png"; takes the path of a file whose name ends in .svg`},
		{"--plot a.svg" + strings.Repeat(" --backend max=1", 9), "--plot: got 9 backends; takes at most 8, as more lines cannot be told apart"},
	}
	for _, tt := range tests {
		t.Run(tt.line, func(t *testing.T) {
			c := run(t, "simulate "+tt.line, nil, nil)
			if c.acted() || c.status != 2 || c.stderr != "forebay: "+tt.stderr+"\n" {
				t.Errorf("acted %t, status %d, stderr %q; want false, 2, %q", c.acted(), c.status, c.stderr, tt.stderr)
			}
		})
	}
}

func TestParseSimBackendTakesItsKeysInAnyOrder(t *testing.T) {
	tests := []struct {
		name, in string
		want     SimBackend
	}{
		{"as many workers as max", "max=8", SimBackend{Max: 8, Workers: 8, Weight: 1, Speed: 1}},
		{"as many as the default max", "weight=3", SimBackend{Max: 64, Workers: 64, Weight: 3, Speed: 1}},
		{"all", "stall=1s+2ms,speed=0.25,weight=9,workers=3,max=5",
			SimBackend{Max: 5, Workers: 3, Weight: 9, Speed: 0.25, StallFrom: time.Second, StallFor: 2 * time.Millisecond}},
		{"more workers than connections", "workers=100,max=1", SimBackend{Max: 1, Workers: 100, Weight: 1, Speed: 1}},
		{"a stall from the beginning", "stall=0+1s", SimBackend{Max: 64, Workers: 64, Weight: 1, Speed: 1, StallFor: time.Second}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := ParseSimBackend(tt.in); err != nil || got != tt.want {
				t.Errorf("got %+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
}

func TestParseSimBackendSaysWhatIsWrong(t *testing.T) {
	tests := []struct{ in, reason string }{
		{"", `"" is none of these`},
		{"max=1,", `"" is none of these`},
		{"a:1,max=1", `"a:1" is none of these`},
		{"max", `max is a number from 1 to 65535, not ""`},
		{"max=0", `max is a number from 1 to 65535, not "0"`},
		{"max=65536", `max is a number from 1 to 65535, not "65536"`},
		{"workers=-1", `workers is a number from 1 to 65535, not "-1"`},
		{"weight=1000001", `weight is a number from 1 to 1000000, not "1000001"`},
		{"speed=0", `speed is a number from 0.001 to 1000, not "0"`},
		{"speed=NaN", `speed is a number from 0.001 to 1000, not "NaN"`},
		{"speed=1001", `speed is a number from 0.001 to 1000, not "1001"`},
		{"stall=8s", `stall is two durations, such as 8s+4s, not "8s"`},
		{"stall=8s+0s", `stall is two durations, such as 8s+4s, not "8s+0s"`},
		{"stall=-1s+1s", `stall is two durations, such as 8s+4s, not "-1s+1s"`},
		{"stall=1s+25h", `stall is two durations, such as 8s+4s, not "1s+25h"`},
		{"max=1,max=1", `max is there twice`},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			want := fmt.Sprintf("got %q: %s; takes max=N, workers=N, speed=X, weight=N and stall=START+DURATION, joined by commas", tt.in, tt.reason)
			if got, err := ParseSimBackend(tt.in); err == nil || err.Error() != want || got != (SimBackend{}) {
				t.Errorf("got %+v, %v; want none, %s", got, err, want)
			}
		})
	}
}

func FuzzParseSimBackend(f *testing.F) {
	for _, s := range append(defaultFleet, "", "max=1,", "speed=1e3", "stall=1s+1s,stall=1s+1s", "workers=+1", "max=1=2", "stall=+1s", "speed=0x1p-3") {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := ParseSimBackend(s)
		if err != nil {
			if text := err.Error(); strings.Contains(text, "\n") || !strings.HasSuffix(text, "; takes "+simBackendTakes) || b != (SimBackend{}) {
				t.Fatalf("%q: %+v, error %s; want none, and one line with what is accepted", s, b, text)
			}
			return
		}
		if b.Max < 1 || b.Max > maxMax || b.Workers < 1 || b.Workers > maxMax || b.Weight < 1 || b.Weight > maxWeight ||
			!(b.Speed >= minSpeed && b.Speed <= maxSpeed) || b.StallFrom < 0 || b.StallFor < 0 || b.StallFor > maxSimDuration {
			t.Fatalf("%q is %+v", s, b)
		}
	})
}
