package health

import (
	"bytes"
	"fmt"
	"net"
)

// maxAnswer is how much of an answer is looked through, in bytes: HAProxy's limit too.
const maxAnswer = 16 << 10

// SendExpect is a check that sends bytes and expects others in the answer.
type SendExpect struct {
	// Send is sent when the connection is open. Empty: nothing is, since the
	// backend greets first.
	Send []byte

	// Expect must come within the first 16 KiB of the answer, anywhere in them, in
	// whatever pieces, as for HAProxy's "tcp-check expect string". Empty: any byte
	// will do.
	Expect []byte
}

// Talk is the Talk of the check.
func (s SendExpect) Talk(conn net.Conn) error {
	if len(s.Send) > 0 {
		if _, err := conn.Write(s.Send); err != nil {
			return err
		}
	}
	buf := make([]byte, maxAnswer)
	for n := 0; n < len(buf); {
		k, err := conn.Read(buf[n:])
		seen := max(0, n-len(s.Expect)) // what came before cannot begin a match that is new
		n += k
		switch {
		case n > 0 && bytes.Contains(buf[seen:n], s.Expect):
			return nil
		case err != nil:
			return fmt.Errorf("expected %s, got %s: %w", quote(s.Expect), quote(buf[:n]), err)
		}
	}
	return fmt.Errorf("expected %s within %d bytes, got %s", quote(s.Expect), len(buf), quote(buf))
}

// quote shows the beginning of what an operator should see.
func quote(b []byte) string {
	const most = 64
	if len(b) > most {
		return fmt.Sprintf("%q... (%d bytes)", b[:most], len(b))
	}
	return fmt.Sprintf("%q", b)
}
