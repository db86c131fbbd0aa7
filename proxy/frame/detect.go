package frame

import (
	"encoding/binary"
	"fmt"
)

// A detector tells the form of a message from its first bytes.
//
// A first word with the highest bit set cannot be a length, so it is the
// version of an unframed message. Any other is the length of a frame, or the
// length of the name that an unframed message of the old binary protocol
// begins with. The byte after it decides: within a frame the old protocol has
// the highest byte of a name's length there, which is 0; a name has a letter.
type detector struct {
	want     Form // what it must be; zero fields: anything
	auto     bool // the transport in want was detected, not configured
	maxFrame int64
}

// detect returns the form of the message that begins with b, and how many bytes
// of it are needed to tell: more than len(b) while it cannot tell yet, six at
// most. The protocol of a Header form is for the THeader to say.
func (d *detector) detect(b []byte) (f Form, need int, err error) {
	if len(b) == 0 {
		return Form{}, 1, nil
	}
	switch d.want.Transport {
	case Framed, Header:
		return d.frame(b)
	case Unframed:
		return d.unframed(b)
	}
	if b[0] >= 0x80 || b[0] == '[' {
		return d.unframed(b)
	}
	if f, need, err := d.firstWord(b); err != nil || need > len(b) {
		return f, need, err
	}
	if isLetter(b[4]) && binary.BigEndian.Uint32(b) <= maxName {
		return d.check(Form{Unframed, BinaryOld}, 5)
	}
	return d.frame(b)
}

// unframed detects the protocol of a message without a frame.
func (d *detector) unframed(b []byte) (Form, int, error) {
	switch {
	case b[0] == '[':
		return d.check(Form{Unframed, JSON}, 1)
	case b[0] == 0x80 || b[0] == 0x82:
		if len(b) < 2 {
			return Form{}, 2, nil
		}
		if p := version(b); p != 0 {
			return d.check(Form{Unframed, p}, 2)
		}
	}
	if len(b) < 4 {
		return Form{}, 4, nil
	}
	if n := binary.BigEndian.Uint32(b); n > maxName {
		return Form{}, 4, d.refuseUnframed(b)
	}
	if d.auto && len(b) < 5 {
		return Form{}, 5, nil
	}
	if d.auto && !isLetter(b[4]) {
		return Form{}, 5, malformed("a method's name begins with %s", quoteBytes(b[4:5]))
	}
	return d.check(Form{Unframed, BinaryOld}, 4)
}

// refuseUnframed is the Error for a first word without a frame around it.
func (d *detector) refuseUnframed(b []byte) error {
	if b[0] < 0x80 && foreign(b) == "" && d.want.Transport == Unframed {
		return malformed("method name of %d bytes is over the limit of %d", binary.BigEndian.Uint32(b), maxName)
	}
	return d.refuse(b)
}

// firstWord is the verdict on a first word that has to be a length: an Error
// where it cannot be one, the need for the byte after it otherwise.
func (d *detector) firstWord(b []byte) (Form, int, error) {
	if len(b) < 4 {
		return Form{}, 4, nil
	}
	switch size := binary.BigEndian.Uint32(b); {
	case size == 0:
		return Form{}, 4, malformed("empty frame: a length of 0")
	case int64(size) > d.maxFrame:
		return Form{}, 4, d.refuse(b)
	}
	return Form{}, 5, nil
}

// frame detects what is in a frame.
func (d *detector) frame(b []byte) (Form, int, error) {
	if f, need, err := d.firstWord(b); err != nil || need > len(b) {
		return f, need, err
	}
	switch b[4] {
	case 0:
		return d.check(Form{Framed, BinaryOld}, 5)
	case '[':
		return d.check(Form{Framed, JSON}, 5)
	}
	size := binary.BigEndian.Uint32(b)
	if size < minFrame {
		return Form{}, 5, malformed("frame of %d bytes: a message has at least %d", size, minFrame)
	}
	if len(b) < 6 {
		return Form{}, 6, nil
	}
	switch p := version(b[4:]); {
	case p != 0:
		return d.check(Form{Framed, p}, 6)
	case b[4] == 0x0f && b[5] == 0xff:
		return d.check(Form{Header, 0}, 6)
	case b[4] == 0x10 && b[5] == 0x00:
		return Form{}, 6, &Error{
			Code:    CodeInvalidProtocol,
			Text:    "the frame begins with a Kitex TTHeader, which is not supported",
			Foreign: "Kitex TTHeader",
		}
	case isSASL(b):
		return Form{}, 6, d.refuse(b)
	}
	return Form{}, 6, malformed("frame of %d bytes holds no Thrift message: it begins with %s", size, quoteBytes(b[4:6]))
}

// minFrame is the size of the smallest message: compact, without a name, with a
// body of one byte.
const minFrame = 5

// check holds the form found against the wanted one. Frames with and without a
// THeader may follow each other where that was detected: clients leave it out
// where they have nothing to put into it.
func (d *detector) check(f Form, need int) (Form, int, error) {
	want := d.want
	if d.auto && want.Transport != Unframed && f.Transport != Unframed {
		want.Transport = f.Transport
	}
	if f.Transport == Header {
		want.Protocol = 0 // not known yet
	}
	if want.Transport != 0 && f.Transport != want.Transport || want.Protocol != 0 && f.Protocol != want.Protocol {
		return f, need, wrongProtocol("%s message where %s is spoken", f, want)
	}
	return f, need, nil
}

// version returns the protocol that the first two bytes of a message tell; 0 if
// they tell none.
func version(b []byte) Protocol {
	switch {
	case b[0] == 0x80 && b[1] == 0x01:
		return Binary
	case b[0] == 0x82 && (b[1]&0x1f == 1 || b[1]&0x1f == 2):
		return Compact // version 2 is fbthrift's, of the same lengths
	}
	return 0
}

func isLetter(c byte) bool {
	return c == '_' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
}

// quoteBytes shows bytes as text where they are some, and in hexadecimal
// otherwise.
func quoteBytes(b []byte) string {
	for _, c := range b {
		if c < ' ' || c > '~' {
			return fmt.Sprintf("% x", b)
		}
	}
	return fmt.Sprintf("%q", b)
}
