"""The ways to put a Thrift message on a connection, for client and server."""

from thrift.protocol.TBinaryProtocol import TBinaryProtocolAcceleratedFactory
from thrift.protocol.TCompactProtocol import TCompactProtocolAcceleratedFactory
from thrift.protocol.THeaderProtocol import THeaderProtocolFactory
from thrift.transport import TTransport
from thrift.transport.THeaderTransport import THeaderClientType, THeaderSubprotocolID


def factories(transport, protocol):
    """Returns the factories of the named transport and protocol."""
    if transport == "header":
        ids = {"binary": THeaderSubprotocolID.BINARY, "compact": THeaderSubprotocolID.COMPACT}
        header = THeaderProtocolFactory((THeaderClientType.HEADERS,), ids[protocol])
        return TTransport.TBufferedTransportFactory(), header
    transports = {
        "buffered": TTransport.TBufferedTransportFactory,
        "framed": TTransport.TFramedTransportFactory,
        "multiplexed": TTransport.TFramedTransportFactory,
    }
    protocols = {
        "binary": TBinaryProtocolAcceleratedFactory,
        "compact": TCompactProtocolAcceleratedFactory,
    }
    return transports[transport](), protocols[protocol]()
