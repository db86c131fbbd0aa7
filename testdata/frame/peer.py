"""One side of a Thrift conversation, for recording it.

    peer.py client PORT TRANSPORT PROTOCOL    calls what a server there offers
    peer.py server TRANSPORT PROTOCOL         prints its port, serves one client

The recordings beside this file were made with it, by the test that reads them:

    go test ./proxy/frame -run Captured -update

It needs Python's thrift library (Debian: python3-thrift).
"""
import socket
import sys

from thrift.Thrift import TApplicationException, TMessageType, TType
from thrift.protocol import TBinaryProtocol, TCompactProtocol, THeaderProtocol
from thrift.protocol.TMultiplexedProtocol import TMultiplexedProtocol
from thrift.transport import TSocket, TTransport
from thrift.transport.THeaderTransport import THeaderClientType, THeaderSubprotocolID


def protocol(sock, transport, name):
    if transport == "header":
        inner = {"binary": THeaderSubprotocolID.BINARY, "compact": THeaderSubprotocolID.COMPACT}[name]
        p = THeaderProtocol.THeaderProtocol(sock, [THeaderClientType.HEADERS], inner)
        p.set_header(b"client", b"peer.py")
        return p
    wrap = TTransport.TFramedTransport if transport == "framed" else TTransport.TBufferedTransport
    make = TBinaryProtocol.TBinaryProtocol if name == "binary" else TCompactProtocol.TCompactProtocol
    return make(wrap(sock))


def write_body(p):
    """Writes a struct with fields, a list, a map and a struct."""
    p.writeStructBegin("args")
    for fid, ttype, write in (
        (1, TType.STRING, lambda: p.writeString("text" * 50)),
        (2, TType.BOOL, lambda: p.writeBool(True)),
        (3, TType.DOUBLE, lambda: p.writeDouble(0.5)),
        (400, TType.I64, lambda: p.writeI64(-(1 << 62))),
        (5, TType.LIST, lambda: write_list(p)),
        (6, TType.MAP, lambda: write_map(p)),
    ):
        p.writeFieldBegin("f", ttype, fid)
        write()
        p.writeFieldEnd()
    p.writeFieldStop()
    p.writeStructEnd()


def write_list(p):
    p.writeListBegin(TType.I32, 20)
    for i in range(20):
        p.writeI32(i << 20)
    p.writeListEnd()


def write_map(p):
    p.writeMapBegin(TType.STRING, TType.STRUCT, 2)
    for key in ("a", "b"):
        p.writeString(key)
        p.writeStructBegin("s")
        p.writeFieldBegin("f", TType.BOOL, 1)
        p.writeBool(False)
        p.writeFieldEnd()
        p.writeFieldStop()
        p.writeStructEnd()
    p.writeMapEnd()


def write_message(p, name, mtype, seq):
    p.writeMessageBegin(name, mtype, seq)
    write_body(p)
    p.writeMessageEnd()
    p.trans.flush()


def client(port, transport, name):
    sock = TSocket.TSocket("127.0.0.1", port)
    sock.open()
    plain = protocol(sock, transport, name)
    p = TMultiplexedProtocol(plain, "Probe")
    for method, mtype in (
        ("ping", TMessageType.CALL),
        ("echo", TMessageType.CALL),
        ("missing", TMessageType.CALL),
        ("fire", TMessageType.ONEWAY),
        ("ping", TMessageType.CALL),
    ):
        write_message(p, method, mtype, 0)
        if mtype == TMessageType.CALL:
            plain.readMessageBegin()
            plain.skip(TType.STRUCT)
            plain.readMessageEnd()
    sock.close()


def server(transport, name):
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    conn, _ = listener.accept()
    sock = TSocket.TSocket()
    sock.setHandle(conn)
    p = protocol(sock, transport, name)
    try:
        while True:
            answer(p)
    except (TTransport.TTransportException, EOFError):
        pass


def answer(p):
    method, mtype, seq = p.readMessageBegin()
    p.skip(TType.STRUCT)
    p.readMessageEnd()
    method = method.split(":")[-1]
    if mtype == TMessageType.ONEWAY or method == "fire":
        return
    if method != "missing":
        write_message(p, method, TMessageType.REPLY, seq)
        return
    p.writeMessageBegin(method, TMessageType.EXCEPTION, seq)
    TApplicationException(TApplicationException.UNKNOWN_METHOD, "no such method").write(p)
    p.writeMessageEnd()
    p.trans.flush()


if __name__ == "__main__":
    if sys.argv[1] == "client":
        client(int(sys.argv[2]), *sys.argv[3:])
    else:
        server(*sys.argv[2:])
