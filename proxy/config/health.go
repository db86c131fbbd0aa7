package config

import (
	"fmt"
	"time"
)

const healthFlags = "health"

// Health is how it is found out which backends are down, and what follows.
type Health struct {
	// Check is "tcp", "send-expect", "thrift" or "off".
	Check string

	// Interval lies between two checks of a backend, Timeout bounds one; both above 0.
	Interval, Timeout time.Duration

	// Fall failures in a row take a backend down, Rise successes bring it up; at least 1.
	Fall, Rise int

	// Send and Expect are what a send-expect check sends and wants, with the escapes
	// as they were written. Send may be empty.
	Send, Expect string

	// Method is what a thrift check calls.
	Method string

	// SlowStart is how long a backend that came up takes to get its whole share.
	// Zero: it has it at once.
	SlowStart time.Duration

	// OnDown is what becomes of the sessions of a backend that goes down: "leave" or
	// "cut".
	OnDown string

	// AllDown is what becomes of clients while every backend is down: "fail", or "try"
	// to dial as if all were up.
	AllDown string
}

// healthSettings are the flags of checks, and of what follows from them.
func healthSettings(h *Health) settings {
	return append(append(paceSettings(h), talkSettings(h)...), downSettings(h)...)
}

// paceSettings are how a backend is checked, how often, and what counts.
func paceSettings(h *Health) settings {
	return settings{
		{
			name: "health", category: healthFlags, def: "tcp",
			kind: choice(&h.Check, "tcp", "send-expect", "thrift", "off"),
			usage: "check each backend by `HOW`: tcp connects; send-expect sends --health-send and wants --health-expect; " +
				"thrift calls --health-method and takes any reply. A stopped program's kernel goes on accepting: only the " +
				"last two see that. A check takes one of the backend's connections, so there is none while all are leased. " +
				"off: one failed dial takes a backend down, and dials bring it up",
		},
		{
			name: "health-interval", category: healthFlags, def: "2s",
			kind:  duration(&h.Interval, ""),
			usage: "check every `DURATION`, give or take 10 %; four times as often while something is wrong",
		},
		{
			name: "health-timeout", category: healthFlags, def: "1s",
			kind:  duration(&h.Timeout, ""),
			usage: "give a check up after `DURATION`",
		},
		{
			name: "health-fall", category: healthFlags, def: "3",
			kind:  number(&h.Fall, 1, 1000, ""),
			usage: "take a backend down after `N` failures in a row, of checks and of dials for clients",
		},
		{
			name: "health-rise", category: healthFlags, def: "2",
			kind:  number(&h.Rise, 1, 1000, ""),
			usage: "bring it up again after `N` checks in a row that succeeded; twice as many for each time that it went down within a minute",
		},
	}
}

// talkSettings are what a check says.
func talkSettings(h *Health) settings {
	return settings{
		{
			name: "health-send", category: healthFlags, defText: "default: nothing is sent",
			kind:  text(&h.Send),
			usage: `send ` + "`TEXT`" + ` in a send-expect check; \r \n \t \0 \\ \xNN stand for bytes`,
		},
		{
			name: "health-expect", category: healthFlags, defText: "required by send-expect",
			kind:  text(&h.Expect),
			usage: "want `TEXT`, written likewise, among the first 16 KiB of the answer",
		},
		{
			name: "health-method", category: healthFlags, def: "forebay_health_check",
			kind:  text(&h.Method),
			usage: "call `NAME` in a thrift check. A server that does not know it says so, which is an answer",
		},
	}
}

// downSettings are what follows when a backend goes down, and comes up.
func downSettings(h *Health) settings {
	return settings{
		{
			name: "slow-start", category: healthFlags, def: "10s",
			kind:  duration(&h.SlowStart, "at once"),
			usage: "raise the share and the connections of a backend that came up again over `DURATION`",
		},
		{
			name: "on-down", category: healthFlags, def: "leave",
			kind:  choice(&h.OnDown, "leave", "cut"),
			usage: "`leave|cut` the sessions of a backend that goes down",
		},
		{
			name: "all-down", category: healthFlags, def: "fail",
			kind: choice(&h.AllDown, "fail", "try"),
			usage: "while every backend is down, `fail|try`: refuse clients at once, or dial as if all were up. Backends that " +
				"are drained stay out",
		},
	}
}

// complete checks what no single flag can.
func (h *Health) complete(protocol string, ss settings) error {
	only := map[string][]string{"send-expect": {"health-send", "health-expect"}, "thrift": {"health-method"}}
	for check, names := range only {
		for _, name := range names {
			if s := ss.find(name); s.wasGiven() && h.Check != check {
				return fmt.Errorf("%s: got %q beside --health %s; takes --health %s", s.source, s, h.Check, check)
			}
		}
	}
	if h.Check == "send-expect" && h.Expect == "" {
		return fmt.Errorf("--health-expect is required beside --health send-expect: a part of the answer")
	}
	if h.Check == "thrift" && h.Method == "" {
		return fmt.Errorf("%s: got %q; takes the name of a method", ss.source("health-method"), h.Method)
	}
	if h.Check == "thrift" && protocol == "length" {
		return fmt.Errorf("%s: got %q beside --protocol length; takes tcp, send-expect or off there", ss.source("health"), h.Check)
	}
	return nil
}
