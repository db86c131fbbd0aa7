package frame

import (
	"strings"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"
)

func benchmarkScan(b *testing.B, f Form, m message) {
	s := NewThrift(Thrift{}).Requests()
	msg := m.bytes(b, f)
	b.SetBytes(int64(len(msg)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Scan(msg); err != nil || !s.Done() {
			b.Fatal(err)
		}
		s.Next()
	}
}

func BenchmarkScanFramedBinary(b *testing.B) {
	benchmarkScan(b, Form{Framed, Binary}, message{name: "ping", typ: Call, seq: 1})
}

func BenchmarkScanHeaderCompact(b *testing.B) {
	benchmarkScan(b, Form{Header, Compact}, message{name: "ping", typ: Call, seq: 1})
}

// kilobyte is a struct of about 1 KB with some of everything.
var kilobyte = message{name: "echo", typ: Call, seq: 1, body: func(w *writer) {
	scalars(w)
	w.mapping(4000, thrift.STRING, thrift.STRING, 20, func(int) { w.str("a key"); w.str("some value") })
	w.list(4001, thrift.I64, 40, func(i int) { w.i64(int64(i) << 20) })
	w.field(4002, thrift.STRING, func() { w.str(strings.Repeat("x", 100)) })
}}

func BenchmarkScanUnframedBinary1KB(b *testing.B) {
	benchmarkScan(b, Form{Unframed, Binary}, kilobyte)
}

func BenchmarkScanUnframedCompact1KB(b *testing.B) {
	benchmarkScan(b, Form{Unframed, Compact}, kilobyte)
}

func BenchmarkRewriteFramedCompact(b *testing.B) {
	s := NewThrift(Thrift{}).Requests()
	raw := message{name: "ping", typ: Call, seq: 1}.bytes(b, Form{Framed, Compact})
	s.Scan(raw)
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		dst = s.Head().Rewrite(dst[:0], raw, ID{Seq: 300})
	}
}
