package loadtest

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/apache/thrift/lib/go/thrift"
)

// A body is the message that is being read, as the library reads it. Without a
// length around it, it ends where its parser stops.
type body struct {
	*thrift.TMemoryBuffer // nil: the methods of a transport that a reader never needs

	from *bufio.Reader
	left int64
}

var errFrameEnd = errors.New("the message is longer than its frame")

// Read reads no further than the frame's end.
func (b *body) Read(p []byte) (int, error) {
	if b.left <= 0 && len(p) > 0 {
		return 0, errFrameEnd
	}
	n, err := b.from.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// ReadByte reads no further than the frame's end.
func (b *body) ReadByte() (byte, error) {
	if b.left <= 0 {
		return 0, errFrameEnd
	}
	c, err := b.from.ReadByte()
	if err == nil {
		b.left--
	}
	return c, err
}

// RemainingBytes lets the library refuse a container that cannot fit.
func (b *body) RemainingBytes() uint64 { return uint64(b.left) }

// wrapping is what THeader has around a message besides the protocol.
type wrapping struct {
	flags uint16
	seq   int32
	zlib  bool
}

// A messageReader reads messages of any form.
type messageReader struct {
	r      *bufio.Reader
	body   body
	codecs codecs

	// Of the message that next has begun:
	form form
	wrap wrapping
}

// next begins the next message and returns the protocol to read it by.
func (m *messageReader) next() (thrift.TProtocol, error) {
	f, err := peekForm(m.r)
	if err != nil {
		return nil, err
	}
	m.form, m.wrap = f, wrapping{}
	m.body.from, m.body.left = m.r, math.MaxInt64
	if f.transport != unframed {
		err = m.readLength()
	}
	if err == nil && f.transport == header {
		err = m.readHeader()
	}
	if err != nil {
		return nil, err
	}
	return m.codecs.get(m.form.protocol, &m.body), nil
}

func (m *messageReader) readLength() error {
	var b [4]byte
	if _, err := io.ReadFull(m.r, b[:]); err != nil {
		return err
	}
	m.body.left = int64(binary.BigEndian.Uint32(b[:]))
	return nil
}

// The sizes of THeader's fields before the header proper, and of the whole that
// a messageWriter writes.
const (
	headerFixed  = 10
	headerLength = headerFixed + 4
)

// readHeader reads what THeader has before the message.
func (m *messageReader) readHeader() error {
	var fixed [headerFixed]byte
	if _, err := io.ReadFull(&m.body, fixed[:]); err != nil {
		return err
	}
	m.wrap.flags = binary.BigEndian.Uint16(fixed[2:])
	m.wrap.seq = int32(binary.BigEndian.Uint32(fixed[4:]))
	rest := make([]byte, 4*int(binary.BigEndian.Uint16(fixed[8:])))
	if _, err := io.ReadFull(&m.body, rest); err != nil {
		return err
	}
	words := bytes.NewReader(rest)
	id, err := binary.ReadUvarint(words)
	if err != nil {
		return err
	}
	switch thrift.THeaderProtocolID(id) {
	case thrift.THeaderProtocolBinary:
		m.form.protocol = binaryStrict
	case thrift.THeaderProtocolCompact:
		m.form.protocol = compact
	default:
		return fmt.Errorf("THeader with protocol %d", id)
	}
	return m.readTransforms(words)
}

// readTransforms undoes what was done to the message: nothing, or zlib.
func (m *messageReader) readTransforms(words io.ByteReader) error {
	n, err := binary.ReadUvarint(words)
	if err != nil || n == 0 {
		return err
	}
	id, err := binary.ReadUvarint(words)
	if err != nil {
		return err
	}
	if n != 1 || thrift.THeaderTransformID(id) != thrift.TransformZlib {
		return fmt.Errorf("THeader with %d transforms, the first of them %d", n, id)
	}
	packed, err := io.ReadAll(io.LimitReader(m.r, m.body.left))
	if err != nil {
		return err
	}
	plain, err := zlib.NewReader(bytes.NewReader(packed))
	if err != nil {
		return err
	}
	m.wrap.zlib = true
	m.body.from, m.body.left = bufio.NewReader(plain), maxThrift
	return nil
}

// A messageWriter makes messages, one at a time, in memory.
type messageWriter struct {
	buf    *thrift.TMemoryBuffer
	codecs codecs
	form   form
	wrap   wrapping
}

func newMessageWriter() messageWriter {
	return messageWriter{buf: thrift.NewTMemoryBuffer()}
}

// begin starts a message and returns the protocol to write it by.
func (m *messageWriter) begin(f form, wrap wrapping) thrift.TProtocol {
	m.form, m.wrap = f, wrap
	m.buf.Reset()
	m.buf.Write(make([]byte, m.before()))
	return m.codecs.get(f.protocol, m.buf)
}

// before is how many bytes stand before the message.
func (m *messageWriter) before() int {
	switch m.form.transport {
	case framed:
		return 4
	case header:
		return 4 + headerLength
	default:
		return 0
	}
}

// end returns the message with what its transport has around it. It is valid
// until the next begin.
func (m *messageWriter) end() ([]byte, error) {
	b := m.buf.Bytes()
	if m.form.transport == header {
		m.putHeader(b[4:])
	}
	if m.wrap.zlib {
		var err error
		if b, err = deflate(b, m.before()); err != nil {
			return nil, err
		}
	}
	if m.form.transport != unframed {
		binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	}
	return b, nil
}

func (m *messageWriter) putHeader(b []byte) {
	binary.BigEndian.PutUint16(b, 0x0fff)
	binary.BigEndian.PutUint16(b[2:], m.wrap.flags)
	binary.BigEndian.PutUint32(b[4:], uint32(m.wrap.seq))
	binary.BigEndian.PutUint16(b[8:], 1) // four bytes follow before the message
	words := b[headerFixed:headerLength]
	words[0] = byte(thrift.THeaderProtocolBinary)
	if m.form.protocol == compact {
		words[0] = byte(thrift.THeaderProtocolCompact)
	}
	if m.wrap.zlib {
		words[1], words[2] = 1, byte(thrift.TransformZlib)
	}
}

// deflate compresses all of b but its first bytes.
func deflate(b []byte, before int) ([]byte, error) {
	var out bytes.Buffer
	out.Write(b[:before])
	w := zlib.NewWriter(&out)
	if _, err := w.Write(b[before:]); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// A head is what every message begins with.
type head struct {
	name string
	typ  thrift.TMessageType
	seq  int32
}

func readHead(p thrift.TProtocol) (h head, err error) {
	h.name, h.typ, h.seq, err = p.ReadMessageBegin(background)
	return h, err
}
