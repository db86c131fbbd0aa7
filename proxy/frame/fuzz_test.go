package frame

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"
)

// addSamples seeds a fuzz target with a message of each kind in each form.
func addSamples(f *testing.F, add func(b []byte)) {
	for _, form := range append(readable, Form{Framed, JSON}, Form{Unframed, JSON}) {
		for _, m := range samples {
			if len(m.name) < 100 {
				add(m.bytes(f, form))
			}
		}
	}
	for _, s := range []string{
		"", "GET / HTTP/1.1\r\n", "\x16\x03\x01", "\x01\x00\x00\x00\x05PLAIN", "\x00\x00\x00\x00",
		compactHead + "\x1b\x01\x55\x01\x01\x00", binHead + "\x0f\x00\x01\x00\x7f\xff\xff\xff",
	} {
		add([]byte(s))
	}
	add(theader("\x00\x00\x02\x01\x01k\x01v", []byte(binHead+"\x00")))
}

func FuzzDetect(f *testing.F) {
	addSamples(f, func(b []byte) { f.Add(b[:min(len(b), 8)], uint8(0), uint8(0), false) })
	f.Add([]byte("\x00\x00\x00\x00A"), uint8(0), uint8(0), false)
	f.Fuzz(func(t *testing.T, b []byte, transport, protocol uint8, auto bool) {
		d := detector{
			want:     Form{Transport(transport % 4), Protocol(protocol % 5)},
			auto:     auto,
			maxFrame: 1 << (10 + int(transport)%21),
		}
		asked := 0
		for i := range len(b) + 1 {
			form, need, err := d.detect(b[:i])
			if need < 1 || need > 6 {
				t.Fatalf("% x: needs %d bytes", b[:i], need)
			}
			if err == nil && need > i {
				asked = max(asked, need)
				continue
			}
			if i < asked {
				t.Fatalf("% x: a verdict at %d bytes, but %d were asked for", b, i, asked)
			}
			longForm, longNeed, longErr := d.detect(b)
			if longForm != form || longNeed != need || fmt.Sprint(longErr) != fmt.Sprint(err) {
				t.Fatalf("% x: %v, %v at %d bytes; %v, %v of all", b, form, err, i, longForm, longErr)
			}
			if err == nil && (form.Transport == 0 || form.Protocol == 0 && form.Transport != Header) {
				t.Fatalf("% x: detected as %+v", b, form)
			}
			return
		}
	})
}

// A trace is what a scanner said of a stream.
type trace struct {
	ends  []int
	heads []Head
	err   string
	taken int
	begun bool
}

// traceOf feeds b in chunks of the sizes that next tells.
func traceOf(t *testing.T, s Scanner, b []byte, next func() int) trace {
	var tr trace
	for tr.taken < len(b) {
		chunk := b[tr.taken:]
		chunk = chunk[:min(next(), len(chunk))]
		n, err := s.Scan(chunk)
		if n < 0 || n > len(chunk) || err == nil && n < len(chunk) && !s.Done() {
			t.Fatalf("Scan of %d bytes = %d, %v, done %t", len(chunk), n, err, s.Done())
		}
		tr.taken += n
		if err != nil {
			tr.err = err.Error()
			break
		}
		if s.Done() {
			tr.ends = append(tr.ends, tr.taken)
			tr.heads = append(tr.heads, *s.Head())
			s.Next()
		}
	}
	if h := s.Head(); h != nil {
		tr.heads = append(tr.heads, *h)
	}
	tr.begun = s.Begun()
	return tr
}

func FuzzScanner(f *testing.F) {
	addSamples(f, func(b []byte) {
		f.Add(b, []byte{1}, uint8(0))
		f.Add(append(b, b...), []byte{3, 0, 7}, uint8(9))
	})
	f.Fuzz(func(t *testing.T, b, sizes []byte, config uint8) {
		codec := fuzzCodec(config)
		sizes = append(sizes, 1) // so that some chunk has bytes
		for range 2 {
			whole, parts := codec.Requests(), codec.Requests()
			if config&1 == 0 {
				whole, parts = codec.Replies(), codec.Replies()
			}
			i := 0
			want := traceOf(t, whole, b, func() int { return len(b) })
			got := traceOf(t, parts, b, func() int { i++; return int(sizes[i%len(sizes)]) % 40 })
			if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
				t.Fatalf("in chunks: %+v\nat once:   %+v", got, want)
			}
			checkRewrites(t, codec, b, want)
			config ^= 1
		}
	})
}

// fuzzCodec makes one of several codecs.
func fuzzCodec(config uint8) Codec {
	switch config >> 1 % 8 {
	case 1:
		return NewThrift(Thrift{Transport: Unframed, Protocol: Protocol(config >> 4 % 5), MaxMessage: 500})
	case 2:
		return NewThrift(Thrift{Transport: Framed, MaxFrame: 500})
	case 3:
		return NewThrift(Thrift{Transport: Header, MaxFrame: 1 << 40})
	case 4, 5:
		codec, err := NewLength(Length{
			Offset: 1, Width: 2, Adjust: int(config>>4) - 5, Little: config>>4%2 == 0,
			IDOffset: 3, IDWidth: int(config >> 4 % 5), MaxFrame: 1000,
		})
		if err != nil {
			panic(err)
		}
		return codec
	case 6:
		return NewThrift(Thrift{Strict: true})
	}
	return NewThrift(Thrift{})
}

// checkRewrites gives every whole message another id, and reads it again.
func checkRewrites(t *testing.T, codec Codec, b []byte, tr trace) {
	start := 0
	for i, end := range tr.ends {
		h, raw := tr.heads[i], b[start:end]
		start = end
		if h.Size > len(raw) {
			t.Fatalf("head of %d bytes in a message of %d", h.Size, len(raw))
		}
		id := ID{Seq: 0xa5a5a5a5 & (1<<h.IDBits - 1)}
		if h.outer {
			id.Outer = 77
		}
		changed := append(h.Rewrite(nil, raw, id), raw[h.Size:]...)
		if h.IDBits == 0 {
			if !bytes.Equal(changed, raw) {
				t.Fatal("a message without an id was changed")
			}
			continue
		}
		s := codec.Replies()
		if n, err := s.Scan(changed); err == nil && (n != len(changed) || !s.Done() || s.Head().ID != id) {
			t.Fatalf("rewritten: Scan = %d of %d, done %t, head %+v", n, len(changed), s.Done(), s.Head())
		} else if err != nil && !strings.Contains(err.Error(), "limit") {
			t.Fatalf("rewritten: %v", err)
		}
		codec.AppendException(nil, &h, 6, "text")
		codec.ExceptionCode(&h, raw[h.Size:])
	}
}

func FuzzSkipAgreesWithLibrary(f *testing.F) {
	for _, protocol := range []Protocol{Binary, Compact} {
		for _, m := range samples {
			s := headBytes(protocol)
			b := m.bytes(f, Form{Unframed, protocol})
			f.Add(protocol == Compact, b[min(len(b), len(s)+len(m.name)):])
			whole := message{name: "x", typ: Call, seq: 7, body: m.body}.bytes(f, Form{Unframed, protocol})
			f.Add(protocol == Compact, whole[len(s):])
		}
	}
	f.Add(true, []byte("\x1b\x00\x19\xf1\x80\x00\x00"))
	f.Add(false, []byte("\x0f\x00\x01\x00\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, compact bool, body []byte) {
		protocol := Binary
		if compact {
			protocol = Compact
		}
		libEnd, libErr := libraryEnd(t, protocol, body)

		s := NewThrift(Thrift{Transport: Unframed}).Requests()
		head := headBytes(protocol)
		n, err := s.Scan(append([]byte(head), body...))
		switch end := n - len(head); {
		case s.Done() && libErr != nil:
			t.Fatalf("ends at %d, but the library refuses: %v", end, libErr)
		case s.Done() && end != libEnd:
			t.Fatalf("ends at %d, in the library at %d", end, libEnd)
		case !s.Done() && libErr == nil && !isLimit(err):
			t.Fatalf("no end (%v), in the library at %d", err, libEnd)
		}
	})
}

// headBytes is the unframed head of a call.
func headBytes(p Protocol) string {
	if p == Compact {
		return compactHead
	}
	return binHead
}

// libraryEnd is where the library's reader finds the end of a struct.
func libraryEnd(t *testing.T, p Protocol, body []byte) (int, error) {
	mem := thrift.NewTMemoryBufferLen(len(body))
	mem.Write(body)
	const deeper = maxDepth + 50
	err := thrift.Skip(t.Context(), library(Form{Unframed, p}, mem), thrift.STRUCT, deeper)
	return len(body) - mem.Len(), err
}

// isLimit reports whether an error is about a limit of this package, which the
// library need not have.
func isLimit(err error) bool {
	var e *Error
	return errors.As(err, &e) && strings.Contains(e.Text, "limit")
}
