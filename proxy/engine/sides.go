package engine

import (
	"errors"
	"io"
	"syscall"
)

// sides is what a drive knows of its two connections, whichever engine moves the bytes.
type sides struct {
	clientFIN  bool // the client has sent its FIN
	clientGone bool // its connection has failed

	lease
}

// lease is what is known of the leased connection.
type lease struct {
	backendOver bool   // the connection has ended, and the machine knows
	writeErr    error  // a write to it failed; it may still have bytes to read
	wroteLast   bool   // it was written to since an attempt to read it
	mark        uint64 // how much had been written to it when the last batch began
	emptied     bool   // since then there was nothing to be written
	answered    bool   // and it has been read: with both, the next write begins a batch
}

// leaveOut takes out of s what a side that has ended cannot do. leased tells that there
// is a backend.
func (d *sides) leaveOut(s *Step, leased bool) {
	if d.clientFIN || d.clientGone {
		s.FromClient = 0
	}
	if d.clientGone {
		s.ToClient = nil
	}
	if !leased || d.backendOver {
		s.ToBackend, s.FromBackend = nil, 0
	}
}

// beginsBatch reports whether a batch of requests begins with s (Machine.BackendEnded):
// mark is to be set.
func (l *lease) beginsBatch(s *Step) bool {
	switch {
	case len(s.ToBackend) == 0:
		l.emptied = true
	case l.emptied && l.answered && l.writeErr == nil:
		l.emptied, l.answered = false, false
		return true
	}
	return false
}

// clientEnded tells m how the client has ended, unless it knows.
func (d *sides) clientEnded(m Machine, err error) {
	if d.clientGone {
		return
	}
	if err == io.EOF {
		d.clientFIN = true
	} else {
		d.clientGone = true
	}
	m.ClientEnded(err)
}

// unreadEnd returns how a backend has ended to which a write failed, and which the
// machine does not want to read.
func (l *lease) unreadEnd(backend Conn) error {
	if bytes, end := backend.Peek(); !bytes && end == io.EOF {
		return end
	}
	return l.writeErr
}

// trueEnd returns how a connection has ended on which reading ended with err, where
// writeErr is what a write failed with, or nil. A failed write has taken the error out of
// the kernel, which then reports an end to the reader: it was no FIN. After EPIPE it was:
// it had come before.
func trueEnd(err, writeErr error) error {
	if err == io.EOF && writeErr != nil && !errors.Is(writeErr, syscall.EPIPE) {
		return writeErr
	}
	return err
}
