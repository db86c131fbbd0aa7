package frame

// The compact protocol. A field is a byte of the distance from the last id and
// the type, an id of its own where that distance is 0, and a value; type 0 ends
// the struct. A bool in a field has no value: it is in the type.
const (
	compactTrue   = 1
	compactFalse  = 2
	compactI16    = 4
	compactI32    = 5
	compactI64    = 6
	compactString = 8
	compactList   = 9
	compactSet    = 10
	compactMap    = 11
	compactStruct = 12
	compactUUID   = 13 // the last; in fbthrift a float of four bytes
)

var compactKinds = [256]kind{
	compactTrue:   {1, true}, // as an element
	compactFalse:  {1, true},
	3:             {1, true}, // i8
	compactI16:    {1, false},
	compactI32:    {1, false},
	compactI64:    {1, false},
	7:             {8, true}, // double
	compactString: {1, false},
	compactList:   {1, false},
	compactSet:    {1, false},
	compactMap:    {1, false},
	compactStruct: {1, false},
	compactUUID:   {16, true},
}

// compactField reads the header of a field and the head of its value.
func (s *skipper) compactField(b []byte) (n int, err error) {
	if len(b) == 0 {
		return short, nil
	}
	t, at := b[0]&0x0f, 1
	if t == stop {
		s.pop()
		return 1, nil
	}
	if compactKinds[t].least == 0 {
		return 1, malformed("field of the unknown type %d", t)
	}
	if b[0]>>4 == 0 {
		if _, at, err = varint(b, 1, maxVarint32); err != nil || at == short {
			return at, err
		}
	}
	if t == compactTrue || t == compactFalse {
		return at, nil
	}
	return s.compactValue(b, at, t)
}

// compactValue reads the head of a value of type t at b[at:], and opens what it
// begins. It returns where the head ends.
func (s *skipper) compactValue(b []byte, at int, t byte) (n int, err error) {
	switch t {
	case compactI16, compactI32, compactI64:
		_, n, err = varint(b, at, maxVarint64)
		return n, err
	case compactString:
		size, n, err := varint(b, at, maxVarint32)
		if err != nil || n == short {
			return n, err
		}
		return n, s.bytes(size)
	case compactList, compactSet:
		return s.compactList(b, at)
	case compactMap:
		return s.compactMap(b, at)
	case compactStruct:
		return at, s.push(level{left: inStruct})
	}
	s.skip = compactKinds[t].least
	return at, nil
}

// compactList reads the head of a list or set: four bits of size and the type;
// a size of 15 says that the size follows.
func (s *skipper) compactList(b []byte, at int) (n int, err error) {
	if len(b) <= at {
		return short, nil
	}
	t, size, n := b[at]&0x0f, uint64(b[at]>>4), at+1
	if t > compactUUID {
		return n, malformed("container of the unknown type %d", t)
	}
	if size == 15 {
		if size, n, err = varint(b, n, maxVarint32); err != nil || n == short {
			return n, err
		}
	}
	return n, s.elements(size, list(t), &compactKinds)
}

// compactMap reads the head of a map: its size and, unless that is 0, a byte of
// the types of keys and values.
func (s *skipper) compactMap(b []byte, at int) (n int, err error) {
	size, n, err := varint(b, at, maxVarint32)
	if err != nil || n == short || size == 0 {
		return n, err
	}
	if len(b) <= n {
		return short, nil
	}
	types := b[n]
	return n + 1, s.elements(size, pairs(types>>4, types&0x0f), &compactKinds)
}
