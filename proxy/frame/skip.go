package frame

// A skipper passes over the body of a message: so many bytes, or one Thrift
// struct. It looks at the lengths in the struct only, and keeps its place with
// a stack of what it is inside of, so that nesting costs no recursion.
type skipper struct {
	compact bool
	exact   bool    // the struct has to take all that is left
	limit   int64   // on the whole message
	left    int64   // bytes that the message may still take
	skip    int64   // bytes to pass over without a look
	stack   []level // what is open, outermost first

	// token begins with the start of a token that ended with a chunk.
	token [maxToken]byte
	have  int
}

// A token is what is read at once: a field's header with the head of its value,
// or the head of an element. It has no more bytes than a compact field of a
// long id and a long number.
const maxToken = 1 + maxVarint32 + maxVarint64

// A level is one open struct, list, set or map.
type level struct {
	left       int64 // keys and values to come; -1 in a struct
	key, value byte  // their types, the same in a list or set
}

const inStruct = -1

// next is the type of the next element.
func (l *level) next() byte {
	if l.left%2 == 0 {
		return l.key
	}
	return l.value
}

// pass makes n bytes the body.
func (s *skipper) pass(n int64) {
	s.stack = s.stack[:0]
	s.have = 0
	s.exact = false
	s.skip = n
}

// begin makes one struct the body of a message of at most limit bytes, of which
// the head took some.
func (s *skipper) begin(compact bool, head int, limit int64) error {
	s.pass(0)
	s.compact = compact
	s.limit = limit
	s.left = limit - int64(head)
	s.stack = append(s.stack, level{left: inStruct})
	return s.charge(0)
}

// within makes one struct the body, of exactly n bytes after a head.
func (s *skipper) within(compact bool, head int, n int64) error {
	err := s.begin(compact, head, int64(head)+n)
	s.exact = true
	return err
}

func (s *skipper) done() bool { return s.skip == 0 && len(s.stack) == 0 }

// scan takes the bytes of the body from the front of p, and returns how many.
func (s *skipper) scan(p []byte) (n int, err error) {
	for !s.done() {
		if s.skip > 0 {
			k := min(s.skip, int64(len(p)-n))
			n += int(k)
			if s.skip -= k; s.skip > 0 {
				return n, nil
			}
			continue
		}
		k, whole, err := s.take(p[n:])
		n += k
		if err != nil || !whole {
			return n, err
		}
	}
	return n, nil
}

// take takes one token from the front of p. If p ends inside it, it keeps the
// part for the next time: whole is false then.
func (s *skipper) take(p []byte) (n int, whole bool, err error) {
	if s.have == 0 {
		if n, err := s.read(p); n != short {
			return n, true, err
		}
		s.have = copy(s.token[:], p)
		return len(p), false, nil
	}
	for i, c := range p {
		s.token[s.have] = c
		s.have++
		if n, err := s.read(s.token[:s.have]); n != short {
			s.have = 0
			return i + 1, true, err
		}
	}
	return len(p), false, nil
}

// read reads the token at the front of b, and returns its length, or short. It
// changes nothing before the token is whole, and finds an error at the same
// byte whatever follows it in b.
func (s *skipper) read(b []byte) (n int, err error) {
	top := len(s.stack) - 1
	if s.stack[top].left == inStruct {
		n, err = s.field(b)
	} else if n, err = s.element(b, s.stack[top].next()); n != short {
		s.stack[top].left--
	}
	if n == short || err != nil {
		return n, err
	}
	for len(s.stack) > 0 && s.stack[len(s.stack)-1].left == 0 {
		s.pop()
	}
	if err := s.charge(int64(n) + s.skip); err != nil {
		return n, err
	}
	if s.exact && len(s.stack) == 0 && s.left > 0 {
		return n, malformed("frame has %d bytes after the end of its message", s.left)
	}
	return n, nil
}

func (s *skipper) field(b []byte) (n int, err error) {
	if s.compact {
		return s.compactField(b)
	}
	return s.binaryField(b)
}

func (s *skipper) element(b []byte, t byte) (n int, err error) {
	if s.compact {
		return s.compactValue(b, 0, t)
	}
	return s.binaryValue(b, 0, t)
}

// charge counts n bytes of the message.
func (s *skipper) charge(n int64) error {
	if s.left -= n; s.left < 0 {
		return malformed("message is over the limit of %d bytes", s.limit)
	}
	return nil
}

func (s *skipper) push(l level) error {
	if len(s.stack) == maxDepth {
		return malformed("values are nested deeper than the limit of %d", maxDepth)
	}
	s.stack = append(s.stack, l)
	return nil
}

func (s *skipper) pop() { s.stack = s.stack[:len(s.stack)-1] }

// bytes passes over a string of n bytes.
func (s *skipper) bytes(n uint64) error {
	if negative(n) {
		return malformed("string of the negative size %d", int32(uint32(n)))
	}
	if n > uint64(s.left) {
		return malformed("string of %d bytes: the message may take %d more, its limit is %d", n, s.left, s.limit)
	}
	s.skip = int64(n)
	return nil
}

// A kind is what the size of a value's encoding is known to be.
type kind struct {
	least int64 // bytes; 0: there is no such type
	fixed bool  // it has never more
}

// elements passes over the n elements, or pairs, of a container: at once where
// all have a fixed size, and one by one otherwise. An element takes at least
// one byte, so the work is bounded by the bytes.
func (s *skipper) elements(n uint64, l level, kinds *[256]kind) error {
	if negative(n) {
		return malformed("container of the negative size %d", int32(uint32(n)))
	}
	if n == 0 {
		return nil
	}
	first, second := kinds[l.key], kind{fixed: true}
	if l.left == 2 {
		second = kinds[l.value]
	}
	if first.least == 0 || l.left == 2 && second.least == 0 {
		return malformed("container of %d elements of the unknown type %d or %d", n, l.key, l.value)
	}
	if each := first.least + second.least; n > uint64(s.left/each) {
		return malformed("container of %d elements of at least %d bytes: the message may take %d more, its limit is %d",
			n, each, s.left, s.limit)
	} else if first.fixed && second.fixed {
		s.skip = int64(n) * each
		return nil
	}
	l.left *= int64(n)
	return s.push(l)
}

// list and pairs are levels of one element, for elements to multiply.
func list(t byte) level           { return level{left: 1, key: t, value: t} }
func pairs(key, value byte) level { return level{left: 2, key: key, value: value} }
