package loadtest

import (
	"io"
	"time"
)

// earlyBytes is how much of a call must be left after its head for it to be
// answered early.
const earlyBytes = 1 << 10

// afterPause is how much later than its reply junk comes.
const afterPause = 5 * time.Millisecond

// junk begins no Thrift message.
var junk = []byte("\xffjunk\xff")

// mischief is what is wrong with one reply.
type mischief struct {
	early, wrongID, twice, half, after bool
}

// nextMischief returns what is due for the next reply.
func (s *thriftSession) nextMischief() mischief {
	cfg := &s.echo.cfg
	n := s.echo.replies.Add(1)
	m := mischief{
		wrongID: isNth(n, cfg.WrongID),
		twice:   isNth(n, cfg.Twice),
		half:    isNth(n, cfg.Half),
		after:   isNth(n, cfg.After),
	}
	if cfg.Early > 0 && s.unread() > earlyBytes {
		m.early = isNth(s.echo.large.Add(1), cfg.Early)
	}
	for _, fault := range []bool{m.early, m.wrongID, m.twice, m.half, m.after} {
		if fault {
			s.echo.faults.Add(1)
		}
	}
	return m
}

// unread is how much of the call is still to be read, as far as that is known:
// without a length it is not, and what zlib has packed has been read.
func (s *thriftSession) unread() int64 {
	if s.in.form.transport == unframed || s.in.wrap.zlib {
		return 0
	}
	return s.in.body.left
}

func isNth(n, every int64) bool { return every > 0 && n%every == 0 }

// sendWith sends a reply with what is wrong about its bytes. An error ends the
// connection.
func (s *thriftSession) sendWith(m mischief, b []byte) error {
	switch {
	case m.half:
		b = b[:len(b)/2]
	case m.twice:
		b = append(b, b...) // in one write
	}
	if err := s.echo.reply(s.conn, b); err != nil {
		return err
	}
	if m.half {
		return io.EOF
	}
	if !m.after {
		return nil
	}
	if err := s.echo.wait(afterPause); err != nil {
		return err
	}
	return s.echo.send(s.conn, junk)
}
