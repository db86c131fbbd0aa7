// Package form names the ways to put a Thrift message on a connection, for both
// the client and the server.
package form

import (
	"fmt"

	"github.com/apache/thrift/lib/go/thrift"
)

// Multiplexed is the transport that is framed, with the service's name before
// each method's.
const Multiplexed = "multiplexed"

// Factories returns what makes the named transport and protocol. The
// configuration carries the time limits of a client, and may be nil.
func Factories(transport, protocol string, conf *thrift.TConfiguration) (thrift.TTransportFactory, thrift.TProtocolFactory, error) {
	if conf == nil {
		conf = &thrift.TConfiguration{}
	}
	var p thrift.TProtocolFactory
	switch protocol {
	case "binary":
		p = thrift.NewTBinaryProtocolFactoryConf(conf)
	case "compact":
		p = thrift.NewTCompactProtocolFactoryConf(conf)
		id := thrift.THeaderProtocolCompact
		conf.THeaderProtocolID = &id // else binary
	case "old":
		no := false
		conf.TBinaryStrictRead, conf.TBinaryStrictWrite = &no, &no
		p = thrift.NewTBinaryProtocolFactoryConf(conf)
	default:
		return nil, nil, fmt.Errorf("unknown protocol %q", protocol)
	}
	switch transport {
	case "framed", Multiplexed:
		return thrift.NewTFramedTransportFactoryConf(thrift.NewTTransportFactory(), conf), p, nil
	case "buffered":
		return thrift.NewTBufferedTransportFactory(4096), p, nil
	case "header":
		return thrift.NewTTransportFactory(), thrift.NewTHeaderProtocolFactoryConf(conf), nil
	}
	return nil, nil, fmt.Errorf("unknown transport %q", transport)
}
