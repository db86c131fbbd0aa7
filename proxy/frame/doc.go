// Package frame finds where the messages on a connection end.
//
// A [Scanner] takes the bytes of one direction of one connection, in whatever
// pieces they arrive, and says at which byte the current message ends and what
// the message says of itself: its type, its method, its id. It keeps the head
// of a message (at most 64 KiB, mostly some 30 bytes) and passes over the body.
// It opens no connection, reads no clock, starts no goroutine, and allocates
// nothing for a size that the bytes only announce.
//
// A [Codec] makes scanners for one protocol. There are two:
//
//   - [Thrift]: framed, unframed and THeader messages, in the strict binary,
//     the old binary, the compact and the JSON protocol. Which it is shows in
//     the first bytes, six at most.
//   - [Length]: any protocol whose messages carry their length at a fixed place.
//
// # Where the code is
//
//	frame.go      Scanner, Codec
//	head.go       Head: what a message says of itself; Rewrite gives it another id
//	error.go      Error: why bytes cannot be a message
//	thrift.go     Thrift, and the scanner of its messages
//	detect.go     the form of a message, from its first bytes; foreign.go: names of others
//	parse.go      the head of a message; theader.go: the THeader before it
//	skip.go       the end of a struct; binary.go and compact.go: its parts
//	exception.go  TApplicationException, written and read
//	length.go     Length, and the scanner of its messages
//
// # Limits
//
// A frame is bounded by MaxFrame, an unframed message by MaxMessage. A method's
// name is at most 1,024 bytes long, a THeader block 62 KiB, values are nested
// at most 256 deep. A container must have room for its elements in what the
// message may still take, so that no announced size costs more work than the
// bytes that follow it. What is over a limit, negative, or of an unknown type
// is an [*Error].
//
// # What it does not do
//
// It does not look into the body of a frame, unless Strict tells it to: a frame
// is taken to be one message, as every Thrift library writes it. It does not
// find the end of an unframed JSON message, does not undo THeader transforms,
// and does not follow transports that keep state for a whole connection (SASL,
// TZlib, HTTP); those it names. Where it reads the compact protocol (unframed, or
// with Strict) type 13 is Apache's uuid, not fbthrift's float.
package frame
