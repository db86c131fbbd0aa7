package engine

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxRingBuffers is the most buffers of a group: the kernel's limit, since 5.19.
const maxRingBuffers = 1 << 15

// A bufEntry offers one buffer to the kernel, struct io_uring_buf. The tail of the
// ring lies in the last field of the first entry, which therefore is never
// written as a whole.
type bufEntry struct {
	addr uint64
	len  uint32
	id   uint16
	tail uint16
}

// bufRegistration is struct io_uring_buf_reg.
type bufRegistration struct {
	addr    uint64
	entries uint32
	group   uint16
	flags   uint16
	_       [3]uint64
}

// A bufRing is a group of buffers of one size that a ring reads into, the kernel
// taking one as it has something to put there. It is used by the thread of the
// ring only.
//
// The kernel takes the buffers in the order in which they were given, so each of
// them gets used, and its pages touched, however few would do. Therefore only some
// are given at first, and grow gives more when the kernel has run out.
type bufRing struct {
	group   uint16
	size    int
	memory  []byte // the mapping: entries, then buffers
	entries []bufEntry
	buffers []byte
	tail    uint16         // counts on past 65535
	publish *atomic.Uint32 // the half word before the tail, and the tail
	known   int            // buffers given at least once: those below
	with    int            // buffers that are with the kernel
	ours    []bool         // known buffers that are not
}

// newBufRing registers a group of count buffers of size bytes, of which it gives
// initial to the kernel. count is a power of two up to maxRingBuffers; size should
// be a multiple of the page size, or a part of it, so that no page is shared
// between a buffer in use and one never used. Memory is used for buffers that
// were read into only, and 16 bytes for each one.
func (r *ring) newBufRing(group uint16, count, size, initial int) (*bufRing, error) {
	if count < 1 || count > maxRingBuffers || count&(count-1) != 0 || size < 1 || initial > count {
		return nil, fmt.Errorf("buffer ring of %d times %d bytes: %w", count, size, unix.EINVAL)
	}
	page := os.Getpagesize()
	head := (count*int(unsafe.Sizeof(bufEntry{})) + page - 1) / page * page
	memory, err := unix.Mmap(-1, 0, head+count*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANONYMOUS|unix.MAP_PRIVATE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	// A huge page would be used as a whole. It is a wish: a kernel without huge
	// pages refuses with EINVAL.
	unix.Madvise(memory, unix.MADV_NOHUGEPAGE)
	b := &bufRing{group: group, size: size, memory: memory, buffers: memory[head:], ours: make([]bool, count)}
	b.entries = unsafe.Slice((*bufEntry)(unsafe.Pointer(&memory[0])), count)
	b.publish = (*atomic.Uint32)(unsafe.Pointer(&b.entries[0].id))
	reg := bufRegistration{addr: uint64(uintptr(unsafe.Pointer(&memory[0]))), entries: uint32(count), group: group}
	if _, errno := r.calls.register(r.fd, registerBufRing, unsafe.Pointer(&reg), 1); errno != 0 {
		unix.Munmap(memory)
		return nil, os.NewSyscallError("io_uring_register", errno)
	}
	b.grow(initial)
	return b, nil
}

// take returns the buffer that a completion names in its flags, and counts it as
// ours until it is given back. ok is false if the flags name none. It must be
// called for each completion of a recv, whatever the result: a canceled or failed
// one may have a buffer too.
func (b *bufRing) take(flags uint32) (id uint16, ok bool) {
	if flags&cqeBuffer == 0 {
		return 0, false
	}
	id = uint16(flags >> cqeBufferShift)
	if b.ours[id] {
		panic("engine: the kernel took a buffer that was not given")
	}
	b.ours[id] = true
	b.with--
	return id, true
}

// bytes returns the first n bytes of a buffer.
func (b *bufRing) bytes(id uint16, n int) []byte {
	at := int(id) * b.size
	return b.buffers[at : at+n : at+b.size]
}

// give returns a buffer to the kernel, at once: it may be read into by the next
// enter.
func (b *bufRing) give(id uint16) {
	if !b.ours[id] {
		// Two readers would share it, and bytes of one session get into another.
		panic("engine: a buffer given that was not taken")
	}
	b.ours[id] = false
	b.offer(id)
}

// grow gives up to n buffers more that were never used, and returns how many.
func (b *bufRing) grow(n int) int {
	n = min(n, len(b.entries)-b.known)
	for range n {
		b.offer(uint16(b.known))
		b.known++
	}
	return max(n, 0)
}

func (b *bufRing) offer(id uint16) {
	e := &b.entries[int(b.tail)&(len(b.entries)-1)]
	e.addr, e.len, e.id = uint64(uintptr(unsafe.Pointer(&b.buffers[int(id)*b.size]))), uint32(b.size), id
	b.tail++
	b.with++
	// Go has no atomic store of 16 bits: this one writes the id before the tail
	// along, which the kernel never changes.
	var word struct {
		_    [0]uint32 // aligns it
		half [2]uint16
	}
	word.half = [2]uint16{b.entries[0].id, b.tail}
	b.publish.Store(*(*uint32)(unsafe.Pointer(&word)))
}

// free returns how many buffers are with the kernel, as far as the completions
// handed out so far tell.
func (b *bufRing) free() int { return b.with }

// scarce reports whether less than a quarter of all buffers is left to receive into.
func (b *bufRing) scarce() bool {
	left := b.with + len(b.entries) - b.known
	return left <= max(1, len(b.entries)/4)
}

// close ends the group. A recv that still waits for a buffer of it gets ENOBUFS.
// What bytes returned must not be used any more. r may have been closed before.
// Further calls do nothing.
func (b *bufRing) close(r *ring) {
	if b.memory == nil {
		return
	}
	if r.fd >= 0 {
		reg := bufRegistration{group: b.group}
		r.calls.register(r.fd, unregisterBufRing, unsafe.Pointer(&reg), 1)
	}
	unix.Munmap(b.memory)
	*b = bufRing{}
}
