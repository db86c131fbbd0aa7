package engine

import "sync"

// Buffers come in classes, each four times the one before. A direction begins
// with the smallest and follows its traffic.
const (
	minBuffer = 4 << 10
	maxBuffer = 256 << 10
)

// buffer is one buffer of a class.
type buffer struct {
	data []byte
	pool *sync.Pool
}

func (b *buffer) put() { b.pool.Put(b) }

var bufferPools = [...]sync.Pool{{}, {}, {}, {}} // 4, 16, 64 and 256 KiB

// getBuffer returns a buffer of the smallest class that holds size bytes.
func getBuffer(size int) *buffer {
	class, n := 0, minBuffer
	for ; n < size; n *= 4 {
		class++
	}
	pool := &bufferPools[class]
	if b, ok := pool.Get().(*buffer); ok {
		return b
	}
	return &buffer{data: make([]byte, n), pool: pool}
}

// shrinkAfter is how many reads in a row must use less than a quarter of the
// buffer, so that the next smaller one would do, before it is taken.
const shrinkAfter = 16

// sizer chooses the buffer of a direction by what its reads bring.
type sizer struct {
	size  int
	small int // reads in a row that the next smaller class would have held
}

// limit returns how much to read where n bytes may be.
func (s *sizer) limit(n int) int { return min(s.size, n) }

// next learns from a read of n bytes.
func (s *sizer) next(n int) {
	switch {
	case n >= s.size:
		s.size = min(s.size*4, maxBuffer)
		s.small = 0
	case n*4 > s.size || s.size == minBuffer:
		s.small = 0
	default:
		if s.small++; s.small >= shrinkAfter {
			s.size, s.small = s.size/4, 0
		}
	}
}
