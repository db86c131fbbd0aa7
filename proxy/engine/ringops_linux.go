package engine

import (
	"encoding/binary"
	"math/bits"
	"net"
	"net/netip"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// recv reads from a socket into a buffer of a group, see bufRing, at most limit
// bytes; 0 means what the buffer holds. flags are recvPollFirst and recvMultishot.
// With recvMultishot limit has to be 0 before Linux 6.17, else EINVAL.
//
// The result is the number of bytes, 0 at the end of the stream, or a negative
// errno; ENOBUFS says that the group had no buffer when it was tried to read, and
// what there was stays in the socket. Any result may come without cqeMore, a full
// completion queue being reason enough, and the end of the stream always does.
//
// A multishot recv completes up to 33 times in one enter, if the socket has as
// much to read (MULTISHOT_MAX_RETRY, 6.0).
func (r *ring) recv(fd int, group uint16, limit int, flags uint16, data uint64) {
	s := r.next()
	s.op, s.flags, s.ioprio = opRecv, sqeBufferSelect, flags
	s.fd, s.len, s.group, s.data = int32(fd), uint32(limit), group, data
}

// send writes p to a socket. The result may be less than len(p). The caller has to
// keep p reachable, and as it is, until the completion: the collector does not
// know of the kernel's pointer. It does not move p, which escapes to the heap.
//
// A send waits only while the socket takes nothing at all, so one that is canceled
// has sent nothing; with MSG_DONTWAIT in flags it does not wait, and the result may be
// EAGAIN. Only one may be in flight on a socket: a second would go right
// behind what a first one that falls short has sent.
func (r *ring) send(fd int, p []byte, flags uint32, data uint64) {
	s := r.next()
	s.op, s.fd, s.addr, s.len = opSend, int32(fd), address(p), uint32(len(p))
	s.opFlags, s.data = unix.MSG_NOSIGNAL|flags, data
}

// read reads from a file that has no offset, an eventfd say. For p holds what
// holds for that of send.
func (r *ring) read(fd int, p []byte, data uint64) {
	s := r.next()
	s.op, s.fd, s.addr, s.len = opRead, int32(fd), address(p), uint32(len(p))
	s.off, s.data = ^uint64(0), data
}

// accept takes a connection, or with multishot each one until it fails, off a
// listener. The result is a non-blocking descriptor that is closed on exec.
func (r *ring) accept(fd int, multishot bool, data uint64) {
	s := r.next()
	s.op, s.fd, s.opFlags, s.data = opAccept, int32(fd), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, data
	if multishot {
		s.ioprio = acceptMultishot
	}
}

// connect connects a socket. The caller has to keep to reachable until the
// completion: before 6.10 the kernel may read it as late as that.
func (r *ring) connect(fd int, to *sockaddr, data uint64) {
	s := r.next()
	if never.escapes {
		never.to = to
	}
	s.op, s.fd, s.data = opConnect, int32(fd), data
	s.addr, s.off = uint64(uintptr(unsafe.Pointer(&to.raw))), uint64(to.len)
}

// acceptFrom is accept of one connection, and tells of its peer. The caller keeps both
// reachable until the completion.
func (r *ring) acceptFrom(fd int, name *ipName, size *uint32, data uint64) {
	if never.escapes {
		never.name, never.size = name, size
	}
	*size = uint32(len(name))
	s := r.next()
	s.op, s.fd, s.opFlags, s.data = opAccept, int32(fd), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, data
	s.addr, s.off = uint64(uintptr(unsafe.Pointer(name))), uint64(uintptr(unsafe.Pointer(size)))
}

// poll waits until one of the events of mask, unix.POLLIN say, is there. The result
// are the events. With multishot it completes each time the file wakes its
// waiters, which is an edge and not a level.
func (r *ring) poll(fd int, mask uint32, multishot bool, data uint64) {
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		mask = bits.RotateLeft32(mask, 16) // so that the low half lies where 16 bits were before 5.9
	}
	s := r.next()
	s.op, s.fd, s.opFlags, s.data = opPollAdd, int32(fd), mask, data
	if multishot {
		s.len = pollMultishot
	}
}

// cancel cancels a request that was submitted with target as its data. Its own
// result is 0; ENOENT if there is none; EALREADY if it is too far. Only the
// completion of the request says how it has ended: ECANCELED, or as if there
// had been no cancel.
func (r *ring) cancel(target, data uint64) {
	s := r.next()
	s.op, s.fd, s.addr, s.data = opCancel, -1, target, data
}

// shutdown is shutdown(2); how is unix.SHUT_WR say.
func (r *ring) shutdown(fd, how int, data uint64) {
	s := r.next()
	s.op, s.fd, s.len, s.data = opShutdown, int32(fd), uint32(how), data
}

// closeFD closes a descriptor. Requests that use it are not ended by that, and
// keep the file open.
func (r *ring) closeFD(fd int, data uint64) {
	s := r.next()
	s.op, s.fd, s.data = opClose, int32(fd), data
}

// never makes what it is shown escape to the heap. A pointer that only a number
// holds does not by itself, and a stack is moved as it grows.
var never struct {
	escapes bool
	p       []byte
	to      *sockaddr
	name    *ipName
	size    *uint32
}

// address returns where p lies.
func address(p []byte) uint64 {
	if never.escapes {
		never.p = p
	}
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(p))))
}

// A sockaddr is an address in the form of the kernel.
type sockaddr struct {
	raw unix.RawSockaddrAny
	len uint32
}

// inetSockaddr returns the address of a TCP endpoint. An IPv4 address in IPv6
// clothes stays IPv6: the family has to be that of the socket.
func inetSockaddr(at netip.AddrPort) *sockaddr {
	s := new(sockaddr)
	ip := at.Addr()
	if ip.Is4() {
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(&s.raw))
		in.Family, in.Port, in.Addr = unix.AF_INET, networkOrder(at.Port()), ip.As4()
		s.len = unix.SizeofSockaddrInet4
		return s
	}
	in := (*unix.RawSockaddrInet6)(unsafe.Pointer(&s.raw))
	in.Family, in.Port, in.Addr = unix.AF_INET6, networkOrder(at.Port()), ip.As16()
	in.Scope_id = zoneIndex(ip.Zone())
	s.len = unix.SizeofSockaddrInet6
	return s
}

// zoneIndex returns the index of an interface, given by name or number.
func zoneIndex(zone string) uint32 {
	if zone == "" {
		return 0
	}
	if in, err := net.InterfaceByName(zone); err == nil {
		return uint32(in.Index)
	}
	n, _ := strconv.ParseUint(zone, 10, 32)
	return uint32(n)
}

func networkOrder(port uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, port))
}

// unixSockaddr returns the address of a Unix socket; "@name" is an abstract one.
func unixSockaddr(path string) (*sockaddr, error) {
	s := new(sockaddr)
	un := (*unix.RawSockaddrUnix)(unsafe.Pointer(&s.raw))
	if path == "" || len(path) >= len(un.Path) {
		return nil, unix.EINVAL
	}
	un.Family = unix.AF_UNIX
	for i := range len(path) {
		un.Path[i] = int8(path[i])
	}
	s.len = uint32(unsafe.Offsetof(un.Path)) + uint32(len(path))
	if path[0] == '@' {
		un.Path[0] = 0 // an abstract name is as long as the address says
	} else {
		s.len++ // a path ends in a zero
	}
	return s, nil
}
