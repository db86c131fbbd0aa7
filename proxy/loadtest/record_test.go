package loadtest

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/apache/thrift/lib/go/thrift"
)

// A record is a struct as the library's client writes and reads it, by field.
// It stands for generated code, and shares none with the package.
type record map[int16]any

type set []int32

func (r record) Write(ctx context.Context, p thrift.TProtocol) error {
	if err := p.WriteStructBegin(ctx, "record"); err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(r)) {
		if err := p.WriteFieldBegin(ctx, "field", typeOf(r[id]), id); err != nil {
			return err
		}
		if err := writeValue(ctx, p, r[id]); err != nil {
			return err
		}
		if err := p.WriteFieldEnd(ctx); err != nil {
			return err
		}
	}
	if err := p.WriteFieldStop(ctx); err != nil {
		return err
	}
	return p.WriteStructEnd(ctx)
}

func (r record) Read(ctx context.Context, p thrift.TProtocol) error {
	if _, err := p.ReadStructBegin(ctx); err != nil {
		return err
	}
	for {
		_, typ, id, err := p.ReadFieldBegin(ctx)
		if err != nil {
			return err
		}
		if typ == thrift.STOP {
			return p.ReadStructEnd(ctx)
		}
		if r[id], err = readValue(ctx, p, typ); err != nil {
			return err
		}
		if err := p.ReadFieldEnd(ctx); err != nil {
			return err
		}
	}
}

func typeOf(v any) thrift.TType {
	switch v.(type) {
	case bool:
		return thrift.BOOL
	case int8:
		return thrift.BYTE
	case int16:
		return thrift.I16
	case int32:
		return thrift.I32
	case int64:
		return thrift.I64
	case float64:
		return thrift.DOUBLE
	case string:
		return thrift.STRING
	case thrift.Tuuid:
		return thrift.UUID
	case record:
		return thrift.STRUCT
	case map[string]int64:
		return thrift.MAP
	case set:
		return thrift.SET
	case []record:
		return thrift.LIST
	default:
		panic(fmt.Sprintf("no type for %T", v))
	}
}

func writeValue(ctx context.Context, p thrift.TProtocol, v any) error {
	switch v := v.(type) {
	case bool:
		return p.WriteBool(ctx, v)
	case int8:
		return p.WriteByte(ctx, v)
	case int16:
		return p.WriteI16(ctx, v)
	case int32:
		return p.WriteI32(ctx, v)
	case int64:
		return p.WriteI64(ctx, v)
	case float64:
		return p.WriteDouble(ctx, v)
	case string:
		return p.WriteString(ctx, v)
	case thrift.Tuuid:
		return p.WriteUUID(ctx, v)
	case record:
		return v.Write(ctx, p)
	case map[string]int64:
		err := p.WriteMapBegin(ctx, thrift.STRING, thrift.I64, len(v))
		for key, n := range v {
			err = firstOf(err, p.WriteString(ctx, key), p.WriteI64(ctx, n))
		}
		return firstOf(err, p.WriteMapEnd(ctx))
	case set:
		err := p.WriteSetBegin(ctx, thrift.I32, len(v))
		for _, n := range v {
			err = firstOf(err, p.WriteI32(ctx, n))
		}
		return firstOf(err, p.WriteSetEnd(ctx))
	case []record:
		err := p.WriteListBegin(ctx, thrift.STRUCT, len(v))
		for _, r := range v {
			err = firstOf(err, r.Write(ctx, p))
		}
		return firstOf(err, p.WriteListEnd(ctx))
	default:
		panic(fmt.Sprintf("cannot write %T", v))
	}
}

func readValue(ctx context.Context, p thrift.TProtocol, typ thrift.TType) (any, error) {
	switch typ {
	case thrift.BOOL:
		return p.ReadBool(ctx)
	case thrift.BYTE:
		return p.ReadByte(ctx)
	case thrift.I16:
		return p.ReadI16(ctx)
	case thrift.I32:
		return p.ReadI32(ctx)
	case thrift.I64:
		return p.ReadI64(ctx)
	case thrift.DOUBLE:
		return p.ReadDouble(ctx)
	case thrift.STRING:
		return p.ReadString(ctx)
	case thrift.UUID:
		return p.ReadUUID(ctx)
	case thrift.STRUCT:
		r := record{}
		return r, r.Read(ctx, p)
	case thrift.MAP:
		return readMap(ctx, p)
	case thrift.SET:
		_, n, err := p.ReadSetBegin(ctx)
		s := set{}
		for range n {
			v, e := p.ReadI32(ctx)
			s, err = append(s, v), firstOf(err, e)
		}
		return s, firstOf(err, p.ReadSetEnd(ctx))
	case thrift.LIST:
		_, n, err := p.ReadListBegin(ctx)
		l := []record{}
		for range n {
			r := record{}
			err = firstOf(err, r.Read(ctx, p))
			l = append(l, r)
		}
		return l, firstOf(err, p.ReadListEnd(ctx))
	default:
		return nil, fmt.Errorf("cannot read type %d", typ)
	}
}

func readMap(ctx context.Context, p thrift.TProtocol) (any, error) {
	_, _, n, err := p.ReadMapBegin(ctx)
	m := map[string]int64{}
	for range n {
		key, e := p.ReadString(ctx)
		v, e2 := p.ReadI64(ctx)
		m[key], err = v, firstOf(err, e, e2)
	}
	return m, firstOf(err, p.ReadMapEnd(ctx))
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
