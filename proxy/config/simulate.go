package config

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Simulate is what `forebay simulate` takes.
type Simulate struct {
	// Strategies is never empty and without duplicates.
	Strategies []string

	// Rate is the requests per second, on average; above 0.
	Rate float64

	// Duration is how long requests come; above 0. With Rate it makes at most maxSimulated
	// requests.
	Duration time.Duration

	// Service is "constant", "exponential", "lognormal" or "bimodal"; ServiceTime, above
	// 0, is its mean.
	Service     string
	ServiceTime time.Duration

	// Clients is how many addresses the requests come from, at least 1.
	Clients int

	// Backends is never empty, and has at most MaxDrawn where Plot is set.
	Backends []SimBackend

	// AcquireTimeout is the longest wait in the queue; above 0.
	AcquireTimeout time.Duration

	// Queue bounds the requests that wait there at once. Zero: none waits.
	Queue int

	// Seed is of all that is drawn.
	Seed int64

	// Plot is the file that the picture is written to. Empty: none is drawn.
	Plot string

	// JSON prints one object instead of a table.
	JSON bool
}

// SimBackend is a server that is simulated. ParseSimBackend sets every field but the last
// two, which are zero where it does not stall.
type SimBackend struct {
	Max, Workers, Weight int
	Speed                float64
	StallFrom, StallFor  time.Duration
}

const (
	// MaxDrawn is how many backends a picture can show.
	MaxDrawn = 8

	// maxSimulated is a matter of seconds for each strategy.
	maxSimulated = 2_000_000

	maxSimDuration = 24 * time.Hour
	minSpeed       = 0.001
	maxSpeed       = 1000
)

const simulateAbout = `forebay simulate shows what each strategy of --balance makes of a load: how long
requests wait, how full backends get, how evenly they work. Time is virtual, and
nothing is dialed. The same flags print the same numbers.

Requests arrive at random, from clients of which the second asks half as much as
the first, the third a third, and so on. A backend works on as many requests at
once as it has workers, and keeps the others that its max admits in a queue of
its own; where all are full requests wait in the queue of the proxy, or are
refused.

Without --backend there are four, with weights that fit their speeds:
`

const (
	loadingFlags = "requests"
	fleetFlags   = "backends"
	choiceFlags  = "proxy"
)

// defaultFleet is half idle, and has what a strategy may fall for: a backend that is
// slow, and one that stalls. It has enough workers without that one.
var defaultFleet = []string{
	"max=64,workers=4,weight=2",
	"max=64,workers=4,weight=2",
	"max=64,workers=4,weight=1,speed=0.5",
	"max=64,workers=4,weight=2,stall=8s+4s",
}

const defaultSimMax = 64

func simulateIntro() string {
	return simulateAbout + "\n  --backend " + strings.Join(defaultFleet, "\n  --backend ") + "\n"
}

func simulateSettings(s *Simulate) settings {
	return slices.Concat(simulateLoadSettings(s), settings{
		{
			name: "backend", category: fleetFlags, defText: "default: the four above; may be repeated",
			kind: list(&s.Backends, ParseSimBackend, simBackendTakes),
			usage: "simulate a backend of `KEY=VALUE,...`: max, its connections (64); workers, the requests that it works on at " +
				"once (max); speed, by which its service times are divided (1); weight (1); stall=START+DURATION, when it " +
				"makes no progress (never)",
		},
		{
			name: "balance", category: choiceFlags, defText: "default: all; may be repeated",
			kind:  list(&s.Strategies, parseStrategy, orList(strategies)),
			usage: "choose backends by `STRATEGY`: " + orList(strategies),
		},
		{
			name: "acquire-timeout", category: choiceFlags, def: "3s",
			kind:  duration(&s.AcquireTimeout, ""),
			usage: "refuse a request that has waited for a backend for `DURATION`",
		},
		{
			name: "queue", category: choiceFlags, def: "1024",
			kind:  number(&s.Queue, 1, maxClients, "none waits"),
			usage: "have at most `N` requests wait at once, and refuse the others",
		},
		{
			name: "plot", category: printFlags, defText: "default: none",
			kind:  parsed(&s.Plot, parseSVG, svgTakes),
			usage: "draw the result into `FILE`, an SVG",
		},
		{
			name: "json", category: printFlags, def: "off",
			kind:  toggle(&s.JSON),
			usage: "print one JSON object instead of a table",
		},
	})
}

func simulateLoadSettings(s *Simulate) settings {
	return settings{
		{
			name: "rate", category: loadingFlags, def: "400",
			kind:  parsed(&s.Rate, parseRate, rateTakes),
			usage: "have `R` requests per second arrive, on average",
		},
		{
			name: "duration", category: loadingFlags, def: "20s",
			kind: durationWithin(&s.Duration, 1, maxSimDuration, false,
				fmt.Sprintf("a duration above 0, up to %vh, such as 20s", maxSimDuration.Hours())),
			usage: "have them arrive for `DURATION`; those that have come are then served",
		},
		{
			name: "service", category: loadingFlags, def: "exponential",
			kind: choice(&s.Service, "constant", "exponential", "lognormal", "bimodal"),
			usage: "draw service times from `DISTRIBUTION`, by how much they differ: constant; exponential; lognormal, with " +
				"a standard deviation of 1.3 means; bimodal, of which one in 20 is 20 times as long as the others",
		},
		{
			name: "service-time", category: loadingFlags, def: "20ms",
			kind:  duration(&s.ServiceTime, ""),
			usage: "take `DURATION` for a request, on average, at speed 1",
		},
		{
			name: "clients", category: loadingFlags, def: "100",
			kind:  number(&s.Clients, 1, maxClients, ""),
			usage: "have them come from `N` addresses, which matter to the strategies that hash",
		},
		{
			name: "seed", category: loadingFlags, def: "1",
			kind:  number(&s.Seed, 0, math.MaxInt64, ""),
			usage: "draw everything by `N`: another seed is another day of the same load",
		},
	}
}

// complete fills in the lists, and checks what no single flag can.
func (s *Simulate) complete(ss settings) error {
	if len(s.Strategies) == 0 {
		s.Strategies = slices.Clone(strategies)
	}
	for i, name := range s.Strategies {
		if slices.Contains(s.Strategies[:i], name) {
			return fmt.Errorf("%s: got %q twice; takes each strategy once", ss.source("balance"), name)
		}
	}
	if len(s.Backends) == 0 {
		for _, text := range defaultFleet {
			b, err := ParseSimBackend(text)
			if err != nil {
				panic(err) // a default of ours
			}
			s.Backends = append(s.Backends, b)
		}
	}
	if n := s.Rate * s.Duration.Seconds(); n > maxSimulated {
		return fmt.Errorf("%s: got %v for %v, %.0f requests; takes at most %d in all",
			ss.source("rate"), s.Rate, s.Duration, n, maxSimulated)
	}
	if s.Plot != "" && len(s.Backends) > MaxDrawn {
		return fmt.Errorf("%s: got %d backends; takes at most %d, as more lines cannot be told apart",
			ss.source("plot"), len(s.Backends), MaxDrawn)
	}
	return nil
}

// parseStrategy takes one of strategies.
func parseStrategy(s string) (string, error) {
	var name string
	err := choice(&name, strategies...).read(s)
	return name, err
}

const rateTakes = "requests per second above 0, up to 1e9, such as 400"

func parseRate(s string) (float64, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f > 0) || f > 1e9 {
		return 0, &valueError{given: s, takes: rateTakes}
	}
	return f, nil
}

const svgTakes = "the path of a file whose name ends in .svg"

func parseSVG(s string) (string, error) {
	if !strings.HasSuffix(s, ".svg") {
		return "", &valueError{given: s, takes: svgTakes}
	}
	return s, nil
}

const simBackendTakes = "max=N, workers=N, speed=X, weight=N and stall=START+DURATION, joined by commas"

// ParseSimBackend reads KEY=VALUE,... in any order. What is not there is as the help of
// --backend says. The error tells what was given and what is accepted.
func ParseSimBackend(s string) (SimBackend, error) {
	b, err := parseSimBackend(s)
	if err != nil {
		return SimBackend{}, &valueError{given: s, reason: err.Error(), takes: simBackendTakes}
	}
	return b, nil
}

// parseSimBackend returns an error that is only the reason.
func parseSimBackend(s string) (SimBackend, error) {
	b := SimBackend{Max: defaultSimMax, Speed: 1, Weight: 1}
	var seen []string
	for option := range strings.SplitSeq(s, ",") {
		key, value, _ := strings.Cut(option, "=")
		if slices.Contains(seen, key) {
			return b, fmt.Errorf("%s is there twice", key)
		}
		seen = append(seen, key)
		if err := b.set(key, value); err != nil {
			return b, err
		}
	}
	if b.Workers == 0 {
		b.Workers = b.Max
	}
	return b, nil
}

func (b *SimBackend) set(key, value string) (err error) {
	switch key {
	case "max":
		b.Max, err = whole(key, value, maxMax)
	case "workers":
		b.Workers, err = whole(key, value, maxMax)
	case "weight":
		b.Weight, err = whole(key, value, maxWeight)
	case "speed":
		b.Speed, err = strconv.ParseFloat(value, 64)
		if err != nil || !(b.Speed >= minSpeed && b.Speed <= maxSpeed) {
			err = fmt.Errorf("speed is a number from %v to %v, not %q", minSpeed, maxSpeed, value)
		}
	case "stall":
		b.StallFrom, b.StallFor, err = parseStall(value)
	default:
		err = fmt.Errorf("%q is none of these", key)
	}
	return err
}

func whole(key, value string, limit int) (int, error) {
	n, err := strconv.ParseUint(value, 10, 31)
	if err != nil || n < 1 || n > uint64(limit) {
		return 0, fmt.Errorf("%s is a number from 1 to %d, not %q", key, limit, value)
	}
	return int(n), nil
}

// parseStall reads START+DURATION.
func parseStall(value string) (from, long time.Duration, err error) {
	start, length, _ := strings.Cut(value, "+")
	from, err = time.ParseDuration(start)
	if err == nil {
		long, err = time.ParseDuration(length)
	}
	if err != nil || from < 0 || long <= 0 || from > maxSimDuration || long > maxSimDuration {
		return 0, 0, fmt.Errorf("stall is two durations, such as 8s+4s, not %q", value)
	}
	return from, long, nil
}
