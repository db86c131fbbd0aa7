package exchange

import (
	"testing"
	"time"
)

func TestEarlier(t *testing.T) {
	never, one, two := time.Time{}, start, start.Add(1)
	for _, tt := range []struct{ a, b, want time.Time }{
		{never, never, never}, {one, never, one}, {never, one, one},
		{one, two, one}, {two, one, one}, {one, one, one},
	} {
		if got := earlier(tt.a, tt.b); got != tt.want {
			t.Errorf("earlier(%v, %v) = %v; want %v", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestStepSaysWhoIsLikelierToBeNext(t *testing.T) {
	r := newRig(t)
	want := func(when string, client bool) {
		t.Helper()
		if r.run(); r.step.ClientFirst != client {
			t.Errorf("%s: the client first: %v", when, r.step.ClientFirst)
		}
	}
	want("at the start", true)
	r.client(twoWay("echo", 1, "a"))
	want("before a reply", false)
	r.reply("re a")
	want("after a reply", true)
	r.client(oneway("fire", "a"))
	want("in a quarantine", true)
}

func TestStepWakesForWhatComesFirst(t *testing.T) {
	r := newRig(t)
	until := func(when string, want time.Duration) {
		t.Helper()
		if r.run(); r.step.Until.Sub(r.now) != want {
			t.Errorf("%s: in %v; want %v", when, r.step.Until.Sub(r.now), want)
		}
	}
	until("at the start", idleTimeout)
	r.client(oneway("fire", "a"))
	until("in a quarantine", quarantine)
	r.client(twoWay("echo", 1, "a"))
	until("before a reply, in a quarantine", quarantine)
	r.after(quarantine)
	until("before a reply", replyTimeout-quarantine)
	r.clientEnded(errReset)
	until("of a client that is gone", drainTime)
}

func TestNoTimeoutsNoWaking(t *testing.T) {
	r := newRig(t, func(c *Config) { c.IdleTimeout, c.ReplyTimeout = 0, 0 })
	r.client(twoWay("echo", 1, "a"))
	if !r.step.Until.IsZero() {
		t.Errorf("until %v", r.step.Until)
	}
	r.reply("re a")
	if !r.step.Until.IsZero() {
		t.Errorf("until %v", r.step.Until)
	}
}
