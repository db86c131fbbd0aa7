package admin

import (
	"fmt"

	"forebay/pool"
	"forebay/proxy"
)

// The names that counters by reason have, so that each is there from the start.
var (
	sessionReasons = names(proxy.Done, proxy.BackendDown)
	closeReasons   = names(pool.VirginTimeout, pool.Surplus)
)

func names[R interface {
	~int
	fmt.Stringer
}](first, last R) []string {
	var all []string
	for r := first; r <= last; r++ {
		all = append(all, r.String())
	}
	return all
}
