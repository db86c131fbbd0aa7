package proxy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"

	"forebay/proxy/enginetest"
	"forebay/proxy/frame"
	"forebay/proxy/proxytest"
)

// forms are the ways in which Apache's library puts messages on the wire.
var forms = []struct {
	name string
	over func(thrift.TTransport) thrift.TProtocol
}{
	{name: "framed binary", over: func(t thrift.TTransport) thrift.TProtocol {
		return thrift.NewTBinaryProtocolConf(thrift.NewTFramedTransportConf(t, nil), nil)
	}},
	{name: "framed binary of the old kind", over: func(t thrift.TTransport) thrift.TProtocol {
		return thrift.NewTBinaryProtocolConf(thrift.NewTFramedTransportConf(t, nil), lax)
	}},
	{name: "framed compact", over: func(t thrift.TTransport) thrift.TProtocol {
		return thrift.NewTCompactProtocolConf(thrift.NewTFramedTransportConf(t, nil), nil)
	}},
	{name: "unframed binary", over: func(t thrift.TTransport) thrift.TProtocol {
		return thrift.NewTBinaryProtocolConf(thrift.NewTBufferedTransport(t, 4<<10), nil)
	}},
	{name: "unframed binary of the old kind", over: func(t thrift.TTransport) thrift.TProtocol {
		return thrift.NewTBinaryProtocolConf(thrift.NewTBufferedTransport(t, 4<<10), lax)
	}},
	{name: "unframed compact", over: func(t thrift.TTransport) thrift.TProtocol {
		return thrift.NewTCompactProtocolConf(thrift.NewTBufferedTransport(t, 4<<10), nil)
	}},
	{name: "THeader binary", over: func(t thrift.TTransport) thrift.TProtocol {
		return thrift.NewTHeaderProtocolConf(t, headerOf(thrift.THeaderProtocolBinary))
	}},
	{name: "THeader compact", over: func(t thrift.TTransport) thrift.TProtocol {
		return thrift.NewTHeaderProtocolConf(t, headerOf(thrift.THeaderProtocolCompact))
	}},
}

var lax = &thrift.TConfiguration{TBinaryStrictRead: new(false), TBinaryStrictWrite: new(false)}

func headerOf(p thrift.THeaderProtocolID) *thrift.TConfiguration {
	return &thrift.TConfiguration{THeaderProtocolID: &p}
}

// writeAs writes m by Apache's library.
func writeAs(p thrift.TProtocol, m message) error {
	ctx := context.Background()
	return errors.Join(
		p.WriteMessageBegin(ctx, m.name, thrift.TMessageType(m.typ), int32(m.id)),
		p.WriteStructBegin(ctx, ""),
		p.WriteFieldBegin(ctx, "", thrift.STRING, 1),
		p.WriteString(ctx, m.text),
		p.WriteFieldEnd(ctx),
		p.WriteFieldStop(ctx),
		p.WriteStructEnd(ctx),
		p.WriteMessageEnd(ctx),
		p.Flush(ctx),
	)
}

// readAs reads a message by Apache's library; of an exception, its text and code.
func readAs(p thrift.TProtocol) (m message, err error) {
	ctx := context.Background()
	name, typ, id, err := p.ReadMessageBegin(ctx)
	if err != nil {
		return m, err
	}
	m = message{typ: frame.Type(typ), name: name, id: uint32(id)}
	if typ == thrift.EXCEPTION {
		e := thrift.NewTApplicationException(0, "")
		err = e.Read(ctx, p)
		m.text, m.code = e.Error(), e.TypeId()
		return m, errors.Join(err, p.ReadMessageEnd(ctx))
	}
	_, err = p.ReadStructBegin(ctx)
	for err == nil {
		_, kind, _, fieldErr := p.ReadFieldBegin(ctx)
		if fieldErr != nil || kind == thrift.STOP {
			err = fieldErr
			break
		}
		m.text, err = p.ReadString(ctx)
		err = errors.Join(err, p.ReadFieldEnd(ctx))
	}
	return m, errors.Join(err, p.ReadStructEnd(ctx), p.ReadMessageEnd(ctx))
}

func asThrift(c net.Conn, over func(thrift.TTransport) thrift.TProtocol) thrift.TProtocol {
	return over(thrift.NewTSocketFromConnConf(c, nil))
}

// TestEveryFormOfThriftSharesAConnection: clients of Apache's library, with ids of
// every size, and an exception of the proxy's own.
func TestEveryFormOfThriftSharesAConnection(t *testing.T) {
	enginetest.Each(t, testEveryFormOfThriftSharesAConnection)
}

func testEveryFormOfThriftSharesAConnection(t *testing.T) {
	for _, tt := range forms {
		t.Run(tt.name, func(t *testing.T) {
			be, conns := puppets(t, 1)
			cfg := requestsConfig(be)
			cfg.Queue = 0
			f := start(t, cfg)
			one, two := asThrift(f.dial(t), tt.over), asThrift(f.dial(t), tt.over)
			var server thrift.TProtocol
			for i, id := range []uint32{0, 1, 127, 128, 1 << 14, 1 << 21, 1 << 28, math.MaxInt32} {
				for _, client := range []thrift.TProtocol{one, two} {
					m := call(id, strings.Repeat("text", 10*i*i*i))
					if err := writeAs(client, m); err != nil {
						t.Fatal(err)
					}
					if server == nil {
						server = asThrift(proxytest.Receive(t, conns, "a connection"), tt.over)
					}
					asked, err := readAs(server)
					if err != nil || asked.text != m.text || asked.name != m.name {
						t.Fatalf("the backend read %v, %v; want %v", asked, err, m)
					}
					if err := writeAs(server, asked.reply("to "+m.text)); err != nil {
						t.Fatal(err)
					}
					if got, err := readAs(client); err != nil || got != m.reply("to "+m.text) {
						t.Fatalf("the client read %v, %v; want %v", got, err, m.reply("to "+m.text))
					}
				}
			}
			m := call(5, "holds it")
			if err := writeAs(one, m); err != nil {
				t.Fatal(err)
			}
			if _, err := readAs(server); err != nil {
				t.Fatal(err)
			}
			if err := writeAs(two, m); err != nil {
				t.Fatal(err)
			}
			got, err := readAs(two)
			if want := m.exception(frame.CodeInternalError, fmt.Sprintf("forebay: the queue is full (%d requests wait)", 0)); err != nil || got != want {
				t.Errorf("the client read %v, %v; want %v", got, err, want)
			}
			if n := f.dials(); n != 1 {
				t.Errorf("%d dials, want 1", n)
			}
		})
	}
}
