package command

import (
	"fmt"
	"slices"

	"forebay/balance"
	"forebay/proxy/config"
)

// balanceWarnings returns what of the choice will not do what its operator may expect.
func balanceWarnings(cfg config.Serve) (warnings []string) {
	strategy := balance.Strategy(cfg.Balance)
	if strategy.Hashes() && cfg.Listen.Network == "unix" {
		warnings = append(warnings, fmt.Sprintf("--balance %s goes by the client's address, and clients of a Unix socket "+
			"have none: they are all one client", strategy))
	}
	weighted := slices.ContainsFunc(cfg.Backends, func(b config.Backend) bool { return b.Weight > 1 })
	if weighted && ignoresWeight(strategy) {
		warnings = append(warnings, fmt.Sprintf("--balance %s ignores weight, which backends have", strategy))
	}
	if !slices.ContainsFunc(cfg.Backends, func(b config.Backend) bool { return !b.Backup }) {
		warnings = append(warnings, "every backend is a backup: they serve until there is another")
	}
	return warnings
}

func ignoresWeight(s balance.Strategy) bool {
	return s == balance.RoundRobin || s == balance.Random || s == balance.First
}
