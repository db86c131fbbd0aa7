package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"forebay/balance"
	"forebay/proxy/enginetest"
	"forebay/proxy/proxytest"
)

// The strategies at real connections: that each is the one that was asked for, and gets
// what it goes by. Package balance has what they do in detail.

// letters are backends called a, b and so on.
func letters(t testing.TB, max int, weights ...int) (backends []Backend) {
	t.Helper()
	for i, w := range weights {
		be := named(t, string(rune('a'+i)), max)
		be.Weight = w
		backends = append(backends, be)
	}
	return backends
}

// letter reads which backend a client got.
func letter(t testing.TB, c net.Conn) string {
	t.Helper()
	b := make([]byte, 1)
	if _, err := c.Read(b); err != nil {
		t.Fatal("no backend: ", err)
	}
	return string(b)
}

// quiet waits until no slot works for a client: what comes next finds no load.
func (f *front) quiet(t testing.TB) {
	t.Helper()
	proxytest.Eventually(t, "all leases to be over", func() bool {
		for _, b := range f.Stats().Backends {
			if b.Load.Active() > 0 {
				return false
			}
		}
		return true
	})
}

func TestClientsGoWhereTheStrategyHasThem(t *testing.T) {
	enginetest.Each(t, testClientsGoWhereTheStrategyHasThem)
}

func testClientsGoWhereTheStrategyHasThem(t *testing.T) {
	tests := []struct {
		name     string
		strategy balance.Strategy
		max      int
		weights  []int
		leave    bool // each client does, before the next comes; else all stay
		want     string
	}{
		{name: "the default shares the load", max: 3, weights: []int{1, 1, 1}, want: "abccbaabc"},
		{name: "least-conn is the default", strategy: balance.LeastConn, max: 3, weights: []int{1, 1, 1}, want: "abccbaabc"},
		{name: "round-robin takes turns", strategy: balance.RoundRobin, max: 3, weights: []int{1, 1, 1}, leave: true, want: "abcabcab"},
		{name: "and ignores weight", strategy: balance.RoundRobin, max: 3, weights: []int{5, 1, 1}, leave: true, want: "abcabcab"},
		{name: "and passes over who is full", strategy: balance.RoundRobin, max: 2, weights: []int{1, 1, 1}, want: "abcabc"},
		{name: "weighted turns are smooth", strategy: balance.WeightedRoundRobin, max: 3, weights: []int{5, 1, 1}, leave: true, want: "aabacaaaabacaa"},
		{name: "and ignore load", strategy: balance.WeightedRoundRobin, max: 4, weights: []int{3, 1}, want: "aabaabb"},
		{name: "first fills one before the next", strategy: balance.First, max: 2, weights: []int{1, 9, 1}, want: "aabbcc"},
		{name: "and is the first again when there is room", strategy: balance.First, max: 2, weights: []int{1, 9, 1}, leave: true, want: "aaaa"},
		{name: "the lesser of two, of two, is the least", strategy: balance.RandomTwo, max: 4, weights: []int{1, 1}, want: "= 4 4"},
		{name: "source-hash leaves a full one for the next", strategy: balance.SourceHash, max: 2, weights: []int{1, 1, 1}, want: "= 2 2 2"},
		{name: "consistent-hash too", strategy: balance.ConsistentHash, max: 2, weights: []int{1, 1, 1}, want: "= 2 2 2"},
		{name: "random fills all", strategy: balance.Random, max: 2, weights: []int{1, 1, 1}, want: "= 2 2 2"},
		{name: "weighted-random too", strategy: balance.WeightedRandom, max: 2, weights: []int{1, 5}, want: "= 2 2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config(letters(t, tt.max, tt.weights...)...)
			cfg.Balance = tt.strategy
			f := start(t, cfg)
			n := len(tt.want)
			if strings.HasPrefix(tt.want, "=") {
				n = tt.max * len(tt.weights)
			}
			got := ""
			for range n {
				c := f.dial(t)
				got += letter(t, c)
				if tt.leave {
					c.Close()
					f.quiet(t)
				}
			}
			if n != len(tt.want) {
				got = "="
				for i := range tt.weights {
					b := f.Stats().Backends[i]
					got += fmt.Sprint(" ", b.Load.Slots[balance.Leased])
				}
			}
			if got != tt.want {
				t.Errorf("the clients go to %s, want %s", got, tt.want)
			}
		})
	}
}

// With a share of 1/2 and of 3/4, 200 clients are further from it than this once in a
// million times.
func TestDrawnSharesAreByWeightOrEven(t *testing.T) {
	enginetest.Each(t, testDrawnSharesAreByWeightOrEven)
}

func testDrawnSharesAreByWeightOrEven(t *testing.T) {
	for strategy, within := range map[balance.Strategy][2]int{balance.Random: {65, 135}, balance.WeightedRandom: {115, 180}} {
		cfg := config(letters(t, 64, 3, 1)...)
		cfg.Balance = strategy
		f := start(t, cfg)
		n := 0
		for range 200 {
			c := f.dial(t)
			if letter(t, c) == "a" {
				n++
			}
			c.Close()
		}
		if n < within[0] || n > within[1] {
			t.Errorf("%s has %d of 200 clients at the backend of weight 3, of 4; want %v", strategy, n, within)
		}
		f.stop(t)
	}
}

// dialFrom connects a client that has an address of this machine.
func (f *front) dialFrom(t testing.TB, ip, to string) proxytest.Conn {
	t.Helper()
	_, port, err := net.SplitHostPort(f.at.String())
	if err != nil {
		t.Fatal(err)
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
	c, err := d.DialContext(t.Context(), "tcp", net.JoinHostPort(to, port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(proxytest.Conn)
}

// addresses are clients of this machine.
func addresses(t *testing.T) (ips []string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("there is one loopback address")
	}
	for i := range 40 {
		ips = append(ips, fmt.Sprintf("127.0.0.%d", 10+i))
	}
	return ips
}

// homes returns where each client goes, one after the other, so that none finds load.
func (f *front) homes(t testing.TB, ips []string, to string) map[string]string {
	t.Helper()
	homes := make(map[string]string)
	for _, ip := range ips {
		f.quiet(t)
		c := f.dialFrom(t, ip, to)
		homes[ip] = letter(t, c)
		c.Close()
	}
	f.quiet(t)
	return homes
}

// moved returns how many clients are elsewhere than before, of those that were at one of
// the letters and of the others.
func moved(before, after map[string]string, at string) (of, others int) {
	for ip, home := range before {
		switch {
		case after[ip] == home:
		case strings.Contains(at, home):
			of++
		default:
			others++
		}
	}
	return of, others
}

func TestClientsStayWithTheirBackend(t *testing.T) {
	enginetest.Each(t, testClientsStayWithTheirBackend)
}

func testClientsStayWithTheirBackend(t *testing.T) {
	ips := addresses(t)
	for _, strategy := range []balance.Strategy{balance.SourceHash, balance.ConsistentHash} {
		t.Run(string(strategy), func(t *testing.T) {
			cfg := config(letters(t, 8, 1, 1, 1)...)
			cfg.Balance = strategy
			f := start(t, cfg)
			b := f.cfg.Backends[1].String()
			home := f.homes(t, ips, "127.0.0.1")
			atB := 0
			for _, at := range home {
				if at == "b" {
					atB++
				}
			}
			if atB == 0 || atB == len(ips) {
				t.Fatalf("of %d clients %d are at one of three backends", len(ips), atB)
			}
			want := func(when string, of, others int) {
				t.Helper()
				if o, e := moved(home, f.homes(t, ips, "127.0.0.1"), "b"); o != of || e != others {
					t.Errorf("%s %d of its clients are elsewhere, and %d of others; want %d and %d", when, o, e, of, others)
				}
			}
			want("from other ports", 0, 0)
			f.dispatcher.takeDown(1)
			f.isDown(t, 1)
			want("with b down", atB, 0)
			f.dispatcher.up(f.dispatcher.at(1))
			f.isUp(t, 1)
			want("with b up again", 0, 0)
			must(t, f.SetState(b, Drain))
			want("with b drained", atB, 0)
			must(t, f.SetState(b, Ready))
			want("with b ready", 0, 0)
		})
	}
}

// One that comes takes clients from all others, and moves none between these.
func TestNewBackendMovesOnlyWhatItGets(t *testing.T) {
	enginetest.Each(t, testNewBackendMovesOnlyWhatItGets)
}

func testNewBackendMovesOnlyWhatItGets(t *testing.T) {
	ips := addresses(t)
	backends := letters(t, 8, 1, 1, 1, 1)
	cfg := config(backends[:3]...)
	cfg.Balance = balance.ConsistentHash
	f := start(t, cfg)
	home := f.homes(t, ips, "127.0.0.1")
	must(t, f.Add(backends[3]))
	after := f.homes(t, ips, "127.0.0.1")
	for _, ip := range ips {
		if after[ip] != home[ip] && after[ip] != "d" {
			t.Errorf("client %s has moved from %s to %s, which was there before", ip, home[ip], after[ip])
		}
	}
	must(t, f.Remove(backends[3].String()))
	if of, others := moved(home, f.homes(t, ips, "127.0.0.1"), "abc"); of+others > 0 {
		t.Errorf("without the new one %d clients are elsewhere than before", of+others)
	}
}

// A listener for both families has IPv4 clients by an address of IPv6.
func TestClientIsTheSameByEitherFamily(t *testing.T) {
	enginetest.Each(t, testClientIsTheSameByEitherFamily)
}

func testClientIsTheSameByEitherFamily(t *testing.T) {
	ips := addresses(t)
	for _, strategy := range []balance.Strategy{balance.SourceHash, balance.ConsistentHash} {
		cfg := config(letters(t, 8, 1, 1, 1)...)
		cfg.Balance = strategy
		four := start(t, cfg)
		cfg.Engine = enginetest.New(t)
		both := startOn(t, cfg, "tcp", "[::]:0")
		if at := netip.MustParseAddrPort(both.at.String()); !at.Addr().Is6() {
			t.Skip("no IPv6 here: listens on ", at)
		}
		home := four.homes(t, ips, "127.0.0.1")
		if of, others := moved(home, both.homes(t, ips, "127.0.0.1"), "abc"); of+others > 0 {
			t.Errorf("%s: by a listener of both families %d clients are elsewhere", strategy, of+others)
		}
	}
}

func TestClientsOfAUnixSocketAreOne(t *testing.T) { enginetest.Each(t, testClientsOfAUnixSocketAreOne) }

func testClientsOfAUnixSocketAreOne(t *testing.T) {
	cfg := config(letters(t, 8, 1, 1, 1)...)
	cfg.Balance = balance.SourceHash
	f := startOn(t, cfg, "unix", t.TempDir()+"/s")
	first := letter(t, f.dial(t))
	for range 7 {
		if got := letter(t, f.dial(t)); got != first {
			t.Errorf("a client is at %s, others at %s", got, first)
		}
	}
}

// With a lease for each request the client of all of them is the same, too.
func TestRequestsStayWithTheBackendOfTheirClient(t *testing.T) {
	enginetest.Each(t, testRequestsStayWithTheBackendOfTheirClient)
}

func testRequestsStayWithTheBackendOfTheirClient(t *testing.T) {
	tests := []struct {
		strategy balance.Strategy
		want     string // requests of the backends, the most first
	}{{balance.SourceHash, "6 0 0"}, {balance.RoundRobin, "2 2 2"}}
	for _, tt := range tests {
		t.Run(string(tt.strategy), func(t *testing.T) {
			echoing := newEchoServer().serve
			cfg := requestsConfig(testBackend(t, 2, echoing), testBackend(t, 2, echoing), testBackend(t, 2, echoing))
			cfg.Balance = tt.strategy
			f := start(t, cfg)
			for range 2 {
				c := f.dial(t)
				for id := range uint32(3) {
					echoed(t, c, call(id, "hello"))
				}
				c.Close()
			}
			var n [3]int64
			f.quiet(t)
			for i, b := range f.Stats().Backends {
				n[i] = b.Requests
			}
			most := max(n[0], n[1], n[2])
			least := min(n[0], n[1], n[2])
			if got := fmt.Sprint(most, n[0]+n[1]+n[2]-most-least, least); got != tt.want {
				t.Errorf("of 6 requests the backends had %s, want %s", got, tt.want)
			}
		})
	}
}

// Where nothing is up, a backup that does not answer is tried after the others.
func TestWithAllDownEachIsTried(t *testing.T) { enginetest.Each(t, testWithAllDownEachIsTried) }

func testWithAllDownEachIsTried(t *testing.T) {
	backup, openBackup := dead(t, 4)
	backup.Backup = true
	one, open := dead(t, 4)
	cfg := config(backup, one)
	cfg.Health.TryAllDown = true
	f := start(t, cfg)
	f.dispatcher.takeDown(0, 1)
	wantClosed(t, f.dial(t)) // has tried both
	proxytest.ServeOn(t, openBackup(), namer("b"))
	f.dispatcher.takeDown(0) // a dial may have been quick to find it
	defer f.from(t, "b").Close()
	f.isUp(t, 0)
	f.dispatcher.takeDown(0)
	proxytest.ServeOn(t, open(), namer("a"))
	defer f.from(t, "a").Close()
}
