package health

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

var (
	epoch     = time.Unix(1e9, 0)
	errFailed = errors.New("failed")
)

// script plays events to a machine, a millisecond apart: c a check, d a dial, with +
// or - for how it ended; f1 a fault that client 1 met; s one that was served. Anything
// else is a duration that passes.
type script struct {
	*machine
	now time.Time
}

func newScript(answers bool) *script {
	return &script{&machine{rise: 2, fall: 3, mostRise: 30, answers: answers, since: epoch}, epoch}
}

func (s *script) play(t *testing.T, events string) {
	t.Helper()
	for _, e := range strings.Fields(events) {
		s.now = s.now.Add(time.Millisecond)
		switch {
		case e == "c+":
			s.checked(s.now, s.now, nil)
		case e == "c-":
			s.checked(s.now, s.now, errFailed)
		case e == "d+":
			s.dialed()
		case e == "d-":
			s.dialFailed(s.now, s.now, errFailed)
		case e == "s":
			s.served()
		case e[0] == 'f':
			s.unservedClient(s.now, netip.MustParseAddr("192.0.2."+e[1:]), FaultReset)
		default:
			d, err := time.ParseDuration(e)
			if err != nil {
				t.Fatal(err)
			}
			s.now = s.now.Add(d)
		}
	}
}

func (s *script) state() string {
	if s.down {
		return "down"
	}
	return "up"
}

func TestUpAndDown(t *testing.T) {
	const connects, answers = false, true
	tests := []struct {
		name    string
		answers bool
		events  string
		want    string
	}{
		{"it begins up", connects, "", "up"},
		{"two failed checks are not enough", connects, "c- c-", "up"},
		{"three are", connects, "c- c- c-", "down"},
		{"three failed dials are", answers, "d- d- d-", "down"},
		{"checks and dials count together", answers, "c- d- c-", "down"},
		{"a check clears failed checks", connects, "c- c- c+ c- c-", "up"},
		{"a check clears failed dials", answers, "d- d- c+ d- d-", "up"},
		{"a dial clears failed dials", answers, "d- d- d+ d- d-", "up"},
		{"a dial clears failed checks that dial", connects, "c- c- d+ c- c-", "up"},
		{"a dial says nothing to checks without an answer", answers, "c- d+ c- d+ c-", "down"},
		{"a dial clears the dials among the failures", answers, "c- d- d+ c-", "up"},
		{"what is served says nothing of dials", connects, "d- s d- s d-", "down"},
		{"what is served says nothing of checks", answers, "c- s c- s c-", "down"},

		{"one check that succeeds is not enough", connects, "c- c- c- c+", "down"},
		{"two are", connects, "c- c- c- c+ c+", "up"},
		{"they must be in a row", connects, "c- c- c- c+ c- c+", "down"},
		{"a dial brings nothing up", connects, "c- c- c- d+ d+ d+ s s s", "down"},
		{"a dial that fails late takes nothing back", connects, "c- c- c- c+ d- c+", "up"},
		{"failures of before it came up are forgotten", connects, "c- c- c- c+ c+ c- c-", "up"},
		{"failures after it came up count", connects, "c- c- c- c+ c+ c- c- c-", "down"},

		{"clients alone take nothing down", connects, "f1 f2 f3 f4 f5 f6 f7 f8", "up"},
		{"one client proves nothing", connects, "f1 c+ f1 c+ f1 c+ f1 c+ f1 c+", "up"},
		{"three clients prove nothing", connects, "f1 f2 f3 c+ f1 f2 f3 c+ f1 f2 f3 c+ f1 f2 f3 c+", "up"},
		{"four count as a failure at each check that connects", connects, "f1 f2 f3 f4 c+ c+ c+", "down"},
		{"and not before the third", connects, "f1 f2 f3 f4 c+ c+", "up"},
		{"a check that gets an answer refutes them", answers, "f1 f2 f3 f4 c+ f1 f2 f3 f4 c+ f1 f2 f3 f4 c+", "up"},
		{"they count together with failed checks", answers, "f1 f2 f3 f4 c- c-", "down"},
		{"they do not make one failed check enough", answers, "f1 f2 f3 f4 c-", "up"},
		{"they count together with failed dials", connects, "f1 f2 f3 f4 c+ c+ d-", "down"},
		{"anybody who is served refutes them", connects, "f1 f2 f3 f4 c+ c+ s c+", "up"},
		{"one who is served between refutes them", connects, "f1 f2 s f3 f4 c+ c+ c+", "up"},
		{"a dial that succeeds does not", connects, "f1 f2 f3 f4 c+ d+ c+ d+ c+", "down"},
		{"they are forgotten after half a minute", connects, "f1 f2 f3 f4 c+ c+ 30s c+", "up"},
		{"they are forgotten one by one", connects, "f1 20s f2 f3 f4 c+ c+ 10s c+", "up"},
		{"forgotten doubts do not come back", connects, "f1 f2 f3 f4 c+ c+ 30s c+ f1 f2 f3 f4 c+", "up"},
		{"the newest fault of a client is what counts", connects, "f1 20s f1 f2 f3 f4 c+ c+ 10s c+", "down"},
		{"a fifth client takes the place of the first", connects, "f1 20s f2 f3 f4 f5 c+ c+ 10s c+", "down"},
		{"faults of before it came up are forgotten", connects, "f1 f2 f3 c- c- c- c+ c+ f4 c+ c+ c+", "up"},
		{"faults while it is down are not kept", connects, "c- c- c- f1 f2 f3 f4 c+ c+ c+ c+ c+", "up"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newScript(tt.answers)
			s.play(t, tt.events)
			if got := s.state(); got != tt.want {
				t.Errorf("after %q it is %s, want %s", tt.events, got, tt.want)
			}
		})
	}
}

func TestClientsBehindOneAddressAreOne(t *testing.T) {
	tests := []struct {
		name    string
		clients [4]string
		want    int
	}{
		{"IPv4 addresses are clients", [4]string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"}, 4},
		{"one address is one", [4]string{"10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1"}, 1},
		{"in whatever form", [4]string{"10.0.0.1", "::ffff:10.0.0.1", "10.0.0.1", "::ffff:10.0.0.1"}, 1},
		{"an IPv6 /64 is one", [4]string{"2001:db8::1", "2001:db8::2", "2001:db8::ffff:3", "2001:db8:0:1::1"}, 2},
		{"all of one link are one", [4]string{"fe80::1%eth0", "fe80::2%eth0", "fe80::3%eth1", "fe80::4"}, 1},
		{"clients without an address are one", [4]string{"", "", "", ""}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newScript(false)
			for _, c := range tt.clients {
				addr, _ := netip.ParseAddr(c) // "" gives the zero Addr
				s.unservedClient(s.now, addr, FaultTimeout)
			}
			if got := s.unserved.count(s.now); got != tt.want {
				t.Errorf("%v are %d clients, want %d", tt.clients, got, tt.want)
			}
		})
	}
}

func TestFailuresOfOneMomentAreOne(t *testing.T) {
	s := newScript(false)
	began := s.now
	for range 10 {
		s.now = s.now.Add(time.Second)
		s.dialFailed(began, s.now, errFailed)
		s.checked(began, s.now, errFailed)
	}
	if s.down || s.failures() != 1 {
		t.Errorf("dials and checks that failed together are %d failures, want 1", s.failures())
	}
	s.play(t, "d- d-")
	if !s.down {
		t.Error("with two more it is not down")
	}
}

func TestWhatBeganBeforeAChangeSaysNothing(t *testing.T) {
	s := newScript(false)
	before := s.now
	s.play(t, "c- c- c- c+")
	if s.checked(before, s.now, nil); !s.down {
		t.Error("a check from before it went down counts as the second that succeeded")
	}
	s.checked(before, s.now, errFailed)
	if s.play(t, "c+"); s.down {
		t.Error("a check from before it went down counts as a failure")
	}
	s.checked(before, s.now, errFailed)
	s.dialFailed(before, s.now, errFailed)
	if s.failures() != 0 {
		t.Error("what failed before it came up counts")
	}
}

func TestTheReasonIsTheLastFailure(t *testing.T) {
	s := newScript(false)
	s.play(t, "c- c-")
	last := errors.New("the last")
	s.dialFailed(s.now, s.now, last)
	if s.why != last {
		t.Errorf("it is down for %v, want %v", s.why, last)
	}
	if s.play(t, "c+ c+"); s.why != nil {
		t.Errorf("it is up, for %v", s.why)
	}
	s.play(t, "f1 f2 f3 f4 c+ c+ c+")
	if want := "4 clients in a row were not served: connection ended before the first byte of a reply"; fmt.Sprint(s.why) != want {
		t.Errorf("it is down for %q, want %q", s.why, want)
	}
}

// comesUp returns how many checks must succeed.
func (s *script) comesUp(t *testing.T) (checks int) {
	t.Helper()
	for s.down {
		s.play(t, "c+")
		checks++
	}
	return checks
}

func TestAFlappingBackendIsDampened(t *testing.T) {
	s := newScript(false)
	for i, want := range []int{2, 4, 8, 16, 30, 30, 30} { // 30 checks are the most
		s.play(t, "c- c- c-")
		if got := s.comesUp(t); got != want {
			t.Errorf("outage %d took %d checks to end, want %d", i, got, want)
		}
	}
	s.play(t, "2m30s c- c- c-")
	if got, want := s.comesUp(t), 8; got != want { // 16 twice halved
		t.Errorf("after two quiet minutes it took %d checks, want %d", got, want)
	}
	s.play(t, "1h c- c- c-")
	if got, want := s.comesUp(t), 2; got != want {
		t.Errorf("after a quiet hour it took %d checks, want %d", got, want)
	}
}

func TestAnOutageNowAndThenIsNoFlapping(t *testing.T) {
	s := newScript(false)
	for range 5 {
		s.play(t, "61s c- c- c-")
		if got := s.comesUp(t); got != 2 {
			t.Fatalf("it took %d checks, want 2", got)
		}
	}
}

func TestDampeningNeverAsksForLessThanRise(t *testing.T) {
	s := newScript(false)
	s.rise, s.mostRise = 5, 5 // an interval of minutes
	for range 3 {
		s.play(t, "c- c- c-")
		if got := s.comesUp(t); got != 5 {
			t.Fatalf("it took %d checks, want 5", got)
		}
	}
}

func TestWhenACheckIsUrgent(t *testing.T) {
	tests := []struct {
		name   string
		events string
		want   bool
	}{
		{"not while all is well", "c+ d+ s", false},
		{"after a failed check", "c-", true},
		{"after a failed dial", "d-", true},
		{"not after it is cleared", "d- d+", false},
		{"after one client was not served", "f1", true},
		{"not after another was", "f1 s", false},
		{"not after half a minute", "f1 30s", false},
		{"not while it is down", "c- c- c- f1 d-", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newScript(true)
			if s.play(t, tt.events); s.urgent(s.now) != tt.want {
				t.Errorf("after %q urgent = %v, want %v", tt.events, !tt.want, tt.want)
			}
		})
	}
}
