package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"forebay/balance"
	"forebay/balance/simulate"
	"forebay/balance/simulate/plot"
	"forebay/proxy/config"
)

// runSimulate prints what the strategies make of a load, and draws it where that is asked
// for.
func runSimulate(ctx context.Context, cfg config.Simulate) error {
	sc := scenario(cfg)
	results, err := simulateAll(ctx, sc, cfg.Strategies)
	if err != nil {
		return err
	}
	if cfg.Plot != "" {
		if err := drawTo(cfg.Plot, sc, results); err != nil {
			return fmt.Errorf("--plot: %w", err)
		}
	}
	if cfg.JSON {
		return json.NewEncoder(os.Stdout).Encode(forPrograms(sc, results))
	}
	return writeSimulated(os.Stdout, sc, results)
}

// scenario is what is to be simulated. Its backends are a, b, c and so on.
func scenario(cfg config.Simulate) simulate.Scenario {
	sc := simulate.Scenario{Rate: cfg.Rate, Service: simulate.Service(cfg.Service), ServiceTime: cfg.ServiceTime,
		Clients: cfg.Clients, Duration: cfg.Duration, Seed: uint64(cfg.Seed), AcquireTimeout: cfg.AcquireTimeout, Queue: cfg.Queue}
	for i, b := range cfg.Backends {
		sc.Backends = append(sc.Backends, simulate.Backend{Name: letters(i), Max: b.Max, Weight: b.Weight, Workers: b.Workers,
			Speed: b.Speed, Stall: simulate.Stall{From: b.StallFrom, For: b.StallFor}})
	}
	return sc
}

// letters names the backends as columns of a sheet are named: a to z, then aa.
func letters(i int) string {
	name := string(rune('a' + i%26))
	if i < 26 {
		return name
	}
	return letters(i/26-1) + name
}

// simulateAll returns what each strategy makes of the scenario. It stops at the end of
// ctx, when the one that is under way has its result.
func simulateAll(ctx context.Context, sc simulate.Scenario, strategies []string) ([]simulate.Result, error) {
	var results []simulate.Result
	for _, s := range strategies {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		res, err := simulate.Run(sc, balance.Strategy(s))
		if err != nil {
			return nil, err
		}
		results = append(results, res)
	}
	return results, nil
}

// drawTo writes the picture when all of it is drawn.
func drawTo(path string, sc simulate.Scenario, results []simulate.Result) error {
	var b bytes.Buffer
	if err := plot.Draw(&b, sc, results); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// writeSimulated writes the results for people to read.
func writeSimulated(w io.Writer, sc simulate.Scenario, results []simulate.Result) error {
	fmt.Fprintln(w, sc)
	for _, be := range sc.Backends {
		fmt.Fprintln(w, " ", be)
	}
	fmt.Fprintln(w)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "strategy\tp50 wait\tp99 wait\tmax wait\tp99 response\trefused\tpeak load\tfairness\t")
	for _, r := range results {
		fmt.Fprintf(tw, "%s\t%v\t%v\t%v\t%v\t%d\t%.0f %% of %s\t%.3f\t\n", r.Strategy, simulate.Round(r.Wait.P50), simulate.Round(r.Wait.P99),
			simulate.Round(r.Wait.Max), simulate.Round(r.Response.P99), r.Refused, 100*r.PeakLoad, sc.Backends[r.Peak].Name, r.Fairness)
	}
	return tw.Flush()
}

// simulated is the results for programs to read.
type simulated struct {
	Scenario   string              `json:"scenario"`
	Strategies []simulatedStrategy `json:"strategies"`
}

type simulatedStrategy struct {
	Strategy     balance.Strategy   `json:"strategy"`
	Served       int                `json:"served"`
	Refused      int                `json:"refused"`
	WaitMean     float64            `json:"wait_mean_ms"`
	WaitP50      float64            `json:"wait_p50_ms"`
	WaitP99      float64            `json:"wait_p99_ms"`
	WaitMax      float64            `json:"wait_max_ms"`
	ResponseMean float64            `json:"response_mean_ms"`
	ResponseP50  float64            `json:"response_p50_ms"`
	ResponseP99  float64            `json:"response_p99_ms"`
	ResponseMax  float64            `json:"response_max_ms"`
	PeakLoad     float64            `json:"peak_load"`
	PeakLoadOf   string             `json:"peak_load_of"`
	Fairness     float64            `json:"fairness"`
	Backends     []simulatedBackend `json:"backends"`
}

type simulatedBackend struct {
	Name        string  `json:"name"`
	Served      int     `json:"served"`
	PeakActive  int     `json:"peak_active"`
	Max         int     `json:"max"`
	Utilisation float64 `json:"utilisation"`
}

func forPrograms(sc simulate.Scenario, results []simulate.Result) simulated {
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	out := simulated{Scenario: sc.String()}
	for _, r := range results {
		s := simulatedStrategy{Strategy: r.Strategy, Served: r.Served, Refused: r.Refused,
			WaitMean: ms(r.Wait.Mean), WaitP50: ms(r.Wait.P50), WaitP99: ms(r.Wait.P99), WaitMax: ms(r.Wait.Max),
			ResponseMean: ms(r.Response.Mean), ResponseP50: ms(r.Response.P50), ResponseP99: ms(r.Response.P99), ResponseMax: ms(r.Response.Max),
			PeakLoad: r.PeakLoad, PeakLoadOf: sc.Backends[r.Peak].Name, Fairness: r.Fairness}
		for i, be := range r.Backends {
			s.Backends = append(s.Backends, simulatedBackend{Name: sc.Backends[i].Name, Served: be.Served,
				PeakActive: be.Peak, Max: sc.Backends[i].Max, Utilisation: be.Utilisation})
		}
		out.Strategies = append(out.Strategies, s)
	}
	return out
}
