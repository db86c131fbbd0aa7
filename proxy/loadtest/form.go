package loadtest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/apache/thrift/lib/go/thrift"
)

// maxThrift bounds a frame and a string: what the libraries take, 100 MiB.
const maxThrift = 100 << 20

// A transport is what stands around a message.
type transport byte

const (
	framed   transport = iota // a length
	unframed                  // nothing
	header                    // THeader: a length, an id and the protocol
)

// A protocol is how values are encoded.
type protocol byte

const (
	binaryStrict protocol = iota
	compact
	binaryOld // as before there was a version; only the echo server speaks it
	protocols
)

// A form is how a message is put on the wire.
type form struct {
	transport transport
	protocol  protocol
}

var transports = map[string]transport{"framed": framed, "unframed": unframed, "header": header}

var encodings = map[string]protocol{"binary": binaryStrict, "compact": compact}

var errForm = errors.New("not the beginning of a Thrift message")

// peekForm tells the form of the next message by its first bytes, six at most:
// the shortest message has as many. Nothing is consumed.
func peekForm(r *bufio.Reader) (form, error) {
	b, err := r.Peek(4)
	if err != nil {
		return form{}, err
	}
	if p, ok := protocolOf(b); ok {
		return form{unframed, p}, nil
	}
	if n := binary.BigEndian.Uint32(b); n == 0 || n > maxThrift {
		return form{}, fmt.Errorf("%w: % x", errForm, b)
	}
	if b, err = r.Peek(6); err != nil {
		return form{}, err
	}
	switch inner := b[4:]; {
	case inner[0] == 0x0f && inner[1] == 0xff:
		return form{transport: header}, nil
	case inner[0] == 0: // the length of the name in an old message, which is short
		return form{framed, binaryOld}, nil
	case isLetter(inner[0]): // the four bytes were the length of the name
		return form{unframed, binaryOld}, nil
	default:
		if p, ok := protocolOf(inner); ok {
			return form{framed, p}, nil
		}
		return form{}, fmt.Errorf("%w: % x", errForm, b)
	}
}

// protocolOf knows the protocols that begin with a version.
func protocolOf(b []byte) (p protocol, ok bool) {
	switch {
	case b[0] == 0x80 && b[1] == 0x01:
		return binaryStrict, true
	case b[0] == thrift.COMPACT_PROTOCOL_ID && b[1]&thrift.COMPACT_VERSION_MASK == thrift.COMPACT_VERSION:
		return compact, true
	default:
		return 0, false
	}
}

func isLetter(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || b == '_'
}

// codecs are the library's protocols over one transport, made when needed.
type codecs [protocols]thrift.TProtocol

func (c *codecs) get(p protocol, over thrift.TTransport) thrift.TProtocol {
	if c[p] == nil {
		c[p] = newCodec(p, over)
	}
	return c[p]
}

func newCodec(p protocol, over thrift.TTransport) thrift.TProtocol {
	strict := p == binaryStrict
	cfg := &thrift.TConfiguration{
		MaxMessageSize: maxThrift, MaxFrameSize: math.MaxInt32,
		TBinaryStrictRead: &strict, TBinaryStrictWrite: &strict,
	}
	if p == compact {
		return thrift.NewTCompactProtocolConf(over, cfg)
	}
	return thrift.NewTBinaryProtocolConf(over, cfg)
}
