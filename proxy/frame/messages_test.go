package frame

import (
	"fmt"
	"strings"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"
)

// readable are the forms whose heads and ends can be read.
var readable = []Form{
	{Framed, Binary}, {Framed, BinaryOld}, {Framed, Compact},
	{Unframed, Binary}, {Unframed, BinaryOld}, {Unframed, Compact},
	{Header, Binary}, {Header, BinaryOld}, {Header, Compact},
}

// library returns the Apache library's protocol for a form, on top of mem.
func library(f Form, mem thrift.TTransport, transforms ...thrift.THeaderTransformID) thrift.TProtocol {
	strict := f.Protocol != BinaryOld
	id := thrift.THeaderProtocolBinary
	if f.Protocol == Compact {
		id = thrift.THeaderProtocolCompact
	}
	no := false
	conf := &thrift.TConfiguration{
		TBinaryStrictRead:  &no,
		TBinaryStrictWrite: &strict,
		THeaderProtocolID:  &id,
		THeaderTransforms:  transforms,
	}
	switch f.Transport {
	case Header:
		return thrift.NewTHeaderProtocolConf(mem, conf)
	case Framed:
		mem = thrift.NewTFramedTransportConf(mem, conf)
	}
	switch f.Protocol {
	case Compact:
		return thrift.NewTCompactProtocolConf(mem, conf)
	case JSON:
		return thrift.NewTJSONProtocol(mem)
	}
	return thrift.NewTBinaryProtocolConf(mem, conf)
}

// A message is what the tests write and expect to read.
type message struct {
	name string
	typ  Type
	seq  int32
	body func(w *writer)
}

// bytes writes the message in a form, by the library.
func (m message) bytes(tb testing.TB, f Form, transforms ...thrift.THeaderTransformID) []byte {
	tb.Helper()
	mem := thrift.NewTMemoryBuffer()
	w := &writer{tb: tb, p: library(f, mem, transforms...)}
	ctx := tb.Context()
	w.check(w.p.WriteMessageBegin(ctx, m.name, thrift.TMessageType(m.typ), m.seq))
	w.structure(m.body)
	w.check(w.p.WriteMessageEnd(ctx))
	w.check(w.p.Flush(ctx))
	return append([]byte(nil), mem.Bytes()...)
}

// A writer writes values by the library.
type writer struct {
	tb testing.TB
	p  thrift.TProtocol
}

func (w *writer) check(err error) {
	w.tb.Helper()
	if err != nil {
		w.tb.Fatal(err)
	}
}

func (w *writer) structure(fields func(*writer)) {
	ctx := w.tb.Context()
	w.check(w.p.WriteStructBegin(ctx, "s"))
	if fields != nil {
		fields(w)
	}
	w.check(w.p.WriteFieldStop(ctx))
	w.check(w.p.WriteStructEnd(ctx))
}

func (w *writer) field(id int16, t thrift.TType, value func()) {
	ctx := w.tb.Context()
	w.check(w.p.WriteFieldBegin(ctx, "f", t, id))
	value()
	w.check(w.p.WriteFieldEnd(ctx))
}

func (w *writer) list(id int16, t thrift.TType, n int, element func(i int)) {
	ctx := w.tb.Context()
	w.field(id, thrift.LIST, func() {
		w.check(w.p.WriteListBegin(ctx, t, n))
		for i := range n {
			element(i)
		}
		w.check(w.p.WriteListEnd(ctx))
	})
}

func (w *writer) set(id int16, t thrift.TType, n int, element func(i int)) {
	ctx := w.tb.Context()
	w.field(id, thrift.SET, func() {
		w.check(w.p.WriteSetBegin(ctx, t, n))
		for i := range n {
			element(i)
		}
		w.check(w.p.WriteSetEnd(ctx))
	})
}

func (w *writer) mapping(id int16, k, v thrift.TType, n int, pair func(i int)) {
	ctx := w.tb.Context()
	w.field(id, thrift.MAP, func() {
		w.check(w.p.WriteMapBegin(ctx, k, v, n))
		for i := range n {
			pair(i)
		}
		w.check(w.p.WriteMapEnd(ctx))
	})
}

func (w *writer) boolean(v bool)   { w.check(w.p.WriteBool(w.tb.Context(), v)) }
func (w *writer) i8(v int8)        { w.check(w.p.WriteByte(w.tb.Context(), v)) }
func (w *writer) i16(v int16)      { w.check(w.p.WriteI16(w.tb.Context(), v)) }
func (w *writer) i32(v int32)      { w.check(w.p.WriteI32(w.tb.Context(), v)) }
func (w *writer) i64(v int64)      { w.check(w.p.WriteI64(w.tb.Context(), v)) }
func (w *writer) double(v float64) { w.check(w.p.WriteDouble(w.tb.Context(), v)) }
func (w *writer) str(v string)     { w.check(w.p.WriteString(w.tb.Context(), v)) }
func (w *writer) uuid()            { w.check(w.p.WriteUUID(w.tb.Context(), thrift.Tuuid{1, 2, 3})) }

// scalars writes a field of each type that holds no others.
func scalars(w *writer) {
	w.field(1, thrift.BOOL, func() { w.boolean(true) })
	w.field(2, thrift.BOOL, func() { w.boolean(false) })
	w.field(3, thrift.BYTE, func() { w.i8(-3) })
	w.field(4, thrift.I16, func() { w.i16(-30000) })
	w.field(5, thrift.I32, func() { w.i32(-2e9) })
	w.field(6, thrift.I64, func() { w.i64(-9e18) })
	w.field(7, thrift.DOUBLE, func() { w.double(1e300) })
	w.field(8, thrift.STRING, func() { w.str("") })
	w.field(9, thrift.STRING, func() { w.str("text") })
	w.field(1000, thrift.UUID, func() { w.uuid() }) // an id of its own in compact
	w.field(-1, thrift.I32, func() { w.i32(0) })
	w.field(3000, thrift.BOOL, func() { w.boolean(true) })
}

// containers writes fields that hold values of every type.
func containers(w *writer) {
	w.list(1, thrift.BOOL, 3, func(i int) { w.boolean(i == 1) })
	w.list(2, thrift.BOOL, 20, func(i int) { w.boolean(i%3 == 0) })
	w.list(3, thrift.I32, 15, func(i int) { w.i32(int32(i) << 26) })
	w.list(4, thrift.DOUBLE, 2, func(i int) { w.double(0.1) })
	w.list(5, thrift.STRING, 3, func(i int) { w.str(strings.Repeat("x", i)) })
	w.list(6, thrift.UUID, 2, func(int) { w.uuid() })
	w.list(7, thrift.STRUCT, 2, func(int) { w.structure(scalars) })
	w.list(8, thrift.STRUCT, 0, nil)
	w.set(9, thrift.I64, 3, func(i int) { w.i64(int64(i) << 40) })
	w.set(10, thrift.BYTE, 3, func(i int) { w.i8(int8(i)) })
	w.mapping(11, thrift.STRING, thrift.I32, 2, func(i int) { w.str("key"); w.i32(int32(i)) })
	w.mapping(12, thrift.I32, thrift.STRING, 2, func(i int) { w.i32(int32(i)); w.str("value") })
	w.mapping(13, thrift.I16, thrift.BOOL, 3, func(i int) { w.i16(int16(i)); w.boolean(true) })
	w.mapping(14, thrift.BOOL, thrift.UUID, 1, func(int) { w.boolean(true); w.uuid() })
	w.mapping(15, thrift.STRING, thrift.STRUCT, 0, nil)
	w.mapping(16, thrift.STRING, thrift.LIST, 2, func(int) {
		w.str("k")
		w.check(w.p.WriteListBegin(w.tb.Context(), thrift.MAP, 2))
		for range 2 {
			w.check(w.p.WriteMapBegin(w.tb.Context(), thrift.I32, thrift.STRUCT, 1))
			w.i32(7)
			w.structure(func(w *writer) {
				w.field(1, thrift.STRUCT, func() { w.structure(nil) })
				w.list(2, thrift.STRING, 1, func(int) { w.str("deep") })
			})
		}
	})
	w.field(40, thrift.STRUCT, func() { w.structure(scalars) })
}

// nested writes n structs within each other.
func nested(n int) func(*writer) {
	return func(w *writer) {
		if n > 0 {
			w.field(1, thrift.STRUCT, func() { w.structure(nested(n - 1)) })
		}
	}
}

// samples are messages of each kind.
var samples = []message{
	{name: "ping", typ: Call, seq: 1},
	{name: "p", typ: Oneway, seq: 0},
	{name: "Probe:echo", typ: Call, seq: 127, body: scalars},
	{name: "echo", typ: Reply, seq: 128, body: containers},
	{name: "echo", typ: Exception, seq: 1 << 21, body: func(w *writer) {
		w.field(1, thrift.STRING, func() { w.str("no") })
		w.field(2, thrift.I32, func() { w.i32(CodeUnknownMethod) })
	}},
	{name: strings.Repeat("n", maxName), typ: Call, seq: -1},
	{name: "deep", typ: Call, seq: 1<<31 - 1, body: nested(60)},
}

// each runs a test for each sample in each readable form.
func each(t *testing.T, test func(t *testing.T, f Form, m message)) {
	for _, f := range readable {
		for _, m := range samples {
			name := fmt.Sprintf("%s %s %.12s", f, m.typ, m.name)
			t.Run(name, func(t *testing.T) { test(t, f, m) })
		}
	}
}

// checkHead compares a head with the message it is of.
func checkHead(tb testing.TB, h *Head, f Form, m message) {
	tb.Helper()
	want := Head{Form: f, Type: m.typ, Name: m.name, ID: ID{Seq: uint64(uint32(m.seq))}, IDBits: 32}
	if f.Transport == Header {
		want.ID.Outer = uint32(m.seq)
	}
	if h == nil {
		tb.Fatal("the head is not known")
	}
	got := Head{Form: h.Form, Type: h.Type, Name: h.Name, ID: h.ID, IDBits: h.IDBits, Opaque: h.Opaque, Binds: h.Binds}
	if got != want {
		tb.Errorf("head = %+v, want %+v", got, want)
	}
}

// scanners are both scanners of the default codec.
func scanners() map[string]Scanner {
	c := NewThrift(Thrift{})
	return map[string]Scanner{"requests": c.Requests(), "replies": c.Replies()}
}
