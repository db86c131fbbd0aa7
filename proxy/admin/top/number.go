package top

import (
	"fmt"
	"time"
)

// short writes a number in five characters or fewer.
func short(n float64) string {
	units := []string{"", "k", "M", "G", "T"}
	i := 0
	for n >= 999.5 && i < len(units)-1 {
		n /= 1000
		i++
	}
	switch {
	case n == 0:
		return "0"
	case n < 0.05:
		return "<0.1"
	case n < 9.95:
		return fmt.Sprintf("%.1f%s", n, units[i])
	}
	return fmt.Sprintf("%.0f%s", n, units[i])
}

// rateOf writes a rate, or that it is not known.
func rateOf(n float64, known bool) string {
	if !known {
		return "-"
	}
	return short(n)
}

// span writes milliseconds in the unit that makes it short.
func span(ms float64) string {
	switch {
	case ms == 0:
		return "0"
	case ms < 1:
		return fmt.Sprintf("%.0fµs", ms*1000)
	case ms < 9.95:
		return fmt.Sprintf("%.1fms", ms)
	case ms < 999.5:
		return fmt.Sprintf("%.0fms", ms)
	case ms < 9950:
		return fmt.Sprintf("%.1fs", ms/1000)
	}
	return time.Duration(ms * float64(time.Millisecond)).Round(time.Second).String()
}
