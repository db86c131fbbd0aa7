package loadtest

import (
	"context"
	"errors"
	"fmt"

	"github.com/apache/thrift/lib/go/thrift"
)

// background is the context of the library's calls, which all act on memory or
// on a connection that has a deadline.
var background = context.Background()

// readFields reads a struct and has read take each of its fields.
func readFields(in thrift.TProtocol, read func(typ thrift.TType, id int16) error) error {
	if _, err := in.ReadStructBegin(background); err != nil {
		return err
	}
	for {
		_, typ, id, err := in.ReadFieldBegin(background)
		if err != nil {
			return err
		}
		if typ == thrift.STOP {
			return in.ReadStructEnd(background)
		}
		if err := read(typ, id); err != nil {
			return err
		}
		if err := in.ReadFieldEnd(background); err != nil {
			return err
		}
	}
}

// maxDepth is how deep structs and containers may be nested, as in the library.
const maxDepth = thrift.DEFAULT_RECURSION_DEPTH

// copyField writes the value that comes next in in as field id of the struct
// that out is in.
func copyField(out, in thrift.TProtocol, typ thrift.TType, id int16, depth int) error {
	if err := out.WriteFieldBegin(background, "", typ, id); err != nil {
		return err
	}
	if err := copyValue(out, in, typ, depth); err != nil {
		return err
	}
	return out.WriteFieldEnd(background)
}

func copyValue(out, in thrift.TProtocol, typ thrift.TType, depth int) error {
	if depth == 0 {
		return errors.New("nested too deep")
	}
	switch typ {
	case thrift.BOOL:
		return copyOne(in.ReadBool, out.WriteBool)
	case thrift.BYTE:
		return copyOne(in.ReadByte, out.WriteByte)
	case thrift.I16:
		return copyOne(in.ReadI16, out.WriteI16)
	case thrift.I32:
		return copyOne(in.ReadI32, out.WriteI32)
	case thrift.I64:
		return copyOne(in.ReadI64, out.WriteI64)
	case thrift.DOUBLE:
		return copyOne(in.ReadDouble, out.WriteDouble)
	case thrift.STRING: // and binary, which is the same on the wire
		return copyOne(in.ReadBinary, out.WriteBinary)
	case thrift.UUID:
		return copyOne(in.ReadUUID, out.WriteUUID)
	case thrift.STRUCT:
		return copyStruct(out, in, depth-1)
	case thrift.MAP:
		return copyMap(out, in, depth-1)
	case thrift.LIST:
		return copyList(out, in, depth-1)
	case thrift.SET:
		return copySet(out, in, depth-1)
	default:
		return fmt.Errorf("no value has type %d", typ)
	}
}

func copyOne[T any](read func(context.Context) (T, error), write func(context.Context, T) error) error {
	v, err := read(background)
	if err != nil {
		return err
	}
	return write(background, v)
}

func copyStruct(out, in thrift.TProtocol, depth int) error {
	if err := out.WriteStructBegin(background, ""); err != nil {
		return err
	}
	err := readFields(in, func(typ thrift.TType, id int16) error { return copyField(out, in, typ, id, depth) })
	if err != nil {
		return err
	}
	if err := out.WriteFieldStop(background); err != nil {
		return err
	}
	return out.WriteStructEnd(background)
}

func copyMap(out, in thrift.TProtocol, depth int) error {
	key, value, n, err := in.ReadMapBegin(background)
	if err != nil {
		return err
	}
	if err := out.WriteMapBegin(background, key, value, n); err != nil {
		return err
	}
	for range n {
		if err := copyValue(out, in, key, depth); err != nil {
			return err
		}
		if err := copyValue(out, in, value, depth); err != nil {
			return err
		}
	}
	return errors.Join(in.ReadMapEnd(background), out.WriteMapEnd(background))
}

func copyList(out, in thrift.TProtocol, depth int) error {
	elem, n, err := in.ReadListBegin(background)
	if err != nil {
		return err
	}
	if err := out.WriteListBegin(background, elem, n); err != nil {
		return err
	}
	if err := copyElements(out, in, elem, n, depth); err != nil {
		return err
	}
	return errors.Join(in.ReadListEnd(background), out.WriteListEnd(background))
}

func copySet(out, in thrift.TProtocol, depth int) error {
	elem, n, err := in.ReadSetBegin(background)
	if err != nil {
		return err
	}
	if err := out.WriteSetBegin(background, elem, n); err != nil {
		return err
	}
	if err := copyElements(out, in, elem, n, depth); err != nil {
		return err
	}
	return errors.Join(in.ReadSetEnd(background), out.WriteSetEnd(background))
}

func copyElements(out, in thrift.TProtocol, elem thrift.TType, n, depth int) error {
	for range n {
		if err := copyValue(out, in, elem, depth); err != nil {
			return err
		}
	}
	return nil
}
