package simulate

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"sort"
	"time"

	"forebay/balance"
)

// The streams of random numbers, beside stream 0 of a seed, which is that of the
// strategies that draw.
const (
	arrivalStream = 1 + iota
	clientStream
	workStream
)

// A request is one arrival.
type request struct {
	arrived time.Duration
	client  balance.Client
	work    time.Duration // time at speed 1
	begun   time.Duration // when a worker took it up
	backend int
}

// source draws the requests.
type source struct {
	Scenario
	arrivals, clients, works *rand.Rand

	at     time.Duration
	who    []balance.Client
	shares []float64 // of the clients up to each
}

func newSource(sc Scenario) *source {
	stream := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(sc.Seed, n)) }
	s := &source{Scenario: sc, arrivals: stream(arrivalStream), clients: stream(clientStream), works: stream(workStream)}
	var sum float64
	for i := range max(1, sc.Clients) {
		addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		s.who = append(s.who, balance.ClientAt(addr))
		sum += 1 / float64(i+1) // Zipf's law: the second asks half as much as the first, and so on
		s.shares = append(s.shares, sum)
	}
	return s
}

// next returns the next request, or nil where the scenario's duration is over.
func (s *source) next() *request {
	s.at += span(s.arrivals.ExpFloat64() / s.Rate * float64(time.Second))
	if s.at >= s.Duration {
		return nil
	}
	return &request{arrived: s.at, client: s.client(), work: span(s.Service.draw(s.works) * float64(s.ServiceTime))}
}

// client draws one by its share.
func (s *source) client() balance.Client {
	place := s.clients.Float64() * s.shares[len(s.shares)-1]
	return s.who[min(sort.SearchFloat64s(s.shares, place), len(s.who)-1)]
}

// forever is longer than any scenario, and sums of a few do not overflow.
const forever = time.Duration(math.MaxInt64 / 8)

// span returns ns nanoseconds as a duration.
func span(ns float64) time.Duration {
	if !(ns < float64(forever)) {
		return forever
	}
	return time.Duration(math.Round(ns))
}
