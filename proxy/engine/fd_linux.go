package engine

import (
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// These do not tell the scheduler, as the package syscall's do: they do not wait. Besides
// what the telling costs, a loop that is preempted in the kernel, as each write that wakes
// a peer on this machine may have it, would be taken for one that waits there, and lose its
// processor (P).

// readFD reads from a socket. A read(2) would go through what files have besides (a
// position, its lock, those who watch files), which costs a tenth of a microsecond.
func readFD(fd int, p []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), 0, 0, 0)
		if errno == 0 {
			return int(n), nil
		}
		if errno != unix.EINTR {
			return 0, errno
		}
	}
}

// peekFD looks for a byte without taking it.
func peekFD(fd int) (int, error) {
	var b [1]byte
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b)), 1, unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}

// readEnd returns how reading ended where it brought nothing.
func readEnd(err error) error {
	if err == nil {
		return io.EOF
	}
	return os.NewSyscallError("read", err)
}

// writeFD writes to a socket.
func writeFD(fd int, p []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_NOSIGNAL, 0, 0)
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

// connectFD connects a socket, or tells how that has ended. errAgain: it has not.
//
// Of a connect that is under way the same call tells more cheaply than poll and SO_ERROR
// do: Linux answers EALREADY while it is, then once 0, or the error.
func connectFD(fd int, to *sockaddr) error {
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&to.raw)), uintptr(to.len))
	switch errno {
	case 0:
		return nil
	case unix.EINPROGRESS, unix.EALREADY, unix.EINTR:
		return errAgain
	}
	return errno
}

func socketFD(domain int) (int, error) {
	n, _, errno := unix.RawSyscall(unix.SYS_SOCKET, uintptr(domain), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if errno != 0 {
		return -1, os.NewSyscallError("socket", errno)
	}
	return int(n), nil
}

// closeFD closes a socket. It does not wait for what is written: nobody asks to linger
// for longer than 0.
func closeFD(fd int) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0); errno != 0 {
		return os.NewSyscallError("close", errno)
	}
	return nil
}

func shutdownFD(fd int) { unix.RawSyscall(unix.SYS_SHUTDOWN, uintptr(fd), unix.SHUT_WR, 0) }

func epollControl(set, op, fd int, ev *unix.EpollEvent) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(set), uintptr(op), uintptr(fd), uintptr(unsafe.Pointer(ev)), 0, 0)
	if errno != 0 {
		return os.NewSyscallError("epoll_ctl", errno)
	}
	return nil
}

// bytesIn is SIOCINQ or SIOCOUTQ.
func bytesIn(fd, queue int) (int, error) {
	var n int32
	if _, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), uintptr(queue), uintptr(unsafe.Pointer(&n))); errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// pollNow returns which of events there are.
func pollNow(fd int, events int16) (int16, error) {
	p, now := unix.PollFd{Fd: int32(fd), Events: events}, unix.Timespec{}
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
		if errno == 0 {
			return p.Revents, nil
		}
		if errno != unix.EINTR {
			return 0, os.NewSyscallError("poll", errno)
		}
	}
}
