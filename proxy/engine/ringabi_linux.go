package engine

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The numbers of <linux/io_uring.h> that are used here, each with the version of
// Linux that brought it. All but the one marked are there in 6.1.
const (
	setupCQSize       = 1 << 3  // 5.5
	setupClamp        = 1 << 4  // 5.6
	setupSubmitAll    = 1 << 7  // 5.18
	setupTaskrunFlag  = 1 << 9  // 5.19
	setupSingleIssuer = 1 << 12 // 6.0
	setupDeferTaskrun = 1 << 13 // 6.1
	setupNoSQArray    = 1 << 16 // 6.6: newRing does without it too

	featureSingleMmap   = 1 << 0  // 5.4
	featureNoDrop       = 1 << 1  // 5.5
	featureSubmitStable = 1 << 2  // 5.5
	featureFastPoll     = 1 << 5  // 5.7
	featurePoll32       = 1 << 6  // 5.9
	featureExtArg       = 1 << 8  // 5.11
	featureCQESkip      = 1 << 11 // 5.17

	enterGetEvents      = 1 << 0
	enterExtArg         = 1 << 3 // 5.11
	enterRegisteredRing = 1 << 4 // 5.18

	sqOverflow = 1 << 1 // 5.8
	sqTaskrun  = 1 << 2 // 5.19

	opPollAdd  = 6
	opAccept   = 13 // 5.5
	opCancel   = 14 // 5.5
	opConnect  = 16 // 5.5
	opClose    = 19 // 5.6
	opRead     = 22 // 5.6
	opSend     = 26 // 5.6
	opRecv     = 27 // 5.6
	opShutdown = 34 // 5.11

	sqeBufferSelect = 1 << 5 // 5.7

	offsetRings = 0
	offsetSQEs  = 0x10000000

	registerProbe        = 8  // 5.6
	registerRingFDs      = 20 // 5.18
	unregisterRingFDs    = 21 // 5.18
	registerBufRing      = 22 // 5.19
	unregisterBufRing    = 23 // 5.19
	registerAnyFreeIndex = ^uint32(0)
)

// What the callers of a ring give and get.
const (
	// recvPollFirst (5.19) says that the socket is thought empty: wait for data at
	// once, and do not try to read before.
	recvPollFirst = 1 << 0
	// recvMultishot (6.0) makes one recv complete for each read until it fails.
	recvMultishot = 1 << 1

	acceptMultishot = 1 << 0 // 5.19
	pollMultishot   = 1 << 0 // 5.13

	// cqeBuffer says that the upper half of the flags names a provided buffer,
	// which now is the caller's. Without it no buffer was taken.
	cqeBuffer = 1 << 0
	// cqeMore says that the request lives on. Its absence is the only sign that a
	// multishot request has ended, whatever its result is.
	cqeMore = 1 << 1
	// cqeSockNonEmpty (5.19) says that the socket had more to read.
	cqeSockNonEmpty = 1 << 2

	cqeBufferShift = 16
)

// A submission is one entry of the submission queue, struct io_uring_sqe. It is
// 64 bytes: the ring is set up without SQE128, so the kernel's next entry starts
// right behind them. A name of a union is that of the member used here.
type submission struct {
	op       uint8
	flags    uint8
	ioprio   uint16
	fd       int32
	off      uint64
	addr     uint64
	len      uint32
	opFlags  uint32
	data     uint64
	group    uint16
	personal uint16
	file     int32
	addr3    uint64
	_        uint64
}

// A completion is one entry of the completion queue, struct io_uring_cqe.
type completion struct {
	data  uint64
	res   int32
	flags uint32
}

// ringParams is struct io_uring_params.
type ringParams struct {
	sqEntries, cqEntries, flags, threadCPU, threadIdle, features, wqFD uint32

	_  [3]uint32
	sq sqOffsets
	cq cqOffsets
}

type sqOffsets struct {
	head, tail, mask, entries, flags, dropped, array, _ uint32
	userAddr                                            uint64
}

type cqOffsets struct {
	head, tail, mask, entries, overflow, cqes, flags, _ uint32
	userAddr                                            uint64
}

// ringFD is struct io_uring_rsrc_update, as IORING_REGISTER_RING_FDS takes it.
type ringFD struct {
	index, _ uint32
	fd       uint64
}

// waitArgument is struct io_uring_getevents_arg.
type waitArgument struct {
	mask       uint64
	maskSize   uint32
	minMicros  uint32 // 6.12; reserved and 0 before
	timespecAt uint64
}

// timespec is struct __kernel_timespec: 64 bits on every architecture.
type timespec struct{ sec, nsec int64 }

// ringCalls are the three system calls; tests replace them.
type ringCalls struct {
	setup    func(entries uint32, p *ringParams) (fd int, errno syscall.Errno)
	enter    func(fd, submit, least, flags uint32, arg *waitArgument, raw bool) (n int, errno syscall.Errno)
	register func(fd int, op uint32, arg unsafe.Pointer, n uint32) (res int, errno syscall.Errno)
}

// ringSystem is what newRing gives to a new ring.
var ringSystem = &ringCalls{setup: sysRingSetup, enter: sysRingEnter, register: sysRingRegister}

func sysRingSetup(entries uint32, p *ringParams) (int, syscall.Errno) {
	fd, _, errno := syscall.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(p)), 0)
	return int(fd), errno
}

func sysRingEnter(fd, submit, least, flags uint32, arg *waitArgument, raw bool) (int, syscall.Errno) {
	size := uintptr(0)
	if arg != nil {
		size = unsafe.Sizeof(*arg)
	}
	if raw {
		n, _, errno := syscall.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(fd), uintptr(submit),
			uintptr(least), uintptr(flags), uintptr(unsafe.Pointer(arg)), size)
		return int(n), errno
	}
	n, _, errno := syscall.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(fd), uintptr(submit),
		uintptr(least), uintptr(flags), uintptr(unsafe.Pointer(arg)), size)
	return int(n), errno
}

func sysRingRegister(fd int, op uint32, arg unsafe.Pointer, n uint32) (int, syscall.Errno) {
	res, _, errno := syscall.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(fd), uintptr(op), uintptr(arg), uintptr(n), 0, 0)
	return int(res), errno
}
