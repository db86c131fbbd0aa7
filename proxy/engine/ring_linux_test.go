package engine

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// testRing returns a ring of the test's thread, which ends with the test.
func testRing(t testing.TB, cfg ringConfig) *ring {
	t.Helper()
	if err := probeRing(); err != nil {
		t.Skip(err)
	}
	runtime.LockOSThread()
	r, err := newRing(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return r
}

// hookRing has the rings that the test makes call what change leaves.
func hookRing(t *testing.T, change func(c *ringCalls)) {
	was, calls := ringSystem, *ringSystem
	change(&calls)
	ringSystem = &calls
	t.Cleanup(func() { ringSystem = was })
}

func testBufRing(t testing.TB, r *ring, group uint16, count, size, initial int) *bufRing {
	t.Helper()
	b, err := r.newBufRing(group, count, size, initial)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.close(r) })
	return b
}

// streamPair returns two connected sockets.
func streamPair(t testing.TB) (a, b int) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(pair[0]); unix.Close(pair[1]) })
	return pair[0], pair[1]
}

func put(t testing.TB, fd int, p string) {
	t.Helper()
	if n, err := unix.Write(fd, []byte(p)); n != len(p) {
		t.Fatalf("write = %d, %v", n, err)
	}
}

// run enters and hands out completions until done.
func (r *ring) run(t testing.TB, done func() bool, f func(data uint64, res int32, flags uint32)) {
	t.Helper()
	for until := time.Now().Add(patience); !done(); {
		if err := r.enter(true, patience, false); err != nil {
			t.Fatal(err)
		}
		r.completions(f)
		if time.Now().After(until) {
			t.Fatal("the completions did not come in time")
		}
	}
}

// awaitN returns the next n completions.
func (r *ring) awaitN(t testing.TB, n int) (cs []completion) {
	t.Helper()
	r.run(t, func() bool { return len(cs) >= n }, func(data uint64, res int32, flags uint32) {
		cs = append(cs, completion{data: data, res: res, flags: flags})
	})
	if len(cs) > n {
		t.Fatalf("completions = %v, want %d", cs, n)
	}
	return cs
}

// quiet fails the test if there is a completion.
func (r *ring) quiet(t testing.TB) {
	t.Helper()
	if err := r.enter(false, 0, false); err != nil {
		t.Fatal(err)
	}
	r.completions(func(data uint64, res int32, flags uint32) {
		t.Errorf("completion of %d: %d, flags %#x; want none", data, res, flags)
	})
}

func errnoOf(res int32) syscall.Errno { return syscall.Errno(-min(res, 0)) }

func TestRingKeepsOverflow(t *testing.T) {
	r := testRing(t, ringConfig{entries: 4, completions: 4})
	const n = 1000
	for i := range n {
		r.cancel(1<<40, uint64(i)) // fails at once, so it completes at once
	}
	var got []uint64
	r.run(t, func() bool { return len(got) >= n }, func(data uint64, res int32, _ uint32) {
		if errnoOf(res) != unix.ENOENT {
			t.Fatalf("cancel of nothing: %d", res)
		}
		got = append(got, data)
	})
	for i, data := range got {
		if data != uint64(i) {
			t.Fatalf("completion %d is that of %d", i, data)
		}
	}
	r.quiet(t)
}

// Completions that have no room end a multishot recv, which must be armed anew.
func TestRingOverflowOfMultishotLosesNothing(t *testing.T) {
	r := testRing(t, ringConfig{entries: 4, completions: 4})
	const socks, each = 50, 20
	b := testBufRing(t, r, 0, 1024, 1, 1024)
	var fds, peers [socks]int
	var got [socks][]byte
	for i := range fds {
		fds[i], peers[i] = streamPair(t)
		r.recv(fds[i], 0, 0, recvMultishot, uint64(i))
	}
	if err := r.enter(false, 0, false); err != nil {
		t.Fatal(err)
	}
	for i := range fds {
		put(t, peers[i], "abcdefghijklmnopqrst"[:each])
	}
	total, ended := 0, 0
	r.run(t, func() bool { return total == socks*each }, func(data uint64, res int32, flags uint32) {
		if res <= 0 {
			t.Fatalf("recv: %v", errnoOf(res))
		}
		id, _ := b.take(flags)
		got[data] = append(got[data], b.bytes(id, int(res))...)
		b.give(id)
		total += int(res)
		if flags&cqeMore == 0 {
			ended++
			r.recv(fds[data], 0, 0, recvMultishot, data)
		}
	})
	for i := range got {
		if string(got[i]) != "abcdefghijklmnopqrst" {
			t.Errorf("socket %d gave %q", i, got[i])
		}
	}
	t.Logf("%d recvs had to be armed anew", ended)
}

// A handler that enters has the kernel write completions while it hands them out.
func TestRingHandlerMayEnter(t *testing.T) {
	r := testRing(t, ringConfig{entries: 4, completions: 4})
	const n = 500
	sent, got := 0, uint64(0)
	prepare := func() {
		for range min(3, n-sent) {
			r.cancel(1<<40, uint64(sent))
			sent++
		}
	}
	prepare()
	r.run(t, func() bool { return got == n }, func(data uint64, _ int32, _ uint32) {
		if data != got {
			t.Fatalf("completion of %d, want of %d", data, got)
		}
		got++
		prepare()
		if err := r.enter(false, 0, true); err != nil {
			t.Fatal(err)
		}
		if got%7 == 0 {
			prepare() // left to the caller
		}
	})
}

// Where the kernel takes no submissions for a time, none is lost or reordered.
func TestRingSpills(t *testing.T) {
	refuse := true
	hookRing(t, func(c *ringCalls) {
		enter := c.enter
		c.enter = func(fd, submit, least, flags uint32, arg *waitArgument, raw bool) (int, syscall.Errno) {
			if refuse && submit > 0 {
				return -1, unix.EAGAIN
			}
			return enter(fd, submit, least, flags, arg, raw)
		}
	})
	refuse = false
	r := testRing(t, ringConfig{entries: 4, completions: 64})
	refuse = true
	const n = 43
	for i := range n {
		r.cancel(1<<40, uint64(i))
	}
	if r.pending() != n {
		t.Errorf("pending = %d, want %d", r.pending(), n)
	}
	if err := r.enter(false, 0, false); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("enter = %v, want EAGAIN", err)
	}
	refuse = false
	for i, c := range r.awaitN(t, n) {
		if c.data != uint64(i) {
			t.Fatalf("completion %d is that of %d", i, c.data)
		}
	}
	if r.pending() != 0 {
		t.Errorf("pending = %d, want 0", r.pending())
	}
}

func TestRingReportsLostCompletions(t *testing.T) {
	var fail syscall.Errno
	hookRing(t, func(c *ringCalls) {
		enter := c.enter
		c.enter = func(fd, submit, least, flags uint32, arg *waitArgument, raw bool) (int, syscall.Errno) {
			if fail != 0 {
				return -1, fail
			}
			return enter(fd, submit, least, flags, arg, raw)
		}
	})
	r := testRing(t, ringConfig{entries: 4, completions: 4})
	for i := range 20 {
		r.cancel(1<<40, uint64(i))
	}
	fail = unix.EBADR
	r.completions(func(uint64, int32, uint32) {})
	fail = 0
	if err := r.enter(false, 0, false); !errors.Is(err, unix.EBADR) {
		t.Errorf("enter = %v, want EBADR", err)
	}
}

func TestRingWaits(t *testing.T) {
	r := testRing(t, ringConfig{entries: 8, completions: 16})
	a, b := streamPair(t)
	for _, raw := range []bool{false, true} {
		start := time.Now()
		for time.Since(start) < 20*time.Millisecond { // a signal may end a wait before
			if err := r.enter(true, 20*time.Millisecond, raw); err != nil {
				t.Fatal(err)
			}
		}
		if r.completions(func(uint64, int32, uint32) {}) != 0 {
			t.Error("a completion of nothing")
		}
		// For ever, until there is one.
		r.poll(a, unix.POLLIN, false, 1)
		r.quiet(t)
		var wg sync.WaitGroup
		wg.Go(func() { unix.Write(b, []byte("x")) })
		n := 0
		for n == 0 {
			if err := r.enter(true, -1, raw); err != nil {
				t.Fatal(err)
			}
			n = r.completions(func(uint64, int32, uint32) {})
		}
		wg.Wait()
		// Not at all, as there is one.
		r.poll(a, unix.POLLIN, false, 1)
		start = time.Now()
		r.awaitN(t, 1)
		if took := time.Since(start); took > patience/2 {
			t.Errorf("waited %v for what was there", took)
		}
		unix.Read(a, make([]byte, 1))
	}
}

// due is what a thread that spins looks at, so nothing else may be needed.
func TestRingIsDue(t *testing.T) {
	r := testRing(t, ringConfig{entries: 64, completions: 256})
	if r.due() {
		t.Error("due with nothing to do")
	}
	const n = 60
	var peers []int
	for i := range n {
		a, b := streamPair(t)
		r.poll(a, unix.POLLIN, false, uint64(i))
		peers = append(peers, b)
	}
	r.quiet(t)
	for _, b := range peers {
		put(t, b, "x")
	}
	got, most := 0, 0
	for r.due() {
		if err := r.enter(false, 0, true); err != nil {
			t.Fatal(err)
		}
		k := r.completions(func(uint64, int32, uint32) {})
		got, most = got+k, max(most, k)
	}
	if got != n {
		t.Errorf("%d completions while due, want %d", got, n)
	}
	t.Logf("at most %d completions in one enter", most)
}

func TestRingSignalEndsRawWait(t *testing.T) {
	r := testRing(t, ringConfig{entries: 8, completions: 16})
	tid := unix.Gettid()
	var back atomic.Bool
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for tick := time.NewTicker(time.Millisecond); !back.Load(); <-tick.C {
			unix.Tgkill(os.Getpid(), tid, unix.SIGURG)
		}
	})
	start := time.Now()
	err := r.enter(true, patience, true)
	back.Store(true)
	if took := time.Since(start); err != nil || took > patience/2 {
		t.Errorf("enter = %v after %v; want nil at the signal", err, took)
	}
}

// A thread in a raw wait keeps its P. The runtime needs it for a collection, and
// gets it by a signal.
func TestRingRawWaitLetsCollectorRun(t *testing.T) {
	r := testRing(t, ringConfig{entries: 8, completions: 16})
	var took time.Duration
	var done atomic.Bool
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		start := time.Now()
		for range 10 {
			runtime.GC()
		}
		took = time.Since(start) / 10
		done.Store(true)
	})
	for until := time.Now().Add(patience); !done.Load(); {
		if err := r.enter(true, patience, true); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(until) {
			t.Fatal("a collection waited for a raw wait")
		}
		if testing.Verbose() && done.Load() {
			t.Logf("a collection took %v", took)
		}
		runtime.Gosched() // with one P the collector needs it
	}
}

func TestRingIsOfOneThread(t *testing.T) {
	hookRing(t, func(c *ringCalls) {
		register := c.register
		c.register = func(fd int, op uint32, arg unsafe.Pointer, n uint32) (int, syscall.Errno) {
			if op == registerRingFDs {
				return -1, unix.EBUSY // so that enter uses the descriptor
			}
			return register(fd, op, arg, n)
		}
	})
	r := testRing(t, ringConfig{entries: 8, completions: 16})
	r.cancel(1<<40, 1)
	r.awaitN(t, 1)
	errc := make(chan error)
	go func() {
		runtime.LockOSThread()
		errc <- r.enter(false, 0, false)
	}()
	if err := <-errc; !errors.Is(err, unix.EEXIST) {
		t.Errorf("enter on another thread: %v, want EEXIST", err)
	}
}

func TestRingWithIndexArray(t *testing.T) {
	refused := 0
	hookRing(t, func(c *ringCalls) {
		setup := c.setup
		c.setup = func(entries uint32, p *ringParams) (int, syscall.Errno) {
			if p.flags&setupNoSQArray != 0 {
				refused++
				return -1, unix.EINVAL
			}
			return setup(entries, p)
		}
	})
	r := testRing(t, ringConfig{entries: 8, completions: 16})
	for i := range 100 {
		r.cancel(1<<40, uint64(i))
		if c := r.awaitN(t, 1)[0]; c.data != uint64(i) {
			t.Fatalf("completion of %d, want of %d", c.data, i)
		}
	}
	if refused == 0 {
		t.Error("newRing did not try without the index array")
	}
}

// ringTraces counts the descriptors and mappings of rings.
func ringTraces(t *testing.T) (fds, maps int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.Contains(to, "io_uring") {
			fds++
		}
	}
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return fds, bytes.Count(b, []byte("io_uring"))
}

func TestRingCloseLeavesNothing(t *testing.T) {
	fdsBefore, mapsBefore := ringTraces(t)
	r := testRing(t, ringConfig{entries: 8, completions: 16})
	b := testBufRing(t, r, 0, 4, 4096, 4)
	memory := b.memory
	if f, err := unix.FcntlInt(uintptr(r.fd), unix.F_GETFD, 0); err != nil || f&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags of the ring = %#x, %v; want closed on exec", f, err)
	}
	if fds, maps := ringTraces(t); fds != fdsBefore+1 || maps != mapsBefore+2 {
		t.Errorf("a ring has %d descriptors and %d mappings, want 1 and 2", fds-fdsBefore, maps-mapsBefore)
	}
	a, _ := streamPair(t)
	r.recv(a, 0, 0, recvMultishot, 1) // in flight at the end
	r.quiet(t)
	for range 2 {
		b.close(r)
		r.close()
	}
	if fds, maps := ringTraces(t); fds != fdsBefore || maps != mapsBefore {
		t.Errorf("left %d descriptors and %d mappings", fds-fdsBefore, maps-mapsBefore)
	}
	resident := make([]byte, len(memory)/os.Getpagesize())
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&memory[0])), uintptr(len(memory)), uintptr(unsafe.Pointer(&resident[0])))
	if errno != unix.ENOMEM {
		t.Errorf("the buffers are still mapped: %v", errno)
	}
}

// A thread may register 16 rings: one not unregistered by close would count on.
func TestRingCloseUnregisters(t *testing.T) {
	testRing(t, ringConfig{entries: 1, completions: 2}).close()
	for i := range 100 {
		r, err := newRing(ringConfig{entries: 1, completions: 2})
		if err != nil {
			t.Fatal(err)
		}
		if r.enterFlags&enterRegisteredRing == 0 {
			t.Fatalf("ring %d could not be registered", i)
		}
		r.close()
	}
}
