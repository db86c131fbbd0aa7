package frame

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"
)

func TestAppendExceptionBytes(t *testing.T) {
	const (
		binaryStruct  = "\x0b\x00\x01\x00\x00\x00\x04full\x08\x00\x02\x00\x00\x00\x06\x00"
		compactStruct = "\x18\x04full\x15\x0c\x00"
	)
	tests := []struct {
		form Form
		want string
	}{
		{Form{Unframed, Binary}, "\x80\x01\x00\x03\x00\x00\x00\x04ping\x00\x00\x00\x09" + binaryStruct},
		{Form{Unframed, BinaryOld}, "\x00\x00\x00\x04ping\x03\x00\x00\x00\x09" + binaryStruct},
		{Form{Unframed, Compact}, "\x82\x61\x09\x04ping" + compactStruct},
		{Form{Framed, Binary}, "\x00\x00\x00\x23\x80\x01\x00\x03\x00\x00\x00\x04ping\x00\x00\x00\x09" + binaryStruct},
		{Form{Framed, BinaryOld}, "\x00\x00\x00\x20\x00\x00\x00\x04ping\x03\x00\x00\x00\x09" + binaryStruct},
		{Form{Framed, Compact}, "\x00\x00\x00\x11\x82\x61\x09\x04ping" + compactStruct},
		{Form{Header, Binary}, "\x00\x00\x00\x31\x0f\xff\x00\x00\x00\x00\x00\x09\x00\x01\x00\x00\x00\x00" +
			"\x80\x01\x00\x03\x00\x00\x00\x04ping\x00\x00\x00\x09" + binaryStruct},
		{Form{Header, BinaryOld}, "\x00\x00\x00\x2e\x0f\xff\x00\x00\x00\x00\x00\x09\x00\x01\x00\x00\x00\x00" +
			"\x00\x00\x00\x04ping\x03\x00\x00\x00\x09" + binaryStruct},
		{Form{Header, Compact}, "\x00\x00\x00\x1f\x0f\xff\x00\x00\x00\x00\x00\x09\x00\x01\x02\x00\x00\x00" +
			"\x82\x61\x09\x04ping" + compactStruct},
	}
	codec := NewThrift(Thrift{})
	for _, tt := range tests {
		t.Run(tt.form.String(), func(t *testing.T) {
			h := headOf(t, message{name: "Probe:ping", typ: Call, seq: 9, body: scalars}.bytes(t, tt.form))
			got := codec.AppendException([]byte("x"), h, CodeInternalError, "full")
			if string(got) != "x"+tt.want {
				t.Errorf("AppendException = % x, want % x", got[1:], tt.want)
			}
		})
	}
}

func TestAppendExceptionHasNoAnswerInOtherProtocols(t *testing.T) {
	codec := NewThrift(Thrift{})
	m := message{name: "ping", typ: Call, seq: 9}
	lengths, err := NewLength(Length{Width: 4})
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string][]byte{
		"nil head":   codec.AppendException(nil, nil, 6, "text"),
		"json":       codec.AppendException(nil, headOf(t, m.bytes(t, Form{Framed, JSON})), 6, "text"),
		"transforms": codec.AppendException(nil, headOf(t, m.bytes(t, Form{Header, Binary}, thrift.TransformZlib)), 6, "text"),
		"length":     lengths.AppendException(nil, &Head{Type: Call}, 6, "text"),
		"zero head":  codec.AppendException(nil, &Head{}, 6, "text"),
	} {
		if got != nil {
			t.Errorf("%s: % x", name, got)
		}
	}
}

// answered is a connection whose other side answers each request by answer.
type answered struct {
	*thrift.TMemoryBuffer // what is to be read
	sent                  []byte
	answer                func(request []byte) []byte
}

func (a *answered) Write(p []byte) (int, error) {
	a.sent = append(a.sent, p...)
	return len(p), nil
}

func (a *answered) WriteByte(c byte) error {
	_, err := a.Write([]byte{c})
	return err
}

func (a *answered) WriteString(s string) (int, error) { return a.Write([]byte(s)) }

func (a *answered) Flush(context.Context) error {
	_, err := a.TMemoryBuffer.Write(a.answer(a.sent))
	a.sent = nil
	return err
}

// noArgs is an empty struct for calls.
type noArgs struct{}

func (noArgs) Write(ctx context.Context, p thrift.TProtocol) error { return p.WriteFieldStop(ctx) }
func (noArgs) Read(ctx context.Context, p thrift.TProtocol) error {
	return thrift.SkipDefaultDepth(ctx, p, thrift.STRUCT)
}

func TestLibraryRaisesTheException(t *testing.T) {
	for _, f := range readable {
		for _, code := range []int32{CodeUnknown, CodeInternalError, CodeProtocolError, 99, -1} {
			t.Run(fmt.Sprintf("%s code %d", f, code), func(t *testing.T) {
				codec := NewThrift(Thrift{})
				conn := &answered{TMemoryBuffer: thrift.NewTMemoryBuffer()}
				conn.answer = func(request []byte) []byte {
					return codec.AppendException(nil, headOf(t, request), code, "forebay: no backend")
				}
				p := library(f, conn)
				client := thrift.NewTStandardClient(p, thrift.NewTMultiplexedProtocol(p, "Probe"))
				for range 3 { // the connection stays usable
					_, err := client.Call(t.Context(), "ping", noArgs{}, noArgs{})
					var e thrift.TApplicationException
					if !errors.As(err, &e) || e.TypeId() != code || e.Error() != "forebay: no backend" {
						t.Fatalf("the client got %v", err)
					}
				}
			})
		}
	}
}

func TestExceptionCodeIsReadBack(t *testing.T) {
	codec := NewThrift(Thrift{})
	for _, f := range readable {
		for _, code := range []int32{0, 1, 6, 99, -1, 1<<31 - 1, -1 << 31} {
			request := headOf(t, message{name: "ping", typ: Call, seq: 4}.bytes(t, f))
			b := codec.AppendException(nil, request, code, "text")
			h := headOf(t, b)
			if got, ok := codec.ExceptionCode(h, b[h.Size:]); !ok || got != code {
				t.Errorf("%s: code = %d, %t; want %d", f, got, ok, code)
			}
			for end := range len(b) - h.Size {
				if _, ok := codec.ExceptionCode(h, b[h.Size:h.Size+end]); ok {
					t.Errorf("%s: a body cut at %d of %d bytes has a code", f, end, len(b)-h.Size)
				}
			}
		}
	}
}

func TestExceptionCodePassesOverOtherFields(t *testing.T) {
	codec := NewThrift(Thrift{})
	tests := []struct {
		name string
		body func(*writer)
		want int32
	}{
		{name: "no fields", body: nil, want: CodeUnknown},
		{name: "others around", want: 7, body: func(w *writer) {
			w.list(-5, thrift.STRUCT, 2, func(int) {
				w.structure(func(w *writer) { w.field(2, thrift.I32, func() { w.i32(1) }) })
			})
			w.field(1, thrift.STRING, func() { w.str("text") })
			w.field(2, thrift.I32, func() { w.i32(7) })
			w.field(3, thrift.STRUCT, func() { w.structure(containers) })
			w.field(300, thrift.I32, func() { w.i32(8) })
		}},
		{name: "code of another type", want: CodeUnknown, body: func(w *writer) {
			w.field(2, thrift.STRING, func() { w.str("text") })
		}},
		{name: "bool before", want: 3, body: func(w *writer) {
			w.field(1, thrift.BOOL, func() { w.boolean(true) })
			w.field(2, thrift.I32, func() { w.i32(3) })
		}},
	}
	for _, tt := range tests {
		for _, f := range readable {
			b := message{name: "x", typ: Exception, body: tt.body}.bytes(t, f)
			h := headOf(t, b)
			if got, ok := codec.ExceptionCode(h, b[h.Size:]); !ok || got != tt.want {
				t.Errorf("%s, %s: code = %d, %t; want %d", tt.name, f, got, ok, tt.want)
			}
		}
	}
	reply := headOf(t, message{name: "x", typ: Reply}.bytes(t, Form{Framed, Binary}))
	if _, ok := codec.ExceptionCode(reply, []byte{0}); ok {
		t.Error("a reply without an exception has a code")
	}
}
