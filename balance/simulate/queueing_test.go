package simulate

import (
	"math"
	"testing"
	"time"

	"forebay/balance"
)

// erlangC returns the probability that an arrival waits in M/M/c, of load a = λ/μ.
func erlangC(c int, a float64) float64 {
	blocked := erlangB(c, a)
	return blocked / (1 - a/float64(c)*(1-blocked))
}

// erlangB returns the probability that an arrival is refused in M/M/c/c.
func erlangB(c int, a float64) float64 {
	b := 1.0
	for n := 1; n <= c; n++ {
		b = a * b / (float64(n) + a*b)
	}
	return b
}

// near fails where got is not within a share of want.
func near(t *testing.T, what string, got, want, share float64) {
	t.Helper()
	if math.Abs(got-want) > share*want {
		t.Errorf("%s is %.5g, want %.5g ± %.0f %%", what, got, want, 100*share)
	}
}

// queueing is a scenario of which the textbooks know the result: n requests on average,
// and no bound of the wait.
func queueing(rate, n float64, backends ...Backend) Scenario {
	return Scenario{Rate: rate, ServiceTime: 10 * time.Millisecond, Backends: backends, Queue: math.MaxInt,
		Duration: time.Duration(n / rate * float64(time.Second)), Seed: 7}
}

func TestWaitsAreThoseOfErlang(t *testing.T) {
	tests := []struct {
		name     string
		rate     float64
		servers  int     // c
		speed    float64 // of each
		backends []Backend
	}{
		{name: "M/M/1, waiting in the proxy", rate: 70, servers: 1, speed: 1, backends: []Backend{{Max: 1}}},
		{name: "M/M/1, waiting in the backend", rate: 70, servers: 1, speed: 1, backends: []Backend{{Max: 100000, Workers: 1}}},
		{name: "M/M/1, waiting in both", rate: 70, servers: 1, speed: 1, backends: []Backend{{Max: 3, Workers: 1}}},
		{name: "M/M/1, twice as fast", rate: 140, servers: 1, speed: 2, backends: []Backend{{Max: 1, Speed: 2}}},
		{name: "M/M/4, waiting in the proxy", rate: 280, servers: 4, speed: 1, backends: []Backend{{Max: 4}}},
		{name: "M/M/4, waiting in the backend", rate: 280, servers: 4, speed: 1, backends: []Backend{{Max: 100000, Workers: 4}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sc := queueing(tt.rate, 100000, tt.backends...)
			mu := tt.speed / sc.ServiceTime.Seconds()
			spare := float64(tt.servers)*mu - tt.rate
			waits := erlangC(tt.servers, tt.rate/mu)
			res := simulated(t, sc, balance.LeastConn)
			near(t, "mean wait", res.Wait.Mean.Seconds(), waits/spare, 0.05)
			near(t, "p99 of wait", res.Wait.P99.Seconds(), math.Log(waits/0.01)/spare, 0.05)
			near(t, "mean response", res.Response.Mean.Seconds(), waits/spare+1/mu, 0.05)
		})
	}
}

// Where no backend has a queue, whatever frees serves the oldest, and it does not matter
// which backend that is.
func TestFourBackendsAreOneOfFourByAnyStrategy(t *testing.T) {
	want := simulated(t, queueing(320, 20000, Backend{Max: 4}), balance.LeastConn)
	for _, s := range balance.Strategies {
		got := simulated(t, queueing(320, 20000, Backend{Max: 1}, Backend{Max: 1}, Backend{Max: 1}, Backend{Max: 1}), s)
		if got.Wait != want.Wait || got.Response != want.Response {
			t.Errorf("%s: wait %+v, response %+v; want %+v, %+v", s, got.Wait, got.Response, want.Wait, want.Response)
		}
	}
}

// By Pollaczek and Khinchine the wait in M/G/1 depends on the variance of service.
func TestWaitsAreThoseOfTheDistribution(t *testing.T) {
	const rate, s = 50, 0.010
	tests := []struct {
		service  Service
		variance float64 // in units of the squared mean
	}{
		{Constant, 0},
		{Exponential, 1},
		{"", 1},
		{Lognormal, math.E - 1},
		{Bimodal, (0.95+0.05*400)/(1.95*1.95) - 1},
	}
	for _, tt := range tests {
		t.Run(string(tt.service), func(t *testing.T) {
			sc := queueing(rate, 80000, Backend{Max: 1})
			sc.Service = tt.service
			res := simulated(t, sc, balance.LeastConn)
			near(t, "mean wait", res.Wait.Mean.Seconds(), rate*s*s*(1+tt.variance)/2/(1-rate*s), 0.06)
			near(t, "utilisation", res.Backends[0].Utilisation, rate*s, 0.02)
		})
	}
}

func TestRefusalsAreThoseOfErlang(t *testing.T) {
	sc := queueing(400, 100000, Backend{Max: 2}, Backend{Max: 3})
	sc.Queue = 0
	res := simulated(t, sc, balance.LeastConn)
	near(t, "refused share", float64(res.Refused)/float64(res.Refused+res.Served), erlangB(5, 4), 0.03)
	if res.Wait.Max != 0 {
		t.Errorf("the longest wait is %v; nobody can wait", res.Wait.Max)
	}
}

// By Little's law as many are in the queue as arrive during a wait.
func TestTheQueueIsAsLongAsLittleSays(t *testing.T) {
	res := simulated(t, queueing(320, 100000, Backend{Max: 4}), balance.LeastConn)
	near(t, "mean of the queue", mean(res.Waiting), 320*res.Wait.Mean.Seconds(), 0.03)
	near(t, "mean of the slots in use", mean(res.Backends[0].Active), 320*0.010, 0.03)
}

func mean(xs []float64) float64 {
	var sum float64
	for _, x := range xs {
		sum += x
	}
	return sum / float64(len(xs))
}
