package frame

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"
)

// headOf scans one message and returns its head.
func headOf(t *testing.T, b []byte) *Head {
	t.Helper()
	s := NewThrift(Thrift{}).Requests()
	if n, err := s.Scan(b); err != nil || n != len(b) || !s.Done() {
		t.Fatalf("Scan = %d, %v, done %t", n, err, s.Done())
	}
	return s.Head()
}

var rewriteIDs = []uint64{0, 1, 127, 128, 16383, 16384, 1<<21 - 1, 1 << 21, 1 << 28, 1<<31 - 1, 1<<32 - 1}

func TestRewrittenMessagesAreReadByTheLibrary(t *testing.T) {
	each(t, func(t *testing.T, f Form, m message) {
		b := m.bytes(t, f)
		h := *headOf(t, b)
		for _, seq := range rewriteIDs {
			id := ID{Seq: seq}
			if f.Transport == Header {
				id.Outer = uint32(seq) ^ 0xff
			}
			changed := append(h.Rewrite(nil, b, id), b[h.Size:]...)
			checkLibraryReads(t, f, changed, m, int32(uint32(seq)))

			h2 := *headOf(t, changed)
			if h2.ID != id {
				t.Errorf("id = %v, want %v", h2.ID, id)
			}
			back := append(h2.Rewrite(nil, changed, h.ID), changed[h2.Size:]...)
			if !bytes.Equal(back, b) {
				t.Errorf("id %d: changed back, the message is not as before", seq)
			}
		}
	})
}

// checkLibraryReads checks that the library reads all of b as the message.
func checkLibraryReads(t *testing.T, f Form, b []byte, m message, seq int32) {
	t.Helper()
	ctx := t.Context()
	mem := thrift.NewTMemoryBuffer()
	mem.Write(b)
	p := library(f, mem)
	name, typ, gotSeq, err := p.ReadMessageBegin(ctx)
	if err != nil || name != m.name || Type(typ) != m.typ || gotSeq != seq {
		t.Fatalf("the library reads %q, %v, %d, %v; want %q, %v, %d", name, typ, gotSeq, err, m.name, m.typ, seq)
	}
	if err := thrift.SkipDefaultDepth(ctx, p, thrift.STRUCT); err != nil {
		t.Fatal(err)
	}
	if mem.Len() != 0 {
		t.Errorf("the library leaves %d bytes", mem.Len())
	}
}

func TestRewriteAdjustsTheFrameToTheWidthOfTheID(t *testing.T) {
	for _, transport := range []Transport{Framed, Header} {
		b := message{name: "ping", typ: Call, seq: 1}.bytes(t, Form{transport, Compact})
		h := headOf(t, b)
		for width, seq := range map[int]uint64{1: 127, 2: 128, 3: 1 << 14, 4: 1 << 21, 5: 1 << 28} {
			got := h.Rewrite(nil, b, ID{Seq: seq})
			if len(got) != h.Size+width-1 {
				t.Errorf("%s: head with an id of %d bytes has %d, want %d", transport, width, len(got), h.Size+width-1)
			}
			size, want := binary.BigEndian.Uint32(got), uint32(len(b)-4+width-1)
			if size != want {
				t.Errorf("%s: frame length %d with an id of %d bytes, want %d", transport, size, width, want)
			}
		}
	}
}

func TestRewriteAppends(t *testing.T) {
	b := message{name: "ping", typ: Call, seq: 1}.bytes(t, Form{Framed, Compact})
	raw := slices.Clone(b)
	h := headOf(t, b)
	want := append([]byte("before"), h.Rewrite(nil, b, ID{Seq: 300})...)
	if got := h.Rewrite([]byte("before"), b, ID{Seq: 300}); !bytes.Equal(got, want) {
		t.Errorf("Rewrite = % x, want % x", got, want)
	}
	if !bytes.Equal(b, raw) {
		t.Error("Rewrite changed its input")
	}
	dst := make([]byte, 0, 64)
	if n := testing.AllocsPerRun(100, func() { dst = h.Rewrite(dst[:0], b, ID{Seq: 1 << 31}) }); n != 0 {
		t.Errorf("%v allocations with room in dst", n)
	}
}

func TestRewriteKeepsNoncanonicalNumbersReadable(t *testing.T) {
	b := []byte("\x00\x00\x00\x0a\x82\x21\x81\x80\x00\x02go\x00\x00")
	h := headOf(t, b)
	if h.ID.Seq != 1 || h.idLen != 3 {
		t.Fatalf("head = %+v", h)
	}
	got := append(h.Rewrite(nil, b, ID{Seq: 2}), b[h.Size:]...)
	if want := "\x00\x00\x00\x08\x82\x21\x02\x02go\x00\x00"; string(got) != want {
		t.Errorf("Rewrite = % x, want % x", got, want)
	}
}
