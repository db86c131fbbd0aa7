package frame

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"
)

// A tree writes random structs.
type tree struct {
	*rand.Rand
	w      *writer
	values int // still to be written
}

var valueTypes = []thrift.TType{
	thrift.BOOL, thrift.BYTE, thrift.I16, thrift.I32, thrift.I64, thrift.DOUBLE, thrift.STRING, thrift.UUID,
	thrift.STRUCT, thrift.LIST, thrift.SET, thrift.MAP,
}

func (r *tree) typ() thrift.TType { return valueTypes[r.IntN(len(valueTypes))] }

// size is a number of elements, around where the compact list changes its form
// at times.
func (r *tree) size() int {
	if r.values < 0 {
		return 0
	}
	return []int{0, 1, 2, 3, 14, 15, 16, 130}[r.IntN(8)]
}

func (r *tree) value(t thrift.TType, depth int) {
	r.values--
	if depth > 50 {
		r.values = -1
	}
	w, ctx := r.w, r.w.tb.Context()
	switch t {
	case thrift.BOOL:
		w.boolean(r.IntN(2) == 0)
	case thrift.BYTE:
		w.i8(int8(r.Int()))
	case thrift.I16:
		w.i16(int16(r.Int() >> r.IntN(64)))
	case thrift.I32:
		w.i32(int32(r.Int() >> r.IntN(64)))
	case thrift.I64:
		w.i64(int64(r.Uint64() >> r.IntN(64)))
	case thrift.DOUBLE:
		w.double(r.Float64())
	case thrift.STRING:
		w.str(strings.Repeat("s", r.IntN(200)))
	case thrift.UUID:
		w.uuid()
	case thrift.STRUCT:
		w.structure(func(w *writer) { r.fields(depth) })
	case thrift.LIST, thrift.SET:
		n, elem := r.size(), r.typ()
		w.check(w.p.WriteListBegin(ctx, elem, n))
		for range n {
			r.value(elem, depth+1)
		}
	case thrift.MAP:
		n, k, v := r.size(), r.typ(), r.typ()
		w.check(w.p.WriteMapBegin(ctx, k, v, n))
		for range n {
			r.value(k, depth+1)
			r.value(v, depth+1)
		}
	}
}

func (r *tree) fields(depth int) {
	for range r.IntN(6) {
		if r.values < 0 {
			return
		}
		t := r.typ()
		r.w.field(int16(r.Int()>>r.IntN(64)), t, func() { r.value(t, depth+1) })
	}
}

func TestRandomStructsEndWhereTheLibraryEndsThem(t *testing.T) {
	for _, f := range []Form{{Unframed, Binary}, {Unframed, BinaryOld}, {Unframed, Compact}} {
		t.Run(f.String(), func(t *testing.T) {
			var stream []byte
			var ends []int
			for seed := range uint64(200) {
				body := func(w *writer) {
					r := &tree{Rand: rand.New(rand.NewPCG(seed, 0)), w: w, values: 300}
					r.fields(1)
				}
				stream = append(stream, message{name: "x", typ: Call, seq: int32(seed), body: body}.bytes(t, f)...)
				ends = append(ends, len(stream))
			}
			random := rand.New(rand.NewPCG(1, 2))
			for side, s := range scanners() {
				tr := traceOf(t, s, stream, func() int { return random.IntN(300) })
				if tr.err != "" || len(tr.ends) != len(ends) {
					t.Fatalf("%s: %d messages of %d, error %q", side, len(tr.ends), len(ends), tr.err)
				}
				for i, end := range ends {
					if tr.ends[i] != end {
						t.Fatalf("%s: message %d ends at %d, want %d", side, i, tr.ends[i], end)
					}
				}
			}
		})
	}
}
