package health

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
)

// Thrift is a check that calls a method and takes any reply to it, or exception: who
// can refuse a call is at work. The zero value calls a method that no service has, over
// the framed transport in the strict binary protocol.
type Thrift struct {
	// Method is what is called, without arguments. Empty means
	// "forebay_health_check", which a server answers with an exception.
	Method string

	Unframed bool // the message has no frame around it
	Compact  bool // the compact protocol
}

// Talk is the Talk of the check.
func (t Thrift) Talk(conn net.Conn) error {
	seq := rand.Int32() // so that no other reply can pass for ours
	if _, err := conn.Write(t.call(seq)); err != nil {
		return err
	}
	if err := t.readReply(conn, seq); err != nil {
		return fmt.Errorf("thrift reply: %w", err)
	}
	return nil
}

// The types of messages.
const (
	typeCall      = 1
	typeReply     = 2
	typeException = 3
)

// call is the message that calls the method.
func (t Thrift) call(seq int32) []byte {
	method := t.Method
	if method == "" {
		method = "forebay_health_check"
	}
	b := make([]byte, 4, 64) // the frame's length, set below
	if t.Compact {
		b = append(b, compactID, typeCall<<5|compactVersion)
		b = binary.AppendUvarint(b, uint64(uint32(seq)))
		b = binary.AppendUvarint(b, uint64(len(method)))
		b = append(b, method...)
	} else {
		b = append(b, binaryID, binaryVersion, 0, typeCall)
		b = binary.BigEndian.AppendUint32(b, uint32(len(method)))
		b = append(b, method...)
		b = binary.BigEndian.AppendUint32(b, uint32(seq))
	}
	b = append(b, 0) // no arguments
	if t.Unframed {
		return b[4:]
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}
