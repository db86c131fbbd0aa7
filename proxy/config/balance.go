package config

// strategies are how a backend can be chosen, as package balance names them.
var strategies = []string{"least-conn", "round-robin", "weighted-round-robin", "random", "weighted-random", "random-two",
	"source-hash", "consistent-hash", "first"}
