package loadtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"forebay/proxy"
	"forebay/proxy/enginetest"
	"forebay/proxy/frame"
)

func TestDemoOfCallsReportsTheRequestsOfEachBackend(t *testing.T) {
	enginetest.Each(t, testDemoOfCallsReportsTheRequestsOfEachBackend)
}

func testDemoOfCallsReportsTheRequestsOfEachBackend(t *testing.T) {
	eng := enginetest.New(t)
	defer eng.Close()
	var out strings.Builder
	ok, err := Demo(t.Context(), DemoConfig{
		Proxy: proxy.Config{
			Engine: eng, Log: zerolog.Nop(),
			VirginTimeout: time.Minute, IdleTimeout: time.Minute, DialTimeout: patience, DialParallel: 4,
			AcquireTimeout: patience, Queue: 100, SessionIdleTimeout: time.Minute, HalfCloseTimeout: time.Minute,
			Requests: &proxy.Requests{
				Codec: frame.NewThrift(frame.Thrift{}), ReplyTimeout: patience,
				Quarantine: time.Millisecond, ReplyBuffer: 64 << 10, BufferMemory: 64 << 20,
			},
		},
		Thrift: true, Duration: 200 * time.Millisecond, Clients: 64, Out: &out,
	})
	if !ok || err != nil {
		t.Fatalf("Demo = %v, %v; want all well:\n%s", ok, err, out.String())
	}
	if want := "64 clients, each with one connection for all its calls → forebay"; !strings.HasPrefix(out.String(), want) {
		t.Errorf("the report begins otherwise than %q:\n%s", want, out.String())
	}
	_, table, found := strings.Cut(out.String(), "share  peak leased  dials  reused\n")
	if !found {
		t.Fatalf("the report has no table of calls:\n%s", out.String())
	}
	var all, counted int
	for line := range strings.Lines(table) {
		var backend, share string
		var most, weight, requests, peak, dials, reused int
		if _, err := fmt.Sscan(line, &backend, &most, &weight, &requests, &share, &peak, &dials, &reused); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		if dials == 0 || dials > most || requests == 0 || reused < requests-dials {
			t.Errorf("line %q, want requests that reuse at most %d connections", line, most)
		}
		counted += requests
	}
	_, rest, _ := strings.Cut(out.String(), "\nrequests ")
	if fmt.Sscan(rest, &all); all == 0 || counted != all {
		t.Errorf("the backends had %d requests of %d:\n%s", counted, all, out.String())
	}
}
