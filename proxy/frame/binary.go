package frame

import "encoding/binary"

// The binary protocol. A field is its type, an i16 id and a value; type 0 ends
// the struct.
const (
	binI32    = 8
	binString = 11
	binStruct = 12
	binMap    = 13
	binSet    = 14
	binList   = 15
)

const stop = 0

var binKinds = [256]kind{
	2:         {1, true}, // bool
	3:         {1, true}, // i8
	4:         {8, true}, // double
	6:         {2, true}, // i16
	binI32:    {4, true},
	10:        {8, true}, // i64
	binString: {4, false},
	binStruct: {1, false},
	binMap:    {6, false},
	binSet:    {5, false},
	binList:   {5, false},
	16:        {16, true}, // uuid
}

// binaryField reads the header of a field and the head of its value.
func (s *skipper) binaryField(b []byte) (n int, err error) {
	if len(b) == 0 {
		return short, nil
	}
	if b[0] == stop {
		s.pop()
		return 1, nil
	}
	if binKinds[b[0]].least == 0 {
		return 1, malformed("field of the unknown type %d", b[0])
	}
	return s.binaryValue(b, 3, b[0])
}

// binaryValue reads the head of a value of type t at b[at:], and opens what it
// begins. It returns where the head ends.
func (s *skipper) binaryValue(b []byte, at int, t byte) (n int, err error) {
	end := at
	switch t {
	case binString:
		end = at + 4
	case binMap:
		end = at + 6
	case binSet, binList:
		end = at + 5
	}
	if len(b) < end {
		return short, nil
	}
	switch t {
	case binString:
		err = s.bytes(uint64(binary.BigEndian.Uint32(b[at:])))
	case binStruct:
		err = s.push(level{left: inStruct})
	case binMap:
		err = s.elements(uint64(binary.BigEndian.Uint32(b[at+2:])), pairs(b[at], b[at+1]), &binKinds)
	case binSet, binList:
		err = s.elements(uint64(binary.BigEndian.Uint32(b[at+1:])), list(b[at]), &binKinds)
	default:
		s.skip = binKinds[t].least
	}
	return end, err
}
