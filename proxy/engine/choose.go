package engine

import (
	"fmt"
	"slices"
	"strings"
)

// kind is an engine that can be asked for. make tells what this machine lacks for it.
type kind struct {
	name string
	make func(Config) (Engine, error)
}

// kinds are the engines of this system, the cheapest first.
var kinds = append(kernelEngines(), kind{"net", func(cfg Config) (Engine, error) { return NewNet(cfg), nil }})

// Names returns what the engines of this system are called, the cheapest first.
func Names() (names []string) {
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// New returns the engine called name or, where that is "auto", the first of Names that
// runs on this machine; refused tells why those before it do not.
func New(name string, cfg Config) (e Engine, refused []error, err error) {
	if name != "auto" && !slices.Contains(Names(), name) {
		return nil, nil, fmt.Errorf("engine %s: this system has %s", name, strings.Join(Names(), ", "))
	}
	for _, k := range kinds {
		if name != k.name && name != "auto" {
			continue
		}
		if e, err = k.make(cfg); err == nil {
			return e, refused, nil
		}
		err = fmt.Errorf("engine %s: %w", k.name, err)
		refused = append(refused, err)
	}
	return nil, refused, err
}
