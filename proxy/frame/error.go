package frame

import "fmt"

// Codes of a TApplicationException.
const (
	CodeUnknown            = 0
	CodeUnknownMethod      = 1
	CodeInvalidMessageType = 2
	CodeWrongMethodName    = 3
	CodeBadSequenceID      = 4
	CodeMissingResult      = 5
	CodeInternalError      = 6
	CodeProtocolError      = 7
	CodeInvalidTransform   = 8
	CodeInvalidProtocol    = 9
)

// An Error is why bytes cannot be a message.
type Error struct {
	Code    int32  // of the TApplicationException that fits
	Text    string // what is wrong, with the number and the limit
	Foreign string // what speaks here instead, such as "HTTP"; "" if that is not known
}

func (e *Error) Error() string { return e.Text }

// malformed is the Error of bytes that break the protocol.
func malformed(format string, args ...any) *Error {
	return &Error{Code: CodeProtocolError, Text: fmt.Sprintf(format, args...)}
}

// wrongProtocol is the Error of bytes of a protocol that is not spoken here.
func wrongProtocol(format string, args ...any) *Error {
	return &Error{Code: CodeInvalidProtocol, Text: fmt.Sprintf(format, args...)}
}
