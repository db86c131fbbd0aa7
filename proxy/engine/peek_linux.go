package engine

import "golang.org/x/sys/unix"

// peekBytes copies what can be read, and leaves it there.
func (r *rawIO) peekBytes(p []byte) (n int) {
	r.conn.Control(func(fd uintptr) {
		n, _, _ = unix.Recvfrom(int(fd), p, unix.MSG_PEEK|unix.MSG_DONTWAIT)
	})
	return max(n, 0)
}
