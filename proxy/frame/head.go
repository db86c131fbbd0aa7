package frame

import (
	"encoding/binary"
	"strings"
)

// Transport is what lies around a Thrift message.
type Transport uint8

// The transports. The zero value is an unknown one.
const (
	Framed   Transport = iota + 1 // a length of four bytes before the message
	Unframed                      // nothing: the message itself says where it ends
	Header                        // a frame that begins with a THeader
)

func (t Transport) String() string { return nameOf(t, "unknown", "framed", "unframed", "header") }

// Protocol is how a Thrift message is encoded.
type Protocol uint8

// The protocols. The zero value is an unknown one.
const (
	Binary    Protocol = iota + 1 // with the version word that strict writers send
	BinaryOld                     // without it
	Compact
	JSON
)

func (p Protocol) String() string {
	return nameOf(p, "unknown", "binary", "binary-old", "compact", "json")
}

// Type is the kind of a message.
type Type uint8

// The types, with their numbers on the wire. The zero value is a type that
// cannot be read.
const (
	Call      Type = 1
	Reply     Type = 2
	Exception Type = 3
	Oneway    Type = 4 // some clients send their oneway calls as Call
)

func (t Type) String() string { return nameOf(t, "unknown", "call", "reply", "exception", "oneway") }

func nameOf[T ~uint8](v T, names ...string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return names[0]
}

// Form is how a message is put on the wire. The zero Form is that of the
// protocols of [Length].
type Form struct {
	Transport Transport
	Protocol  Protocol
}

// String returns a form like "framed binary".
func (f Form) String() string {
	switch {
	case f == Form{}:
		return "length-prefixed"
	case f.Protocol == 0:
		return f.Transport.String()
	case f.Transport == 0:
		return f.Protocol.String()
	}
	return f.Transport.String() + " " + f.Protocol.String()
}

// hasFrame reports whether a message begins with the length of its frame.
func (f Form) hasFrame() bool { return f.Transport == Framed || f.Transport == Header }

// ID is what correlates a reply with its request.
type ID struct {
	Seq   uint64 // of the message itself; in Thrift the 32 bits of its sequence id
	Outer uint32 // of the THeader around it, 0 without one
}

// Head is what a message says of itself before its body. A copy of a Head is as
// good as the original.
type Head struct {
	Form   Form   // zero for the protocols of Length
	Type   Type   // for those: Call in requests, Reply in replies
	Name   string // the method; "" for those
	ID     ID
	IDBits int // width of ID.Seq; 0: no id can be rewritten and verified

	// Opaque means that type, name and inner id cannot be read, since the
	// message is JSON or lies behind a THeader transform. Type and Name are
	// zero then, and so is IDBits; ID.Outer is that of the THeader, if any.
	Opaque bool

	Binds string // how the message binds state to its connection; "" if it does not
	Size  int    // bytes of the head, from the start of the message

	idAt   int // where the id begins, and how many bytes it has
	idLen  int
	outer  bool // the id of a THeader lies at outerAt
	little bool // byte order of the id
}

// outerAt is where a THeader has its id: after the length, magic and flags.
const outerAt = 8

// Method is the name without the service that TMultiplexedProtocol puts before
// it: "method" for "Service:method".
func (h *Head) Method() string {
	_, method, found := strings.Cut(h.Name, ":")
	if !found {
		return h.Name
	}
	return method
}

// Rewrite appends to dst the head of a message with another id. raw begins with
// the h.Size bytes of the head as they were received; dst and raw must not
// overlap. In the compact protocol the new id may take up to four bytes more or
// fewer than the old one; the length of the frame around is changed with it.
// Bits of id beyond the width of the message's own are dropped. With IDBits 0
// the head is appended unchanged.
func (h *Head) Rewrite(dst, raw []byte, id ID) []byte {
	raw = raw[:h.Size]
	if h.IDBits == 0 {
		return append(dst, raw...)
	}
	start := len(dst)
	dst = append(dst, raw[:h.idAt]...)
	if h.Form.Protocol == Compact {
		dst = binary.AppendUvarint(dst, uint64(uint32(id.Seq)))
	} else {
		dst = appendUint(dst, id.Seq, h.idLen, h.little)
	}
	dst = append(dst, raw[h.idAt+h.idLen:]...)

	head := dst[start:]
	if grown := len(head) - h.Size; h.Form.hasFrame() && grown != 0 {
		size := int(binary.BigEndian.Uint32(head)) + grown
		binary.BigEndian.PutUint32(head, uint32(size))
	}
	if h.outer {
		binary.BigEndian.PutUint32(head[outerAt:], id.Outer)
	}
	return dst
}

// appendUint appends the low width bytes of v.
func appendUint(dst []byte, v uint64, width int, little bool) []byte {
	for i := range width {
		shift := 8 * (width - 1 - i)
		if little {
			shift = 8 * i
		}
		dst = append(dst, byte(v>>shift))
	}
	return dst
}

// readUint reads all of b as one number.
func readUint(b []byte, little bool) uint64 {
	var v uint64
	for i := range b {
		shift := 8 * (len(b) - 1 - i)
		if little {
			shift = 8 * i
		}
		v |= uint64(b[i]) << shift
	}
	return v
}
