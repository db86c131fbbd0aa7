package loadtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

var sample = Result{
	Requests: 1000, Replies: 998, Sessions: 10, Errors: 2, Elapsed: 2 * time.Second,
	Latency: Latency{
		P50: 100 * time.Microsecond, P90: 200 * time.Microsecond, P99: 1500 * time.Microsecond,
		P999: 2 * time.Millisecond, Max: 3 * time.Millisecond, Mean: 123456 * time.Nanosecond,
	},
	Faults:     []Fault{{Kind: "reply_reset", Count: 2, Example: "client 0x1 request 7: reply: reset"}},
	FirstError: "client 0x1 request 7: reply: reset",
}

func TestResultIsOKOnlyIfNothingWentWrongWithSomething(t *testing.T) {
	tests := []struct {
		name string
		res  Result
		want bool
	}{
		{name: "nothing done", res: Result{}, want: false},
		{name: "requests only", res: Result{Requests: 1}, want: true},
		{name: "an error", res: Result{Requests: 1, Errors: 1}, want: false},
		{name: "a mismatch", res: Result{Requests: 1, Mismatches: 1}, want: false},
	}
	for _, tt := range tests {
		if got := tt.res.OK(); got != tt.want {
			t.Errorf("%s: OK = %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestResultAsTable(t *testing.T) {
	var b strings.Builder
	if err := sample.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	want := `requests    1000
replies     998
requests/s  499.0
sessions    10
errors      2
mismatches  0
abandoned   0
elapsed     2s
p50         100µs
p90         200µs
p99         1.5ms
p99.9       2ms
max         3ms
mean        123µs

fault        count  first
reply_reset  2      client 0x1 request 7: reply: reset
`
	if b.String() != want {
		t.Errorf("table:\n%s\nwant:\n%s", b.String(), want)
	}
}

func TestResultShowsAndCountsOneways(t *testing.T) {
	with := sample
	with.Oneways = 102
	var b strings.Builder
	if err := with.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	if want := "replies     998\noneways     102\nrequests/s  550.0\n"; !strings.Contains(b.String(), want) {
		t.Errorf("table:\n%s\nwant in it:\n%s", b.String(), want)
	}
}

func TestResultTableReturnsTheErrorOfItsWriter(t *testing.T) {
	r, w := io.Pipe()
	r.Close()
	if err := sample.WriteTable(w); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("error = %v, want io.ErrClosedPipe", err)
	}
}

func TestResultAsJSON(t *testing.T) {
	got, err := json.Marshal(sample)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"ok":false,"requests":1000,"replies":998,"oneways":0,"sessions":10,"errors":2,"mismatches":0,"abandoned":0,` +
		`"elapsed_s":2,"req_per_s":499,"p50_us":100,"p90_us":200,"p99_us":1500,"p999_us":2000,"max_us":3000,` +
		`"mean_us":123.456,"errors_by_kind":{"reply_reset":2},"first_error":"client 0x1 request 7: reply: reset"}`
	if string(got) != want {
		t.Errorf("JSON = %s\nwant   %s", got, want)
	}
}

func TestLatencyOfManyBatches(t *testing.T) {
	rec := newRecorder()
	b := batch{to: rec}
	for i := range 1000 {
		b.add(time.Duration(i+1) * time.Millisecond)
	}
	b.flush()
	got := rec.latency()
	near := func(d, want time.Duration) bool { return (d - want).Abs() <= want/500 }
	if !near(got.P50, 500*time.Millisecond) || !near(got.P99, 990*time.Millisecond) || !near(got.Mean, 500500*time.Microsecond) {
		t.Errorf("latency = %+v, want 1 to 1000 ms evenly", got)
	}
	if got.Max != time.Second || got.P999 > got.Max {
		t.Errorf("max = %v, p99.9 = %v; want 1s and no more", got.Max, got.P999)
	}
}

func TestLatencyBeyondTheHistogramIsKeptAsMax(t *testing.T) {
	rec := newRecorder()
	rec.add([]time.Duration{0, 5 * time.Minute})
	if got := rec.latency(); got.Max != 5*time.Minute || got.Mean != 150*time.Second || got.P999 < 59*time.Second {
		t.Errorf("latency = %+v, want a max of 5m and a mean of 2m30s", got)
	}
}

func TestPatternDiffersInEveryPart(t *testing.T) {
	for size := idSize; size < 100; size++ {
		a, b, c := make([]byte, size), make([]byte, size), make([]byte, size)
		fillPattern(a, 1, 2)
		fillPattern(b, 1, 3)
		fillPattern(c, 2, 2)
		if bytes.Equal(a, b) || bytes.Equal(a, c) || bytes.Equal(b, c) {
			t.Errorf("two of the requests of %d bytes are alike", size)
		}
		if size >= 2*idSize && !bytes.Equal(a[:idSize], a[size-idSize:]) {
			t.Errorf("the end of a request of %d bytes is not its front", size)
		}
		if client, seq := readIDs(a); client != 1 || seq != 2 {
			t.Errorf("ids = %d, %d; want 1, 2", client, seq)
		}
	}
}

func BenchmarkFillPattern(b *testing.B) {
	buf := make([]byte, 1024)
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	for b.Loop() {
		fillPattern(buf, 1, 2)
	}
}
