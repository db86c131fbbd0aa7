package loadtest

import (
	"errors"
	"strings"
	"time"

	"github.com/apache/thrift/lib/go/thrift"
)

// The echo service. In Thrift's own language, with Item as the load generator
// fills it; the server gives back whatever it is given:
//
//	struct Item {
//	  1: string text
//	  2: binary data
//	  3: bool flag
//	  4: i8 tiny
//	  5: i16 small
//	  6: i32 medium
//	  7: i64 large
//	  8: double real
//	  9: map<string, i64> counts
//	  10: set<i32> marks
//	  11: list<Item> parts
//	}
//	exception Failure { 1: string why }
//	service Echo {
//	  string echo(1: string text)
//	  binary echoBinary(1: binary data)
//	  Item echoItem(1: Item item)
//	  void fail(1: string why) throws (1: Failure failure)
//	  oneway void fire(1: string text)
//	  string slow(1: string text, 2: i32 millis)
//	  void ping()
//	}
const (
	serviceName = "Echo"
	onewayName  = "fire"
)

// service is how each method reads the fields of its arguments and writes those
// of its result.
var service = map[string]func(*thriftSession) error{
	"echo":       (*thriftSession).giveBack,
	"echoBinary": (*thriftSession).giveBack,
	"echoItem":   (*thriftSession).giveBack,
	"fail":       (*thriftSession).fail,
	onewayName:   (*thriftSession).ignore,
	"slow":       (*thriftSession).slow,
	"ping":       (*thriftSession).ignore,
}

// lookUp returns the method that name stands for, nil for none, and the name
// that the reply has: without the service that a multiplexed call names.
func lookUp(name string) (method func(*thriftSession) error, replyName string) {
	of, short, multiplexed := strings.Cut(name, thrift.MULTIPLEXED_SEPARATOR)
	switch {
	case !multiplexed:
		return service[name], name
	case of == serviceName:
		return service[short], short
	default:
		return nil, short
	}
}

func (s *thriftSession) ignore() error {
	return s.args.Skip(background, thrift.STRUCT)
}

// giveBack returns the argument.
func (s *thriftSession) giveBack() error { return s.copyArgument(0) }

// copyArgument reads the arguments and writes the first as a field of the reply.
func (s *thriftSession) copyArgument(to int16) error {
	return readFields(s.args, func(typ thrift.TType, id int16) error {
		if id != 1 {
			return s.args.Skip(background, typ)
		}
		return copyField(s.result, s.args, typ, to, maxDepth)
	})
}

func (s *thriftSession) slow() error {
	millis := int32(0)
	err := readFields(s.args, func(typ thrift.TType, id int16) (err error) {
		switch {
		case id == 1:
			return copyField(s.result, s.args, typ, 0, maxDepth)
		case id == 2 && typ == thrift.I32:
			millis, err = s.args.ReadI32(background)
			return err
		default:
			return s.args.Skip(background, typ)
		}
	})
	if err != nil {
		return err
	}
	return s.echo.wait(time.Duration(millis) * time.Millisecond)
}

// fail answers with the exception that it declares, which is like a field of
// the result.
func (s *thriftSession) fail() error {
	err := errors.Join(
		s.result.WriteFieldBegin(background, "failure", thrift.STRUCT, 1),
		s.result.WriteStructBegin(background, "Failure"),
		s.copyArgument(1))
	if err != nil {
		return err
	}
	return errors.Join(
		s.result.WriteFieldStop(background),
		s.result.WriteStructEnd(background),
		s.result.WriteFieldEnd(background))
}
