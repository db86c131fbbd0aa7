package frame

// A Scanner finds the ends of the messages in one direction of a connection.
// It is not safe for concurrent use.
type Scanner interface {
	// Scan takes bytes of the current message from the front of p and returns
	// how many. It takes all of p, unless the message ends inside p (then Done
	// is true, and the rest belongs to the next message) or the bytes cannot be
	// a message: then n is what was taken before that was clear, the error is
	// an *Error, and every later Scan returns it again. Scan does not retain p.
	Scan(p []byte) (n int, err error)

	// Head is what the current message says of itself; nil until that is known.
	// It is valid until Next, and stays so when the body turns out to be bad.
	Head() *Head

	// Done reports whether the current message is whole.
	Done() bool

	// Begun reports whether a byte of the current message was taken.
	Begun() bool

	// Next begins the next message. It may be called only when Done is true.
	Next()
}

// A Codec knows one protocol. It is safe for concurrent use; its scanners are
// not.
type Codec interface {
	// Requests returns a scanner of what one client sends. The form of its
	// messages is detected from the first of them, and then fixed.
	Requests() Scanner

	// Replies returns a scanner of what a backend sends. The form of each
	// message is detected by itself, since a server may answer in another one.
	Replies() Scanner

	// AppendException appends to dst an error as the answer to the request h:
	// in the request's form, with its id, and its name without the service.
	// Where there is no such answer (a length protocol, JSON, an opaque head, a
	// nil h) it returns dst unchanged.
	AppendException(dst []byte, h *Head, code int32, text string) []byte

	// ExceptionCode reads the code of a reply of type Exception. body is the
	// whole message without its first h.Size bytes. ok is false where the body
	// cannot be read; a body without a code has CodeUnknown.
	ExceptionCode(h *Head, body []byte) (code int32, ok bool)
}
