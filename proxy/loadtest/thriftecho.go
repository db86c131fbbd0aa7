package loadtest

import (
	"bufio"
	"errors"
	"net"

	"github.com/apache/thrift/lib/go/thrift"
)

// A thriftSession answers the calls of one connection, one after the other,
// each in the form that it came in.
type thriftSession struct {
	echo *Echo
	conn net.Conn
	read int64 // bytes

	in     messageReader
	out    messageWriter
	args   thrift.TProtocol // reads the call
	result thrift.TProtocol // writes the reply
}

func (e *Echo) serveThrift(conn net.Conn) {
	s := &thriftSession{echo: e, conn: conn, out: newMessageWriter()}
	s.in.r = bufio.NewReader(s)
	for s.serveCall() == nil && !e.enough(conn, s.read) {
	}
}

// Read reads from the connection, and counts.
func (s *thriftSession) Read(p []byte) (int, error) {
	n, err := s.conn.Read(p)
	s.read += int64(n)
	s.echo.in.Add(int64(n))
	return n, err
}

// serveCall reads a call and answers it. Its error ends the connection.
func (s *thriftSession) serveCall() (err error) {
	if s.args, err = s.in.next(); err != nil {
		return err
	}
	call, err := readHead(s.args)
	if err != nil {
		return err
	}
	method, name := lookUp(call.name)
	s.echo.calls.Add(1)
	oneway := call.typ == thrift.ONEWAY || name == onewayName // Go's clients type it CALL
	if oneway {
		s.echo.oneways.Add(1)
	}
	if s.echo.cfg.Silent || oneway && !(s.echo.cfg.AnswerOneway && call.typ == thrift.ONEWAY) {
		return s.drop()
	}
	if oneway {
		s.echo.faults.Add(1)
	}
	return s.answer(method, head{name: name, typ: thrift.REPLY, seq: call.seq})
}

// drop reads the rest of a call without a look at it.
func (s *thriftSession) drop() error {
	if err := s.ignore(); err != nil {
		return err
	}
	return s.discardFrame()
}

// discardFrame reads what the frame has after its message.
func (s *thriftSession) discardFrame() error {
	_, err := s.in.r.Discard(int(s.unread()))
	return err
}

func (s *thriftSession) answer(method func(*thriftSession) error, reply head) error {
	m := s.nextMischief()
	switch {
	case m.early:
		if err := s.sendException(reply, thrift.INTERNAL_ERROR, "answered before the call was read", m); err != nil {
			return err
		}
		return s.drop()
	case method == nil:
		if err := s.drop(); err != nil {
			return err
		}
		return s.sendException(reply, thrift.UNKNOWN_METHOD, "unknown method "+reply.name, m)
	default:
		return s.sendResult(method, reply, m)
	}
}

func (s *thriftSession) sendResult(method func(*thriftSession) error, reply head, m mischief) error {
	s.begin(reply, m)
	if err := errors.Join(s.result.WriteStructBegin(background, ""), method(s)); err != nil {
		return err
	}
	if err := s.discardFrame(); err != nil {
		return err
	}
	if err := errors.Join(s.result.WriteFieldStop(background), s.result.WriteStructEnd(background)); err != nil {
		return err
	}
	return s.send(m)
}

// begin starts the reply.
func (s *thriftSession) begin(reply head, m mischief) {
	wrap := s.in.wrap
	if m.wrongID {
		reply.seq++
		wrap.seq++
	}
	s.result = s.out.begin(s.in.form, wrap)
	_ = s.result.WriteMessageBegin(background, reply.name, reply.typ, reply.seq) // to memory
}

func (s *thriftSession) sendException(reply head, kind int32, text string, m mischief) error {
	reply.typ = thrift.EXCEPTION
	s.begin(reply, m)
	if err := thrift.NewTApplicationException(kind, text).Write(background, s.result); err != nil {
		return err
	}
	return s.send(m)
}

func (s *thriftSession) send(m mischief) error {
	b, err := s.out.end()
	if err != nil {
		return err
	}
	return s.sendWith(m, b)
}
