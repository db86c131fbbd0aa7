package engine

import (
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// These do not tell the scheduler, as the package syscall's do: the descriptors are
// non-blocking.

func readFD(fd int, p []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
		if errno == 0 {
			return int(n), nil
		}
		if errno != unix.EINTR {
			return 0, errno
		}
	}
}

// readEnd returns how reading ended where it brought nothing.
func readEnd(err error) error {
	if err == nil {
		return io.EOF
	}
	return os.NewSyscallError("read", err)
}

// The runtime has SIGPIPE ignored, on sockets.
func writeFD(fd int, p []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
		if errno == 0 {
			return int(n), nil
		}
		if errno != unix.EINTR {
			return 0, errno
		}
	}
}

// acceptFD accepts a client of a listener.
func acceptFD(fd int) (int, peerAddr, error) {
	var sa ipName
	size := uint32(len(sa))
	n, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size)),
		unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	if errno != 0 {
		return -1, peerAddr{}, errno
	}
	return int(n), peerFrom(&sa), nil
}
