package loadtest

import (
	"context"
	"encoding/hex"
	"errors"
	"math"

	"github.com/apache/thrift/lib/go/thrift"
)

// minText is the shortest text that has room for both numbers.
const minText = 2 * idSize

// maxSize is the most bytes of a text: an Item has six times as many, and shall
// fit into a frame.
const maxSize = maxThrift / 8

// A content is what one call carries: the pattern of its client and request,
// and the same as text. Both tell whose they are.
type content struct {
	client, seq uint64
	raw         []byte // fillPattern's
	text        []byte // hexadecimal, and so whatever a string must be
}

func newContent(size int) content {
	return content{raw: make([]byte, size), text: make([]byte, size)}
}

func (c *content) fill(client, seq uint64) {
	c.client, c.seq = client, seq
	fillPattern(c.raw, client, seq)
	n := hex.Encode(c.text, c.raw[:len(c.text)/2])
	if n < len(c.text) {
		c.text[n] = '.'
	}
}

// idsOf returns the numbers at the front of a text or of raw bytes.
func idsOf(b []byte) (client, seq uint64, ok bool) {
	var ids [idSize]byte
	if len(b) >= minText {
		if _, err := hex.Decode(ids[:], b[:minText]); err == nil {
			client, seq = readIDs(ids[:])
			return client, seq, true
		}
	}
	if len(b) < idSize {
		return 0, 0, false
	}
	client, seq = readIDs(b)
	return client, seq, true
}

// A kind is what is in a field of arguments or of a result.
type kind byte

const (
	nothing kind = iota
	text
	blob
	item
	failure // a struct of a text
)

// write writes the struct of arguments or of a result with c in field id. What
// it writes to is in memory, where nothing fails but what is put wrongly.
func (c *content) write(out thrift.TProtocol, k kind, id int16) error {
	err := out.WriteStructBegin(background, "")
	switch k {
	case text:
		err = errors.Join(err, writeBinary(out, id, c.text))
	case blob:
		err = errors.Join(err, writeBinary(out, id, c.raw))
	case item:
		err = errors.Join(err, out.WriteFieldBegin(background, "", thrift.STRUCT, id), c.writeItem(out, 2))
	case failure:
		err = errors.Join(err, out.WriteFieldBegin(background, "", thrift.STRUCT, id),
			c.write(out, text, 1), out.WriteFieldEnd(background))
	}
	return errors.Join(err, out.WriteFieldStop(background), out.WriteStructEnd(background))
}

func writeBinary(out thrift.TProtocol, id int16, b []byte) error {
	return writeField(out, thrift.STRING, id, b, out.WriteBinary)
}

// writeItem writes an Item with every type of value in it, and in its list as
// many Items as parts, which have none themselves.
func (c *content) writeItem(out thrift.TProtocol, parts int) error {
	x := c.client ^ c.seq
	return errors.Join(
		out.WriteStructBegin(background, "Item"),
		writeBinary(out, 1, c.text),
		writeBinary(out, 2, c.raw),
		writeField(out, thrift.BOOL, 3, x&1 == 1, out.WriteBool),
		writeField(out, thrift.BYTE, 4, int8(x), out.WriteByte),
		writeField(out, thrift.I16, 5, int16(x), out.WriteI16),
		writeField(out, thrift.I32, 6, int32(x), out.WriteI32),
		writeField(out, thrift.I64, 7, int64(c.client), out.WriteI64),
		writeField(out, thrift.DOUBLE, 8, math.Sqrt(float64(c.seq)), out.WriteDouble),
		c.writeCounts(out),
		c.writeMarks(out),
		c.writeParts(out, parts),
		out.WriteFieldStop(background),
		out.WriteStructEnd(background))
}

func writeField[T any](out thrift.TProtocol, typ thrift.TType, id int16, v T, write func(context.Context, T) error) error {
	return errors.Join(out.WriteFieldBegin(background, "", typ, id), write(background, v), out.WriteFieldEnd(background))
}

func (c *content) writeCounts(out thrift.TProtocol) error {
	return errors.Join(
		out.WriteFieldBegin(background, "counts", thrift.MAP, 9),
		out.WriteMapBegin(background, thrift.STRING, thrift.I64, 2),
		out.WriteString(background, "client"), out.WriteI64(background, int64(c.client)),
		out.WriteString(background, "request"), out.WriteI64(background, int64(c.seq)),
		out.WriteMapEnd(background),
		out.WriteFieldEnd(background))
}

func (c *content) writeMarks(out thrift.TProtocol) error {
	return errors.Join(
		out.WriteFieldBegin(background, "marks", thrift.SET, 10),
		out.WriteSetBegin(background, thrift.I32, 3),
		out.WriteI32(background, -1), out.WriteI32(background, 0), out.WriteI32(background, int32(c.seq)|1),
		out.WriteSetEnd(background),
		out.WriteFieldEnd(background))
}

func (c *content) writeParts(out thrift.TProtocol, parts int) error {
	err := errors.Join(
		out.WriteFieldBegin(background, "parts", thrift.LIST, 11),
		out.WriteListBegin(background, thrift.STRUCT, parts))
	for range parts {
		err = errors.Join(err, c.writeItem(out, 0))
	}
	return errors.Join(err, out.WriteListEnd(background), out.WriteFieldEnd(background))
}
