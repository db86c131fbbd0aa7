package health

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// What messages begin with.
const (
	binaryID       = 0x80
	binaryVersion  = 1
	compactID      = 0x82
	compactVersion = 1
)

const (
	maxReply = 64 << 10 // bytes
	maxDepth = 64       // of structs and containers in each other
)

// readReply reads a whole reply, or exception, to the call seq. No reply keeps it for
// long, or takes memory: what it announces is passed over as it comes.
func (t Thrift) readReply(r io.Reader, seq int32) error {
	message := &io.LimitedReader{R: r, N: maxReply}
	if !t.Unframed {
		var head [4]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return err
		}
		n := binary.BigEndian.Uint32(head[:])
		if n > maxReply {
			return fmt.Errorf("%s announces a frame of %d bytes, limit %d", quote(head[:]), n, maxReply)
		}
		message.N = int64(n)
	}
	d := decoder{Reader: bufio.NewReader(message), compact: t.Compact}
	err := d.reply(seq)
	switch cut := errors.Is(err, io.EOF); {
	case cut && message.N == 0:
		return errors.New("the message goes on beyond its frame, or is too large")
	case cut:
		return io.ErrUnexpectedEOF
	case err == nil && !t.Unframed && message.N+int64(d.Buffered()) > 0:
		return errors.New("the frame goes on beyond its message")
	}
	return err
}

// decoder reads a message. Its errors are those of its reader, with io.EOF wherever the
// end comes, and what is wrong with the bytes.
type decoder struct {
	*bufio.Reader
	compact bool
}

// reply reads the reply to the call seq.
func (d decoder) reply(seq int32) error {
	head := d.binaryHead
	if d.compact {
		head = d.compactHead
	}
	typ, id, err := head()
	switch {
	case err != nil:
		return err
	case typ != typeReply && typ != typeException:
		return fmt.Errorf("a message of type %d, not a reply", typ)
	case id != seq:
		return fmt.Errorf("it answers call %d, not %d", id, seq)
	}
	return d.structure(0)
}

// binaryHead reads a head in the strict form, or the old one, in which some servers
// answer: it begins with the length of the name, which is no negative number.
func (d decoder) binaryHead() (typ byte, seq int32, err error) {
	first, err := d.int32()
	if err != nil {
		return 0, 0, err
	}
	if first >= 0 {
		if err = d.skip(int64(first)); err == nil {
			typ, err = d.ReadByte()
		}
	} else {
		if uint32(first)>>8 != (binaryID<<8|binaryVersion)<<8 {
			return 0, 0, fmt.Errorf("it begins with %#08x, not as the binary protocol", uint32(first))
		}
		typ = byte(first)
		err = d.binaryString()
	}
	if err != nil {
		return 0, 0, err
	}
	seq, err = d.int32()
	return typ, seq, err
}

func (d decoder) compactHead() (typ byte, seq int32, err error) {
	head, err := d.Peek(2)
	if err != nil {
		return 0, 0, err
	}
	if head[0] != compactID || head[1]&0x1f != compactVersion {
		return 0, 0, fmt.Errorf("it begins with %q, not as the compact protocol", head)
	}
	typ = head[1] >> 5
	d.Discard(2)
	id, err := d.uvarint()
	if err != nil {
		return 0, 0, err
	}
	return typ, int32(id), d.compactString()
}

// structure passes over a struct.
func (d decoder) structure(depth int) error {
	if depth == maxDepth {
		return fmt.Errorf("values are nested more than %d deep", maxDepth)
	}
	field := d.binaryField
	if d.compact {
		field = d.compactField
	}
	for {
		if last, err := field(depth); last || err != nil {
			return err
		}
	}
}

// skip passes over n bytes.
func (d decoder) skip(n int64) error {
	if n < 0 {
		return fmt.Errorf("a length of %d bytes", n)
	}
	_, err := io.CopyN(io.Discard, d, n)
	return err
}

func (d decoder) int32() (int32, error) {
	b, err := d.Peek(4)
	if err != nil {
		return 0, err
	}
	d.Discard(4)
	return int32(binary.BigEndian.Uint32(b)), nil
}

// uvarint reads a number of at most 32 bits; no field needs a larger one but to be
// passed over.
func (d decoder) uvarint() (uint32, error) {
	v, err := d.varint64()
	if err == nil && v > 1<<32-1 {
		return 0, fmt.Errorf("a number of %d, where 32 bits are the most", v)
	}
	return uint32(v), err
}

func (d decoder) varint64() (uint64, error) {
	v, err := binary.ReadUvarint(d)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	return v, err
}
