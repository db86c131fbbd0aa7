package frame

import (
	"fmt"
)

// Length is the configuration of the codec for messages that carry their length
// at a fixed place. A message has Offset + Width + value + Adjust bytes, where
// value is the unsigned number of Width bytes at Offset. That is the rule of
// Netty's LengthFieldBasedFrameDecoder.
type Length struct {
	Offset int  // bytes before the length, 0 to 1024
	Width  int  // bytes of the length: 1, 2, 3, 4 or 8
	Little bool // the length and the id are little-endian

	// Adjust is what the value leaves out or counts too: -Width where it counts
	// itself, -(Offset+Width) where it is the size of the whole message.
	Adjust int

	// IDOffset and IDWidth tell where a message has its id, from the start of
	// the message; both directions have it there. IDWidth is 1, 2, 3, 4, 8, or
	// 0: there is no id.
	IDOffset, IDWidth int

	// MaxFrame bounds a whole message, in bytes. Zero means 16,384,000.
	MaxFrame int64
}

// Bounds of a Length's fields.
const (
	maxOffset = 1024
	maxAdjust = 1 << 16
)

// NewLength returns the codec for messages like l. The error names the first
// field that is wrong, and what it may be.
func NewLength(l Length) (Codec, error) {
	if l.MaxFrame == 0 {
		l.MaxFrame = defaultMaxFrame
	}
	if err := l.validate(); err != nil {
		return nil, err
	}
	return lengthCodec{cfg: l}, nil
}

func (l *Length) validate() error {
	end, idEnd := l.Offset+l.Width, l.IDOffset+l.IDWidth
	switch {
	case l.Offset < 0 || l.Offset > maxOffset:
		return fmt.Errorf("length offset %d: must be 0 to %d", l.Offset, maxOffset)
	case l.Width == 0 || !isWidth(l.Width):
		return fmt.Errorf("length width %d: must be 1, 2, 3, 4 or 8", l.Width)
	case l.Adjust < -maxAdjust || l.Adjust > maxAdjust:
		return fmt.Errorf("length adjustment %d: must be %d to %d", l.Adjust, -maxAdjust, maxAdjust)
	case !isWidth(l.IDWidth):
		return fmt.Errorf("id width %d: must be 0 (no id), 1, 2, 3, 4 or 8", l.IDWidth)
	case l.IDOffset < 0 || l.IDOffset > maxOffset:
		return fmt.Errorf("id offset %d: must be 0 to %d", l.IDOffset, maxOffset)
	case l.IDWidth > 0 && l.IDOffset < end && l.Offset < idEnd:
		return fmt.Errorf("id at bytes %d to %d: must not overlap the length at bytes %d to %d",
			l.IDOffset, idEnd-1, l.Offset, end-1)
	case l.MaxFrame < int64(l.headSize()):
		return fmt.Errorf("max frame %d: must be at least the %d bytes that a message begins with", l.MaxFrame, l.headSize())
	}
	return nil
}

func isWidth(n int) bool { return 0 <= n && n <= 4 || n == 8 }

// headSize is how many bytes of a message hold its length and its id.
func (l *Length) headSize() int {
	if l.IDWidth == 0 {
		return l.Offset + l.Width
	}
	return max(l.Offset+l.Width, l.IDOffset+l.IDWidth)
}

// total is the size of the message that begins with b, which holds its length.
func (l *Length) total(b []byte) (int64, error) {
	end := int64(l.Offset + l.Width)
	value := readUint(b[l.Offset:end], l.Little)
	// A value over the limit and the largest adjustment is over the limit, and
	// one under it is small enough to calculate with.
	if l.MaxFrame < 1<<62 && value > uint64(l.MaxFrame)+maxAdjust || value > 1<<62 {
		return 0, malformed("message with the length %d is over the limit of %d bytes", value, l.MaxFrame)
	}
	total := end + int64(value) + int64(l.Adjust)
	switch {
	case total > l.MaxFrame:
		return 0, malformed("message of %d bytes is over the limit of %d", total, l.MaxFrame)
	case total < int64(l.headSize()):
		return 0, malformed("message of %d bytes, by its length of %d: it begins with %d bytes", total, value, l.headSize())
	}
	return total, nil
}

type lengthCodec struct{ cfg Length }

// Requests implements Codec.
func (l lengthCodec) Requests() Scanner { return &lengthScanner{cfg: l.cfg, typ: Call} }

// Replies implements Codec.
func (l lengthCodec) Replies() Scanner { return &lengthScanner{cfg: l.cfg, typ: Reply} }

// AppendException implements Codec.
func (lengthCodec) AppendException(dst []byte, _ *Head, _ int32, _ string) []byte { return dst }

// ExceptionCode implements Codec.
func (lengthCodec) ExceptionCode(*Head, []byte) (int32, bool) { return 0, false }

// lengthScanner is the Scanner of messages that carry their length.
type lengthScanner struct {
	cfg Length
	typ Type

	raw   []byte // the head so far
	left  int64  // bytes of the body; -1: not known yet
	head  Head
	known bool
	err   error
}

// Head implements Scanner.
func (s *lengthScanner) Head() *Head {
	if !s.known {
		return nil
	}
	return &s.head
}

// Done implements Scanner.
func (s *lengthScanner) Done() bool { return s.known && s.left == 0 }

// Begun implements Scanner.
func (s *lengthScanner) Begun() bool { return len(s.raw) > 0 }

// Next implements Scanner.
func (s *lengthScanner) Next() {
	s.raw = s.raw[:0]
	s.known = false
}

// Scan implements Scanner.
func (s *lengthScanner) Scan(p []byte) (n int, err error) {
	if s.err != nil {
		return 0, s.err
	}
	if !s.known {
		n += s.fill(p, s.cfg.Offset+s.cfg.Width)
		if len(s.raw) == s.cfg.Offset+s.cfg.Width {
			var total int64
			if total, s.err = s.cfg.total(s.raw); s.err != nil {
				return n, s.err
			}
			s.left = total - int64(s.cfg.headSize())
		}
		n += s.fill(p[n:], s.cfg.headSize())
		if len(s.raw) < s.cfg.headSize() {
			return n, nil
		}
		s.learn()
	}
	k := min(s.left, int64(len(p)-n))
	s.left -= k
	return n + int(k), nil
}

// fill gathers bytes of p until there are size of them.
func (s *lengthScanner) fill(p []byte, size int) int {
	n := max(0, min(size-len(s.raw), len(p)))
	s.raw = append(s.raw, p[:n]...)
	return n
}

// learn makes the head of the bytes gathered.
func (s *lengthScanner) learn() {
	s.known = true
	at, width := s.cfg.IDOffset, s.cfg.IDWidth
	s.head = Head{Type: s.typ, IDBits: 8 * width, Size: len(s.raw), idAt: at, idLen: width, little: s.cfg.Little}
	if width > 0 {
		s.head.ID.Seq = readUint(s.raw[at:at+width], s.cfg.Little)
	}
}
