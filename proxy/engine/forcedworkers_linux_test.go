package engine

import "testing"

// With several loops connections go from one to another. What of the tests that
// every engine has to pass is about that is run so.
func TestEngineOfThreeLoops(t *testing.T) {
	if testing.Short() {
		t.Skip("a minute")
	}
	tests := map[string]func(*testing.T, func(Config) Engine){
		"half-close": testHalfClose, "reset": testReset, "cut": testCut, "watch": testWatch,
		"stale": testStale, "dial": testDial, "listen": testListen, "leases": testDriveLeases,
	}
	for _, k := range kernelEngines() {
		for name, test := range tests {
			t.Run(k.name+"×3/"+name, func(t *testing.T) {
				k.need(t)
				test(t, func(cfg Config) Engine {
					cfg.Workers = 3
					return k.of(t)(cfg)
				})
			})
		}
	}
}
