package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"forebay/balance"
	"forebay/balance/simulate"
)

// scenario has a slow backend, and one that stalls beyond the end.
func scenario() simulate.Scenario {
	return simulate.Scenario{
		Rate: 300, ServiceTime: 10 * time.Millisecond, Duration: 2 * time.Second, Queue: 10, AcquireTimeout: time.Second,
		Backends: []simulate.Backend{
			{Name: "quick", Max: 8, Workers: 4},
			{Name: "slow", Max: 8, Workers: 1, Speed: 0.5},
			{Name: "stalls", Max: 8, Workers: 2, Stall: simulate.Stall{From: time.Second, For: time.Minute}},
		},
	}
}

// drawn returns the picture of some strategies in a scenario.
func drawn(t *testing.T, sc simulate.Scenario, strategies ...balance.Strategy) string {
	t.Helper()
	var results []simulate.Result
	for _, s := range strategies {
		res, err := simulate.Run(sc, s)
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, res)
	}
	var b strings.Builder
	if err := Draw(&b, sc, results); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// texts returns what is written in a picture. It fails where that is no XML.
func texts(t *testing.T, svg string) []string {
	t.Helper()
	var all []string
	inText := false
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		token, err := d.Token()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		switch x := token.(type) {
		case xml.StartElement:
			inText = x.Name.Local == "text"
		case xml.EndElement:
			inText = false
		case xml.CharData:
			if inText {
				all = append(all, string(x))
			}
		}
	}
}

func count(all []string, want string) (n int) {
	for _, s := range all {
		if s == want {
			n++
		}
	}
	return n
}

func TestThePictureNamesWhatItShows(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, len(balance.Strategies)} {
		sc := scenario()
		all := texts(t, drawn(t, sc, balance.Strategies[:n]...))
		for i, s := range balance.Strategies {
			want := 0
			if i < n {
				want = 2 // a row, and a diagram
			}
			if got := count(all, string(s)); got != want {
				t.Errorf("of %d strategies: %s is there %d times, want %d", n, s, got, want)
			}
		}
		for _, be := range sc.Backends {
			if count(all, be.String()) != 1 {
				t.Errorf("of %d strategies: %q is not there once", n, be)
			}
		}
		if count(all, sc.String()) != 1 {
			t.Errorf("of %d strategies: %q is not there once", n, sc)
		}
	}
}

func TestThePictureIsTheSameEveryTime(t *testing.T) {
	if a, b := drawn(t, scenario(), balance.Strategies...), drawn(t, scenario(), balance.Strategies...); a != b {
		t.Error("two pictures of the same results differ")
	}
}

func TestEveryTextHasFontsToFallBackTo(t *testing.T) {
	svg := drawn(t, scenario(), balance.LeastConn)
	if n := strings.Count(svg, "font-family:"); n == 0 || n != strings.Count(svg, "font-family:Liberation Sans,Arial,Helvetica,sans-serif;") {
		t.Errorf("not all of %d texts have them", n)
	}
}

// point is one of a path.
var point = regexp.MustCompile(`[ML]([-+.e0-9]+),`)

func TestThePictureHasAnyScenario(t *testing.T) {
	tests := []struct {
		name   string
		change func(*simulate.Scenario)
	}{
		{"nothing happens", func(sc *simulate.Scenario) { sc.Rate = 1e-9 }},
		{"nobody waits", func(sc *simulate.Scenario) { sc.Rate = 0.5 }},
		{"nearly all are refused", func(sc *simulate.Scenario) { sc.Rate = 100000 }},
		{"it is over at once", func(sc *simulate.Scenario) { sc.Duration = 1 }},
		{"a day", func(sc *simulate.Scenario) { sc.Rate, sc.Duration, sc.ServiceTime = 0.01, 24*time.Hour, time.Hour }},
		{"as many backends as there are colours", func(sc *simulate.Scenario) {
			for len(sc.Backends) < MaxBackends {
				sc.Backends = append(sc.Backends, simulate.Backend{Name: "<&>", Max: 1})
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sc := scenario()
			tt.change(&sc)
			svg := drawn(t, sc, balance.LeastConn, balance.First)
			if len(texts(t, svg)) == 0 || strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
				t.Errorf("the picture is broken: %s", svg)
			}
			for _, m := range point.FindAllStringSubmatch(svg, -1) {
				if x, err := strconv.ParseFloat(m[1], 64); err != nil || x < 0 || x > width {
					t.Errorf("%s is outside, %v", m[0], err)
				}
			}
		})
	}
}

func TestDrawRefusesMoreBackendsThanThereAreColours(t *testing.T) {
	sc := scenario()
	sc.Backends = make([]simulate.Backend, MaxBackends+1)
	var b bytes.Buffer
	if err := Draw(&b, sc, nil); err == nil || err.Error() != "plot: 9 backends, of which at most 8 can be told apart" || b.Len() > 0 {
		t.Errorf("error %v, %d bytes", err, b.Len())
	}
}

// full is a device without room.
type full struct{}

var errFull = errors.New("no room")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestDrawReturnsTheErrorOfTheWriter(t *testing.T) {
	if err := Draw(full{}, scenario(), []simulate.Result{{Strategy: balance.First}}); !errors.Is(err, errFull) {
		t.Errorf("error %v, want %v", err, errFull)
	}
}

func TestARowTellsItsWaitAndWhoWasRefused(t *testing.T) {
	tests := []struct {
		name string
		res  simulate.Result
		want string
	}{
		{"nobody", simulate.Result{Served: 5, Wait: simulate.Times{P99: 19349321}}, "19.3ms"},
		{"some", simulate.Result{Served: 300, Refused: 100, Wait: simulate.Times{P99: 2 * time.Second}}, "2s, 25 % refused"},
		{"one in a thousand", simulate.Result{Served: 999, Refused: 1}, "0s, 0.1 % refused"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := (row{Result: tt.res}).label(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestTheAxisOfTimeHasRoundNumbers(t *testing.T) {
	tests := []struct {
		last float64
		want string
	}{
		{20, "0 5 10 15 20"},
		{30, "0 5 10 15 20 25 30"},
		{1, "0 0.2 0.4 0.6 0.8 1"},
		{86400, "0 20000 40000 60000 80000"},
		{0.3, "0 0.05 0.1 0.15 0.2 0.25 0.3"},
	}
	for _, tt := range tests {
		var labels []string
		for _, tick := range timeTicks(tt.last) {
			labels = append(labels, tick.Label)
		}
		if got := strings.Join(labels, " "); got != tt.want {
			t.Errorf("up to %v: %s, want %s", tt.last, got, tt.want)
		}
	}
}
