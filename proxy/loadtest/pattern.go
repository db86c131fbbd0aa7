package loadtest

import (
	"encoding/binary"
	"math/bits"
)

// idSize is the length of the numbers of client and request at the front of
// every request, and so the shortest request.
const idSize = 16

// fillPattern makes b the request seq of client: both numbers, then bytes that
// depend on both, then, when there is room, both numbers again. A reply can so
// be told from every other one, whichever part of it is looked at.
func fillPattern(b []byte, client, seq uint64) {
	binary.BigEndian.PutUint64(b, client)
	binary.BigEndian.PutUint64(b[8:], seq)

	x := client ^ bits.RotateLeft64(seq, 32)
	rest := b[idSize:]
	for ; len(rest) >= 8; rest = rest[8:] {
		x = x*6364136223846793005 + 1442695040888963407 // Knuth's MMIX
		binary.LittleEndian.PutUint64(rest, x^x>>32)
	}
	for i := range rest {
		rest[i] = byte(x >> (56 - 8*i))
	}
	if len(b) >= 2*idSize {
		copy(b[len(b)-idSize:], b[:idSize])
	}
}

// readIDs returns the numbers at the front of b, which is at least idSize long.
func readIDs(b []byte) (client, seq uint64) {
	return binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
}
