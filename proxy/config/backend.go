package config

import (
	"fmt"
	"strconv"
	"strings"
)

// maxMax bounds a backend's connections: a client has 65,535 ports towards one
// address. maxWeight keeps the sums of the weighted turns far from overflow.
const (
	maxMax    = 65535
	maxWeight = 1000000
)

const backendTakes = "host:port[,max=N][,weight=N]"

// A Backend is one server behind the proxy.
type Backend struct {
	Addr Address

	// Max bounds the connections open to it at once, 1 to 65535. Zero stands
	// for --max-conns, until Run has filled it in.
	Max int

	// Weight is its share of the ties, 1 to 1000000.
	Weight int
}

// String returns the backend in the form that ParseBackend takes.
func (b Backend) String() string {
	s := b.Addr.String()
	if b.Max != 0 {
		s += ",max=" + strconv.Itoa(b.Max)
	}
	if b.Weight > 1 {
		s += ",weight=" + strconv.Itoa(b.Weight)
	}
	return s
}

// ParseBackend reads ADDR[,max=N][,weight=N], where ADDR is what ParseAddress
// takes and has no comma. Without max, Max is 0; without weight, Weight is 1.
// The error tells what was given and what is accepted.
func ParseBackend(s string) (Backend, error) {
	b, err := parseBackend(s)
	if err != nil {
		return Backend{}, &valueError{given: s, reason: err.Error(), takes: backendTakes}
	}
	return b, nil
}

// parseBackend returns an error that is only the reason.
func parseBackend(s string) (Backend, error) {
	addr, options, more := strings.Cut(s, ",")
	a, err := parseAddress(addr, false)
	if err != nil {
		return Backend{}, err
	}
	b := Backend{Addr: a}
	for more {
		var option string
		option, options, more = strings.Cut(options, ",")
		if err := b.set(option); err != nil {
			return Backend{}, err
		}
	}
	if b.Weight == 0 {
		b.Weight = 1
	}
	return b, nil
}

// set reads one key=N. A field that is not zero has been set before: no key
// takes 0.
func (b *Backend) set(option string) error {
	key, value, _ := strings.Cut(option, "=")
	field, limit := &b.Max, maxMax
	switch key {
	case "max":
	case "weight":
		field, limit = &b.Weight, maxWeight
	default:
		return fmt.Errorf("%q is neither max=N nor weight=N", option)
	}
	if *field != 0 {
		return fmt.Errorf("%s is there twice", key)
	}
	n, err := strconv.ParseUint(value, 10, 31)
	if err != nil || n < 1 || n > uint64(limit) {
		return fmt.Errorf("%s is a number from 1 to %d, not %q", key, limit, value)
	}
	*field = int(n)
	return nil
}
