package proxy

import (
	"sync/atomic"

	"forebay/proxy/exchange"
)

// traffic counts what passed between clients and one backend.
type traffic struct {
	up, down atomic.Int64                     // bytes delivered
	results  [exchange.NumFaults]atomic.Int64 // leases for requests, by how they ended
}

// moved counts bytes. Most calls of pooled requests have some of both.
func (t *traffic) moved(up, down int64) {
	if up != 0 {
		t.up.Add(up)
	}
	if down != 0 {
		t.down.Add(down)
	}
}

// byResult returns the results by name: "ok", or that of the exchange.Fault.
func (t *traffic) byResult() map[string]int64 {
	results := make(map[string]int64)
	for f := range t.results {
		name := exchange.Fault(f).String()
		if exchange.Fault(f) == exchange.NoFault {
			name = "ok"
		}
		if n := t.results[f].Load(); n > 0 {
			results[name] = n
		}
	}
	return results
}
