package loadtest

import (
	"errors"
	"net"
	"syscall"
	"time"
)

// The waits after a temporary fault of accept or a failed dial: the first, and
// the longest that doubling leads to.
const (
	acceptBackoff = 5 * time.Millisecond
	dialBackoff   = 10 * time.Millisecond
	maxBackoff    = time.Second
)

// accept returns the next connection of ln, waiting out temporary faults.
func (e *Echo) accept(ln net.Listener) (net.Conn, error) {
	for pause := acceptBackoff; ; pause = min(2*pause, maxBackoff) {
		conn, err := ln.Accept()
		if err == nil || !isTemporary(err) {
			return conn, err
		}
		if e.wait(pause) != nil {
			return nil, err
		}
	}
}

// isTemporary tells faults that pass, such as a lack of file descriptors, from
// those that end a listener.
func isTemporary(err error) bool {
	if errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.ENOMEM) {
		return true
	}
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}
