package top

import (
	"cmp"
	"slices"

	"forebay/proxy/admin"
)

// order is how the backends are sorted.
type order int

const (
	asListed order = iota // as the proxy has them
	byLoad
	byRate
	byErrors
	numOrders
)

var orderNames = [numOrders]string{"as listed", "load", "rate", "errors"}

// String returns the name of the order.
func (o order) String() string { return orderNames[o] }

// sorted returns the backends in the order that is chosen, the highest first. Equals
// stay as the proxy has them.
func (m *model) sorted() []admin.Backend {
	if len(m.samples) == 0 {
		return nil
	}
	backends := slices.Clone(m.samples.last().pools.Backends)
	of := map[order]func(admin.Backend) float64{
		byLoad:   func(b admin.Backend) float64 { return float64(b.Leased) / float64(max(b.Max, 1)) },
		byRate:   m.busy,
		byErrors: func(b admin.Backend) float64 { return float64(m.samples.recent(each(b.Name, failures))) },
	}[m.sort]
	if of != nil {
		slices.SortStableFunc(backends, func(a, b admin.Backend) int { return cmp.Compare(of(b), of(a)) })
	}
	return backends
}

// busy is what a backend does: requests, or sessions where requests are not known.
func (m *model) busy(b admin.Backend) float64 {
	of := requests
	if b.Requests == 0 {
		of = sessions
	}
	r, _ := m.samples.rate(each(b.Name, of))
	return r
}
