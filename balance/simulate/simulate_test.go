package simulate

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"forebay/balance"
)

// fleet is four backends of which one is slow and one stalls, with more slots than
// workers.
func fleet() Scenario {
	return Scenario{
		Rate: 400, ServiceTime: 20 * time.Millisecond, Clients: 100, Duration: 20 * time.Second, Seed: 1,
		AcquireTimeout: 3 * time.Second, Queue: 1024,
		Backends: []Backend{
			{Name: "a", Max: 64, Workers: 4, Weight: 2},
			{Name: "b", Max: 64, Workers: 4, Weight: 2},
			{Name: "slow", Max: 64, Workers: 4, Speed: 0.5},
			{Name: "stalls", Max: 64, Workers: 4, Weight: 2, Stall: Stall{From: 8 * time.Second, For: 4 * time.Second}},
		},
	}
}

// with returns the scenario after changes to it, which its backends do not share.
func (sc Scenario) with(change func(*Scenario)) Scenario {
	sc.Backends = slices.Clone(sc.Backends)
	change(&sc)
	return sc
}

// hard are scenarios in which not everybody is served.
func hard() map[string]Scenario {
	return map[string]Scenario{
		"all are served": fleet(),
		"the acquire timeout": fleet().with(func(sc *Scenario) {
			sc.Rate, sc.AcquireTimeout = 1500, 100*time.Millisecond
		}),
		"a short queue": fleet().with(func(sc *Scenario) { sc.Rate, sc.Queue = 1500, 5 }),
		"no queue":      fleet().with(func(sc *Scenario) { sc.Rate, sc.Queue = 1500, 0 }),
		"no bound":      fleet().with(func(sc *Scenario) { sc.Rate, sc.AcquireTimeout, sc.Queue = 1500, 0, 1<<30 }),
	}
}

// simulated is Run where it must succeed.
func simulated(t *testing.T, sc Scenario, s balance.Strategy) Result {
	t.Helper()
	res, err := Run(sc, s)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestTheSameSeedHasTheSameResult(t *testing.T) {
	for _, s := range balance.Strategies {
		t.Run(string(s), func(t *testing.T) {
			first := simulated(t, fleet(), s)
			if again := simulated(t, fleet(), s); !reflect.DeepEqual(first, again) {
				t.Errorf("first %+v\nthen %+v", first, again)
			}
			other := simulated(t, fleet().with(func(sc *Scenario) { sc.Seed = 2 }), s)
			if reflect.DeepEqual(first, other) {
				t.Error("another seed has the same result")
			}
		})
	}
}

func TestTheSeedIsThatOfTheStrategyToo(t *testing.T) {
	picks := func(seed uint64) (all []int) {
		r, err := newRun(fleet().with(func(sc *Scenario) { sc.Seed = seed }), balance.Random)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			c, err := r.bal.Pick(0, nil)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, c.Backend)
		}
		return all
	}
	if slices.Equal(picks(1), picks(2)) || !slices.Equal(picks(1), picks(1)) {
		t.Errorf("picks of seed 1 are %v and %v, of seed 2 %v", picks(1), picks(1), picks(2))
	}
}

func TestEveryStrategyIsGivenTheSameRequests(t *testing.T) {
	work := func(s balance.Strategy) (sum time.Duration) {
		sc := fleet()
		for i, be := range simulated(t, sc, s).Backends {
			sum += span(be.Utilisation * sc.Backends[i].withDefaults().capacity() * float64(sc.Duration))
		}
		return sum.Round(time.Microsecond)
	}
	want := work(balance.LeastConn)
	for _, s := range balance.Strategies {
		if got := work(s); got != want {
			t.Errorf("%s: all works take %v, want the %v of %s", s, got, want, balance.LeastConn)
		}
	}
}

func TestEveryArrivalIsServedOrRefused(t *testing.T) {
	for name, sc := range hard() {
		t.Run(name, func(t *testing.T) {
			arrivals := 0
			for src := newSource(sc); src.next() != nil; {
				arrivals++
			}
			for _, s := range balance.Strategies {
				res := simulated(t, sc, s)
				byBackend := 0
				for _, be := range res.Backends {
					byBackend += be.Served
				}
				if res.Served+res.Refused != arrivals || byBackend != res.Served {
					t.Errorf("%s: served %d (by the backends %d), refused %d, arrived %d", s, res.Served, byBackend, res.Refused, arrivals)
				}
				if some := res.Refused > 0; some != (sc.Queue < 1<<30 && sc.Rate > sc.Capacity()) {
					t.Errorf("%s: refused %d", s, res.Refused)
				}
			}
		})
	}
}

func TestMaxIsNeverExceeded(t *testing.T) {
	for name, sc := range hard() {
		t.Run(name, func(t *testing.T) {
			for _, s := range balance.Strategies {
				res := simulated(t, sc, s)
				reached, first := false, -1
				for i, be := range res.Backends {
					limit := sc.Backends[i].Max
					for _, active := range be.Active {
						if be.Peak > limit || active > float64(be.Peak) {
							t.Fatalf("%s: backend %d has peak %d and on average %v, of max %d", s, i, be.Peak, active, limit)
						}
					}
					if reached = reached || be.Peak == limit; reached && first < 0 {
						first = i
					}
				}
				if reached != (res.PeakLoad == 1) || reached && res.Peak != first {
					t.Errorf("%s: peak load %v of %d, max reached: %t, first by %d", s, res.PeakLoad, res.Peak, reached, first)
				}
			}
		})
	}
}

func TestNobodyWaitsInTheQueueForLongerThanTheAcquireTimeout(t *testing.T) {
	sc := hard()["the acquire timeout"].with(func(sc *Scenario) {
		for i := range sc.Backends {
			sc.Backends[i].Workers, sc.Backends[i].Stall = 0, Stall{} // there is no other queue
			sc.Backends[i].Max = 4
		}
	})
	for _, s := range balance.Strategies {
		if res := simulated(t, sc, s); res.Wait.Max > sc.AcquireTimeout || res.Wait.Max < sc.AcquireTimeout*9/10 {
			t.Errorf("%s: the longest wait is %v, want nearly %v", s, res.Wait.Max, sc.AcquireTimeout)
		}
	}
}

// TestLeastConnIsTheDefaultForAReason holds what the README says of the picture.
func TestLeastConnIsTheDefaultForAReason(t *testing.T) {
	tests := []struct {
		name     string
		scenario Scenario
		times    time.Duration // by which the p99 of each of others is longer, at least
		others   []balance.Strategy
	}{
		{
			name: "a slow backend and one that stalls", scenario: fleet(), times: 8,
			others: []balance.Strategy{balance.RoundRobin, balance.WeightedRoundRobin, balance.Random, balance.WeightedRandom,
				balance.SourceHash, balance.First},
		},
		{
			name: "the stall alone", times: 8,
			scenario: fleet().with(func(sc *Scenario) {
				sc.Backends = append(sc.Backends[:2], sc.Backends[3:]...)
				sc.Rate = 300 // else the two that are left have too much of it
			}),
			others: []balance.Strategy{balance.RoundRobin, balance.WeightedRoundRobin, balance.Random},
		},
		{
			name: "the slow one alone", times: 8,
			scenario: fleet().with(func(sc *Scenario) { sc.Backends = sc.Backends[:3] }),
			others:   []balance.Strategy{balance.RoundRobin, balance.Random},
		},
		{
			name: "two drawn are nearly as good as a look at all", times: 1, scenario: fleet(),
			others: []balance.Strategy{balance.RandomTwo, balance.ConsistentHash},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			least := simulated(t, tt.scenario, balance.LeastConn).Wait.P99
			for _, s := range tt.others {
				if p99 := simulated(t, tt.scenario, s).Wait.P99; p99 < tt.times*least {
					t.Errorf("p99 of %s is %v, that of %s %v; want %d times that", s, p99, balance.LeastConn, least, tt.times)
				}
			}
		})
	}
}

// Where max is what a server can work on, a bad choice costs little: who would wait in a
// backend waits in the one queue.
func TestABoundThatFitsMattersMoreThanTheStrategy(t *testing.T) {
	sc := fleet().with(func(sc *Scenario) {
		for i := range sc.Backends {
			sc.Backends[i].Max = 4
		}
	})
	least := simulated(t, sc, balance.LeastConn).Wait.P99
	for _, s := range balance.Strategies {
		if p99 := simulated(t, sc, s).Wait.P99; p99 > 2*least {
			t.Errorf("p99 of %s is %v, that of %s %v", s, p99, balance.LeastConn, least)
		}
	}
}

func TestRunSaysWhatCannotBe(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Scenario)
		err    string
	}{
		{"no rate", func(sc *Scenario) { sc.Rate = 0 }, "the rate is 0"},
		{"no service time", func(sc *Scenario) { sc.ServiceTime = 0 }, "service time 0s"},
		{"no duration", func(sc *Scenario) { sc.Duration = 0 }, "duration 0s"},
		{"a duration too long", func(sc *Scenario) { sc.Duration = forever + 1 }, "at most"},
		{"clients below 0", func(sc *Scenario) { sc.Clients = -1 }, "clients -1"},
		{"no backend", func(sc *Scenario) { sc.Backends = nil }, "there is no backend"},
		{"no max", func(sc *Scenario) { sc.Backends[0].Max = 0 }, "max 0"},
		{"a speed below 0", func(sc *Scenario) { sc.Backends[1].Speed = -1 }, "backend 1 has 4 workers, speed -1"},
		{"a stall without end", func(sc *Scenario) { sc.Backends[1].Stall.For = forever + 1 }, "backend 1 has"},
		{"a distribution", func(sc *Scenario) { sc.Service = "pareto" }, `no distribution "pareto"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Run(fleet().with(tt.change), balance.LeastConn)
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want one with %q", err, tt.err)
			}
		})
	}
	if _, err := Run(fleet(), "best"); err == nil || !strings.Contains(err.Error(), `"best"`) {
		t.Errorf("error of an unknown strategy: %v", err)
	}
}

func TestClientsAskByZipf(t *testing.T) {
	const clients, n = 4, 100000
	sc := fleet().with(func(sc *Scenario) { sc.Clients, sc.Duration, sc.Rate = clients, forever, 1000 })
	counts := map[balance.Client]int{}
	src := newSource(sc)
	for range n {
		counts[src.next().client]++
	}
	for i, who := range src.who {
		want := n / float64(i+1) / (1 + 1./2 + 1./3 + 1./4)
		if got := float64(counts[who]); got < 0.97*want || got > 1.03*want {
			t.Errorf("client %d asks %v times, want %.0f", i, got, want)
		}
	}
}

func TestAClientIsOfOneBackendByItsHash(t *testing.T) {
	sc := fleet().with(func(sc *Scenario) { sc.Clients, sc.Rate = 1, 20 })
	if res := simulated(t, sc, balance.SourceHash); res.Fairness != 0.25 {
		t.Errorf("fairness %v, want 0.25: one of four serves all", res.Fairness)
	}
}

func TestNothingServedIsNoFairness(t *testing.T) {
	res := simulated(t, fleet().with(func(sc *Scenario) { sc.Rate = 1e-9 }), balance.LeastConn)
	if res.Served != 0 || res.Fairness != 0 || res.Wait != (Times{}) || res.PeakLoad != 0 {
		t.Errorf("got %+v, want nothing", res)
	}
}

func TestWorksThatNeverEndDoNotOverflow(t *testing.T) {
	sc := fleet().with(func(sc *Scenario) {
		sc.Duration = time.Second
		for i := range sc.Backends {
			sc.Backends[i].Speed = 1e-300
		}
	})
	res := simulated(t, sc, balance.LeastConn)
	if res.Wait.Max < 0 || res.Response.Max < 0 || res.Response.Max > forever {
		t.Errorf("got %+v", res)
	}
}
