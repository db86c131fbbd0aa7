package frame

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"
)

func TestScanEndsAtTheLastByteHoweverItIsSplit(t *testing.T) {
	each(t, func(t *testing.T, f Form, m message) {
		b := m.bytes(t, f)
		more := append(slices.Clone(b), 0xde, 0xad)
		for side, s := range scanners() {
			for split := range b {
				checkSplit(t, s, more, split, len(b))
				checkHead(t, s.Head(), f, m)
				if t.Failed() {
					t.Fatalf("%s, split at %d of %d", side, split, len(b))
				}
				s.Next()
			}
		}
	})
}

// checkSplit feeds b in two parts, of which the message has the first end bytes.
func checkSplit(t *testing.T, s Scanner, b []byte, split, end int) {
	t.Helper()
	if s.Begun() || s.Head() != nil {
		t.Error("a scanner without bytes has begun or has a head")
	}
	n, err := s.Scan(b[:split])
	if n != split || err != nil || s.Done() || s.Begun() != (split > 0) {
		t.Fatalf("Scan of the first part = %d, %v; done %t, begun %t", n, err, s.Done(), s.Begun())
	}
	n, err = s.Scan(b[split:])
	if n != end-split || err != nil || !s.Done() {
		t.Fatalf("Scan of the second part = %d, %v, done %t; want %d", n, err, s.Done(), end-split)
	}
}

func TestScanTakesSingleBytes(t *testing.T) {
	each(t, func(t *testing.T, f Form, m message) {
		b := m.bytes(t, f)
		for _, s := range scanners() {
			for i := range b {
				n, err := s.Scan(b[i : i+1])
				if n != 1 || err != nil || s.Done() != (i == len(b)-1) {
					t.Fatalf("Scan of byte %d of %d = %d, %v, done %t", i, len(b), n, err, s.Done())
				}
			}
			checkHead(t, s.Head(), f, m)
		}
	})
}

func TestScanOfNothingTakesNothing(t *testing.T) {
	for side, s := range scanners() {
		if n, err := s.Scan(nil); n != 0 || err != nil || s.Begun() || s.Done() {
			t.Errorf("%s: Scan(nil) = %d, %v", side, n, err)
		}
		b := message{name: "ping", typ: Call}.bytes(t, Form{Framed, Binary})
		if n, err := s.Scan(b); n != len(b) || err != nil || !s.Done() {
			t.Fatalf("%s: Scan = %d, %v", side, n, err)
		}
		if n, err := s.Scan(b); n != 0 || err != nil {
			t.Errorf("%s: Scan of a whole message = %d, %v; want 0", side, n, err)
		}
	}
}

func TestScanSeparatesMessagesInRandomChunks(t *testing.T) {
	for _, f := range readable {
		t.Run(f.String(), func(t *testing.T) {
			var stream []byte
			for _, m := range samples {
				stream = append(stream, m.bytes(t, f)...)
			}
			random := rand.New(rand.NewPCG(1, 2))
			for range 20 {
				for _, s := range scanners() {
					scanSamples(t, s, stream, f, random)
				}
			}
		})
	}
}

// scanSamples feeds a stream of the samples in random chunks.
func scanSamples(t *testing.T, s Scanner, stream []byte, f Form, random *rand.Rand) {
	t.Helper()
	found := 0
	for len(stream) > 0 {
		n, err := s.Scan(stream[:random.IntN(min(len(stream), 40)+1)])
		if err != nil {
			t.Fatal(err)
		}
		stream = stream[n:]
		if s.Done() {
			checkHead(t, s.Head(), f, samples[found])
			found++
			s.Next()
		}
	}
	if found != len(samples) || s.Begun() {
		t.Errorf("found %d messages of %d, and begun %t", found, len(samples), s.Begun())
	}
}

func TestRepliesMayChangeTheirForm(t *testing.T) {
	s := NewThrift(Thrift{Protocol: Binary}).Replies()
	for _, f := range readable {
		m := message{name: "echo", typ: Reply, seq: 9}
		if n, err := s.Scan(m.bytes(t, f)); err != nil || !s.Done() {
			t.Fatalf("%s: Scan = %d, %v, done %t", f, n, err, s.Done())
		}
		checkHead(t, s.Head(), f, m)
		s.Next()
	}
}

func TestRequestsKeepTheFormOfTheFirst(t *testing.T) {
	m := message{name: "ping", typ: Call, seq: 1}
	for _, first := range readable {
		for _, second := range readable {
			s := NewThrift(Thrift{}).Requests()
			if _, err := s.Scan(m.bytes(t, first)); err != nil {
				t.Fatal(err)
			}
			s.Next()
			_, err := s.Scan(m.bytes(t, second))
			// Clients of THeader begin without one where there is nothing to
			// put into it, so these two may follow each other.
			framed := first.Transport != Unframed && second.Transport != Unframed
			allowed := first.Protocol == second.Protocol && (framed || first.Transport == second.Transport)
			if (err == nil) != allowed {
				t.Errorf("%s after %s: error %v, allowed %t", second, first, err, allowed)
			}
		}
	}
}

func TestConfiguredFormIsTheOnlyOne(t *testing.T) {
	m := message{name: "ping", typ: Call, seq: 1}
	for _, want := range readable {
		for _, sent := range readable {
			for _, cfg := range []Thrift{
				{Transport: want.Transport, Protocol: want.Protocol},
				{Transport: want.Transport},
				{Protocol: want.Protocol},
			} {
				s := NewThrift(cfg).Requests()
				_, err := s.Scan(m.bytes(t, sent))
				allowed := (cfg.Transport == 0 || cfg.Transport == sent.Transport) &&
					(cfg.Protocol == 0 || cfg.Protocol == sent.Protocol)
				if allowed != (err == nil && s.Done()) {
					t.Errorf("%s to %+v: error %v, done %t, allowed %t", sent, cfg, err, s.Done(), allowed)
				}
			}
		}
	}
}

func TestUnframedOldNeedsNoLetterWhereItIsConfigured(t *testing.T) {
	for _, name := range []string{"", "0", "\x00odd", "[odd"} {
		m := message{name: name, typ: Call, seq: 3}
		f := Form{Unframed, BinaryOld}
		s := NewThrift(Thrift{Transport: Unframed, Protocol: BinaryOld}).Requests()
		if n, err := s.Scan(m.bytes(t, f)); err != nil || !s.Done() {
			t.Errorf("name %q: Scan = %d, %v, done %t", name, n, err, s.Done())
			continue
		}
		checkHead(t, s.Head(), f, m)
	}
}

func TestJSONIsOpaque(t *testing.T) {
	m := message{name: "ping", typ: Call, seq: 1}
	for _, s := range scanners() {
		b := m.bytes(t, Form{Framed, JSON})
		n, err := s.Scan(append(b, '?'))
		if n != len(b) || err != nil || !s.Done() {
			t.Fatalf("Scan = %d, %v, done %t; want %d", n, err, s.Done(), len(b))
		}
		if h := s.Head(); !h.Opaque || h.Form != (Form{Framed, JSON}) || h.IDBits != 0 || h.Type != 0 || h.Name != "" {
			t.Errorf("head = %+v", h)
		}
	}
	for _, s := range scanners() {
		b := bytes.Repeat(m.bytes(t, Form{Unframed, JSON}), 3)
		n, err := s.Scan(b)
		if n != len(b) || err != nil || s.Done() {
			t.Fatalf("unframed: Scan = %d, %v, done %t; want %d and no end", n, err, s.Done(), len(b))
		}
		if h := s.Head(); !h.Opaque || h.Form != (Form{Unframed, JSON}) || h.Size != 1 {
			t.Errorf("unframed: head = %+v", h)
		}
	}
}

func TestTransformedTHeaderIsOpaque(t *testing.T) {
	m := message{name: "ping", typ: Call, seq: 77}
	b := m.bytes(t, Form{Header, Binary}, thrift.TransformZlib)
	for _, s := range scanners() {
		n, err := s.Scan(append(slices.Clone(b), 1, 2, 3))
		if n != len(b) || err != nil || !s.Done() {
			t.Fatalf("Scan = %d, %v, done %t; want %d", n, err, s.Done(), len(b))
		}
		h := s.Head()
		if !h.Opaque || h.IDBits != 0 || h.ID != (ID{Outer: 77}) || h.Form != (Form{Header, Binary}) {
			t.Errorf("head = %+v", h)
		}
		if got := h.Rewrite(nil, b, ID{Outer: 9}); !bytes.Equal(got, b[:h.Size]) {
			t.Errorf("Rewrite changed an opaque head to % x", got)
		}
	}
}

func TestTHeaderOfJSONIsOpaque(t *testing.T) {
	b := theader("\x01\x00", []byte(`[1,"ping",1,0,{}]`))
	s := NewThrift(Thrift{}).Requests()
	if n, err := s.Scan(b); n != len(b) || err != nil || !s.Done() {
		t.Fatalf("Scan = %d, %v, done %t", n, err, s.Done())
	}
	if h := s.Head(); !h.Opaque || h.Form != (Form{Header, JSON}) || h.ID != (ID{Outer: 5}) || h.Type != 0 {
		t.Errorf("head = %+v", h)
	}
}

// theader wraps a message in a THeader with this block.
func theader(block string, inner []byte) []byte {
	for len(block)%4 != 0 {
		block += "\x00"
	}
	b := append([]byte{0x0f, 0xff, 0, 0, 0, 0, 0, 5, byte(len(block) / 4 >> 8), byte(len(block) / 4)}, block...)
	b = append(b, inner...)
	return append([]byte{byte(len(b) >> 24), byte(len(b) >> 16), byte(len(b) >> 8), byte(len(b))}, b...)
}

func TestTHeaderBlocks(t *testing.T) {
	m := message{name: "ping", typ: Call, seq: 1}
	inner := m.bytes(t, Form{Unframed, Binary})
	tests := []struct {
		name  string
		block string
		binds string
		want  string // of the error; "": none
		code  int32
	}{
		{name: "bare", block: "\x00\x00"},
		{name: "key and value", block: "\x00\x00\x01\x01\x01k\x01v"},
		{name: "persistent", block: "\x00\x00\x02\x01\x01k\x01v", binds: "persistent headers"},
		{name: "persistent after others", block: "\x00\x00\x01\x01\x01k\x01v\x02\x00", binds: "persistent headers"},
		{name: "unknown info is the last", block: "\x00\x00\x07\x02\x09"},
		{name: "padding is the last", block: "\x00\x00\x00\x02"},
		{name: "no bytes", block: "", want: "ends inside a number", code: CodeProtocolError},
		{name: "unknown protocol", block: "\x05\x00", want: "unknown protocol 5", code: CodeInvalidProtocol},
		{name: "other protocol", block: "\x02\x00", want: "tells a compact message", code: CodeInvalidProtocol},
		{name: "too many transforms", block: "\x00\x7f", want: "announces 127 bytes or entries where 2", code: CodeProtocolError},
		{name: "too many keys", block: "\x00\x00\x01\x70", want: "announces 112", code: CodeProtocolError},
		{name: "key beyond the block", block: "\x00\x00\x01\x01\x60kkk", want: "announces 96", code: CodeProtocolError},
		{name: "endless number", block: "\xff\xff\xff\xff\xff\xff\xff\xff", want: "limit of 5 bytes", code: CodeProtocolError},
		{name: "huge", block: string(make([]byte, maxHeader+4)), want: "THeader of 63492 bytes is over the limit of 63488", code: CodeProtocolError},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := theader(tt.block, inner)
			s := NewThrift(Thrift{}).Requests()
			n, err := s.Scan(b)
			if tt.want != "" {
				checkError(t, err, tt.code, tt.want)
				return
			}
			if err != nil || n != len(b) || !s.Done() {
				t.Fatalf("Scan = %d, %v, done %t", n, err, s.Done())
			}
			if h := s.Head(); h.Binds != tt.binds || h.Name != "ping" || h.ID != (ID{1, 5}) {
				t.Errorf("head = %+v", h)
			}
		})
	}
}

func TestLargestHeadStaysUnder64KiB(t *testing.T) {
	m := message{name: string(bytes.Repeat([]byte("n"), maxName)), typ: Call}
	b := theader(string(make([]byte, maxHeader)), m.bytes(t, Form{Unframed, Binary}))
	s := NewThrift(Thrift{}).Requests()
	if _, err := s.Scan(b); err != nil || !s.Done() {
		t.Fatal(err)
	}
	if size := s.Head().Size; size > 64<<10 {
		t.Errorf("head of %d bytes", size)
	}
	s.Next()
	if c := cap(s.(*scanner).raw); c > keepRaw {
		t.Errorf("%d bytes are kept for the next head", c)
	}
}

func TestMethodLeavesOutTheService(t *testing.T) {
	for name, want := range map[string]string{"ping": "ping", "Probe:ping": "ping", ":ping": "ping", "a:b:c": "b:c", "": ""} {
		if got := (&Head{Name: name}).Method(); got != want {
			t.Errorf("Method of %q = %q, want %q", name, got, want)
		}
	}
}

func TestFormsHaveNames(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{Form{}.String(), "length-prefixed"},
		{Form{Framed, Binary}.String(), "framed binary"},
		{Form{Unframed, BinaryOld}.String(), "unframed binary-old"},
		{Form{Header, Compact}.String(), "header compact"},
		{Form{Framed, 0}.String(), "framed"},
		{Form{0, JSON}.String(), "json"},
		{Transport(9).String(), "unknown"},
		{Exception.String(), "exception"},
		{Type(0).String(), "unknown"},
	} {
		if tt.got != tt.want {
			t.Errorf("String() = %q, want %q", tt.got, tt.want)
		}
	}
}

func TestScanOfSmallMessagesAllocatesNothing(t *testing.T) {
	for _, f := range readable {
		b := message{name: "Probe:echo", typ: Call, seq: 5, body: containers}.bytes(t, f)
		for side, s := range scanners() {
			allocs := testing.AllocsPerRun(100, func() {
				s.Scan(b)
				if !s.Done() {
					t.Fatal("not done")
				}
				s.Next()
			})
			if allocs != 0 {
				t.Errorf("%s, %s: %v allocations a message", f, side, allocs)
			}
		}
	}
}
