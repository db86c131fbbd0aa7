package command

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"forebay/balance"
	"forebay/balance/simulate"
	"forebay/balance/simulate/plot"
	"forebay/proxy/config"
)

var update = flag.Bool("update", false, "rewrite the output and the picture of simulate")

// settingsOf returns what a command line means.
func settingsOf(t *testing.T, line string) config.Simulate {
	t.Helper()
	var got *config.Simulate
	var stderr strings.Builder
	config.Run(t.Context(), strings.Fields("forebay simulate "+line), config.Process{Stderr: &stderr}, "", config.Actions{
		Simulate: func(_ context.Context, s config.Simulate) error { got = &s; return nil },
	})
	if got == nil {
		t.Fatal(stderr.String())
	}
	return *got
}

// simulatedBy returns what a command line has simulated.
func simulatedBy(t *testing.T, line string) (simulate.Scenario, []simulate.Result) {
	t.Helper()
	cfg := settingsOf(t, line)
	sc := scenario(cfg)
	results, err := simulateAll(t.Context(), sc, cfg.Strategies)
	if err != nil {
		t.Fatal(err)
	}
	return sc, results
}

// TestTheReadmeShowsWhatSimulateDraws holds the files of testdata that the README shows.
func TestTheReadmeShowsWhatSimulateDraws(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("other architectures may round the last digits otherwise")
	}
	sc, results := simulatedBy(t, "")
	dir := t.TempDir()
	table, picture := filepath.Join(dir, "simulate.golden"), filepath.Join(dir, "simulate.svg")
	if err := drawTo(picture, sc, results); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := writeSimulated(&b, sc, results); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(table, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	const most = 100 << 10 // it is part of a page
	for _, path := range []string{table, picture} {
		got := read(t, path)
		golden := filepath.Join("..", "..", "testdata", filepath.Base(path))
		if *update {
			if err := os.WriteFile(golden, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(got, read(t, golden)) {
			t.Errorf("%s is not what is drawn (go test ./proxy/command -update rewrites it)", golden)
		}
		if len(got) > most {
			t.Errorf("%s has %d bytes, want at most %d", golden, len(got), most)
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestFlagsAndPackagesKnowTheSame(t *testing.T) {
	var known []balance.Strategy
	for _, s := range settingsOf(t, "").Strategies {
		known = append(known, balance.Strategy(s))
	}
	if !slices.Equal(known, balance.Strategies) {
		t.Errorf("the flag has the strategies %q, the package %q", known, balance.Strategies)
	}
	for _, s := range simulate.Services {
		if cfg := settingsOf(t, "--service "+string(s)); cfg.Service != string(s) {
			t.Errorf("--service %s is %q", s, cfg.Service)
		}
	}
	if config.MaxDrawn != plot.MaxBackends {
		t.Errorf("the flag takes %d backends for a picture, the package %d", config.MaxDrawn, plot.MaxBackends)
	}
}

func TestSimulateDoesWhatTheFlagsSay(t *testing.T) {
	sc, results := simulatedBy(t, "--balance first --balance random --rate 50 --duration 3s --service bimodal --service-time 1ms "+
		"--clients 7 --seed 9 --acquire-timeout 2s --queue 5 --backend max=3 --backend max=4,workers=2,speed=0.5,weight=6,stall=1s+2s")
	want := simulate.Scenario{Rate: 50, Duration: 3e9, Service: simulate.Bimodal, ServiceTime: 1e6, Clients: 7, Seed: 9, AcquireTimeout: 2e9, Queue: 5}
	if got := sc; !slices.Equal(got.Backends, []simulate.Backend{
		{Name: "a", Max: 3, Workers: 3, Weight: 1, Speed: 1},
		{Name: "b", Max: 4, Workers: 2, Weight: 6, Speed: 0.5, Stall: simulate.Stall{From: 1e9, For: 2e9}},
	}) {
		t.Errorf("backends are %+v", got.Backends)
	}
	if sc.Backends = nil; sc.String() != want.String() || sc.Clients != want.Clients || sc.Seed != want.Seed ||
		sc.AcquireTimeout != want.AcquireTimeout || sc.Queue != want.Queue {
		t.Errorf("the scenario is %+v, want %+v", sc, want)
	}
	if len(results) != 2 || results[0].Strategy != balance.First || results[1].Strategy != balance.Random {
		t.Errorf("results are %+v", results)
	}
}

func TestThePicturesFaultNamesTheFlag(t *testing.T) {
	cfg := settingsOf(t, "--rate 1 --duration 1s --balance first --plot "+filepath.Join(t.TempDir(), "missing", "a.svg"))
	if err := runSimulate(t.Context(), cfg); err == nil || !strings.HasPrefix(err.Error(), "--plot: ") || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

func TestSimulateEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := runSimulate(ctx, settingsOf(t, "")); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
}

func TestProgramsReadWhatPeopleDo(t *testing.T) {
	sc, results := simulatedBy(t, "--balance round-robin")
	text, err := json.Marshal(forPrograms(sc, results))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Strategies []struct {
			Strategy   string
			Served     int
			Refused    int
			WaitP99    float64 `json:"wait_p99_ms"`
			PeakLoad   float64 `json:"peak_load"`
			PeakLoadOf string  `json:"peak_load_of"`
			Fairness   float64
			Backends   []struct {
				Name       string
				PeakActive int `json:"peak_active"`
				Max        int
			}
		}
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	s, r := got.Strategies[0], results[0]
	if s.Strategy != string(r.Strategy) || s.Served != r.Served || s.Refused != r.Refused || s.WaitP99 != float64(r.Wait.P99)/1e6 ||
		s.PeakLoad != r.PeakLoad || s.PeakLoadOf != "c" || s.Fairness != r.Fairness || len(s.Backends) != 4 ||
		s.Backends[3].Name != "d" || s.Backends[3].PeakActive != r.Backends[3].Peak || s.Backends[3].Max != 64 {
		t.Errorf("%s\nwant %+v", text, r)
	}
}

func TestBackendsAreNamedAsColumnsOfASheet(t *testing.T) {
	for i, want := range map[int]string{0: "a", 25: "z", 26: "aa", 27: "ab", 51: "az", 52: "ba", 701: "zz", 702: "aaa"} {
		if got := letters(i); got != want {
			t.Errorf("backend %d is %q, want %q", i, got, want)
		}
	}
}
