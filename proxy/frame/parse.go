package frame

import "encoding/binary"

// parse reads the head of a message from b, its bytes so far, into s.head, and
// readies s.body for the rest. It returns how many bytes the head has; a number
// over len(b) only says that it has at least so many. It is called anew when
// those are there, some ten times in a long head.
func (s *scanner) parse(b []byte) (need int, err error) {
	f, need, err := s.detect(b)
	if err != nil || need > len(b) {
		return need, err
	}
	s.head = Head{Form: f}
	switch {
	case f.Transport == Header:
		return s.header(b)
	case f.Protocol == JSON:
		return s.opaque(b, need)
	case f.Transport == Framed:
		return s.inner(b, 4)
	}
	end, err := s.message(b, 0)
	if err != nil || end > len(b) {
		return end, err
	}
	return end, s.body.begin(f.Protocol == Compact, end, s.maxMessage)
}

// opaque ends a head at b[:end] without a look at what follows.
func (s *scanner) opaque(b []byte, end int) (need int, err error) {
	s.head.Opaque = true
	if !s.head.Form.hasFrame() {
		s.body.pass(endless)
		return end, nil
	}
	return end, s.frameRest(b, end)
}

// inner reads the header of a message in a frame, which begins at b[at].
func (s *scanner) inner(b []byte, at int) (need int, err error) {
	end, err := s.message(b, at)
	if err != nil {
		return end, err
	}
	if err := s.frameRest(b, end); err != nil || !s.inside || end > len(b) {
		return end, err
	}
	return end, s.body.within(s.head.Form.Protocol == Compact, end, s.body.skip)
}

// frameRest makes what the frame has after b[:end] the body. A struct has one
// byte at least.
func (s *scanner) frameRest(b []byte, end int) error {
	size := int64(binary.BigEndian.Uint32(b))
	rest := 4 + size - int64(end)
	if rest < 1 {
		return malformed("frame of %d bytes is too short for the message in it", size)
	}
	s.body.pass(rest)
	return nil
}

// message reads a Thrift message header at b[at:], in the protocol of s.head.
// It returns where the header ends, or must at least.
func (s *scanner) message(b []byte, at int) (end int, err error) {
	switch s.head.Form.Protocol {
	case Binary:
		return s.strict(b, at)
	case BinaryOld:
		return s.old(b, at)
	default:
		return s.compact(b, at)
	}
}

// strict reads: 80 01 00 type, i32 length of name, name, i32 sequence id.
func (s *scanner) strict(b []byte, at int) (end int, err error) {
	name := at + 8
	if len(b) < name {
		return name, nil
	}
	if err := s.setType(b[at+3]); err != nil {
		return name, err
	}
	id, err := nameEnd(name, uint64(binary.BigEndian.Uint32(b[at+4:])))
	if err != nil || len(b) < id+4 {
		return id + 4, err
	}
	s.setName(b[name:id])
	s.setID(id, 4, uint64(binary.BigEndian.Uint32(b[id:])))
	return id + 4, nil
}

// old reads: i32 length of name, name, type, i32 sequence id.
func (s *scanner) old(b []byte, at int) (end int, err error) {
	name := at + 4
	if len(b) < name {
		return name, nil
	}
	typ, err := nameEnd(name, uint64(binary.BigEndian.Uint32(b[at:])))
	if err != nil || len(b) < typ+5 {
		return typ + 5, err
	}
	s.setName(b[name:typ])
	s.setID(typ+1, 4, uint64(binary.BigEndian.Uint32(b[typ+1:])))
	return typ + 5, s.setType(b[typ])
}

// compact reads: 82, type and version, varint sequence id, varint length of
// name, name.
func (s *scanner) compact(b []byte, at int) (end int, err error) {
	id := at + 2
	if len(b) < id+2 {
		return id + 2, nil
	}
	if err := s.setType(b[at+1] >> 5); err != nil {
		return id, err
	}
	seq, size, err := varint(b, id, maxVarint32)
	if err != nil || size == short {
		return len(b) + 1, err
	}
	n, name, err := varint(b, size, maxVarint32)
	if err != nil || name == short {
		return len(b) + 1, err
	}
	end, err = nameEnd(name, n)
	if err != nil || len(b) < end {
		return end, err
	}
	s.setName(b[name:end])
	s.setID(id, size-id, uint64(uint32(seq)))
	return end, nil
}

func (s *scanner) setType(t byte) error {
	if t < byte(Call) || t > byte(Oneway) {
		err := malformed("message type %d: known are 1 to 4", t)
		err.Code = CodeInvalidMessageType
		return err
	}
	s.head.Type = Type(t)
	return nil
}

// setName keeps the string of the last message where it is the same.
func (s *scanner) setName(b []byte) {
	if string(b) != s.name {
		s.name = string(b)
	}
	s.head.Name = s.name
}

func (s *scanner) setID(at, size int, seq uint64) {
	s.head.ID.Seq = seq
	s.head.IDBits = 32
	s.head.idAt, s.head.idLen = at, size
}

// nameEnd is where a name of n bytes at b[at:] ends.
func nameEnd(at int, n uint64) (int, error) {
	if negative(n) {
		return at, malformed("method name of the negative size %d", int32(uint32(n)))
	}
	if n > maxName {
		return at, malformed("method name of %d bytes is over the limit of %d", n, maxName)
	}
	return at + int(n), nil
}

// negative reports whether n is a negative number of 32 bits.
func negative(n uint64) bool { return n>>31 == 1 }

// Bytes of the longest varints.
const (
	maxVarint32 = 5
	maxVarint64 = 10
)

// short is what parsers return for a position where b ends too soon.
const short = -1

// varint reads a number of at most limit bytes at b[at:]. It returns where it
// ends.
func varint(b []byte, at, limit int) (v uint64, end int, err error) {
	for i := range limit {
		if at+i >= len(b) {
			return 0, short, nil
		}
		c := b[at+i]
		v |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			return v, at + i + 1, nil
		}
	}
	return 0, at + limit, malformed("variable-length number is over the limit of %d bytes", limit)
}
