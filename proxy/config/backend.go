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

const backendTakes = "host:port[,max=N][,weight=N][,backup=true]"

// A Backend is one server behind the proxy.
type Backend struct {
	Addr Address

	// Max bounds the connections open to it at once, 1 to 65535. Zero stands
	// for --max-conns, until Run has filled it in.
	Max int

	// Weight is its share, 1 to 1000000, where the strategy regards it.
	Weight int

	// Backup has it used only while no other backend is up.
	Backup bool
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
	if b.Backup {
		s += ",backup=true"
	}
	return s
}

// ParseBackend reads ADDR[,max=N][,weight=N][,backup=true], where ADDR is what
// ParseAddress takes and has no comma. Without max, Max is 0; without weight, Weight
// is 1; backup=false is as good as none. The error tells what was given and what is
// accepted.
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
	b := Backend{Addr: a, Weight: 1}
	seen := make(map[string]bool)
	for more {
		var option string
		option, options, more = strings.Cut(options, ",")
		key, value, _ := strings.Cut(option, "=")
		if seen[key] {
			return Backend{}, fmt.Errorf("%s is there twice", key)
		}
		seen[key] = true
		if err := b.set(option, key, value); err != nil {
			return Backend{}, err
		}
	}
	return b, nil
}

// set takes one option, key=value.
func (b *Backend) set(option, key, value string) error {
	switch key {
	case "max":
		return setNumber(&b.Max, key, value, maxMax)
	case "weight":
		return setNumber(&b.Weight, key, value, maxWeight)
	case "backup":
		if value != "true" && value != "false" {
			return fmt.Errorf("backup is true or false, not %q", value)
		}
		b.Backup = value == "true"
		return nil
	}
	return fmt.Errorf("%q is none of max=N, weight=N and backup=true", option)
}

func setNumber(field *int, key, value string, limit int) error {
	n, err := strconv.ParseUint(value, 10, 31)
	if err != nil || n < 1 || n > uint64(limit) {
		return fmt.Errorf("%s is a number from 1 to %d, not %q", key, limit, value)
	}
	*field = int(n)
	return nil
}
