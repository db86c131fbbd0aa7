//go:build race

package engine

// raceEnabled: the race detector's own memory counts in the process's.
const raceEnabled = true
