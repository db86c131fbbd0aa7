package health

import "fmt"

// binaryField passes over a field of a struct, and reports whether it was the end.
func (d decoder) binaryField(depth int) (last bool, err error) {
	typ, err := d.ReadByte()
	if err != nil || typ == 0 {
		return typ == 0, err
	}
	if err := d.skip(2); err != nil { // its id
		return false, err
	}
	return false, d.binaryValue(typ, depth)
}

// binarySizes are the sizes of the values that have one, by type.
var binarySizes = map[byte]int64{2: 1, 3: 1, 4: 8, 6: 2, 8: 4, 10: 8, 16: 16}

func (d decoder) binaryValue(typ byte, depth int) error {
	if size, ok := binarySizes[typ]; ok {
		return d.skip(size)
	}
	switch typ {
	case 11:
		return d.binaryString()
	case 12:
		return d.structure(depth + 1)
	case 13:
		return d.binaryContainer(2, depth+1)
	case 14, 15:
		return d.binaryContainer(1, depth+1)
	}
	return fmt.Errorf("a value of type %d", typ)
}

func (d decoder) binaryString() error {
	n, err := d.int32()
	if err != nil {
		return err
	}
	return d.skip(int64(n))
}

// binaryContainer passes over a list or a set, of one type, or a map, of two.
func (d decoder) binaryContainer(types, depth int) error {
	var typ [2]byte
	for i := range types {
		var err error
		if typ[i], err = d.ReadByte(); err != nil {
			return err
		}
	}
	n, err := d.int32()
	if err != nil {
		return err
	}
	if n < 0 {
		return fmt.Errorf("a container of %d", n)
	}
	return d.elements(uint32(n), depth, typ[:types], d.binaryValue)
}

// elements passes over the n elements of a container. Each takes a byte at least, so
// that the limit of the message ends this too.
func (d decoder) elements(n uint32, depth int, types []byte, value func(typ byte, depth int) error) error {
	if depth >= maxDepth {
		return fmt.Errorf("values are nested more than %d deep", maxDepth)
	}
	for range n {
		for _, typ := range types {
			if err := value(typ, depth); err != nil {
				return err
			}
		}
	}
	return nil
}

// compactField passes over a field of a struct, and reports whether it was the end.
func (d decoder) compactField(depth int) (last bool, err error) {
	head, err := d.ReadByte()
	if err != nil || head == 0 {
		return head == 0, err
	}
	if head>>4 == 0 { // its id follows, else it is told by that of the last
		if _, err := d.varint64(); err != nil {
			return false, err
		}
	}
	if typ := head & 0x0f; typ > 2 { // 1 and 2 are true and false
		return false, d.compactValue(typ, depth)
	}
	return false, nil
}

func (d decoder) compactValue(typ byte, depth int) error {
	switch typ {
	case 1, 2, 3:
		return d.skip(1)
	case 4, 5, 6:
		_, err := d.varint64()
		return err
	case 7:
		return d.skip(8)
	case 8:
		return d.compactString()
	case 9, 10:
		return d.compactList(depth + 1)
	case 11:
		return d.compactMap(depth + 1)
	case 12:
		return d.structure(depth + 1)
	case 13: // a UUID
		return d.skip(16)
	}
	return fmt.Errorf("a value of type %d", typ)
}

func (d decoder) compactString() error {
	n, err := d.uvarint()
	if err != nil {
		return err
	}
	return d.skip(int64(n))
}

func (d decoder) compactList(depth int) error {
	head, err := d.ReadByte()
	if err != nil {
		return err
	}
	n := uint32(head >> 4)
	if n == 15 {
		if n, err = d.uvarint(); err != nil {
			return err
		}
	}
	return d.elements(n, depth, []byte{head & 0x0f}, d.compactValue)
}

func (d decoder) compactMap(depth int) error {
	n, err := d.uvarint()
	if err != nil || n == 0 {
		return err
	}
	types, err := d.ReadByte()
	if err != nil {
		return err
	}
	return d.elements(n, depth, []byte{types >> 4, types & 0x0f}, d.compactValue)
}
