package frame

import "math"

// The limits where a configuration gives none, as Thrift's own.
const (
	defaultMaxFrame   = 16384000
	defaultMaxMessage = 100 << 20
)

// Limits on what a message may ask of its reader.
const (
	maxName     = 1024     // bytes of a method's name
	maxDepth    = 256      // structs and containers within each other
	maxHeader   = 62 << 10 // bytes of a THeader block: keeps a head under 64 KiB
	hugestFrame = 1<<30 - 1
)

// Thrift is the configuration of the codec for Thrift messages. The zero value
// detects every form and has Thrift's own limits.
type Thrift struct {
	// Transport is what clients have to use. Zero means to detect it. Framed
	// and Unframed are expected of replies too; a server of THeader messages
	// may answer without one.
	Transport Transport

	// Protocol is what clients have to use. Zero means to detect it. It is
	// always detected in replies: PHP's servers answer Binary with BinaryOld.
	Protocol Protocol

	// MaxFrame bounds the length that a frame announces, in bytes. Zero means
	// 16,384,000; more than 1 GiB counts as 1 GiB - 1.
	MaxFrame int64

	// MaxMessage bounds an unframed message, in bytes. Zero means 100 MiB.
	MaxMessage int64

	// Strict looks into the frames of requests, and refuses those that do not
	// hold exactly one message within the limits of unframed ones. Without it a
	// client can put two messages into a frame, and many servers will answer
	// twice. It costs about what an unframed message does. What is opaque is
	// not looked into.
	Strict bool
}

// NewThrift returns the codec for Thrift messages.
func NewThrift(cfg Thrift) Codec {
	if cfg.MaxFrame <= 0 {
		cfg.MaxFrame = defaultMaxFrame
	}
	cfg.MaxFrame = min(cfg.MaxFrame, hugestFrame)
	if cfg.MaxMessage <= 0 {
		cfg.MaxMessage = defaultMaxMessage
	}
	return thriftCodec{cfg: cfg}
}

type thriftCodec struct {
	exceptions
	cfg Thrift
}

// Requests implements Codec.
func (t thriftCodec) Requests() Scanner {
	s := t.scanner()
	s.sticky = true
	s.want = Form{t.cfg.Transport, t.cfg.Protocol}
	s.auto = t.cfg.Transport == 0
	s.inside = t.cfg.Strict
	return s
}

// Replies implements Codec.
func (t thriftCodec) Replies() Scanner {
	s := t.scanner()
	if t.cfg.Transport != Header {
		s.want.Transport = t.cfg.Transport
	}
	return s
}

func (t thriftCodec) scanner() *scanner {
	return &scanner{
		detector:   detector{maxFrame: t.cfg.MaxFrame},
		maxMessage: t.cfg.MaxMessage,
		need:       1,
	}
}

// scanner is the Scanner of Thrift messages. It gathers bytes until they hold a
// head, and then passes over the body: a frame's by its length, an unframed one
// value by value.
type scanner struct {
	detector
	sticky     bool // the form of the first message is that of all
	inside     bool // frames are looked into
	maxMessage int64

	raw   []byte // the head so far
	need  int    // bytes of a head to have before it is worth another look
	name  string // the last method's name, to be used again
	head  Head
	known bool
	body  skipper
	done  bool
	err   error
}

// Head implements Scanner.
func (s *scanner) Head() *Head {
	if !s.known {
		return nil
	}
	return &s.head
}

// Done implements Scanner.
func (s *scanner) Done() bool { return s.done }

// Begun implements Scanner.
func (s *scanner) Begun() bool { return len(s.raw) > 0 }

// Scan implements Scanner.
func (s *scanner) Scan(p []byte) (n int, err error) {
	if s.err != nil || s.done {
		return 0, s.err
	}
	for !s.known {
		k := min(s.need-len(s.raw), len(p)-n)
		s.raw = append(s.raw, p[n:n+k]...)
		n += k
		if len(s.raw) < s.need {
			return n, nil
		}
		if s.err = s.look(); s.err != nil {
			return n, s.err
		}
	}
	k, err := s.body.scan(p[n:])
	s.done = s.body.done()
	s.err = err
	return n + k, err
}

// look reads the head if it is whole, and says how many bytes it needs if not.
func (s *scanner) look() error {
	need, err := s.parse(s.raw)
	if err != nil {
		return err
	}
	s.need = need
	if need > len(s.raw) {
		return nil
	}
	s.known = true
	s.head.Size = len(s.raw)
	return s.hold()
}

// hold holds the form of a head against the one that is wanted, since what a
// THeader tells was not known when the form was detected. The first request
// decides what is wanted of the others. (Behind a transform the two binary
// protocols look the same.)
func (s *scanner) hold() error {
	form := s.head.Form
	if s.head.Opaque && form.Transport == Header {
		form.Protocol = s.want.Protocol
	}
	if want := s.want.Protocol; want != 0 && form.Protocol != want {
		return wrongProtocol("%s message where %s is spoken", form, want)
	}
	if s.sticky {
		s.want = form
	}
	return nil
}

// keepRaw is how much memory for heads a scanner keeps from one message to the
// next.
const keepRaw = 4 << 10

// Next implements Scanner.
func (s *scanner) Next() {
	s.raw = s.raw[:0]
	if cap(s.raw) > keepRaw {
		s.raw = nil
	}
	s.need = 1
	s.known, s.done = false, false
}

// endless is the size of a body whose end is not known.
const endless = math.MaxInt64
