//go:build unix

package admin

import (
	"net"
	"syscall"
)

// privately has the socket file that listen makes be its owner's alone. A chmod
// afterwards would leave a moment for others. The mask is the whole process's, so
// this is for the start, before files are made elsewhere.
func privately(listen func() (net.Listener, error)) (net.Listener, error) {
	old := syscall.Umask(0o177)
	defer syscall.Umask(old)
	return listen()
}
