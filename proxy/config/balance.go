package config

// strategies are the names of package balance's strategies, in its order.
var strategies = []string{
	"least-conn", "round-robin", "weighted-round-robin", "random", "weighted-random", "random-two",
	"source-hash", "consistent-hash", "first",
}
