package config

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxDuration bounds every duration: beyond a year it is a slip, and sums of a
// few of them must not overflow.
const maxDuration = 365 * 24 * time.Hour

// A valueError is a value that cannot be taken. It fits on one line.
type valueError struct {
	given  string
	reason string // what is wrong, where takes alone does not tell; may be empty
	takes  string
}

func (e *valueError) Error() string {
	if e.reason != "" {
		return fmt.Sprintf("got %q: %s; takes %s", e.given, e.reason, e.takes)
	}
	return fmt.Sprintf("got %q; takes %s", e.given, e.takes)
}

// A kind is what a setting's value may be.
type kind struct {
	takes string             // what it may be, in words
	read  func(string) error // checks and stores one value
	many  bool               // the flag may be repeated
	alone bool               // the flag may stand without a value
}

// text takes anything.
func text(dst *string) kind {
	return kind{takes: "text", read: func(v string) error {
		*dst = v
		return nil
	}}
}

// choice takes one of a few words.
func choice(dst *string, words ...string) kind {
	takes := orList(words)
	return kind{takes: takes, read: func(v string) error {
		if !slices.Contains(words, v) {
			return &valueError{given: v, takes: takes}
		}
		*dst = v
		return nil
	}}
}

// orList joins words as a sentence does: "a", "a or b", "a, b or c".
func orList(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// toggle is off unless given. It takes a value too, since its environment
// variable must have one.
func toggle(dst *bool) kind {
	const takes = "true or false"
	return kind{takes: takes, alone: true, read: func(v string) error {
		switch v {
		case "on":
			v = "true"
		case "off":
			v = "false"
		}
		b, err := strconv.ParseBool(v)
		if err != nil {
			return &valueError{given: v, takes: takes}
		}
		*dst = b
		return nil
	}}
}

// number takes a whole number from lo to hi, and 0 where zero says what that
// means.
func number[T int | int64](dst *T, lo, hi T, zero string) kind {
	takes := fmt.Sprintf("a number from %d to %d%s", lo, hi, orZero(zero))
	if int64(hi) == math.MaxInt64 {
		takes = fmt.Sprintf("a number from %d%s", lo, orZero(zero))
	}
	return kind{takes: takes, read: func(v string) error {
		n, err := strconv.ParseInt(v, 10, 64)
		outside := n < int64(lo) || n > int64(hi)
		if err != nil || outside && !(n == 0 && zero != "") {
			return &valueError{given: v, takes: takes}
		}
		*dst = T(n)
		return nil
	}}
}

// size takes bytes, or a number of units of 1,024 of them.
func size(dst *int64, lo, hi int64) kind {
	takes := fmt.Sprintf("bytes from %d to %d, or a number with KiB, MiB or GiB", lo, hi)
	return kind{takes: takes, read: func(v string) error {
		digits, unit := v, int64(1)
		for i, suffix := range []string{"KiB", "MiB", "GiB"} {
			if d, ok := strings.CutSuffix(v, suffix); ok {
				digits, unit = d, 1<<(10*(i+1))
			}
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n > hi/unit || n*unit < lo {
			return &valueError{given: v, takes: takes}
		}
		*dst = n * unit
		return nil
	}}
}

func orZero(meaning string) string {
	if meaning == "" {
		return ""
	}
	return ", or 0 (" + meaning + ")"
}

// minIdle takes a number or auto.
func minIdle(dst *int) kind {
	count := number(dst, 0, maxMax, "")
	takes := count.takes + ", or auto"
	return kind{takes: takes, read: func(v string) error {
		if v == "auto" {
			*dst = MinIdleAuto
			return nil
		}
		if count.read(v) != nil {
			return &valueError{given: v, takes: takes}
		}
		return nil
	}}
}

// rate takes requests per second.
func rate(dst *float64) kind {
	const most = 1e9
	const takes = "requests per second up to 1e9, such as 500, or 0 for as fast as replies come"
	return kind{takes: takes, read: func(v string) error {
		f, err := strconv.ParseFloat(v, 64)
		if err != nil || math.IsNaN(f) || f < 0 || f > most {
			return &valueError{given: v, takes: takes}
		}
		*dst = f
		return nil
	}}
}

// duration takes a duration above 0, and 0 where zero says what that means.
func duration(dst *time.Duration, zero string) kind {
	takes := "a duration above 0, such as 3s or 500ms" + orZero(zero)
	return durationWithin(dst, 1, maxDuration, zero != "", takes)
}

// socketDuration takes what a socket option can hold that counts in unit, and 0.
func socketDuration(dst *time.Duration, unit time.Duration, hours int) kind {
	takes := fmt.Sprintf("a duration from %v to %dh%s", unit, hours, orZero("off"))
	return durationWithin(dst, unit, time.Duration(hours)*time.Hour, true, takes)
}

func durationWithin(dst *time.Duration, lo, hi time.Duration, zero bool, takes string) kind {
	return kind{takes: takes, read: func(v string) error {
		d, err := time.ParseDuration(v)
		switch {
		case err != nil, d < lo && !(d == 0 && zero):
			return &valueError{given: v, takes: takes}
		case d > hi:
			return &valueError{given: v, reason: fmt.Sprintf("more than %vh", hi.Hours()), takes: takes}
		}
		*dst = d
		return nil
	}}
}

// parsed takes what parse does.
func parsed[T any](dst *T, parse func(string) (T, error), takes string) kind {
	return kind{takes: takes, read: func(v string) error {
		got, err := parse(v)
		if err != nil {
			return err
		}
		*dst = got
		return nil
	}}
}

// list takes what parse does, once for each time the flag is given.
func list[T any](dst *[]T, parse func(string) (T, error), takes string) kind {
	return kind{takes: takes, many: true, read: func(v string) error {
		got, err := parse(v)
		if err != nil {
			return err
		}
		*dst = append(*dst, got)
		return nil
	}}
}
