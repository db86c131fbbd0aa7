package config

import "strings"

// closest returns the candidate that got was probably meant to be: the one that
// is fewest letters off, else the first that begins with it. It returns "" where
// nothing is near.
func closest(got string, candidates []string) string {
	const shortest = 3 // what is shorter is near to everything
	if len(got) < shortest {
		return ""
	}
	best, least := "", (len(got)+2)/3+1
	for _, c := range candidates {
		if d := distance(got, c); d < least {
			best, least = c, d
		}
	}
	if best == "" {
		best = firstWithPrefix(got, candidates)
	}
	return best
}

func firstWithPrefix(prefix string, candidates []string) string {
	for _, c := range candidates {
		if strings.HasPrefix(c, prefix) {
			return c
		}
	}
	return ""
}

// distance counts the letters to insert, drop or change to get from a to b
// (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
