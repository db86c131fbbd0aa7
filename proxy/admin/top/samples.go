package top

import (
	"time"

	"forebay/proxy/admin"
)

// rateSpan is the time over which rates are taken, and recentSpan that over which
// errors are counted.
const (
	rateSpan   = 5 * time.Second
	recentSpan = time.Minute
)

// sample is one look at the proxy.
type sample struct {
	at    time.Time
	pools admin.Pools
}

// samples are the looks of the last minute, the oldest first.
type samples []sample

// add returns the samples with one more. A proxy that was started anew has no past: its
// counters began at zero.
func (s samples) add(n sample) samples {
	if len(s) > 0 && accepted(n.pools) < accepted(s.last().pools) {
		s = nil
	}
	for len(s) > 0 && n.at.Sub(s[0].at) > recentSpan {
		s = s[1:]
	}
	return append(s, n)
}

func (s samples) last() sample { return s[len(s)-1] }

// since returns the oldest sample that is no older than d, give or take half a look.
func (s samples) since(d time.Duration) sample {
	for _, one := range s {
		if s.last().at.Sub(one.at) <= d+defaultInterval/2 {
			return one
		}
	}
	return s.last()
}

// A counter reads a number that grows. It reports whether there is one.
type counter func(admin.Pools) (int64, bool)

// rate returns what a counter grew by in a second, lately, and whether that is known.
func (s samples) rate(c counter) (float64, bool) {
	from := s.since(rateSpan)
	n, ok := grown(from.pools, s.last().pools, c)
	if d := s.last().at.Sub(from.at); ok && d > 0 {
		return float64(n) / d.Seconds(), true
	}
	return 0, false
}

// recent returns what a counter grew by in the last minute.
func (s samples) recent(c counter) int64 {
	n, _ := grown(s.since(recentSpan).pools, s.last().pools, c)
	return n
}

// grown reports by how much a counter grew. One that is lower was begun anew.
func grown(from, to admin.Pools, c counter) (int64, bool) {
	a, ok := c(from)
	b, still := c(to)
	if !ok || !still || b < a {
		return 0, false
	}
	return b - a, true
}

// accepted counts the sessions since the start.
func accepted(p admin.Pools) int64 {
	n := int64(p.Sessions)
	for _, ended := range p.Ended {
		n += ended
	}
	return n
}

// total is a counter of the proxy.
func total(of func(admin.Pools) int64) counter {
	return func(p admin.Pools) (int64, bool) { return of(p), true }
}

// each is a counter of one backend.
func each(name string, of func(admin.Backend) int64) counter {
	return func(p admin.Pools) (int64, bool) {
		for _, b := range p.Backends {
			if b.Name == name {
				return of(b), true
			}
		}
		return 0, false
	}
}

// all is a counter over all backends.
func all(of func(admin.Backend) int64) counter {
	return total(func(p admin.Pools) (n int64) {
		for _, b := range p.Backends {
			n += of(b)
		}
		return n
	})
}

func sessions(b admin.Backend) int64  { return b.Sessions }
func requests(b admin.Backend) int64  { return b.Requests }
func bytesUp(b admin.Backend) int64   { return b.BytesUp }
func bytesDown(b admin.Backend) int64 { return b.BytesDown }

// failures are the dials and the connections of a backend that failed.
func failures(b admin.Backend) int64 {
	return b.DialErrors + b.Closes["failed"] + b.Closes["stray_bytes"]
}
