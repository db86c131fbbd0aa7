package frame

import "encoding/binary"

// exceptions writes and reads Thrift's TApplicationException:
//
//	struct { 1: string message, 2: i32 code }
type exceptions struct{}

// AppendException implements Codec.
func (exceptions) AppendException(dst []byte, h *Head, code int32, text string) []byte {
	if h == nil || h.Opaque || h.Form.Transport == 0 {
		return dst
	}
	start := len(dst)
	if h.Form.hasFrame() {
		dst = append(dst, 0, 0, 0, 0) // the length, set below
	}
	if h.Form.Transport == Header {
		dst = append(dst, 0x0f, 0xff, 0, 0)
		dst = binary.BigEndian.AppendUint32(dst, h.ID.Outer)
		dst = append(dst, 0, 1, theaderProtocol(h.Form.Protocol), 0, 0, 0)
	}
	dst = appendHeader(dst, h)
	if h.Form.Protocol == Compact {
		dst = appendCompactException(dst, code, text)
	} else {
		dst = appendBinaryException(dst, code, text)
	}
	if h.Form.hasFrame() {
		binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-4))
	}
	return dst
}

func theaderProtocol(p Protocol) byte {
	if p == Compact {
		return 2
	}
	return 0
}

// appendHeader appends the header of a message of type Exception.
func appendHeader(dst []byte, h *Head) []byte {
	name, seq := h.Method(), uint32(h.ID.Seq)
	switch h.Form.Protocol {
	case Binary:
		dst = append(dst, 0x80, 0x01, 0, byte(Exception))
		dst = appendBinaryString(dst, name)
		return binary.BigEndian.AppendUint32(dst, seq)
	case BinaryOld:
		dst = appendBinaryString(dst, name)
		dst = append(dst, byte(Exception))
		return binary.BigEndian.AppendUint32(dst, seq)
	default:
		dst = append(dst, 0x82, byte(Exception)<<5|1)
		dst = binary.AppendUvarint(dst, uint64(seq))
		return appendCompactString(dst, name)
	}
}

func appendBinaryException(dst []byte, code int32, text string) []byte {
	dst = appendBinaryString(append(dst, binString, 0, 1), text)
	dst = binary.BigEndian.AppendUint32(append(dst, binI32, 0, 2), uint32(code))
	return append(dst, stop)
}

func appendCompactException(dst []byte, code int32, text string) []byte {
	dst = appendCompactString(append(dst, 0x10|compactString), text)
	dst = binary.AppendUvarint(append(dst, 0x10|compactI32), uint64(uint32(code<<1^code>>31)))
	return append(dst, stop)
}

func appendBinaryString(dst []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(s))), s...)
}

func appendCompactString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// ExceptionCode implements Codec.
func (exceptions) ExceptionCode(h *Head, body []byte) (code int32, ok bool) {
	if h == nil || h.Opaque || h.Form.Transport == 0 || h.Type != Exception {
		return 0, false
	}
	return readException(h.Form.Protocol == Compact, body)
}

// readException passes over the struct at the front of b, and notes the last
// field that is the code.
func readException(compact bool, b []byte) (code int32, ok bool) {
	var s skipper
	var id int16
	if s.begin(compact, 0, int64(len(b))) != nil {
		return 0, false
	}
	for !s.done() {
		outermost := len(s.stack) == 1
		n, err := s.read(b)
		if err != nil || n == short {
			return 0, false
		}
		end := n + int(s.skip) // inside b, which is the limit
		s.skip = 0
		if field := b[:end]; outermost && field[0] != stop {
			if compact {
				code, id = compactCode(field, id, code)
			} else {
				code = binaryCode(field, code)
			}
		}
		b = b[end:]
	}
	return code, true
}

// binaryCode returns the code if that is what the field is, and old otherwise.
func binaryCode(field []byte, old int32) int32 {
	if field[0] != binI32 || binary.BigEndian.Uint16(field[1:]) != 2 {
		return old
	}
	return int32(binary.BigEndian.Uint32(field[3:]))
}

// compactCode does the same, and returns the id of the field as well: it tells
// that of the next.
func compactCode(field []byte, last int16, old int32) (code int32, id int16) {
	at := 1
	id = last + int16(field[0]>>4)
	if field[0]>>4 == 0 {
		var v uint64
		v, at, _ = varint(field, 1, maxVarint32)
		id = int16(unzigzag(v))
	}
	if field[0]&0x0f != compactI32 || id != 2 {
		return old, id
	}
	v, _, _ := varint(field, at, maxVarint64)
	return unzigzag(v), id
}

func unzigzag(v uint64) int32 {
	return int32(uint32(v)>>1) ^ -int32(v&1)
}
