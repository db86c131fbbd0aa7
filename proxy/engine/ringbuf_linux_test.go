package engine

import (
	"bytes"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A recv ends when its group has no buffer left; armed anew it goes on where it
// was.
func TestBufRingRunsDry(t *testing.T) {
	r := testRing(t, ringConfig{entries: 8, completions: 16})
	b := testBufRing(t, r, 7, 4, 64, 4)
	a, peer := streamPair(t)
	sent := make([]byte, 200_000)
	for i := range sent {
		sent[i] = byte(rand.Uint32())
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { writeAll(peer, sent) })

	var got []byte
	var taken []uint16
	dry := 0
	r.recv(a, b.group, 0, recvMultishot, 1)
	r.run(t, func() bool { return len(got) == len(sent) }, func(_ uint64, res int32, flags uint32) {
		if id, ok := b.take(flags); ok {
			got = append(got, b.bytes(id, int(res))...)
			taken = append(taken, id)
		}
		if flags&cqeMore != 0 {
			return
		}
		if errnoOf(res) == unix.ENOBUFS {
			if dry++; b.free() != 0 || flags&cqeBuffer != 0 {
				t.Errorf("ENOBUFS with %d buffers free, flags %#x", b.free(), flags)
			}
		}
		for _, id := range taken { // no sooner, so that it runs dry
			b.give(id)
		}
		taken = taken[:0]
		r.recv(a, b.group, 0, recvMultishot, 1)
	})
	if !bytes.Equal(got, sent) {
		t.Error("the bytes read are not those written")
	}
	if dry == 0 {
		t.Error("the group never ran dry")
	}
}

// writeAll writes p to a non-blocking socket.
func writeAll(fd int, p []byte) {
	for len(p) > 0 {
		n, err := unix.Write(fd, p)
		if err == unix.EAGAIN {
			unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(patience.Milliseconds()))
			continue
		}
		if err != nil && err != unix.EINTR {
			return
		}
		p = p[max(n, 0):]
	}
}

// residentPages returns how many pages of p are used.
func residentPages(t *testing.T, p []byte) (n int) {
	t.Helper()
	pages := make([]byte, len(p)/os.Getpagesize())
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), uintptr(unsafe.Pointer(&pages[0])))
	if errno != 0 {
		t.Fatal(errno)
	}
	for _, v := range pages {
		n += int(v & 1)
	}
	return n
}

func TestBufRingUsesMemoryOfGivenBuffersOnly(t *testing.T) {
	r := testRing(t, ringConfig{entries: 8, completions: 16})
	const count = 2048
	b := testBufRing(t, r, 0, count, os.Getpagesize(), 2)
	a, peer := streamPair(t)
	if n := residentPages(t, b.buffers); n != 0 {
		t.Errorf("%d pages of new buffers are used", n)
	}
	receive := func(n int) {
		for range n {
			put(t, peer, "x")
			r.recv(a, 0, 0, 0, 1)
			c := r.awaitN(t, 1)[0]
			id, ok := b.take(c.flags)
			if c.res != 1 || !ok || b.bytes(id, 1)[0] != 'x' {
				t.Fatalf("recv: %d, flags %#x", c.res, c.flags)
			}
			b.give(id)
		}
	}
	receive(100)
	if n := residentPages(t, b.buffers); n != 2 {
		t.Errorf("%d pages are used by 2 buffers", n)
	}
	if n := b.grow(3); n != 3 || b.free() != 5 {
		t.Errorf("grow = %d, free = %d; want 3, 5", n, b.free())
	}
	receive(100)
	if n := residentPages(t, b.buffers); n != 5 {
		t.Errorf("%d pages are used by 5 buffers", n)
	}
	if n := b.grow(count); n != count-5 || b.free() != count || b.grow(1) != 0 {
		t.Errorf("grow = %d, free = %d", n, b.free())
	}
	receive(70_000) // past the end of the tail's 16 bits
}

func TestBufRingLimit(t *testing.T) {
	r := testRing(t, ringConfig{entries: 8, completions: 16})
	b := testBufRing(t, r, 0, 4, 64, 4)
	a, peer := streamPair(t)
	put(t, peer, "forebay")
	r.recv(a, 0, 4, 0, 1)
	c := r.awaitN(t, 1)[0]
	id, _ := b.take(c.flags)
	if got := b.bytes(id, int(c.res)); string(got) != "fore" || cap(got) != 64 {
		t.Errorf("recv of 4 = %q, capacity %d", got, cap(got))
	}
	if c.flags&cqeSockNonEmpty == 0 {
		t.Errorf("flags %#x do not tell of the rest", c.flags)
	}
}

func TestBufRingRefusesMisuse(t *testing.T) {
	r := testRing(t, ringConfig{entries: 8, completions: 16})
	for _, c := range [][3]int{{3, 64, 1}, {0, 64, 0}, {4, 0, 1}, {4, 64, 5}, {2 * maxRingBuffers, 64, 1}} {
		if b, err := r.newBufRing(9, c[0], c[1], c[2]); err == nil {
			b.close(r)
			t.Errorf("%d buffers of %d bytes, %d given: no error", c[0], c[1], c[2])
		}
	}
	b := testBufRing(t, r, 0, 4, 64, 4)
	if _, err := r.newBufRing(0, 4, 64, 4); err == nil {
		t.Error("a group was registered twice")
	}
	mustPanic(t, "give of a buffer that is with the kernel", func() { b.give(1) })
	mustPanic(t, "take of a buffer twice", func() {
		b.take(cqeBuffer | 2<<cqeBufferShift)
		b.take(cqeBuffer | 2<<cqeBufferShift)
	})
}

func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", what)
		}
	}()
	f()
}

// A recv in flight outlives its group, and does not write into its memory.
func TestBufRingCloseUnderRecv(t *testing.T) {
	r := testRing(t, ringConfig{entries: 8, completions: 16})
	b := testBufRing(t, r, 0, 4, 64, 4)
	a, peer := streamPair(t)
	r.recv(a, 0, 0, recvMultishot, 1)
	r.quiet(t)
	b.close(r)
	put(t, peer, "x")
	if c := r.awaitN(t, 1)[0]; errnoOf(c.res) != unix.ENOBUFS || c.flags != 0 {
		t.Errorf("recv: %v, flags %#x; want ENOBUFS", errnoOf(c.res), c.flags)
	}
}
