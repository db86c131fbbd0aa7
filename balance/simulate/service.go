package simulate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// A Service is how the works of requests are distributed around their mean.
type Service string

// The distributions, by how much works differ.
const (
	// Constant has all alike.
	Constant Service = "constant"

	// Exponential is that of the textbooks: most are short, few are much longer than the
	// mean.
	Exponential Service = "exponential"

	// Lognormal is what many servers are measured to have: its standard deviation is 1.3
	// times the mean (sigma is 1).
	Lognormal Service = "lognormal"

	// Bimodal is two kinds of request: one in 20 takes 20 times as long as the others.
	Bimodal Service = "bimodal"
)

// Services are all there are.
var Services = []Service{Constant, Exponential, Lognormal, Bimodal}

// Of Bimodal.
const (
	longShare = 1.0 / 20
	longTimes = 20
)

func (s Service) check() error {
	if s != "" && !slices.Contains(Services, s) {
		return fmt.Errorf("there is no distribution %q of service times; there is %q", s, Services)
	}
	return nil
}

// draw returns a work, in units of the mean. It draws the same number of values of rng
// for one work as for another, except where the distribution is another.
func (s Service) draw(rng *rand.Rand) float64 {
	switch s {
	case Constant:
		return 1
	case Lognormal:
		return math.Exp(rng.NormFloat64() - 0.5) // the mean of e^normal is e^(sigma²/2)
	case Bimodal:
		const short = 1 / (1 - longShare + longShare*longTimes)
		if rng.Float64() < longShare {
			return short * longTimes
		}
		return short
	default:
		return rng.ExpFloat64()
	}
}
