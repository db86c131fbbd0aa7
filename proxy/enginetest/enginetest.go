// Package enginetest has tests run on every engine that this system has. A test of
// what serves clients is a table with one row for each:
//
//	func TestX(t *testing.T) { enginetest.Each(t, testX) }
//
// runs testX as TestX/net, and so on. What of it needs an engine asks New, which
// knows from the test's name for which one it runs.
//
// The tests of package engine itself cannot import this; they have a list of their
// own.
package enginetest

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"forebay/proxy/engine"
)

// missing tells, of each engine that does not work here, why. It tries once: of one
// that works, no later failure skips a test.
var missing = sync.OnceValue(func() map[string]error {
	why := map[string]error{}
	for _, name := range engine.Names() {
		e, err := Named(name)
		if err != nil {
			why[name] = err
			continue
		}
		e.Close()
	}
	return why
})

// Each runs test for each engine, as a subtest of that name. It is skipped where the
// engine does not work.
func Each(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	for _, name := range engine.Names() {
		t.Run(name, func(t *testing.T) {
			switch err := missing()[name]; {
			case err != nil && name == "uring": // the one that a kernel may refuse
				t.Skip(err)
			case err != nil:
				t.Fatal(err)
			}
			test(t)
		})
	}
}

// Name returns the engine that the running test is for.
func Name(t testing.TB) string {
	t.Helper()
	parts := strings.Split(t.Name(), "/")
	if len(parts) == 1 || !slices.Contains(engine.Names(), parts[1]) {
		t.Fatalf("%s is for no engine: have enginetest.Each run it", t.Name())
	}
	return parts[1]
}

// New returns an engine of the kind that the running test is for. The caller closes
// it.
func New(t testing.TB) engine.Engine {
	t.Helper()
	e, err := Named(Name(t))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// Named returns the engine that is called name. It is for a test's child process.
func Named(name string) (engine.Engine, error) {
	e, _, err := engine.New(name, engine.Config{})
	return e, err
}
