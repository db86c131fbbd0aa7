package engine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// probePatience bounds one wait of a probe. What is waited for is already there.
const probePatience = time.Second

// ringOps are the requests that the engine makes.
var ringOps = []struct {
	op    uint8
	name  string
	since string
}{
	{opPollAdd, "IORING_OP_POLL_ADD", "5.1"},
	{opAccept, "IORING_OP_ACCEPT", "5.5"},
	{opCancel, "IORING_OP_ASYNC_CANCEL", "5.5"},
	{opConnect, "IORING_OP_CONNECT", "5.5"},
	{opClose, "IORING_OP_CLOSE", "5.6"},
	{opRead, "IORING_OP_READ", "5.6"},
	{opSend, "IORING_OP_SEND", "5.6"},
	{opRecv, "IORING_OP_RECV", "5.6"},
	{opShutdown, "IORING_OP_SHUTDOWN", "5.11"},
}

// ringFeatures are the features that the engine relies on.
var ringFeatures = []struct {
	bit   uint32
	name  string
	since string
}{
	{featureSingleMmap, "IORING_FEAT_SINGLE_MMAP", "5.4"},
	{featureNoDrop, "IORING_FEAT_NODROP", "5.5"},
	{featureSubmitStable, "IORING_FEAT_SUBMIT_STABLE", "5.5"},
	{featureFastPoll, "IORING_FEAT_FAST_POLL", "5.7"},
	{featurePoll32, "IORING_FEAT_POLL_32BITS", "5.9"},
	{featureExtArg, "IORING_FEAT_EXT_ARG", "5.11"},
	{featureCQESkip, "IORING_FEAT_CQE_SKIP", "5.17"},
}

// opSupported is IO_URING_OP_SUPPORTED.
const opSupported = 1 << 0

// opProbe is struct io_uring_probe with room for the operations of 6.18 and more.
type opProbe struct {
	last, n uint8
	_       uint16
	_       [3]uint32
	ops     [128]struct {
		op, _ uint8
		flags uint16
		_     uint32
	}
}

// probeRing tells whether this process may use io_uring, and whether the kernel
// has all that the engine needs: nil, or one error that names what is missing and
// the usual reason. It tries each kind of request on sockets of its own.
func probeRing() error {
	errc := make(chan error, 1)
	go func() {
		// Never unlocked, so that the thread ends with the goroutine: what a ring has
		// left with its thread (task->io_uring) is freed by nothing else.
		runtime.LockOSThread()
		errc <- tryRing()
	}()
	return <-errc
}

// ringRefusal completes err, which what has met, by the kernel and a likely reason.
func ringRefusal(what string, err error) error {
	if reason := refusalReason(err, readLine("/proc/sys/kernel/io_uring_disabled"), seccompMode()); reason != "" {
		return fmt.Errorf("%s: %w (%s)", what, err, reason)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// refusalReason is what usually is behind err. disabled is kernel.io_uring_disabled,
// empty before Linux 6.6; seccomp is the mode of this process, "0" without filter.
func refusalReason(err error, disabled, seccomp string) string {
	switch {
	case errors.Is(err, unix.EPERM) && disabled == "2":
		return "kernel.io_uring_disabled is 2: nobody may"
	case errors.Is(err, unix.EPERM) && disabled == "1":
		return "kernel.io_uring_disabled is 1: only CAP_SYS_ADMIN or the group kernel.io_uring_group may"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		if seccomp == "0" {
			return "a security module; there is no seccomp filter"
		}
		return "the seccomp filter of a container"
	case errors.Is(err, unix.ENOSYS):
		return "a kernel without CONFIG_IO_URING, a sandbox such as gVisor, or a seccomp filter"
	case errors.Is(err, unix.ENOMEM):
		// Rings count as locked memory of the user, over all of its processes, unless
		// the process has CAP_IPC_LOCK; from 5.12 to 6.13 they did not.
		return "RLIMIT_MEMLOCK, which is of all processes of the user together; or the memory limit of the cgroup"
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return "RLIMIT_NOFILE, or fs.file-max"
	}
	return ""
}

// seccompMode returns the mode of this process, or empty.
func seccompMode() string {
	status, _ := os.ReadFile("/proc/self/status")
	_, after, _ := strings.Cut(string(status), "\nSeccomp:")
	mode, _, _ := strings.Cut(after, "\n")
	return strings.TrimSpace(mode)
}

func readLine(path string) string {
	b, _ := os.ReadFile(path)
	return strings.TrimSpace(string(b))
}

// kernelRelease returns "kernel 6.1.0".
func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "this kernel"
	}
	return "kernel " + unix.ByteSliceToString(u.Release[:])
}

// tryRing does what probeRing promises. The calling thread is locked.
func tryRing() error {
	r, err := newRing(ringConfig{entries: 8, completions: 16})
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%s: IORING_SETUP_DEFER_TASKRUN needs Linux 6.1: %w", kernelRelease(), err)
	}
	if err != nil {
		return ringRefusal(kernelRelease(), err)
	}
	defer r.close()
	if err := r.checkSupport(); err != nil {
		return err
	}
	buf, err := r.newBufRing(0, 2, 64, 2)
	if err != nil {
		return ringRefusal(kernelRelease()+": IORING_REGISTER_PBUF_RING (since Linux 5.19)", err)
	}
	defer buf.close(r)
	t := trial{ring: r, buf: buf}
	defer t.closeAll()
	for _, step := range []struct {
		what string
		try  func() error
	}{
		{"multishot recv (since Linux 6.0), send and cancel", t.tryStream},
		{"multishot accept (since Linux 5.19), connect, poll and shutdown", t.tryListener},
	} {
		if err := step.try(); err != nil {
			return ringRefusal(kernelRelease()+": "+step.what, err)
		}
	}
	return nil
}

// checkSupport returns an error that names what the kernel lacks.
func (r *ring) checkSupport() error {
	for _, f := range ringFeatures {
		if r.features&f.bit == 0 {
			return fmt.Errorf("%s: %s needs Linux %s", kernelRelease(), f.name, f.since)
		}
	}
	var p opProbe
	if _, errno := r.calls.register(r.fd, registerProbe, unsafe.Pointer(&p), uint32(len(p.ops))); errno != 0 {
		return ringRefusal(kernelRelease()+": IORING_REGISTER_PROBE (since Linux 5.6)", os.NewSyscallError("io_uring_register", errno))
	}
	for _, o := range ringOps {
		if o.op > p.last || p.ops[o.op].flags&opSupported == 0 {
			return fmt.Errorf("%s: %s needs Linux %s", kernelRelease(), o.name, o.since)
		}
	}
	return nil
}

// A trial is a ring in use by tryRing.
type trial struct {
	*ring
	buf  *bufRing
	fds  []int // to close
	came []trialCompletion
}

type trialCompletion struct {
	completion
	done bool // handed out by await
}

// What the requests of a trial are known by.
const (
	trialRecv = iota + 1
	trialSend
	trialCancel
	trialAccept
	trialConnect
	trialPoll
	trialShutdown
	trialClose
	trialRead
)

func (t *trial) closeAll() {
	for _, fd := range t.fds {
		unix.Close(fd)
	}
}

// await returns the next completion of a request. Its error is that of the
// request, unless it is the one that is wanted.
func (t *trial) await(data uint64, wanted syscall.Errno) (c completion, err error) {
	for until := time.Now().Add(probePatience); ; {
		for i, c := range t.came {
			if c.data == data && !c.done {
				t.came[i].done = true
				if errno := syscall.Errno(-min(c.res, 0)); errno != wanted {
					return c.completion, fmt.Errorf("request %d: %w", data, errno)
				}
				return c.completion, nil
			}
		}
		if time.Now().After(until) {
			return c, fmt.Errorf("request %d: %w", data, os.ErrDeadlineExceeded)
		}
		if err := t.enter(true, probePatience, false); err != nil {
			return c, err
		}
		t.completions(func(data uint64, res int32, flags uint32) {
			t.came = append(t.came, trialCompletion{completion: completion{data: data, res: res, flags: flags}})
		})
	}
}

// tryStream moves bytes through a pair of sockets.
func (t *trial) tryStream() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	t.fds = append(t.fds, pair[0], pair[1])
	message := []byte("forebay")
	t.recv(pair[0], t.buf.group, 0, recvMultishot, trialRecv)
	t.send(pair[1], message, 0, trialSend)
	if _, err := t.await(trialSend, 0); err != nil {
		return err
	}
	c, err := t.await(trialRecv, 0)
	if err != nil {
		return err
	}
	id, ok := t.buf.take(c.flags)
	if !ok || !bytes.Equal(t.buf.bytes(id, int(c.res)), message) || c.flags&cqeMore == 0 {
		return fmt.Errorf("recv gave %d bytes, flags %#x", c.res, c.flags)
	}
	t.buf.give(id)
	t.cancel(trialRecv, trialCancel)
	if _, err := t.await(trialRecv, unix.ECANCELED); err != nil {
		return err
	}
	_, err = t.await(trialCancel, 0)
	return err
}

// tryListener connects to a listener of its own, and accepts. It is a Unix one
// without a path, as a container may lack a loopback interface.
func (t *trial) tryListener() error {
	listener, to, err := t.listen()
	if err != nil {
		return err
	}
	const stream = unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	client, err := unix.Socket(unix.AF_UNIX, stream, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	t.fds = append(t.fds, client)
	t.accept(listener, true, trialAccept)
	t.connect(client, to, trialConnect)
	if _, err := t.await(trialConnect, 0); err != nil {
		return err
	}
	accepted, err := t.await(trialAccept, 0)
	if err != nil {
		return err
	}
	if accepted.flags&cqeMore == 0 {
		unix.Close(int(accepted.res))
		return errors.New("multishot accept ended with the first connection")
	}
	t.shutdown(client, unix.SHUT_WR, trialShutdown)
	t.poll(int(accepted.res), unix.POLLIN, false, trialPoll)
	_, shutErr := t.await(trialShutdown, 0)
	_, pollErr := t.await(trialPoll, 0)
	end := make([]byte, 1)
	t.read(int(accepted.res), end, trialRead)
	_, readErr := t.await(trialRead, 0)
	t.closeFD(int(accepted.res), trialClose)
	_, closeErr := t.await(trialClose, 0)
	t.cancel(trialAccept, trialCancel)
	_, acceptErr := t.await(trialAccept, unix.ECANCELED)
	return errors.Join(shutErr, pollErr, readErr, closeErr, acceptErr)
}

// listen returns a listener, and where it listens.
func (t *trial) listen() (fd int, to *sockaddr, err error) {
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, nil, os.NewSyscallError("socket", err)
	}
	t.fds = append(t.fds, fd)
	// Without a name the kernel gives a free abstract one.
	if err := unix.Bind(fd, &unix.SockaddrUnix{}); err != nil {
		return -1, nil, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(fd, 1); err != nil {
		return -1, nil, os.NewSyscallError("listen", err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return -1, nil, os.NewSyscallError("getsockname", err)
	}
	to, err = unixSockaddr(name.(*unix.SockaddrUnix).Name)
	return fd, to, err
}
