package engine

import "sync"

// turns orders the reads from the backend and the writes to it. Without it, a
// byte of an earlier reply that is on its way through here when a request
// overtakes it would pass for the answer. A nil turns orders nothing.
type turns struct {
	mu       sync.Mutex // never held while waiting
	asked    int64      // attempts to write
	seen     int64      // asked before the last read
	answered int64      // asked before the last byte that moved down was read
	taken    bool       // bytes were read, and are being delivered
}

// ask begins an attempt to write.
func (t *turns) ask() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked++
}

// listen begins an attempt to read, which heard ends.
func (t *turns) listen() {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.seen = t.asked
}

func (t *turns) heard(n int) {
	if t == nil {
		return
	}
	t.taken = n > 0
	t.mu.Unlock()
}

// answer notes that a byte of the last read has moved down.
func (t *turns) answer() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answered = t.seen
}

// delivered ends what a read began that took bytes.
func (t *turns) delivered() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken = false
}

// settled reports whether a byte has been read from the backend since the last
// attempt to write to it, and all that was read has been delivered.
func (t *turns) settled() bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.taken && t.answered == t.asked
}
