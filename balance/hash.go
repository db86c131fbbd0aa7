package balance

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"sort"
)

// A Client is what the strategies that hash know of a client. The others do not look
// at it.
type Client uint64

// ClientAt returns who has an address. An IPv4 address and its IPv6-mapped form are one
// client, and the zone does not matter. Every forebay computes the same. The zero Addr,
// as of clients that come through a Unix socket, is a client too.
func ClientAt(addr netip.Addr) Client {
	a := addr.As16() // an IPv4 address in its IPv6-mapped form
	if !addr.IsValid() {
		return Client(mix(1))
	}
	hi, lo := binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:])
	return Client(mix(mix(hi) ^ lo))
}

// mix spreads what little differs in x over all of it: the finalizer of SplitMix64
// (Steele, Lea and Flood, 2014).
func mix(x uint64) uint64 {
	x += golden
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// golden is 2^64 divided by the golden ratio, the step of SplitMix64.
const golden = 0x9e3779b97f4a7c15

// sourceHash takes the one to whose share the client belongs, or the next in order that
// is held.
type sourceHash struct {
	*shares
	held set
}

func (s *sourceHash) hold(i int, _ *member) { s.held.add(i) }
func (s *sourceHash) drop(i int, _ *member) { s.held.remove(i) }
func (s *sourceHash) next(c Client) int     { return s.held.next(s.owner(c)) }

// shares divide all clients among all backends by weight, whether these are up or not:
// so those that are stay with theirs.
type shares struct {
	b      *Balancer
	backup bool
	stale  bool
	ends   []int64 // of the share of each index; the share is empty where the end is that before
}

func (s *shares) reformed(int) { s.stale = true }

// owner returns the backend whose share client c is in.
func (s *shares) owner(c Client) int {
	s.build()
	total := s.ends[len(s.ends)-1]
	place, _ := bits.Mul64(mix(uint64(c)), uint64(total)) // even, and needs no division
	return sort.Search(len(s.ends), func(i int) bool { return s.ends[i] > int64(place) })
}

// build divides anew, where the set has changed.
func (s *shares) build() {
	if !s.stale {
		return
	}
	s.stale = false
	s.ends = s.ends[:0]
	var end int64
	for i := range s.b.members {
		if m := &s.b.members[i]; m.Max > 0 && m.Backup == s.backup {
			end += int64(m.Weight)
		}
		s.ends = append(s.ends, end)
	}
}
