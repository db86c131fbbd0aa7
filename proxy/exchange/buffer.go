package exchange

import (
	"sync"
	"sync/atomic"
)

// Budget bounds the bytes of replies that are held for slow clients, over all
// sessions. The zero value holds nothing.
type Budget struct {
	Max  int64 // bytes
	held atomic.Int64
}

// Held returns how many bytes are held now.
func (b *Budget) Held() int64 { return b.held.Load() }

func (b *Budget) add(n int) { b.held.Add(int64(n)) }

func (b *Budget) exhausted() bool { return b.held.Load() >= b.Max }

// queue holds bytes to be written. Empty, it holds no memory.
type queue struct {
	chunk *chunk
	start int // of what is left
}

// chunk is memory that queues share over time.
type chunk struct{ data []byte }

// largestKept is the capacity above which memory is left to the collector: one
// large message shall not keep its memory for ever.
const largestKept = 128 << 10

var chunks = sync.Pool{New: func() any { return &chunk{data: make([]byte, 0, 1024)} }}

func (q *queue) len() int {
	if q.chunk == nil {
		return 0
	}
	return len(q.chunk.data) - q.start
}

func (q *queue) bytes() []byte {
	if q.chunk == nil {
		return nil
	}
	return q.chunk.data[q.start:]
}

// grow returns the bytes to append to; set takes them back.
func (q *queue) grow() []byte {
	if q.chunk == nil {
		q.chunk = chunks.Get().(*chunk)
	}
	if q.start > 0 && q.start >= q.len() { // or it would grow for as long as it is never empty
		q.chunk.data = q.chunk.data[:copy(q.chunk.data, q.chunk.data[q.start:])]
		q.start = 0
	}
	return q.chunk.data
}

func (q *queue) set(data []byte) { q.chunk.data = data }

func (q *queue) append(p []byte) {
	if len(p) > 0 {
		q.set(append(q.grow(), p...))
	}
}

// took removes n bytes from the front.
func (q *queue) took(n int) {
	q.start += n
	if q.len() == 0 {
		q.drop()
	}
}

func (q *queue) drop() {
	if q.chunk == nil {
		return
	}
	if cap(q.chunk.data) <= largestKept {
		q.chunk.data = q.chunk.data[:0]
		chunks.Put(q.chunk)
	}
	q.chunk, q.start = nil, 0
}
