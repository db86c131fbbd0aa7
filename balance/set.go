package balance

import "math/bits"

// set is a set of indices that finds the next one fast: 10,000 are 157 words.
type set []uint64

func (s *set) add(i int) {
	for i/64 >= len(*s) {
		*s = append(*s, 0)
	}
	(*s)[i/64] |= 1 << (i % 64)
}

func (s set) remove(i int) { s[i/64] &^= 1 << (i % 64) }

func (s set) has(i int) bool { return i/64 < len(s) && s[i/64]>>(i%64)&1 == 1 }

// next returns the first member that is not below i, or else the first of all: the set
// is a circle. It must not be empty.
func (s set) next(i int) int {
	w := i / 64
	if w < len(s) {
		if rest := s[w] >> (i % 64); rest != 0 {
			return i + bits.TrailingZeros64(rest)
		}
		w++
	}
	for {
		if w >= len(s) {
			w = 0
		}
		if s[w] != 0 {
			return w*64 + bits.TrailingZeros64(s[w])
		}
		w++
	}
}
