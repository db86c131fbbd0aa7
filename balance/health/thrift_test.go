package health

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"forebay/proxy/proxytest"
)

// forms are the forms of messages, as checks of them.
var forms = []struct {
	name  string
	check Thrift
}{
	{"framed binary", Thrift{}},
	{"framed compact", Thrift{Compact: true}},
	{"unframed binary", Thrift{Unframed: true}},
	{"unframed compact", Thrift{Unframed: true, Compact: true}},
}

// apache returns Apache's protocol for the form, over rw.
func (t Thrift) apache(rw io.ReadWriter) thrift.TProtocol {
	var trans thrift.TTransport = thrift.NewStreamTransportRW(rw)
	if !t.Unframed {
		trans = thrift.NewTFramedTransportConf(trans, nil)
	}
	if t.Compact {
		return thrift.NewTCompactProtocolConf(trans, nil)
	}
	return thrift.NewTBinaryProtocolConf(trans, nil)
}

// answers serves one call by Apache's library.
func (t Thrift) answers(answer func(p thrift.TProtocol, name string, seq int32)) func(proxytest.Conn) {
	return func(c proxytest.Conn) {
		ctx, p := context.Background(), t.apache(c)
		name, typ, seq, err := p.ReadMessageBegin(ctx)
		if err != nil || typ != thrift.CALL {
			return
		}
		p.Skip(ctx, thrift.STRUCT)
		p.ReadMessageEnd(ctx)
		answer(p, name, seq)
		p.Flush(ctx)
		silent(c)
	}
}

// refuses is what every server does with a method that it does not have.
func refuses(p thrift.TProtocol, name string, seq int32) {
	p.WriteMessageBegin(context.Background(), name, thrift.EXCEPTION, seq)
	thrift.NewTApplicationException(thrift.UNKNOWN_METHOD, "Unknown function "+name).Write(context.Background(), p)
	p.WriteMessageEnd(context.Background())
}

// replies with a struct of everything.
func replies(p thrift.TProtocol, name string, seq int32) {
	ctx := context.Background()
	p.WriteMessageBegin(ctx, name, thrift.REPLY, seq)
	writeStruct(ctx, p, rand.New(rand.NewPCG(1, 1)), 0)
	p.WriteMessageEnd(ctx)
}

func TestThriftAsksRealServers(t *testing.T) {
	for _, form := range forms {
		t.Run(form.name, func(t *testing.T) {
			at := proxytest.Serve(t, "tcp", form.check.answers(refuses))
			wantError(t, asks(t, at, form.check.Talk, time.Minute), "")

			at = proxytest.Serve(t, "unix", form.check.answers(func(p thrift.TProtocol, name string, seq int32) {
				if name != "ping" || seq < 0 {
					t.Errorf("method %q, call %d", name, seq)
				}
				replies(p, name, seq)
			}))
			check := form.check
			check.Method = "ping"
			wantError(t, asks(t, at, check.Talk, time.Minute), "")

			at = proxytest.Serve(t, "tcp", form.check.answers(func(p thrift.TProtocol, name string, seq int32) {
				refuses(p, name, seq^1)
			}))
			wantError(t, asks(t, at, form.check.Talk, time.Minute), "it answers call ")
		})
	}
}

func TestThriftMeetsOtherThings(t *testing.T) {
	framed, bare := Thrift{}, Thrift{Unframed: true, Compact: true}
	tests := []struct {
		name    string
		check   Thrift
		backend func(proxytest.Conn)
		timeout time.Duration
		want    string
	}{
		{"silence", framed, silent, brief, "i/o timeout"},
		{"silence, unframed", bare, silent, brief, "i/o timeout"},
		{"an end", framed, hangsUp, time.Minute, "EOF"},
		{"an end, unframed", bare, hangsUp, time.Minute, "EOF"},
		{"a reset", framed, resets, time.Minute, "reset"},
		{"HTTP", framed, says("HTTP/1.1 400 Bad Request\r\n\r\n"), time.Minute, `"HTTP" announces a frame of 1213486160 bytes, limit 65536`},
		{"HTTP, unframed", bare, says("HTTP/1.1 400 Bad Request\r\n\r\n"), time.Minute, `it begins with "HT", not as the compact protocol`},
		{"a flood of zeros", framed, floods, time.Minute, "the message goes on beyond its frame"},
		{"a flood of zeros, unframed", bare, floods, time.Minute, "not as the compact protocol"},
		{"a frame without its message", framed, says("\x00\x00\x00\x20"), brief, "i/o timeout"},
		{"a frame without its end", framed, says("\x00\x00\x00\x20\x80\x01"), brief, "i/o timeout"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			at := proxytest.Serve(t, "tcp", tt.backend)
			wantError(t, asks(t, at, tt.check.Talk, tt.timeout), tt.want)
		})
	}
}

// old is a reply in the old binary form.
const old = "\x00\x00\x00\x04ping\x02\x00\x00\x00\x07\x00"

func TestReplies(t *testing.T) {
	framed := func(s string) string {
		return string(binary.BigEndian.AppendUint32(nil, uint32(len(s)))) + s
	}
	const head, compact = "\x80\x01\x00\x02\x00\x00\x00\x04ping\x00\x00\x00\x07", "\x82\x41\x07\x04ping"
	tests := []struct {
		name  string
		check Thrift
		bytes string
		want  string
	}{
		{"empty", Thrift{}, framed(head + "\x00"), ""},
		{"an exception", Thrift{}, framed("\x80\x01\x00\x03\x00\x00\x00\x04ping\x00\x00\x00\x07\x00"), ""},
		{"compact", Thrift{Compact: true}, framed(compact + "\x00"), ""},
		{"in the old form", Thrift{}, framed(old), ""},
		{"in the old form, unframed", Thrift{Unframed: true}, old, ""},
		{"unframed, with more behind it", Thrift{Unframed: true}, head + "\x00more", ""},

		{"a call", Thrift{}, framed("\x80\x01\x00\x01\x00\x00\x00\x04ping\x00\x00\x00\x07\x00"), "a message of type 1, not a reply"},
		{"a oneway call", Thrift{Compact: true}, framed("\x82\x81\x07\x04ping\x00"), "a message of type 4, not a reply"},
		{"to another call", Thrift{}, framed("\x80\x01\x00\x02\x00\x00\x00\x04ping\x00\x00\x00\x08\x00"), "it answers call 8, not 7"},
		{"of another protocol", Thrift{}, framed(compact + "\x00"), "not as the binary protocol"},
		{"of the other protocol", Thrift{Compact: true}, framed(head + "\x00"), "not as the compact protocol"},
		{"of another version", Thrift{Compact: true}, framed("\x82\x42\x07\x04ping\x00"), "not as the compact protocol"},
		{"cut short", Thrift{}, framed(head + "\x00")[:12], "unexpected EOF"},
		{"cut short, unframed", Thrift{Unframed: true}, head, "unexpected EOF"},
		{"without its struct", Thrift{}, framed(head), "goes on beyond its frame"},
		{"with more in its frame", Thrift{}, framed(head + "\x00\x00"), "the frame goes on beyond its message"},
		{"of nothing", Thrift{}, framed(""), "goes on beyond its frame"},
		{"a large frame", Thrift{}, "\x00\x01\x00\x01", "frame of 65537 bytes, limit 65536"},
		{"a value of no type", Thrift{}, framed(head + "\x07\x00\x01\x00"), "a value of type 7"},
		{"a compact value of no type", Thrift{Compact: true}, framed(compact + "\x1e\x00"), "a value of type 14"},
		{"a negative length", Thrift{}, framed(head + "\x0b\x00\x01\xff\xff\xff\xff\x00"), "a length of -1 bytes"},
		{"a negative count", Thrift{}, framed(head + "\x0f\x00\x01\x08\xff\xff\xff\xff\x00"), "a container of -1"},
		{"a long string", Thrift{}, framed(head + "\x0b\x00\x01\x7f\xff\xff\xff\x00"), "goes on beyond its frame"},
		{"a long list", Thrift{}, framed(head + "\x0f\x00\x01\x08\x7f\xff\xff\xff\x00"), "goes on beyond its frame"},
		{"a long compact list", Thrift{Compact: true}, framed(compact + "\x19\xf1\xff\xff\xff\xff\x0f\x00"), "goes on beyond its frame"},
		{"a length of more than 32 bits", Thrift{Compact: true}, framed(compact + "\x18\xff\xff\xff\xff\x1f\x00"), "32 bits are the most"},
		{"structs in structs", Thrift{}, framed(head + strings.Repeat("\x0c\x00\x01", 64)), "more than 64 deep"},
		{"lists in lists", Thrift{Compact: true}, framed(compact + "\x19" + strings.Repeat("\x19", 64)), "more than 64 deep"},
		{"unframed without end", Thrift{Unframed: true}, head + strings.Repeat("\x02\x00\x01\x01", maxReply), "or is too large"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wantError(t, tt.check.readReply(strings.NewReader(tt.bytes), 7), tt.want)
			wantError(t, tt.check.readReply(iotest.OneByteReader(strings.NewReader(tt.bytes)), 7), tt.want)
		})
	}
}

// A reply ends the check where it ends, whatever its connection does.
func TestAReplyIsNotWaitedBeyond(t *testing.T) {
	for _, form := range forms {
		ours, theirs := net.Pipe()
		donec := make(chan struct{})
		go func() {
			defer close(donec)
			form.check.answers(replies)(pipe{theirs}) // and then waits for more
		}()
		ours.SetDeadline(time.Now().Add(time.Minute))
		wantError(t, form.check.Talk(ours), "")
		ours.Close()
		proxytest.Receive(t, donec, "the end of the backend")
	}
}

type pipe struct{ net.Conn }

func (pipe) CloseWrite() error { return nil }

// writeStruct writes a random struct.
func writeStruct(ctx context.Context, p thrift.TProtocol, rng *rand.Rand, depth int) {
	p.WriteStructBegin(ctx, "")
	id := int16(0)
	for _, typ := range types {
		if rng.IntN(3) == 0 {
			continue
		}
		id += int16(1 + rng.IntN(20)) // some far from the last
		p.WriteFieldBegin(ctx, "", typ, id)
		writeValue(ctx, p, rng, typ, depth)
		p.WriteFieldEnd(ctx)
	}
	p.WriteFieldStop(ctx)
	p.WriteStructEnd(ctx)
}

var types = []thrift.TType{thrift.BOOL, thrift.BYTE, thrift.DOUBLE, thrift.I16, thrift.I32, thrift.I64, thrift.STRING,
	thrift.UUID, thrift.STRUCT, thrift.MAP, thrift.SET, thrift.LIST}

func writeValue(ctx context.Context, p thrift.TProtocol, rng *rand.Rand, typ thrift.TType, depth int) {
	elem := func() thrift.TType {
		if depth > 2 {
			return types[rng.IntN(8)]
		}
		return types[rng.IntN(len(types))]
	}
	size := rng.IntN(4)
	if depth == 0 && rng.IntN(4) == 0 {
		size = 20 // too many for the short form of the compact protocol
	}
	switch typ {
	case thrift.BOOL:
		p.WriteBool(ctx, rng.IntN(2) == 0)
	case thrift.BYTE:
		p.WriteByte(ctx, int8(rng.Int()))
	case thrift.DOUBLE:
		p.WriteDouble(ctx, rng.Float64())
	case thrift.I16:
		p.WriteI16(ctx, int16(rng.Int()))
	case thrift.I32:
		p.WriteI32(ctx, int32(rng.Int()))
	case thrift.I64:
		p.WriteI64(ctx, int64(rng.Uint64()))
	case thrift.STRING:
		p.WriteString(ctx, strings.Repeat("s", rng.IntN(200)))
	case thrift.UUID:
		p.WriteUUID(ctx, thrift.Tuuid{1, 2, 3})
	case thrift.STRUCT:
		if depth > 2 {
			p.WriteStructBegin(ctx, "")
			p.WriteFieldStop(ctx)
			p.WriteStructEnd(ctx)
			return
		}
		writeStruct(ctx, p, rng, depth+1)
	case thrift.MAP:
		k, v := elem(), elem()
		p.WriteMapBegin(ctx, k, v, size)
		for range size {
			writeValue(ctx, p, rng, k, depth+1)
			writeValue(ctx, p, rng, v, depth+1)
		}
		p.WriteMapEnd(ctx)
	case thrift.SET, thrift.LIST:
		e := elem()
		if typ == thrift.SET {
			p.WriteSetBegin(ctx, e, size)
		} else {
			p.WriteListBegin(ctx, e, size)
		}
		for range size {
			writeValue(ctx, p, rng, e, depth+1)
		}
	}
}

// message is a random reply to call 7.
func (t Thrift) message(rng *rand.Rand) []byte {
	var b bytes.Buffer
	p := t.apache(&b)
	p.WriteMessageBegin(context.Background(), "ping", thrift.REPLY, 7)
	writeStruct(context.Background(), p, rng, 0)
	p.WriteMessageEnd(context.Background())
	p.Flush(context.Background())
	return b.Bytes()
}

func TestRandomRepliesAreReadToTheirEnd(t *testing.T) {
	read := 0
	for _, form := range forms {
		for range 100 {
			seed := rand.Uint64()
			b := form.check.message(rand.New(rand.NewPCG(seed, 0)))
			if len(b) > maxReply {
				continue
			}
			read++
			if err := form.check.readReply(bytes.NewReader(b), 7); err != nil {
				t.Errorf("%s, seed %d: %v", form.name, seed, err)
			}
			if err := form.check.readReply(bytes.NewReader(b[:len(b)-1]), 7); err == nil {
				t.Errorf("%s, seed %d: a reply without its last byte is good", form.name, seed)
			}
		}
	}
	if read < 200 {
		t.Errorf("only %d replies were small enough to be read", read)
	}
}

// Whatever a backend sends, a check ends, having read no more than it may.
func FuzzReply(f *testing.F) {
	for i, form := range forms {
		f.Add(byte(i), form.check.message(rand.New(rand.NewPCG(1, 1))))
		f.Add(byte(i), form.check.call(7))
	}
	f.Add(byte(2), []byte(old))
	f.Fuzz(func(t *testing.T, i byte, b []byte) {
		check := forms[int(i)%len(forms)].check
		r := bytes.NewReader(b)
		err := check.readReply(r, 7)
		if read := len(b) - r.Len(); read > maxReply+4 {
			t.Errorf("it read %d bytes", read)
		}
		if err != nil || check.Unframed {
			return
		}
		if n := binary.BigEndian.Uint32(b); int(n)+4 > len(b) {
			t.Errorf("a frame of %d bytes is good that has %d", n, len(b)-4)
		}
	})
}
