package engine

import (
	"encoding/binary"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// peerAddr is the address of a peer.
type peerAddr struct {
	peerName
	zone uint32 // the index of its interface
	path string // of a Unix socket
}

// peerName is what most of them have, smaller than any net.Addr: there is one for each
// connection, and most are never asked for.
type peerName struct {
	ip     [16]byte
	port   uint16
	kind   peerKind
	isLong bool // in a connection: the rest lies apart
}

type peerKind uint8

const (
	peerUnix peerKind = iota
	peerTCP4
	peerTCP6
)

func (a *peerName) isTCP() bool { return a.kind != peerUnix }

func (a *peerAddr) addr() net.Addr {
	switch a.kind {
	case peerTCP4:
		return &net.TCPAddr{IP: net.IP(a.ip[:4]), Port: int(a.port)}
	case peerTCP6:
		return &net.TCPAddr{IP: net.IP(a.ip[:]), Port: int(a.port), Zone: zoneName(a.zone)}
	}
	return &net.UnixAddr{Name: a.path, Net: "unix"}
}

func zoneName(index uint32) string {
	if index == 0 {
		return ""
	}
	if ifc, err := net.InterfaceByIndex(int(index)); err == nil {
		return ifc.Name
	}
	return ""
}

// peerOf returns the address of a connection that net has dialed.
func peerOf(addr net.Addr) peerAddr {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return peerAddr{path: addr.String()}
	}
	return peerAt(tcp.AddrPort())
}

func peerAt(at netip.AddrPort) peerAddr {
	ip := at.Addr()
	a := peerAddr{peerName: peerName{port: at.Port(), kind: peerTCP6, ip: ip.As16()}}
	if ip = ip.Unmap(); ip.Is4() {
		a.kind = peerTCP4
		four := ip.As4()
		copy(a.ip[:], four[:])
	} else if ifc, err := net.InterfaceByName(ip.Zone()); err == nil {
		a.zone = uint32(ifc.Index)
	}
	return a
}

// ipName is the kernel's form of an address, with room for those of IP.
type ipName [unix.SizeofSockaddrInet6]byte

// peerFrom returns what the kernel has written to sa.
func peerFrom(sa *ipName) (a peerAddr) {
	a.port = binary.BigEndian.Uint16(sa[2:])
	switch *(*uint16)(unsafe.Pointer(sa)) {
	case unix.AF_INET:
		a.kind = peerTCP4
		copy(a.ip[:], sa[4:8])
	case unix.AF_INET6:
		a.kind = peerTCP6
		copy(a.ip[:], sa[8:24])
		a.zone = binary.NativeEndian.Uint32(sa[24:])
		if ip := netip.AddrFrom16(a.ip); ip.Is4In6() { // of a listener for both kinds
			a.kind = peerTCP4
			copy(a.ip[:], sa[20:24])
		}
	}
	return a
}
