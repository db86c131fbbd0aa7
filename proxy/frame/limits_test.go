package frame

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func checkError(t *testing.T, err error, code int32, text string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("error = %v, want an *Error with %q", err, text)
	}
	if e.Code != code || !strings.Contains(e.Error(), text) {
		t.Errorf("error = %d %q, want %d with %q", e.Code, e.Text, code, text)
	}
	if c := e.Text[0]; 'A' <= c && c <= 'Z' && !strings.HasPrefix(e.Text, "THeader") {
		t.Errorf("error %q begins with a capital", e.Text)
	}
}

const (
	binHead     = "\x80\x01\x00\x01\x00\x00\x00\x01x\x00\x00\x00\x07"
	oldHead     = "\x00\x00\x00\x01x\x01\x00\x00\x00\x07"
	compactHead = "\x82\x21\x07\x01x"
)

func TestLimitsNameTheNumber(t *testing.T) {
	tests := []struct {
		name string
		b    string
		want string
		head bool // the head was known before
	}{
		{name: "frame of 2 GB", b: "\x7f\xff\xff\xff", want: "frame of 2147483647 bytes is over the limit of 16384000"},
		{name: "frame of -1", b: "\xff\xff\xff\xff", want: "frame of 4294967295 bytes is over the limit"},
		{name: "frame over the limit by one", b: "\x00\xfa\x00\x01", want: "16384001 bytes is over the limit of 16384000"},
		{name: "empty frame", b: "\x00\x00\x00\x00", want: "empty frame"},
		{name: "frame shorter than a message", b: "\x00\x00\x00\x04\x80", want: "frame of 4 bytes"},
		{name: "frame shorter than its head", b: "\x00\x00\x00\x0e\x80\x01\x00\x01\x00\x00\x00\x04", want: "frame of 14 bytes is too short"},
		{name: "frame without a body", b: "\x00\x00\x00\x0d" + binHead, want: "frame of 13 bytes is too short"},
		{name: "frame of something else", b: "\x00\x00\x01\x00\x33\x44", want: "frame of 256 bytes holds no Thrift message: it begins with \"3D\""},
		{name: "THeader shorter than itself", b: "\x00\x00\x00\x09\x0f\xff\x00\x00", want: "frame of 9 bytes is too short"},
		{name: "THeader block beyond the frame", b: "\x00\x00\x00\x20\x0f\xff\x00\x00\x00\x00\x00\x01\x00\xff", want: "frame of 32 bytes is too short"},
		{name: "name of 2 GB", b: "\x80\x01\x00\x01\x7f\xff\xff\xff", want: "name of 2147483647 bytes is over the limit of 1024"},
		{name: "name of -1", b: "\x80\x01\x00\x01\xff\xff\xff\xff", want: "negative size -1"},
		{name: "name over the limit by one", b: "\x80\x01\x00\x01\x00\x00\x04\x01", want: "name of 1025 bytes is over the limit of 1024"},
		{name: "old name over the limit", b: "\x00\x00\x04\x01x\x01", want: "frame of 1025 bytes holds no Thrift message"},
		{name: "framed old name over the limit", b: "\x00\x00\xff\xff\x00\x00\x04\x01", want: "name of 1025 bytes is over the limit"},
		{name: "compact name over the limit", b: "\x82\x21\x01\x81\x08", want: "name of 1025 bytes is over the limit of 1024"},
		{name: "endless id", b: "\x82\x21" + strings.Repeat("\xff", 6), want: "over the limit of 5 bytes"},
		{name: "endless name length", b: "\x82\x21\x00" + strings.Repeat("\x80", 6), want: "over the limit of 5 bytes"},

		{name: "unknown field", b: binHead + "\x07", want: "unknown type 7", head: true},
		{name: "string of 2 GB", b: binHead + "\x0b\x00\x01\x7f\xff\xff\xff", want: "string of 2147483647 bytes", head: true},
		{name: "string of -2", b: binHead + "\x0b\x00\x01\xff\xff\xff\xfe", want: "negative size -2", head: true},
		{name: "string of -2 in old", b: oldHead + "\x0b\x00\x01\xff\xff\xff\xfe", want: "negative size -2", head: true},
		{name: "list of -1", b: binHead + "\x0f\x00\x01\x08\xff\xff\xff\xff", want: "negative size -1", head: true},
		{name: "map of -1", b: binHead + "\x0d\x00\x01\x08\x08\xff\xff\xff\xff", want: "negative size -1", head: true},
		{name: "list of 2^31 i64", b: binHead + "\x0f\x00\x01\x0a\x7f\xff\xff\xff", want: "container of 2147483647 elements of at least 8 bytes", head: true},
		{name: "product that overflows 32 bits", b: binHead + "\x0f\x00\x01\x10\x10\x00\x00\x00", want: "268435456 elements of at least 16 bytes", head: true},
		{name: "elements of no bytes", b: binHead + "\x0f\x00\x01\x00\x7f\xff\xff\xff", want: "2147483647 elements of the unknown type 0", head: true},
		{name: "values of no bytes", b: binHead + "\x0d\x00\x01\x08\x01\x00\x00\x00\x01", want: "unknown type 8 or 1", head: true},
		{name: "structs of one byte", b: binHead + "\x0f\x00\x01\x0c\x7f\xff\xff\xff", want: "container of 2147483647 elements", head: true},

		{name: "unknown compact field", b: compactHead + "\x1e", want: "unknown type 14", head: true},
		{name: "compact string of 2 GB", b: compactHead + "\x18\xff\xff\xff\xff\x07", want: "string of 2147483647 bytes", head: true},
		{name: "compact string of -1", b: compactHead + "\x18\xff\xff\xff\xff\x0f", want: "negative size -1", head: true},
		{name: "compact string of 34 bits", b: compactHead + "\x18\xff\xff\xff\xff\x3f", want: "string of 17179869183 bytes", head: true},
		{name: "compact list of -1", b: compactHead + "\x19\xf5\xff\xff\xff\xff\x0f", want: "negative size -1", head: true},
		{name: "compact list of 2 GB", b: compactHead + "\x19\xf5\xff\xff\xff\xff\x07", want: "container of 2147483647 elements", head: true},
		{name: "compact elements of no bytes", b: compactHead + "\x19\xf0\xff\xff\xff\xff\x07", want: "unknown type 0", head: true},
		{name: "compact list of an unknown type", b: compactHead + "\x19\x1f", want: "unknown type 15", head: true},
		{name: "compact map of an unknown type", b: compactHead + "\x1b\x01\x5f", want: "unknown type 5 or 15", head: true},
		{name: "endless compact number", b: compactHead + "\x16" + strings.Repeat("\x80", 11), want: "over the limit of 10 bytes", head: true},
		{name: "endless compact field id", b: compactHead + "\x05" + strings.Repeat("\x80", 11), want: "over the limit of 5 bytes", head: true},
		{name: "endless compact size", b: compactHead + "\x18" + strings.Repeat("\x80", 11), want: "over the limit of 5 bytes", head: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for side, s := range scanners() {
				n, err := s.Scan([]byte(tt.b))
				checkError(t, err, CodeProtocolError, tt.want)
				if n > len(tt.b) {
					t.Errorf("%s: took %d of %d bytes", side, n, len(tt.b))
				}
				if (s.Head() != nil) != tt.head {
					t.Errorf("%s: head = %+v", side, s.Head())
				}
				if k, again := s.Scan([]byte("more")); k != 0 || again != err {
					t.Errorf("%s: Scan after an error = %d, %v", side, k, again)
				}
			}
		})
	}
}

func TestUnknownMessageTypesAreRefused(t *testing.T) {
	for _, b := range []string{
		"\x80\x01\x00\x00\x00\x00\x00\x01x",
		"\x80\x01\x00\x05\x00\x00\x00\x01x",
		"\x00\x00\x00\x01x\x09\x00\x00\x00\x00",
		"\x82\x01\x00\x01x",
		"\x82\xe1\x00\x01x",
	} {
		_, err := NewThrift(Thrift{}).Requests().Scan([]byte(b))
		checkError(t, err, CodeInvalidMessageType, "message type")
	}
}

func TestStrictTakesOneMessageInAFrame(t *testing.T) {
	codec := NewThrift(Thrift{Strict: true})
	each(t, func(t *testing.T, f Form, m message) {
		b := m.bytes(t, f)
		s := codec.Requests()
		for i := range b {
			if n, err := s.Scan(b[i : i+1]); n != 1 || err != nil || s.Done() != (i == len(b)-1) {
				t.Fatalf("byte %d of %d: Scan = %d, %v, done %t", i, len(b), n, err, s.Done())
			}
		}
		checkHead(t, s.Head(), f, m)
		if f.Transport == Unframed {
			return
		}
		for _, more := range []string{"\x00", binHead + "\x00"} {
			longer := append(slices.Clone(b), more...)
			binary.BigEndian.PutUint32(longer, uint32(len(longer)-4))
			_, err := codec.Requests().Scan(longer)
			checkError(t, err, CodeProtocolError, fmt.Sprintf("frame has %d bytes after the end", len(more)))
			if s := NewThrift(Thrift{}).Requests(); !scanWhole(s, longer) {
				t.Error("without Strict the frame is refused")
			}
			if s := codec.Replies(); !scanWhole(s, longer) {
				t.Error("a reply is looked into")
			}
		}
		shorter := slices.Clone(b)
		binary.BigEndian.PutUint32(shorter, uint32(len(b)-5))
		_, err := codec.Requests().Scan(shorter)
		checkError(t, err, CodeProtocolError, "")
	})
}

func scanWhole(s Scanner, b []byte) bool {
	n, err := s.Scan(b)
	return n == len(b) && err == nil && s.Done()
}

func TestNestingIsLimited(t *testing.T) {
	deep := map[string][]byte{
		"structs":         []byte(binHead + strings.Repeat("\x0c\x00\x01", 10000)),
		"lists":           []byte(binHead + "\x0f\x00\x01" + strings.Repeat("\x0f\x00\x00\x00\x01", 10000)),
		"maps":            []byte(binHead + "\x0d\x00\x01" + strings.Repeat("\x0d\x08\x00\x00\x00\x01", 10000)),
		"compact structs": []byte(compactHead + strings.Repeat("\x1c", 10000)),
		"compact lists":   []byte(compactHead + "\x19" + strings.Repeat("\x19", 10000)),
	}
	for name, b := range deep {
		t.Run(name, func(t *testing.T) {
			s := NewThrift(Thrift{}).Requests()
			_, err := s.Scan(b)
			checkError(t, err, CodeProtocolError, "nested deeper than the limit of 256")
			if c := cap(s.(*scanner).body.stack); c > 2*maxDepth {
				t.Errorf("the stack has room for %d levels", c)
			}
		})
	}
	for _, f := range []Form{{Unframed, Binary}, {Unframed, Compact}} {
		s := NewThrift(Thrift{}).Requests()
		m := message{name: "x", typ: Call, body: nested(maxDepth - 1)}
		if _, err := s.Scan(m.bytes(t, f)); err != nil || !s.Done() {
			t.Errorf("%s: %d levels: %v", f, maxDepth, err)
		}
	}
}

func TestMessageLimitCountsTheWholeMessage(t *testing.T) {
	for _, f := range []Form{{Unframed, Binary}, {Unframed, BinaryOld}, {Unframed, Compact}} {
		b := message{name: "echo", typ: Call, body: containers}.bytes(t, f)
		size := int64(len(b))
		s := NewThrift(Thrift{MaxMessage: size}).Requests()
		if _, err := s.Scan(b); err != nil || !s.Done() {
			t.Errorf("%s: %d bytes with that limit: %v", f, size, err)
		}
		for limit := int64(1); limit < size; limit++ {
			s := NewThrift(Thrift{MaxMessage: limit}).Requests()
			if _, err := s.Scan(b); err == nil {
				t.Errorf("%s: %d bytes pass a limit of %d", f, size, limit)
			}
		}
	}
}

func TestFrameLimitIsInclusive(t *testing.T) {
	b := message{name: "ping", typ: Call}.bytes(t, Form{Framed, Binary})
	size := int64(len(b) - 4)
	for limit, want := range map[int64]bool{size - 1: false, size: true, 1 << 40: true} {
		_, err := NewThrift(Thrift{MaxFrame: limit}).Requests().Scan(b)
		if (err == nil) != want {
			t.Errorf("frame of %d, limit %d: %v", size, limit, err)
		}
	}
}

func TestHugeBodiesAreNotKept(t *testing.T) {
	const size = 64 << 20
	chunk := make([]byte, 32<<10)
	heads := map[string][]byte{
		"frame":  append([]byte{4, 0, 0, 0}, binHead...),
		"string": []byte(binHead + "\x0b\x00\x01\x04\x00\x00\x00"),
		"list":   []byte(binHead + "\x0f\x00\x01\x03\x04\x00\x00\x00"),
	}
	for name, head := range heads {
		s := NewThrift(Thrift{MaxFrame: 1 << 27}).Requests()
		if _, err := s.Scan(head); err != nil {
			t.Fatal(name, err)
		}
		allocs := testing.AllocsPerRun(size/len(chunk)/2, func() {
			if n, err := s.Scan(chunk); n != len(chunk) || err != nil {
				t.Fatal(name, n, err)
			}
		})
		if allocs != 0 || cap(s.(*scanner).raw) > keepRaw {
			t.Errorf("%s: %v allocations a chunk, %d bytes kept", name, allocs, cap(s.(*scanner).raw))
		}
	}
}

func TestTruncatedMessagesAreNeverDone(t *testing.T) {
	each(t, func(t *testing.T, f Form, m message) {
		b := m.bytes(t, f)
		for end := range b {
			s := NewThrift(Thrift{}).Requests()
			if n, err := s.Scan(b[:end]); n != end || err != nil || s.Done() {
				t.Fatalf("%d of %d bytes: Scan = %d, %v, done %t", end, len(b), n, err, s.Done())
			}
		}
	})
}

func TestErrorsComeAtTheSameByteInAnyChunks(t *testing.T) {
	b := []byte(compactHead + "\x19\xf5\xff\xff\xff\xff\x0f" + "rest")
	whole := NewThrift(Thrift{}).Requests()
	want, wantErr := whole.Scan(b)
	single := NewThrift(Thrift{}).Requests()
	for i := range b {
		n, err := single.Scan(b[i : i+1])
		if err == nil {
			continue
		}
		if i+n != want || err.Error() != wantErr.Error() {
			t.Errorf("byte by byte: error at %d: %v; at once: at %d: %v", i+n, err, want, wantErr)
		}
		return
	}
	t.Error("byte by byte there is no error")
}

func TestForeignProtocolsAreNamed(t *testing.T) {
	tests := []struct{ b, want string }{
		{"GET / HTTP/1.1\r\n", "HTTP"},
		{"POST /x HTTP/1.1\r\n", "HTTP"},
		{"HEAD / HTTP/1.1\r\n", "HTTP"},
		{"PUT /x HTTP/1.1\r\n", "HTTP"},
		{"OPTIONS * HTTP/1.1\r\n", "HTTP"},
		{"DELETE /x HTTP/1.1\r\n", "HTTP"},
		{"CONNECT x:1 HTTP/1.1\r\n", "HTTP"},
		{"PRI * HTTP/2.0\r\n", "HTTP"},
		{"HTTP/1.1 400 Bad Request\r\n", "HTTP"},
		{"SSH-2.0-OpenSSH_9.2\r\n", "SSH"},
		{"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", "TLS"},
		{"\x80\x40\x01\x00\x02", "TLS"},
		{"\x78\x9c\x6a\x00", "TZlib"},
		{"\x78\x01\x6a\x00", "TZlib"},
		{"\xff\xaf\x00\x00", "Kitex mesh header"},
		{"\x01\x00\x00\x00\x05PLAIN", "SASL"},
		{"\x01\x00\x00\x00\x06GSSAPI", "SASL"},
		{"\x00\x00\x00\x20\x10\x00\x00\x00", "Kitex TTHeader"},
		{"\x7f\x7f\x7f\x7f", ""},
	}
	for _, tt := range tests {
		for _, cfg := range []Thrift{{}, {Transport: Framed}} {
			for i := range tt.b {
				s := NewThrift(cfg).Requests()
				n, err := s.Scan([]byte(tt.b[:i]))
				if err == nil {
					n, err = s.Scan([]byte(tt.b[i:]))
					n += i
				}
				var e *Error
				if !errors.As(err, &e) || e.Foreign != tt.want || n > 6 {
					t.Fatalf("%q split at %d: %d bytes, %v, foreign %q; want %q", tt.b, i, n, err, e.Foreign, tt.want)
				}
			}
		}
	}
}

func TestUnframedWordsThatAreNoLength(t *testing.T) {
	for b, want := range map[string]string{
		"\x00\x00\x04\x01x":  "method name of 1025 bytes is over the limit of 1024",
		"GET / HTTP/1.1\r\n": "HTTP",
		"\x90\x00\x00\x00":   "2415919104",
	} {
		_, err := NewThrift(Thrift{Transport: Unframed}).Requests().Scan([]byte(b))
		checkError(t, err, CodeProtocolError, want)
	}
}

func TestSASLIsToldFromALongFrame(t *testing.T) {
	codec := NewThrift(Thrift{MaxFrame: 1 << 25})
	_, err := codec.Requests().Scan([]byte("\x01\x00\x00\x00\x05PLAIN"))
	var e *Error
	if !errors.As(err, &e) || e.Foreign != "SASL" {
		t.Errorf("error = %v, want SASL", err)
	}
	s := codec.Requests()
	body := bytes.Repeat([]byte{0}, 1<<24-len(binHead))
	if _, err := s.Scan([]byte("\x01\x00\x00\x00" + binHead)); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Scan(append(body, 1)); n != len(body) || err != nil || !s.Done() {
		t.Errorf("frame of 16 MiB: Scan = %d, %v, done %t", n, err, s.Done())
	}
}
