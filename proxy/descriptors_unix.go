//go:build unix

package proxy

import (
	"errors"

	"golang.org/x/sys/unix"
)

// outOfDescriptors reports whether that is why a dial failed.
func outOfDescriptors(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
}

// descriptorLimit returns how many descriptors the process may have. The Go
// runtime has raised it to the hard limit at the start.
func descriptorLimit() (uint64, bool) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, false
	}
	return uint64(l.Cur), true
}
