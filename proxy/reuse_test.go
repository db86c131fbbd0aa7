package proxy

import (
	"errors"
	"io"
	"testing"
	"time"

	"forebay/proxy/engine"
)

const testQuiet = 20 * time.Millisecond

// clean is a relay after which a connection may be reused, if the operator has
// allowed it: every condition of R5 holds.
func clean() engine.Result {
	return engine.Result{
		Up:       engine.Half{Taken: 5, Moved: 5, FIN: true},
		Down:     engine.Half{Taken: 7, Moved: 7},
		End:      engine.Quiet,
		LastDown: true,
		QuietFor: testQuiet,
	}
}

func TestUsedConnectionIsKeptOnlyWhereEveryConditionHolds(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(r *engine.Result)
		quiet time.Duration
		keep  bool
	}{
		{name: "all hold", spoil: func(*engine.Result) {}, quiet: testQuiet, keep: true},
		{name: "quiet for longer", spoil: func(r *engine.Result) { r.QuietFor = time.Hour }, quiet: testQuiet, keep: true},
		{name: "the operator has not allowed it", spoil: func(*engine.Result) {}},
		{name: "the client sent no FIN", spoil: func(r *engine.Result) { r.Up.FIN = false }, quiet: testQuiet},
		{name: "its FIN was relayed", spoil: func(r *engine.Result) { r.Up.FINSent = true }, quiet: testQuiet},
		{name: "the backend sent a FIN", spoil: func(r *engine.Result) { r.Down.FIN = true }, quiet: testQuiet},
		{name: "the last byte came from the client", spoil: func(r *engine.Result) { r.LastDown = false }, quiet: testQuiet},
		{name: "a byte of the client was not delivered", spoil: func(r *engine.Result) { r.Up.Taken++ }, quiet: testQuiet},
		{name: "a byte of the backend was not delivered", spoil: func(r *engine.Result) { r.Down.Taken++ }, quiet: testQuiet},
		{name: "a byte was not acknowledged", spoil: func(r *engine.Result) { r.Unacked = 1 }, quiet: testQuiet},
		{name: "something moved a moment ago", spoil: func(r *engine.Result) { r.QuietFor = testQuiet - 1 }, quiet: testQuiet},
		{name: "something failed", spoil: func(r *engine.Result) { r.Err = io.ErrUnexpectedEOF }, quiet: testQuiet},
	}
	for end := range engine.Stale + 1 {
		if end != engine.Quiet {
			tests = append(tests, struct {
				name  string
				spoil func(r *engine.Result)
				quiet time.Duration
				keep  bool
			}{name: "it ended as " + end.String(), spoil: func(r *engine.Result) { r.End = end }, quiet: testQuiet})
		}
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := clean()
			tt.spoil(&r)
			if keep, used := verdict(r, tt.quiet); keep != tt.keep || !used {
				t.Errorf("verdict = keep %v, used %v; want %v, true", keep, used, tt.keep)
			}
		})
	}
}

func TestUntouchedConnectionIsKeptAsVirgin(t *testing.T) {
	tests := []struct {
		name string
		r    engine.Result
		keep bool
	}{
		{name: "its client reset", r: engine.Result{End: engine.ClientReset, Err: errors.New("reset")}, keep: true},
		{name: "its client failed", r: engine.Result{End: engine.ClientFailed, Err: errors.New("timeout")}, keep: true},
		{name: "its client was silent", r: engine.Result{End: engine.IdleTimeout}, keep: true},
		{name: "its client's FIN was withheld", r: engine.Result{End: engine.Quiet, Up: engine.Half{FIN: true}}, keep: true},
		{name: "not with a FIN relayed", r: engine.Result{End: engine.IdleTimeout, Up: engine.Half{FIN: true, FINSent: true}}},
		{name: "not with a byte of the client taken", r: engine.Result{End: engine.ClientReset, Up: engine.Half{Taken: 1}}},
		{name: "not with a byte of the backend taken", r: engine.Result{End: engine.ClientReset, Down: engine.Half{Taken: 1}}},
		{name: "not where its backend has sent a FIN", r: engine.Result{End: engine.IdleTimeout, Down: engine.Half{FIN: true, FINSent: true}}},
		{name: "not where both have finished", r: engine.Result{End: engine.Finished, Up: engine.Half{FIN: true}, Down: engine.Half{FIN: true}}},
		{name: "not where its backend reset", r: engine.Result{End: engine.BackendReset}},
		{name: "not where its backend failed", r: engine.Result{End: engine.BackendFailed}},
		{name: "not after a half-close", r: engine.Result{End: engine.HalfCloseTimeout}},
		{name: "not where the session was cut", r: engine.Result{End: engine.Cut}},
		{name: "not a stale one", r: engine.Result{End: engine.Stale}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, quiet := range []time.Duration{0, testQuiet} {
				keep, used := verdict(tt.r, quiet)
				if keep != tt.keep || keep && used {
					t.Errorf("with quiet %v: verdict = keep %v, used %v; want keep %v as virgin", quiet, keep, used, tt.keep)
				}
			}
		})
	}
}
