package engine

import "testing"

// Package enginetest has the tests of other packages run for all kinds. What is tested
// of one engine alone (net_test.go, and so on) needs what is within it, or the fake time
// and the connections of a synctest bubble.

// try tells whether the engine works here.
func (k kind) try() error {
	e, err := k.make(Config{})
	if err == nil {
		e.Close()
	}
	return err
}

// need skips the test where the kernel refuses io_uring, and the engine is that. Whatever
// else fails, fails the test.
func (k kind) need(t testing.TB) {
	t.Helper()
	if err := refusal(); err != nil && k.name == "uring" {
		t.Skip(err)
	}
	if err := k.try(); err != nil {
		t.Fatal(err)
	}
}

// of returns what makes the engines of t.
func (k kind) of(t testing.TB) func(Config) Engine {
	return func(cfg Config) Engine {
		t.Helper()
		e, err := k.make(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
}

// onEngines runs test, or a benchmark, for each engine, as a subtest of its name. It
// is skipped where the engine does not work.
func onEngines[T interface {
	testing.TB
	Run(name string, f func(T)) bool
}](t T, test func(t T, newEngine func(Config) Engine)) {
	t.Helper()
	for _, k := range kinds {
		t.Run(k.name, func(t T) {
			k.need(t)
			test(t, k.of(t))
		})
	}
}

// working returns the engines to fuzz.
func working(f *testing.F) (all []kind) {
	f.Helper()
	for _, k := range kinds {
		if err := k.try(); err != nil {
			f.Logf("not engine %s: %v", k.name, err)
			continue
		}
		all = append(all, k)
	}
	return all
}
