package loadtest

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
	"time"
)

// A Result says what came of a run.
type Result struct {
	// Requests is the requests that came to an end: a right reply, a oneway
	// sent, an error or a mismatch. A request for which no connection could be had is one of
	// them.
	Requests int64

	// Replies is the requests that were answered rightly.
	Replies int64

	// Oneways is the requests that were sent and want no reply.
	Oneways int64

	// Sessions is the connections that were dialed successfully and used.
	Sessions int64

	// Errors counts failed dials, short replies, resets, timeouts, exceptions
	// instead of replies, and connections that did not end well after their
	// last reply.
	Errors int64

	// Mismatches counts replies that were wrong, and connections on which
	// something came after the last reply.
	Mismatches int64

	// Abandoned is the requests that the end of the run left without a
	// result: those cut by the end of Run's context and, in an open loop,
	// those planned and not begun, all clients being busy.
	Abandoned int64

	// Elapsed is the time from the start until the last connection was
	// closed.
	Elapsed time.Duration

	// Latency is how long right replies took.
	Latency Latency

	// Faults is the errors and mismatches by kind, sorted by it.
	Faults []Fault

	// FirstError is the text of the first error or mismatch, empty if there
	// was none.
	FirstError string
}

// OK reports whether all went well: no error, no mismatch and at least one
// request.
func (r Result) OK() bool {
	return r.Errors == 0 && r.Mismatches == 0 && r.Requests > 0
}

// Rate returns the right replies per second, and the oneways.
func (r Result) Rate() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Replies+r.Oneways) / r.Elapsed.Seconds()
}

// WriteTable writes the result for people to read, a line for each number, then
// one for each kind of fault. The error is that of w.
func (r Result) WriteTable(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	// A tabwriter keeps what it is given; the error of w comes from Flush.
	for _, row := range r.rows() {
		fmt.Fprintf(tw, "%s\t%v\n", row.name, row.value)
	}
	for i, f := range r.Faults {
		if i == 0 {
			fmt.Fprintf(tw, "\nfault\tcount\tfirst\n")
		}
		fmt.Fprintf(tw, "%s\t%d\t%s\n", f.Kind, f.Count, f.Example)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

type row struct {
	name  string
	value any
}

func (r Result) rows() []row {
	rows := []row{
		{"requests", r.Requests},
		{"replies", r.Replies},
	}
	if r.Oneways > 0 {
		rows = append(rows, row{"oneways", r.Oneways})
	}
	return append(rows, []row{
		{"requests/s", fmt.Sprintf("%.1f", r.Rate())},
		{"sessions", r.Sessions},
		{"errors", r.Errors},
		{"mismatches", r.Mismatches},
		{"abandoned", r.Abandoned},
		{"elapsed", r.Elapsed.Round(time.Millisecond)},
		{"p50", r.Latency.P50},
		{"p90", r.Latency.P90},
		{"p99", r.Latency.P99},
		{"p99.9", r.Latency.P999},
		{"max", r.Latency.Max.Round(time.Microsecond)},
		{"mean", r.Latency.Mean.Round(time.Microsecond)},
	}...)
}

// MarshalJSON makes one flat object of the result, with the units in the names.
// There is no way back.
func (r Result) MarshalJSON() ([]byte, error) {
	kinds := make(map[string]int64, len(r.Faults))
	for _, f := range r.Faults {
		kinds[f.Kind] = f.Count
	}
	return json.Marshal(struct {
		OK           bool             `json:"ok"`
		Requests     int64            `json:"requests"`
		Replies      int64            `json:"replies"`
		Oneways      int64            `json:"oneways"`
		Sessions     int64            `json:"sessions"`
		Errors       int64            `json:"errors"`
		Mismatches   int64            `json:"mismatches"`
		Abandoned    int64            `json:"abandoned"`
		Elapsed      float64          `json:"elapsed_s"`
		Rate         float64          `json:"req_per_s"`
		P50          float64          `json:"p50_us"`
		P90          float64          `json:"p90_us"`
		P99          float64          `json:"p99_us"`
		P999         float64          `json:"p999_us"`
		Max          float64          `json:"max_us"`
		Mean         float64          `json:"mean_us"`
		ErrorsByKind map[string]int64 `json:"errors_by_kind"`
		FirstError   string           `json:"first_error,omitempty"`
	}{
		r.OK(), r.Requests, r.Replies, r.Oneways, r.Sessions, r.Errors, r.Mismatches, r.Abandoned,
		round3(r.Elapsed.Seconds()), round3(r.Rate()),
		micros(r.Latency.P50), micros(r.Latency.P90), micros(r.Latency.P99),
		micros(r.Latency.P999), micros(r.Latency.Max), micros(r.Latency.Mean),
		kinds, r.FirstError,
	})
}

func micros(d time.Duration) float64 { return round3(float64(d) / float64(time.Microsecond)) }

// round3 keeps three decimals, as many as are worth reading.
func round3(f float64) float64 { return math.Round(f*1000) / 1000 }
