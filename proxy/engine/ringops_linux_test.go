package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestRingCancel(t *testing.T) {
	r := testRing(t, ringConfig{entries: 8, completions: 16})
	b := testBufRing(t, r, 0, 4, 16, 4)
	a, _ := streamPair(t)
	for _, flags := range []uint16{0, recvMultishot} {
		r.recv(a, 0, 0, flags, 1)
		if err := r.enter(false, 0, false); err != nil {
			t.Fatal(err)
		}
		r.cancel(1, 2)
		cs := r.awaitN(t, 2)
		r.cancel(1, 3)
		for _, c := range append(cs, r.awaitN(t, 1)...) {
			want := map[uint64]syscall.Errno{1: unix.ECANCELED, 2: 0, 3: unix.ENOENT}[c.data]
			if errnoOf(c.res) != want || c.flags != 0 {
				t.Errorf("request %d: %d, flags %#x; want %v", c.data, c.res, c.flags, want)
			}
		}
	}
	if b.free() != 4 {
		t.Errorf("free = %d, want 4", b.free())
	}
}

// A recv is canceled while the peer writes: each byte is either in a completion or
// still in the socket.
func TestRingCancelLosesNothing(t *testing.T) {
	for name, flags := range map[string]uint16{"single": 0, "multishot": recvMultishot} {
		t.Run(name, func(t *testing.T) {
			r := testRing(t, ringConfig{entries: 8, completions: 16})
			b := testBufRing(t, r, 0, 4, 16, 4)
			withData, canceled := 0, 0
			for i := range 2000 {
				data, end := cancelWhileWritten(t, r, b, flags, i%3)
				if string(data) != "forebay" {
					t.Fatalf("round %d: got %q", i, data)
				}
				if end == unix.ECANCELED {
					canceled++
				} else {
					withData++
				}
			}
			t.Logf("%d ended with data, %d canceled", withData, canceled)
		})
	}
}

// cancelWhileWritten returns the bytes that were read by recv or after it, and how
// the recv ended. when is 0 for a peer that writes as the cancel is submitted, 1 for
// one that has written, and 2 for one whose bytes the kernel has read already.
func cancelWhileWritten(t *testing.T, r *ring, b *bufRing, flags uint16, when int) (got []byte, end syscall.Errno) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	r.recv(pair[0], 0, 0, flags, 1)
	if err := r.enter(false, 0, true); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	if when == 0 {
		wg.Go(func() { unix.Write(pair[1], []byte("forebay")) })
	} else {
		put(t, pair[1], "forebay")
	}
	if when == 2 {
		if err := r.enter(false, 0, true); err != nil {
			t.Fatal(err)
		}
	}
	r.cancel(1, 2)
	ended, canceled := false, false
	r.run(t, func() bool { return ended && canceled }, func(data uint64, res int32, flags uint32) {
		if data == 2 {
			canceled = true
			return
		}
		if id, ok := b.take(flags); ok {
			got = append(got, b.bytes(id, int(max(res, 0)))...)
			b.give(id)
		}
		if flags&cqeMore == 0 {
			ended, end = true, errnoOf(res)
		}
	})
	wg.Wait()
	rest := make([]byte, 16)
	n, _ := unix.Read(pair[0], rest)
	return append(got, rest[:max(n, 0)]...), end
}

func TestRingEndOfStream(t *testing.T) {
	r := testRing(t, ringConfig{entries: 8, completions: 16})
	b := testBufRing(t, r, 0, 4, 16, 4)
	a, peer := streamPair(t)
	r.recv(a, 0, 0, recvMultishot, 1)
	put(t, peer, "x")
	if err := unix.Shutdown(peer, unix.SHUT_WR); err != nil {
		t.Fatal(err)
	}
	cs := r.awaitN(t, 2)
	if cs[0].res != 1 || cs[0].flags&(cqeMore|cqeBuffer) != cqeMore|cqeBuffer {
		t.Errorf("data: %d, flags %#x", cs[0].res, cs[0].flags)
	}
	if cs[1].res != 0 || cs[1].flags&(cqeMore|cqeBuffer) != 0 {
		t.Errorf("end: %d, flags %#x; want 0 and neither MORE nor a buffer", cs[1].res, cs[1].flags)
	}
	b.take(cs[0].flags)
	r.quiet(t)
}

func TestRingAcceptsAndConnects(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(at, func(t *testing.T) {
			r := testRing(t, ringConfig{entries: 16, completions: 32})
			ln, err := net.Listen("tcp", at)
			if err != nil {
				t.Skip(err)
			}
			defer ln.Close()
			file, err := ln.(*net.TCPListener).File()
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			to := inetSockaddr(ln.Addr().(*net.TCPAddr).AddrPort())
			const n = 5
			r.accept(int(file.Fd()), true, 1)
			for range n {
				fd, err := unix.Socket(int(to.raw.Addr.Family), unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { unix.Close(fd) })
				r.connect(fd, to, 2)
			}
			accepted := 0
			for _, c := range r.awaitN(t, 2*n) {
				if c.res < 0 {
					t.Fatalf("request %d: %v", c.data, errnoOf(c.res))
				}
				if c.data != 1 {
					continue
				}
				accepted++
				checkAccepted(t, c)
			}
			if accepted != n {
				t.Errorf("accepted %d, want %d", accepted, n)
			}
		})
	}
}

func checkAccepted(t *testing.T, c completion) {
	defer unix.Close(int(c.res))
	if c.flags&cqeMore == 0 {
		t.Errorf("multishot accept ended: flags %#x", c.flags)
	}
	if f, _ := unix.FcntlInt(uintptr(c.res), unix.F_GETFL, 0); f&unix.O_NONBLOCK == 0 {
		t.Error("the accepted socket blocks")
	}
	if f, _ := unix.FcntlInt(uintptr(c.res), unix.F_GETFD, 0); f&unix.FD_CLOEXEC == 0 {
		t.Error("the accepted socket is not closed on exec")
	}
}

func TestRingConnectIsRefused(t *testing.T) {
	r := testRing(t, ringConfig{entries: 8, completions: 16})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	to := inetSockaddr(ln.Addr().(*net.TCPAddr).AddrPort())
	ln.Close()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	r.connect(fd, to, 1)
	if c := r.awaitN(t, 1)[0]; errnoOf(c.res) != unix.ECONNREFUSED {
		t.Errorf("connect: %v, want ECONNREFUSED", errnoOf(c.res))
	}
}

func TestSockaddr(t *testing.T) {
	in := inetSockaddr(netip.MustParseAddrPort("[fe80::1%7]:258"))
	raw := (*unix.RawSockaddrInet6)(unsafe.Pointer(&in.raw))
	if raw.Scope_id != 7 || *(*[2]byte)(unsafe.Pointer(&raw.Port)) != [2]byte{1, 2} || in.len != 28 {
		t.Errorf("sockaddr = %+v", raw)
	}
	if _, err := unixSockaddr(strings.Repeat("x", 108)); err == nil {
		t.Error("a path too long was taken")
	}
	for path, want := range map[string]uint32{"/a": 5, "@a": 4} {
		if un, err := unixSockaddr(path); err != nil || un.len != want {
			t.Errorf("unixSockaddr(%q) = %d bytes, %v; want %d", path, un.len, err, want)
		}
	}
}

func TestRingPollsAndReads(t *testing.T) {
	r := testRing(t, ringConfig{entries: 8, completions: 16})
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	one := binary.NativeEndian.AppendUint64(nil, 1)
	r.poll(fd, unix.POLLIN, true, 1)
	r.quiet(t)
	value := make([]byte, 8)
	for range 3 {
		if _, err := unix.Write(fd, one); err != nil {
			t.Fatal(err)
		}
		if c := r.awaitN(t, 1)[0]; c.data != 1 || c.res != unix.POLLIN || c.flags&cqeMore == 0 {
			t.Fatalf("poll: %d, flags %#x", c.res, c.flags)
		}
		r.read(fd, value, 2)
		if c := r.awaitN(t, 1)[0]; c.data != 2 || c.res != 8 || !bytes.Equal(value, one) {
			t.Fatalf("read: %d, %v", c.res, value)
		}
	}
	r.cancel(1, 3)
	r.awaitN(t, 2)
}

func TestRingShutsDownAndCloses(t *testing.T) {
	r := testRing(t, ringConfig{entries: 8, completions: 16})
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[1])
	r.shutdown(pair[0], unix.SHUT_WR, 1)
	r.poll(pair[1], unix.POLLIN, false, 2)
	r.awaitN(t, 2)
	r.closeFD(pair[0], 3)
	if c := r.awaitN(t, 1)[0]; c.res != 0 {
		t.Errorf("close: %v", errnoOf(c.res))
	}
	if _, err := unix.Write(pair[1], []byte("x")); err != unix.EPIPE {
		t.Errorf("write to a closed peer: %v", err)
	}
}

// A peer that resets the connection takes nothing back: what it had sent comes
// first.
func TestRingReset(t *testing.T) {
	r := testRing(t, ringConfig{entries: 8, completions: 16})
	b := testBufRing(t, r, 0, 4, 4, 4)
	a, peer := tcpPair(t)
	put(t, peer, "forebay")
	if err := unix.SetsockoptLinger(peer, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		t.Fatal(err)
	}
	unix.Close(peer)
	r.recv(a, 0, 0, recvMultishot, 1)
	got := ""
	cs := r.awaitN(t, 3)
	for _, c := range cs[:2] {
		id, ok := b.take(c.flags)
		if !ok || c.flags&cqeMore == 0 {
			t.Fatalf("recv: %d, flags %#x", c.res, c.flags)
		}
		got += string(b.bytes(id, int(c.res)))
	}
	if got != "forebay" {
		t.Errorf("got %q before the reset", got)
	}
	if c := cs[2]; errnoOf(c.res) != unix.ECONNRESET || c.flags&(cqeMore|cqeBuffer) != 0 {
		t.Errorf("end: %d, flags %#x; want ECONNRESET", c.res, c.flags)
	}
}

// A send that is canceled has sent nothing: as soon as the socket takes some of it,
// it completes.
func TestRingCanceledSendHasSentNothing(t *testing.T) {
	r := testRing(t, ringConfig{entries: 8, completions: 16})
	a, peer := streamPair(t)
	p := make([]byte, 8<<20)
	r.send(a, p, 0, 1)
	c := r.awaitN(t, 1)[0]
	if c.res <= 0 || int(c.res) == len(p) {
		t.Fatalf("send to one who does not read: %d, want a part", c.res)
	}
	for total := int(c.res); ; total += int(c.res) {
		r.send(a, p, 0, 1)
		r.cancel(1, 2)
		cs := r.awaitN(t, 2)
		if c = cs[0]; c.data != 1 {
			c = cs[1]
		}
		if c.res > 0 {
			continue
		}
		if errnoOf(c.res) != unix.ECANCELED {
			t.Errorf("canceled send: %v", errnoOf(c.res))
		}
		if err := unix.Shutdown(a, unix.SHUT_WR); err != nil {
			t.Fatal(err)
		}
		if n := readAll(peer); n != total {
			t.Errorf("the peer got %d bytes, want %d", n, total)
		}
		return
	}
}

// readAll counts what there is to read.
func readAll(fd int) (total int) {
	for p := make([]byte, 1<<16); ; {
		n, err := unix.Read(fd, p)
		if n <= 0 && err != unix.EINTR {
			return total
		}
		total += max(n, 0)
	}
}

// tcpPair returns two connected sockets; peer is to be closed by the caller.
func tcpPair(t *testing.T) (a, peer int) {
	t.Helper()
	const stream = unix.SOCK_STREAM | unix.SOCK_CLOEXEC
	ln, err := unix.Socket(unix.AF_INET, stream, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ln)
	if err := errors.Join(unix.Bind(ln, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(ln, 1)); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(ln)
	if err != nil {
		t.Fatal(err)
	}
	peer, err = unix.Socket(unix.AF_INET, stream, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Connect(peer, at); err != nil {
		t.Fatal(err)
	}
	a, _, err = unix.Accept4(ln, stream&^unix.SOCK_STREAM|unix.SOCK_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(a) })
	return a, peer
}

// A closed descriptor does not end a recv on it: the request keeps the file open,
// and goes on reading.
func TestRingRecvOutlivesDescriptor(t *testing.T) {
	r := testRing(t, ringConfig{entries: 8, completions: 16})
	b := testBufRing(t, r, 0, 4, 16, 4)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[1])
	r.recv(pair[0], 0, 0, recvMultishot, 1)
	r.closeFD(pair[0], 2)
	r.awaitN(t, 1)
	put(t, pair[1], "x")
	if c := r.awaitN(t, 1)[0]; c.data != 1 || c.res != 1 {
		t.Errorf("recv: %d", c.res)
	} else {
		b.take(c.flags)
	}
	r.cancel(1, 3)
	r.awaitN(t, 2)
	if _, err := unix.Write(pair[1], []byte("x")); err != unix.EPIPE {
		t.Errorf("write after the cancel: %v, want EPIPE", err)
	}
}
