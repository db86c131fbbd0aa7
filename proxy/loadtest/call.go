package loadtest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"

	"github.com/apache/thrift/lib/go/thrift"
)

// A method is one way to call the echo service.
type method struct {
	name   string // as it is called
	typ    thrift.TMessageType
	arg    kind
	result kind
	field  int16 // of the result
}

// methods are what a mix is of; the first alone is the default.
var methods = []method{
	{name: "echo", typ: thrift.CALL, arg: text, result: text},
	{name: "echoBinary", typ: thrift.CALL, arg: blob, result: blob},
	{name: "echoItem", typ: thrift.CALL, arg: item, result: item},
	{name: "fail", typ: thrift.CALL, arg: text, result: failure, field: 1},
	{name: "ping", typ: thrift.CALL},
	{name: unknownName, typ: thrift.CALL, arg: text},
	{name: onewayName, typ: thrift.ONEWAY, arg: text},
	{name: onewayName, typ: thrift.CALL, arg: text}, // as clients in Go send it
	{name: serviceName + thrift.MULTIPLEXED_SEPARATOR + "echo", typ: thrift.CALL, arg: text, result: text},
}

// unknownName is the method that no server has.
const unknownName = "noSuchMethod"

func (m *method) isOneway() bool { return m.name == onewayName }

// replyName is the name that a reply has: that of the method alone.
func (m *method) replyName() string {
	_, short, multiplexed := strings.Cut(m.name, thrift.MULTIPLEXED_SEPARATOR)
	if multiplexed {
		return short
	}
	return m.name
}

// A caller makes the requests of a client as calls of the echo service.
type caller struct {
	c       *client
	form    form
	methods []method
	in      messageReader
	out     messageWriter
	broken  error // of the connection, not of what came over it

	// Of the latest call:
	method  method
	seq     int32
	content content
	want    result
	got     result
}

// A result is the struct of a reply in a form that can be compared.
type result struct {
	buf   *thrift.TMemoryBuffer
	codec thrift.TProtocol
}

func newResult() result {
	buf := thrift.NewTMemoryBuffer()
	return result{buf: buf, codec: newCodec(binaryStrict, buf)}
}

func newCaller(c *client, cfg *LoadConfig) *caller {
	k := &caller{
		c:       c,
		form:    form{transports[cfg.ThriftTransport], encodings[cfg.ThriftProtocol]},
		methods: methods[:1],
		out:     newMessageWriter(),
		content: newContent(cfg.Size),
		want:    newResult(),
		got:     newResult(),
	}
	if cfg.Method == "mix" {
		k.methods = methods
	}
	k.in.r = bufio.NewReader(nil)
	return k
}

// connected begins with a new connection.
func (k *caller) connected(conn net.Conn) {
	k.in.r.Reset(watched{conn, k})
	k.in.codecs = codecs{} // they remember structs that were not read to their ends
	k.broken = nil
}

// watched notes how a connection fails, which the library's errors hide.
type watched struct {
	net.Conn
	k *caller
}

func (w watched) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if err != nil {
		w.k.broken = err
	}
	return n, err
}

// exchange makes the next call. It reports whether it was answered: a oneway is
// not.
func (k *caller) exchange() (answered bool, f *fault) {
	k.method = k.methods[rand.IntN(len(k.methods))]
	k.content.fill(k.c.id, k.c.seq)
	k.seq = sequenceID(k.c.id, k.c.seq)
	b, err := k.encode()
	if err != nil {
		panic(err) // we wrote to memory, something that cannot be encoded
	}
	if !k.method.isOneway() {
		return true, k.c.send(b, k.readReply)
	}
	if _, err := k.c.conn.Write(b); err != nil {
		return false, k.c.fault(stageWrite, err)
	}
	return false, nil
}

// sequenceID gives the requests of each client ids of their own, so that even
// the reply to a call without content tells whose it is.
func sequenceID(client, seq uint64) int32 {
	return int32(uint32(client)*0x9e3779b1 ^ uint32(client>>32) + uint32(seq))
}

func (k *caller) encode() ([]byte, error) {
	p := k.out.begin(k.form, wrapping{seq: k.seq})
	err := errors.Join(
		p.WriteMessageBegin(background, k.method.name, k.method.typ, k.seq),
		k.content.write(p, k.method.arg, 1))
	if err != nil {
		return nil, err
	}
	return k.out.end()
}

func (k *caller) readReply() *fault {
	h, ex, err := k.decode()
	for err == nil && isLateWord(h, ex) {
		k.c.run.tally.fault(k.exception(onewayName, ex))
		h, ex, err = k.decode()
	}
	switch {
	case err != nil && k.broken != nil:
		return k.c.fault(stageReply, k.broken)
	case err != nil:
		return k.c.mismatch(altered, fmt.Sprintf("what came is no reply: %v", err))
	}
	f := k.check(h, ex)
	if f != nil && !f.usable {
		return f
	}
	if k.in.form.transport != unframed && k.in.body.left > 0 || k.in.r.Buffered() > 0 {
		return k.c.mismatch(extraBytes, "more came than the reply")
	}
	return f
}

// decode reads a reply: into got what it is, or the exception that it is.
func (k *caller) decode() (h head, ex thrift.TApplicationException, err error) {
	k.got.buf.Reset()
	in, err := k.in.next()
	if err != nil {
		return h, nil, err
	}
	if k.in.form != k.form {
		return h, nil, errors.New("it has another transport or protocol than the call")
	}
	if h, err = readHead(in); err != nil {
		return h, nil, err
	}
	if h.typ == thrift.EXCEPTION {
		ex = thrift.NewTApplicationException(0, "")
		return h, ex, ex.Read(background, in)
	}
	return h, nil, copyStruct(k.got.codec, in, maxDepth)
}

// check tells what is wrong with a reply that could be read. Whose it is comes
// first.
func (k *caller) check(h head, ex thrift.TApplicationException) *fault {
	k.want.put(&k.content, &k.method)
	same := ex == nil && bytes.Equal(k.got.buf.Bytes(), k.want.buf.Bytes())
	if !same && ex == nil {
		if f := k.checkOwner(h); f != nil {
			return f
		}
	}
	switch {
	case h.name == onewayName:
		return k.c.mismatch(onewayReply, "got a reply to a oneway")
	case h.seq != k.seq, k.form.transport == header && k.in.wrap.seq != k.seq:
		return k.c.mismatch(wrongID, fmt.Sprintf("got sequence id %d, want %d", h.seq, k.seq))
	case h.name != k.method.replyName():
		return k.c.mismatch(wrongMethod, fmt.Sprintf("got a reply to %q, called %q", h.name, k.method.name))
	case ex != nil:
		return k.checkException(ex)
	case h.typ != thrift.REPLY:
		return k.c.mismatch(altered, fmt.Sprintf("got a message of type %d", h.typ))
	case !same, k.method.name == unknownName:
		return k.c.mismatch(altered, "the result differs")
	default:
		return nil
	}
}

// put makes r the result of a call.
func (r *result) put(c *content, m *method) {
	r.buf.Reset()
	if err := c.write(r.codec, m.result, m.field); err != nil {
		panic(err) // as in exchange
	}
}

// checkOwner finds out whether the reply is that to another call, all of it.
func (k *caller) checkOwner(h head) *fault {
	id, seq, ok := idsOf(k.got.text())
	if !ok || id == k.c.id && seq == k.c.seq {
		return nil
	}
	other := newContent(k.c.run.cfg.Size)
	other.fill(id, seq)
	for _, m := range methods {
		k.want.put(&other, &m)
		if m.replyName() != h.name || !bytes.Equal(k.got.buf.Bytes(), k.want.buf.Bytes()) {
			continue
		}
		if id != k.c.id {
			return k.c.mismatch(otherClient, fmt.Sprintf("got the reply to request %d of client %#x", seq, id))
		}
		return k.c.mismatch(otherRequest, fmt.Sprintf("got the reply to request %d", seq))
	}
	return nil
}

// text returns the first string of the result, which may be in a struct.
func (r *result) text() []byte {
	const fieldHead, lengthSize = 3, 4
	b := r.buf.Bytes()
	if len(b) > fieldHead && b[0] == thrift.STRUCT {
		b = b[fieldHead:]
	}
	if len(b) < fieldHead+lengthSize || b[0] != thrift.STRING {
		return nil
	}
	n := binary.BigEndian.Uint32(b[fieldHead:])
	b = b[fieldHead+lengthSize:]
	return b[:min(int64(n), int64(len(b)))]
}

// extra tells what came after a last reply.
func (k *caller) extra(b []byte) *fault {
	k.in.r.Reset(bytes.NewReader(b))
	h, ex, err := k.decode()
	switch {
	case err == nil && isLateWord(h, ex):
		return k.exception(onewayName, ex)
	case h.name == onewayName:
		return k.c.mismatch(onewayReply, "got a reply to a oneway, after the last reply")
	default:
		return k.c.mismatch(extraBytes, fmt.Sprintf("%d bytes after the last reply", len(b)))
	}
}
