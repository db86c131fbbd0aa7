package proxy

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"
	"testing"

	"forebay/balance"
	"forebay/proxy/engine"
)

func TestRefusalHasTheReasonOfItsCause(t *testing.T) {
	local := fmt.Errorf("dial: %w", syscall.EMFILE)
	tests := []struct {
		err  error
		want Reason
	}{
		{errClientLeft, ClientLeft},
		{errQueueFull, QueueFull},
		{errAcquireTimeout, AcquireTimeout},
		{errShutdown, Refused},
		{balance.ErrNone, NoBackend},
		{noBackendError{}, NoBackend},
		{noBackendError{syscall.ECONNREFUSED}, NoBackend},
		{noBackendError{local}, NoBackend},
		{local, LocalFault},
		{syscall.EADDRNOTAVAIL, LocalFault},
	}
	for _, tt := range tests {
		t.Run(tt.err.Error(), func(t *testing.T) {
			if got := refusal(tt.err); got != tt.want {
				t.Errorf("refusal = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestEndOfARelayHasItsReason(t *testing.T) {
	want := map[engine.End]Reason{
		engine.Finished:         Done,
		engine.Quiet:            Done,
		engine.ClientReset:      ClientReset,
		engine.BackendReset:     BackendReset,
		engine.Stale:            BackendReset,
		engine.ClientFailed:     ClientFailed,
		engine.BackendFailed:    BackendFailed,
		engine.IdleTimeout:      IdleTimeout,
		engine.HalfCloseTimeout: HalfCloseTimeout,
		engine.Cut:              Cut,
	}
	for end := range engine.Stale + 1 {
		t.Run(end.String(), func(t *testing.T) {
			if got := ending(end); got != want[end] {
				t.Errorf("ending = %v, want %v", got, want[end])
			}
		})
	}
}

func TestReasonsAreNamedAndOrdinaryOnlyWhereNothingIsAmiss(t *testing.T) {
	var names, ordinary []string
	for r := range numReasons {
		if r.String() == "" || slices.Contains(names, r.String()) {
			t.Errorf("reason %d is named %q: empty, or not alone", r, r)
		}
		names = append(names, r.String())
		if r.ordinary() {
			ordinary = append(ordinary, r.String())
		}
	}
	if want := []string{"done", "client_left", "client_reset", "drained"}; !slices.Equal(ordinary, want) {
		t.Errorf("ordinary = %v, want %v", ordinary, want)
	}
}

func TestHasLeft(t *testing.T) {
	reset := errors.New("reset")
	tests := []struct {
		name       string
		bytes      bool
		end        error
		abortOnFIN bool
		want       bool
	}{
		{name: "silent", want: false},
		{name: "has sent", bytes: true, want: false},
		{name: "has sent, abort on fin", bytes: true, abortOnFIN: true, want: false},
		{name: "reset", end: reset, want: true},
		{name: "reset after bytes", bytes: true, end: reset, want: true},
		{name: "FIN before any byte", end: io.EOF, want: true},
		{name: "FIN after bytes is a half-close", bytes: true, end: io.EOF, want: false},
		{name: "FIN after bytes, abort on fin", bytes: true, end: io.EOF, abortOnFIN: true, want: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := hasLeft(tt.bytes, tt.end, tt.abortOnFIN); got != tt.want {
				t.Errorf("hasLeft = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestExplainPrefersWhatIsKnownOfTheBackends(t *testing.T) {
	refused, local := error(syscall.ECONNREFUSED), fmt.Errorf("socket: %w", syscall.EMFILE)
	tests := []struct {
		name string
		last error
		err  error
		want string
	}{
		{name: "no dial", err: errAcquireTimeout, want: errAcquireTimeout.Error()},
		{name: "none left", last: refused, err: balance.ErrNone, want: "no backend is up: connection refused"},
		{name: "timeout after a refused dial", last: refused, err: errAcquireTimeout, want: errAcquireTimeout.Error()},
		{name: "timeout for want of descriptors", last: local, err: errAcquireTimeout, want: local.Error()},
		{name: "left while there were none", last: local, err: errClientLeft, want: errClientLeft.Error()},
		{name: "shutdown", last: local, err: errShutdown, want: errShutdown.Error()},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := &acquire{last: tt.last}
			if got := a.explain(tt.err); got.Error() != tt.want {
				t.Errorf("explain = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestWithoutAddsOnceAndKeepsTheOther(t *testing.T) {
	a, b, c := &backend{name: "a"}, &backend{name: "b"}, &backend{name: "c"}
	first := without(nil, b)
	second := without(first, c)
	third := without(first, a) // must not write into second's
	if again := without(second, b); !slices.Equal(again, []*backend{b, c}) || !slices.Equal(third, []*backend{b, a}) {
		t.Errorf("without = %v and %v, want b c and b a", again, third)
	}
}
