package ctl

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"forebay/proxy/admin"
)

// table writes lines of cells in columns that are ranged right.
func table(w io.Writer, lines ...[]any) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, cells := range lines {
		fmt.Fprintf(t, strings.Repeat("%v\t", len(cells))+"\n", cells...)
	}
	return t.Flush()
}

func writePools(w io.Writer, p admin.Pools) error {
	lines := [][]any{{"backend", "state", "leased", "idle", "dialing", "closing", "max", "weight",
		"sessions", "requests", "MB up", "MB down", "dials", "failed", "reused", "why"}}
	for _, b := range p.Backends {
		lines = append(lines, []any{b.Name, state(b), b.Leased, b.Idle, b.Dialing, b.Closing, b.Max, b.Weight,
			b.Sessions, b.Requests, megabytes(b.BytesUp), megabytes(b.BytesDown), b.Dials, b.DialErrors, b.Reused,
			cmp.Or(b.Why, b.LastError, "-")})
	}
	if err := table(w, lines...); err != nil {
		return err
	}
	balance := ""
	if p.Balance != "" { // else it is an older forebay that is asked
		balance = ", balance " + p.Balance
	}
	_, err := fmt.Fprintf(w, "%d sessions, %d in the queue%s%s\n", p.Sessions, p.Queue.Length, balance, notes(p))
	return err
}

// state is that of a backend, in one word, so that the columns can be counted.
func state(b admin.Backend) string {
	if b.Backup {
		return b.State + ",backup"
	}
	return b.State
}

// notes says what is out of the ordinary.
func notes(p admin.Pools) string {
	var s string
	if p.Queue.Paused {
		s += fmt.Sprintf(", paused for %v", duration(p.Queue.PausedMS))
	}
	if p.Draining {
		s += ", draining"
	}
	if p.Desyncs > 0 {
		s += fmt.Sprintf(", %d desyncs", p.Desyncs)
	}
	return s
}

func writeQueue(w io.Writer, q admin.Queue) error {
	mean := 0.0
	if q.Waits > 0 {
		mean = q.WaitMS / float64(q.Waits)
	}
	paused := "no"
	if q.Paused {
		paused = duration(q.PausedMS).String()
	}
	return table(w, []any{"length", "paused", "waits", "mean", "longest"},
		[]any{q.Length, paused, q.Waits, duration(mean), duration(q.MaxMS)})
}

func writeSessions(w io.Writer, sessions []admin.Session) error {
	lines := [][]any{{"id", "client", "backend", "state", "age", "bytes up", "bytes down", "requests"}}
	for _, s := range sessions {
		lines = append(lines, []any{s.ID, s.Client, cmp.Or(s.Backend, "-"), s.State, duration(s.AgeMS), s.BytesUp, s.BytesDown, s.Requests})
	}
	return table(w, lines...)
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f", float64(n)/1e6) }

func duration(ms float64) time.Duration {
	return time.Duration(ms * float64(time.Millisecond)).Round(time.Millisecond)
}
