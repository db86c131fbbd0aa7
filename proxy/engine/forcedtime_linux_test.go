package engine

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// echoing begins n sessions whose backends echo.
func (b *bench) echoing(n int) []*session {
	b.Helper()
	all := b.crowd("tcp", n, RelayConfig{IdleTimeout: time.Hour, HalfCloseTimeout: time.Hour})
	for _, s := range all {
		s.undisturbed()
		go func() { io.Copy(s.backend, s.backend); s.backend.Close() }()
	}
	return all
}

// part ends sessions.
func part(all []*session) {
	for _, s := range all {
		s.client.Close()
		s.close()
	}
}

// roundTrips has all sessions exchange so many messages at once, and returns how long
// each took, the shortest first.
func roundTrips(t testing.TB, all []*session, rounds int) []time.Duration {
	t.Helper()
	took := make([]time.Duration, len(all)*rounds)
	var clients sync.WaitGroup
	for i, s := range all {
		clients.Go(func() {
			mine, buf := took[i*rounds:(i+1)*rounds], make([]byte, 64)
			for r := range mine {
				start := time.Now()
				s.client.Write(buf)
				if _, err := io.ReadFull(s.client, buf); err != nil {
					t.Error(err)
					return
				}
				mine[r] = time.Since(start)
			}
		})
	}
	clients.Wait()
	slices.Sort(took)
	return took
}

func p999(sorted []time.Duration) time.Duration { return sorted[(len(sorted)-1)*999/1000] }

// collecting collects garbage each period, if that is not zero, until stop, which
// returns how long a collection took at the most.
func collecting(period time.Duration) (stop func() time.Duration) {
	if period == 0 {
		return func() time.Duration { return 0 }
	}
	donec := make(chan struct{})
	worst := async(func() (worst time.Duration) {
		tick := time.NewTicker(period)
		defer tick.Stop()
		for {
			select {
			case <-donec:
				return worst
			case <-tick.C:
			}
			start := time.Now()
			runtime.GC()
			worst = max(worst, time.Since(start))
		}
	})
	return func() time.Duration { close(donec); return <-worst }
}

func TestCollectionsStallNobody(t *testing.T) { onEngines(t, testCollectionsStallNobody) }

func testCollectionsStallNobody(t *testing.T, newEngine func(Config) Engine) {
	all := newBench(t, newEngine).echoing(8)
	defer part(all)
	slow := time.Duration(1)
	if raceEnabled {
		slow = 4
	}
	// Collections that follow one another at once have the processors to themselves.
	for period, allowance := range map[time.Duration]time.Duration{10 * time.Millisecond: 10 * time.Millisecond, time.Millisecond: 40 * time.Millisecond} {
		t.Run(fmt.Sprint("each ", period), func(t *testing.T) {
			allowance, mostGC := slow*allowance, slow*100*time.Millisecond
			var said []string
			for range 8 { // what others do on this machine is not held against the engine
				without := p999(roundTrips(t, all, 250))
				stop := collecting(period)
				with := p999(roundTrips(t, all, 250))
				worst := stop()
				said = append(said, fmt.Sprintf("p99.9 %v, with collections %v; a collection at most %v", without, with, worst))
				if with <= 2*without+allowance && worst <= mostGC {
					t.Log(said)
					return
				}
			}
			t.Error(strings.Join(said, "\n"))
		})
	}
}

// The other goroutines, the collector's among them, have a processor where there is but
// one, and a loop waits on it.
func TestCollectionsStallNobodyOnOneProcessor(t *testing.T) {
	run := func(t *testing.T, env ...string) {
		cmd := exec.Command(os.Args[0], "-test.run=^TestCollectionsStallNobody$", "-test.v")
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("child: %v\n%s", err, out)
		}
		t.Logf("%s", out)
	}
	t.Run("GOMAXPROCS is 1", func(t *testing.T) { run(t, "GOMAXPROCS=1") })
	t.Run("the process has one processor", func(t *testing.T) {
		// A child inherits them from the thread that forks.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var was unix.CPUSet
		if err := unix.SchedGetaffinity(0, &was); err != nil {
			t.Skip(err)
		}
		one := unix.CPUSet{}
		for i := range 1024 {
			if was.IsSet(i) {
				one.Set(i)
				break
			}
		}
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			t.Skip(err)
		}
		defer unix.SchedSetaffinity(0, &was)
		run(t, "GOMAXPROCS=")
	})
}

// BenchmarkCollections is a round trip among eight sessions. The metrics tell what
// forced collections do to the slowest.
func BenchmarkCollections(b *testing.B) { onEngines(b, benchCollections) }

func benchCollections(b *testing.B, newEngine func(Config) Engine) {
	all := newBench(b, newEngine).echoing(8)
	defer part(all)
	for _, period := range []time.Duration{0, 10 * time.Millisecond, time.Millisecond} {
		b.Run(strings.ReplaceAll(fmt.Sprint("each=", period), "=0s", "=never"), func(b *testing.B) {
			stop := collecting(period)
			took := roundTrips(b, all, 1+b.N/len(all))
			worst := stop()
			b.ReportMetric(micros(p999(took)), "p99.9-µs")
			b.ReportMetric(micros(took[len(took)/2]), "p50-µs")
			if period > 0 {
				b.ReportMetric(micros(worst), "collection-max-µs")
			}
		})
	}
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }

// idleTime returns the processor time of a while in which nothing is to do.
func idleTime(t testing.TB, all []*session, while time.Duration) time.Duration {
	t.Helper()
	roundTrips(t, all, 1)
	runtime.GC() // not in that while
	pause(50 * time.Millisecond)
	before := processorTime()
	pause(while)
	return processorTime() - before
}

// An idle proxy costs nothing. That it is at most 20 ms in 10 s BenchmarkIdle tells; a
// loop that spins, or wakes each millisecond, uses more than is asked for here.
func TestIdleSessionsCostNothing(t *testing.T) { onEngines(t, testIdleSessionsCostNothing) }

func testIdleSessionsCostNothing(t *testing.T, newEngine func(Config) Engine) {
	all := newBench(t, newEngine).echoing(100)
	defer part(all)
	const while, most = 400 * time.Millisecond, 8 * time.Millisecond
	var used []time.Duration
	for range 4 {
		now := idleTime(t, all, while)
		if used = append(used, now); now <= most {
			t.Log(used)
			return
		}
	}
	t.Errorf("%v of processor time in %v each, want at most %v", used, while, most)
}

// BenchmarkIdle tells what 100 quiet sessions cost in ten seconds.
func BenchmarkIdle(b *testing.B) { onEngines(b, benchIdle) }

func benchIdle(b *testing.B, newEngine func(Config) Engine) {
	all := newBench(b, newEngine).echoing(100)
	defer part(all)
	const while = 2 * time.Second
	pause(lastingAfter + 200*time.Millisecond) // what is done once for a session that lasts
	used := idleTime(b, all, while)
	for b.Loop() { // what is measured takes its own time
	}
	b.ReportMetric(used.Seconds()*1e3*float64(10*time.Second/while), "cpu-ms/10s")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkBusyAmongQuiet tells what a request of 100 busy sessions costs in processor
// time, their peers' work included, with and without 9,000 quiet ones.
func BenchmarkBusyAmongQuiet(b *testing.B) { onEngines(b, benchBusyAmongQuiet) }

func benchBusyAmongQuiet(b *testing.B, newEngine func(Config) Engine) {
	const busy = 100
	for _, quiet := range []int{0, 9000} {
		b.Run(fmt.Sprintf("quiet=%d", quiet), func(b *testing.B) {
			quiet := min(quiet, descriptorsFor(b, 4*(quiet+busy)+200)/4-busy-50)
			eng := newBench(b, newEngine)
			none := eng.crowd("tcp", quiet, RelayConfig{IdleTimeout: time.Hour, HalfCloseTimeout: time.Hour})
			all := eng.echoing(busy)
			roundTrips(b, all, 10)
			runtime.GC()
			before := processorTime()
			b.ResetTimer()
			rounds := 1 + b.N/busy
			took := roundTrips(b, all, rounds)
			b.StopTimer()
			b.ReportMetric(micros(processorTime()-before)/float64(rounds*busy), "cpu-µs/request")
			b.ReportMetric(micros(p999(took)), "p99.9-µs")
			b.ReportMetric(float64(quiet), "quiet")
			part(all)
			for _, s := range none {
				s.backend.Close()
			}
			part(none)
		})
	}
}

// descriptorsFor raises the limit of descriptors to n, or as far as that goes, and
// returns it.
func descriptorsFor(b *testing.B, n int) int {
	b.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { unix.Setrlimit(unix.RLIMIT_NOFILE, &was) })
	for _, limit := range []unix.Rlimit{{Cur: uint64(n), Max: max(was.Max, uint64(n))}, {Cur: was.Max, Max: was.Max}, was} {
		if unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
			return int(limit.Cur)
		}
	}
	return int(was.Cur)
}
