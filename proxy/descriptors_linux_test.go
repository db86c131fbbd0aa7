package proxy

import (
	"fmt"
	"os"
	"runtime/debug"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"forebay/proxy/engine"
	"forebay/proxy/enginetest"
	"forebay/proxy/proxytest"
)

// limitDescriptors lowers the soft limit of this process, until the test ends.
func limitDescriptors(t *testing.T, n uint64) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Setrlimit(unix.RLIMIT_NOFILE, &was) })
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
}

func TestMaxClientsFollowsTheDescriptorLimit(t *testing.T) {
	tests := []struct {
		name  string
		limit uint64
		maxes []int // of the backends
		given int
		want  int
		warns bool
	}{
		{name: "one descriptor a client, less the spare and the pool", limit: 1024, maxes: []int{64}, want: 1024 - 32 - 64},
		{name: "a small backend takes less", limit: 1024, maxes: []int{4}, want: 1024 - 32 - 4},
		{name: "each backend takes", limit: 1024, maxes: []int{64, 64, 4}, want: 1024 - 32 - 132},
		{name: "two a client where the pools could take most, which spare a quarter", limit: 1024, maxes: []int{2048, 64}, want: (1024 - 32 - 256) / 2},
		{name: "9,000 sessions fit into 20,000 descriptors", limit: 20000, maxes: []int{4600, 4600}, want: 20000 - 32 - 9200},
		{name: "a lower number stands", limit: 1024, maxes: []int{64}, given: 100, want: 100},
		{name: "the very number allowed stands", limit: 1024, maxes: []int{64}, given: 928, want: 928},
		{name: "a higher one is lowered, and said", limit: 1024, maxes: []int{64}, given: 929, want: 928, warns: true},
		{name: "one client at least", limit: 40, maxes: []int{64}, want: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			limitDescriptors(t, tt.limit)
			b := &book{}
			cfg := config()
			cfg.Engine, cfg.Log = engine.NewNet(engine.Config{}), zerolog.New(b)
			cfg.MaxClients = tt.given
			for i, m := range tt.maxes {
				cfg.Backends = append(cfg.Backends, Backend{Network: "tcp", Addr: fmt.Sprint("127.0.0.1:", i+1), Max: m, Weight: 1})
			}
			srv, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if got := srv.MaxClients(); got != tt.want {
				t.Errorf("MaxClients = %d, want %d", got, tt.want)
			}
			if got := len(b.with("--max-clients is above what the descriptor limit allows")) == 1; got != tt.warns {
				t.Errorf("warned: %v, want %v", got, tt.warns)
			}
		})
	}
}

// descriptors counts those of this process.
func descriptors(t testing.TB) int {
	t.Helper()
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

func TestQuietSessionHoldsTwoDescriptors(t *testing.T) {
	enginetest.Each(t, testQuietSessionHoldsTwoDescriptors)
}

func testQuietSessionHoldsTwoDescriptors(t *testing.T) {
	const sessions, each = 20, 4                           // its client and its backend are here too, with one each
	f := start(t, config(testBackend(t, 1000, fickle(t)))) // echo would hold pipes, to splice
	f.occupy(t)
	got := 0
	for range 5 { // something of an earlier test may be closed meanwhile
		before := descriptors(t)
		for range sessions {
			f.occupy(t)
		}
		if got = descriptors(t) - before; got == sessions*each {
			return
		}
	}
	t.Errorf("%d sessions hold %d descriptors, want %d", sessions, got, sessions*each)
}

func TestNoDescriptorIsLeftAfterShutdown(t *testing.T) {
	enginetest.Each(t, testNoDescriptorIsLeftAfterShutdown)
}

func testNoDescriptorIsLeftAfterShutdown(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which would close what was lost
	play := func(t *testing.T) {
		down, _ := dead(t, 2)
		cfg := config(testBackend(t, 2, fickle(t)), down, testBackend(t, 2, fickle(t)))
		cfg.MinIdle = 2
		cfg.VirginTimeout = 5 * time.Millisecond
		cfg.HalfCloseTimeout = 20 * time.Millisecond
		f := start(t, cfg)
		for i := range 60 {
			c := f.dial(t)
			switch i % 6 {
			case 0:
				reset(t, c)
			case 1:
				ping(t, c)
			case 2:
				write(t, c, "reset")
			case 3:
				write(t, c, "silent")
				c.CloseWrite()
			case 4:
				c.Close()
			}
			if i%6 > 0 {
				c.Close()
			}
		}
		for range 6 { // some wait, some are cut
			write(t, f.dial(t), "ping")
		}
		f.stop(t)
	}
	t.Run("once", play) // opens what the runtime keeps
	before := descriptors(t)
	t.Run("again", play)
	proxytest.Eventually(t, "the descriptors to be closed", func() bool { return descriptors(t) <= before })
}
