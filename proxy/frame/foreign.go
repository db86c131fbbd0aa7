package frame

import "encoding/binary"

// foreign names the protocol whose messages begin with b, at least four bytes;
// "" if it knows none. Only bytes that are no Thrift message may be asked about:
// some of these are a frame length too, of hundreds of megabytes.
func foreign(b []byte) string {
	switch string(b[:4]) {
	case "GET ", "POST", "HEAD", "PUT ", "OPTI", "DELE", "CONN", "PATC", "TRAC", "PRI ", "HTTP":
		return "HTTP"
	case "SSH-":
		return "SSH"
	}
	switch {
	case b[0] == 0x16 && b[1] == 3, b[0] == 0x80 && b[2] == 1:
		return "TLS" // the second is the hello of SSLv2
	case b[0] == 0x78 && (b[1] == 0x01 || b[1] == 0x5e || b[1] == 0x9c || b[1] == 0xda):
		return "TZlib"
	case b[0] == 0xff && b[1] == 0xaf:
		return "Kitex mesh header"
	case binary.BigEndian.Uint32(b) == saslStart:
		return "SASL"
	}
	return ""
}

// saslStart is what the START message of TSaslTransport looks like as a frame
// length: a status byte of 1 and three bytes of the length of a mechanism's
// name. It is over the default limit of a frame.
const saslStart = 1 << 24

// isSASL tells a START from a frame of that length, where such a frame is
// allowed: after the length of the name follows the name, such as "GSSAPI".
func isSASL(b []byte) bool {
	return binary.BigEndian.Uint32(b) == saslStart &&
		3 <= b[4] && b[4] <= 20 && 'A' <= b[5] && b[5] <= 'Z'
}

// refuse is the Error for a first word that no message can begin with.
func (d *detector) refuse(b []byte) *Error {
	if name := foreign(b); name != "" {
		return &Error{
			Code:    CodeProtocolError,
			Text:    "the first bytes are those of " + name + ", not of Thrift: " + quoteBytes(b[:4]),
			Foreign: name,
		}
	}
	return malformed("frame of %d bytes is over the limit of %d; first bytes: %s",
		binary.BigEndian.Uint32(b), d.maxFrame, quoteBytes(b[:4]))
}
