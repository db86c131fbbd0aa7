package frame

import "encoding/binary"

// A THeader lies in a frame, before the message:
//
//	u32 length | u16 0fff | u16 flags | i32 id | u16 words | words*4 bytes of block
//	block: varint protocol | varint n, n varint transforms | infos | padding
//	info:  varint kind | for the kinds 1 and 2: varint n, n keys and values
//
// A transform, such as zlib, is applied to all that follows the block.
const theaderSize = 14

// Kinds of infos. The second is fbthrift's: the server remembers them.
const (
	infoKeyValues  = 1
	infoPersistent = 2
)

// header reads a THeader and the head of the message behind it.
func (s *scanner) header(b []byte) (need int, err error) {
	if len(b) < theaderSize {
		return theaderSize, s.frameRest(b, theaderSize)
	}
	size := 4 * int(binary.BigEndian.Uint16(b[12:]))
	if size > maxHeader {
		return theaderSize, malformed("THeader of %d bytes is over the limit of %d", size, maxHeader)
	}
	end := theaderSize + size
	if err := s.frameRest(b, end); err != nil || len(b) < end {
		return end, err
	}
	block := block{b: b[theaderSize:end]}
	transforms := block.read(&s.head)
	if block.err != nil {
		return end, block.err
	}
	s.head.ID.Outer = binary.BigEndian.Uint32(b[outerAt:])
	if transforms || s.head.Form.Protocol == JSON {
		return s.opaque(b, end)
	}
	s.head.outer = true
	return s.behindHeader(b, end)
}

// behindHeader reads the message behind a THeader. That calls both binary
// protocols by one number.
func (s *scanner) behindHeader(b []byte, at int) (need int, err error) {
	if least := at + minFrame - 1; len(b) < least {
		return least, s.frameRest(b, least)
	}
	want := s.head.Form.Protocol
	found := version(b[at:])
	if found == 0 && b[at] == 0 {
		found = BinaryOld
	}
	if found == BinaryOld && want == Binary {
		s.head.Form.Protocol = BinaryOld
	} else if found != want {
		return at + 2, wrongProtocol("the THeader tells a %s message, but it begins with %s", want, quoteBytes(b[at:at+2]))
	}
	return s.inner(b, at)
}

// A block is the variable part of a THeader. After an error it reads zeros.
type block struct {
	b   []byte
	at  int
	err error
}

// read reads the whole block into h, and reports whether there are transforms.
func (k *block) read(h *Head) (transforms bool) {
	switch n := k.number(); n {
	case 0:
		h.Form.Protocol = Binary
	case 1:
		h.Form.Protocol = JSON
	case 2:
		h.Form.Protocol = Compact
	default:
		k.err = wrongProtocol("THeader with the unknown protocol %d: known are 0 to 2", n)
	}
	for n := k.count(); n > 0; n-- {
		k.number()
		transforms = true
	}
	for k.err == nil && k.at < len(k.b) {
		switch k.number() {
		case infoPersistent:
			h.Binds = "persistent headers"
			k.keyValues()
		case infoKeyValues:
			k.keyValues()
		default:
			return transforms // padding, or an info of unknown length: the last
		}
	}
	return transforms
}

func (k *block) keyValues() {
	for n := 2 * k.count(); n > 0; n-- {
		k.at += k.count()
	}
}

// count reads a number of things of which each takes a byte at least.
func (k *block) count() int {
	n := k.number()
	if left := len(k.b) - k.at; n > uint64(left) && k.err == nil {
		k.err = malformed("THeader announces %d bytes or entries where %d bytes are left", n, left)
	}
	if k.err != nil {
		return 0
	}
	return int(n)
}

func (k *block) number() uint64 {
	if k.err != nil {
		return 0
	}
	v, end, err := varint(k.b, k.at, maxVarint32)
	if end == short {
		err = malformed("THeader of %d bytes ends inside a number", len(k.b))
	}
	k.at, k.err = end, err
	return v
}
