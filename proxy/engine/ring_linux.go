package engine

import (
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A ring is one io_uring instance. The thread that made it is the only one that
// may use it, close included: the kernel refuses any other with EEXIST
// (SINGLE_ISSUER). That thread must be locked to its goroutine.
//
// Completions are made only while that thread is in enter: the kernel puts the
// work off until then (DEFER_TASKRUN). Between two calls of enter no memory that
// a request points to is read or written, and no buffer is taken.
type ring struct {
	calls      *ringCalls
	fd         int    // -1 once closed
	enterFD    uint32 // the descriptor, or its index among those registered with the thread
	enterFlags uint32 // enterRegisteredRing if it is the index
	features   uint32
	rings      []byte // the mapping of both queues
	entries    []byte // the mapping of the submissions

	sqHead  *atomic.Uint32 // the kernel moves it as it takes submissions
	sqTail  *atomic.Uint32
	sqFlags *atomic.Uint32
	sqes    []submission
	tail    uint32       // end of what is prepared; sqTail follows in enter
	spill   []submission // prepared while the queue was full and the kernel took nothing

	cqHead *atomic.Uint32
	cqTail *atomic.Uint32 // the kernel moves it
	cqes   []completion
	head   uint32 // end of what was handed out; cqHead follows

	arg    waitArgument // here and not on the stack, which may move
	limit  timespec
	failed error // by a call that could not return it
}

// ringConfig has the sizes of a ring. The kernel rounds them up to powers of two,
// and down to what it allows.
type ringConfig struct {
	entries     uint32 // submissions prepared at once
	completions uint32 // completions it holds; at least entries
}

// newRing sets up a ring for the calling thread, which must be locked.
func newRing(cfg ringConfig) (*ring, error) {
	r := &ring{calls: ringSystem, fd: -1}
	var p ringParams
	for _, extra := range []uint32{setupNoSQArray, 0} {
		p = ringParams{cqEntries: cfg.completions, flags: extra | setupSingleIssuer | setupDeferTaskrun |
			setupTaskrunFlag | setupCQSize | setupSubmitAll | setupClamp}
		fd, errno := r.calls.setup(cfg.entries, &p)
		if errno == syscall.EINVAL && extra != 0 {
			continue
		}
		if errno != 0 {
			return nil, os.NewSyscallError("io_uring_setup", errno)
		}
		r.fd = fd // close-on-exec: the kernel makes it so, since 5.1
		break
	}
	r.features = p.features
	if err := r.mmap(&p); err != nil {
		r.close()
		return nil, err
	}
	r.registerSelf()
	return r, nil
}

// mmap maps the queues, and finds their parts in them.
func (r *ring) mmap(p *ringParams) (err error) {
	// Both queues lie in one mapping since 5.4 (IORING_FEAT_SINGLE_MMAP), which is
	// as long as the one that ends last.
	size := max(int(p.sq.array)+4*int(p.sqEntries), int(p.cq.cqes)+int(p.cqEntries)*int(unsafe.Sizeof(completion{})))
	const prot, how = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	if r.rings, err = unix.Mmap(r.fd, offsetRings, size, prot, how); err != nil {
		return os.NewSyscallError("mmap", err)
	}
	size = int(p.sqEntries) * int(unsafe.Sizeof(submission{}))
	if r.entries, err = unix.Mmap(r.fd, offsetSQEs, size, prot, how); err != nil {
		return os.NewSyscallError("mmap", err)
	}
	at := func(offset uint32) unsafe.Pointer { return unsafe.Pointer(&r.rings[offset]) }
	r.sqHead, r.sqTail, r.sqFlags = (*atomic.Uint32)(at(p.sq.head)), (*atomic.Uint32)(at(p.sq.tail)), (*atomic.Uint32)(at(p.sq.flags))
	r.cqHead, r.cqTail = (*atomic.Uint32)(at(p.cq.head)), (*atomic.Uint32)(at(p.cq.tail))
	r.sqes = unsafe.Slice((*submission)(unsafe.Pointer(&r.entries[0])), p.sqEntries)
	r.cqes = unsafe.Slice((*completion)(at(p.cq.cqes)), p.cqEntries)
	if p.flags&setupNoSQArray == 0 {
		// Before 6.6 the queue is of indices into the submissions. Here each place
		// keeps its own.
		for i, array := uint32(0), unsafe.Slice((*uint32)(at(p.sq.array)), p.sqEntries); i < p.sqEntries; i++ {
			array[i] = i
		}
	}
	return nil
}

// registerSelf registers the ring with the thread, so that enter need not look up
// the descriptor and count a reference to it. Without it the ring works as well:
// a thread may have 16.
func (r *ring) registerSelf() {
	r.enterFD = uint32(r.fd)
	self := ringFD{index: registerAnyFreeIndex, fd: uint64(r.fd)}
	if n, errno := r.calls.register(r.fd, registerRingFDs, unsafe.Pointer(&self), 1); errno == 0 && n == 1 {
		r.enterFD, r.enterFlags = self.index, enterRegisteredRing
	}
}

// close gives back what the ring has. Requests that have not completed are
// canceled, by the kernel and some 10 ms later: a socket that one of them uses is
// open until then, so one that must be gone has to be canceled before. The locked
// memory of the ring counts until then too. The memory of requests is free at once,
// as only this thread would have used it.
//
// It must be called on the thread of the ring, as the registration with the
// thread keeps the ring alive; it must not be called by the function given to
// completions. Further calls do nothing.
func (r *ring) close() {
	if r.fd < 0 {
		return
	}
	if r.enterFlags&enterRegisteredRing != 0 {
		self := ringFD{index: r.enterFD}
		r.calls.register(r.fd, unregisterRingFDs, unsafe.Pointer(&self), 1)
	}
	for _, mapping := range [][]byte{r.rings, r.entries} {
		if mapping != nil {
			unix.Munmap(mapping)
		}
	}
	unix.Close(r.fd)
	*r = ring{calls: r.calls, fd: -1}
}

// next returns the next submission, zeroed, to be filled in before any other call.
// If the queue is full it submits first.
func (r *ring) next() *submission {
	if len(r.spill) == 0 && r.tail-r.sqHead.Load() == uint32(len(r.sqes)) {
		r.submit() // an error of it is met again by enter
	}
	if len(r.spill) > 0 || r.tail-r.sqHead.Load() == uint32(len(r.sqes)) {
		// The kernel took none, for want of memory (EAGAIN). Order is kept: once one
		// has spilled, so do those after it.
		r.spill = append(r.spill, submission{})
		return &r.spill[len(r.spill)-1]
	}
	s := &r.sqes[r.tail&uint32(len(r.sqes)-1)]
	*s = submission{}
	r.tail++
	return s
}

// submit hands over what is prepared, and runs no completion.
func (r *ring) submit() error {
	r.sqTail.Store(r.tail)
	r.cqHead.Store(r.head)
	_, errno := r.calls.enter(r.enterFD, r.tail-r.sqHead.Load(), 0, r.enterFlags, nil, true)
	return enterError(errno)
}

// unspill moves what has spilled into the queue, submitting as it fills.
func (r *ring) unspill() error {
	for len(r.spill) > 0 {
		n := min(len(r.spill), len(r.sqes)-int(r.tail-r.sqHead.Load()))
		for _, s := range r.spill[:n] {
			r.sqes[r.tail&uint32(len(r.sqes)-1)] = s
			r.tail++
		}
		r.spill = r.spill[n:]
		if len(r.spill) == 0 {
			r.spill = nil
			break
		}
		before := r.sqHead.Load()
		if err := r.submit(); err != nil {
			return err
		}
		if r.sqHead.Load() == before {
			return enterError(syscall.EAGAIN)
		}
	}
	return nil
}

// pending returns how many submissions are prepared and not yet submitted.
func (r *ring) pending() int {
	return int(r.tail-r.sqHead.Load()) + len(r.spill)
}

// enter submits what is prepared, and lets the kernel do the work that is due. With
// wait it then waits until there is a completion, at most for limit; for ever if
// limit is negative. Completions that were not yet handed out count, so it does
// not wait while there are any.
//
// A raw call is made behind the back of Go's scheduler: it saves some 30 ns and
// the possible loss of the processor (P), but no goroutine runs on that P meanwhile,
// and a garbage collection has to interrupt the wait by a signal. A raw wait should
// be short. The kernel may wait 50 µs longer than limit, the timer slack of a thread
// (PR_SET_TIMERSLACK).
//
// The error is nil also where nothing came: at the limit, or at a signal (EINTR),
// which a preempting runtime sends at any time. EAGAIN and EBUSY mean that the
// kernel is short of memory or of room for completions: hand out completions and
// call again, nothing was lost. Other errors are for good; EBADR says that
// completions were lost for want of memory.
func (r *ring) enter(wait bool, limit time.Duration, raw bool) error {
	if r.failed != nil {
		return r.failed
	}
	if err := r.unspill(); err != nil {
		return err
	}
	// Always with GETEVENTS: only with it does the kernel do the work put off, and
	// bring in what has overflown.
	flags, least, arg := r.enterFlags|enterGetEvents, uint32(0), (*waitArgument)(nil)
	if wait && limit != 0 {
		least = 1
		if limit > 0 {
			r.limit = timespec{sec: int64(limit / time.Second), nsec: int64(limit % time.Second)}
			r.arg.timespecAt = uint64(uintptr(unsafe.Pointer(&r.limit)))
			flags, arg = flags|enterExtArg, &r.arg
		}
	}
	r.sqTail.Store(r.tail)
	r.cqHead.Store(r.head)
	// The kernel does not wait if it could not take all submissions, and tells of
	// the submissions rather than of a wait that failed.
	_, errno := r.calls.enter(r.enterFD, r.tail-r.sqHead.Load(), least, flags, arg, raw)
	return enterError(errno)
}

// enterError is the error of errno, nil for those that only say that nothing came.
func enterError(errno syscall.Errno) error {
	if errno == 0 || errno == syscall.EINTR || errno == syscall.ETIME {
		return nil
	}
	return os.NewSyscallError("io_uring_enter", errno)
}

// due tells without a system call whether enter or completions would find
// something. The kernel sets the flag as it puts work off (TASKRUN_FLAG, 5.19),
// and leaves it set when enter has not done all of it: enter does about 20 pieces
// of work a call (since 6.13).
func (r *ring) due() bool {
	return r.cqTail.Load() != r.head || r.sqFlags.Load()&(sqTaskrun|sqOverflow) != 0
}

// completions calls f for each completion there is, and returns how many there
// were. f may prepare submissions, and may enter; a completion that comes while
// completions runs may be left for the next call.
//
// When the queue is full the kernel keeps further completions (FEAT_NODROP, 5.5),
// and brings them in at the next enter. A call of completions brings in one
// queue full of them by itself; with more of them, due still is true.
func (r *ring) completions(f func(data uint64, res int32, flags uint32)) (n int) {
	n = r.handOut(f)
	if r.sqFlags.Load()&sqOverflow == 0 {
		return n
	}
	_, errno := r.calls.enter(r.enterFD, 0, 0, r.enterFlags|enterGetEvents, nil, true)
	if err := enterError(errno); err != nil && errno != syscall.EAGAIN && errno != syscall.EBUSY {
		r.failed = err
	}
	return n + r.handOut(f)
}

func (r *ring) handOut(f func(data uint64, res int32, flags uint32)) (n int) {
	// Counted as a difference, as f may have called completions itself.
	for tail := r.cqTail.Load(); int32(tail-r.head) > 0; n++ {
		// Copied, and passed over, before f can enter: that publishes the head, and
		// the kernel may then write here.
		c := r.cqes[r.head&uint32(len(r.cqes)-1)]
		r.head++
		f(c.data, c.res, c.flags)
	}
	r.cqHead.Store(r.head)
	return n
}
