package proxy

import (
	"context"
	"sync"
	"time"
)

// firstByte is a client's wait for its first byte, before it gets a lease. It ends
// with the first of these: a byte, its time, the client's leaving, its being disconnected,
// shutdown.
type firstByte struct {
	s     *session
	mu    sync.Mutex // held while the three below begin: what ends one of them ends all
	ended bool

	unwatch   func()
	timer     *time.Timer
	forgetEnd func() bool
}

// awaitFirstByte holds a client without a lease until it has sent something, at
// most for the first-byte wait.
func (s *session) awaitFirstByte() {
	f := &firstByte{s: s}
	if why := f.begin(); why != nil {
		f.leave(why)
	}
}

// begin returns why the session has been ended already; nil: it has not.
func (f *firstByte) begin() (why error) {
	s := f.s
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unwatch = s.client.Watch(f.look)
	f.timer = time.AfterFunc(s.srv.cfg.FirstByteWait, func() { f.end(nil) })
	f.forgetEnd = context.AfterFunc(s.srv.drainCtx, func() { f.end(errShutdown) })
	return s.waitsFor(f)
}

// leave ends it, from any goroutine but the watch's.
func (f *firstByte) leave(why error) { f.end(why) }

func (f *firstByte) look(bytes bool, end error) (more bool) {
	switch {
	case hasLeft(bytes, end, f.s.srv.cfg.AbortOnFIN):
		f.s.srv.sessions.Go(func() { f.end(errClientLeft) }) // a watch is not stopped from within
	case bytes:
		f.s.srv.sessions.Go(func() { f.end(nil) })
	default:
		return true
	}
	return false
}

// end goes on with the session, once. An error tells why it is not served.
func (f *firstByte) end(err error) {
	if !f.first() {
		return
	}
	f.unwatch()
	f.timer.Stop()
	f.forgetEnd()
	f.s.waitsFor(nil)
	if err != nil {
		f.s.end(refusal(err), err)
		return
	}
	f.s.serve()
}

func (f *firstByte) first() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := !f.ended
	f.ended = true
	return first
}
