"""Makes each kind of call with the Thrift library for Python, checks the
replies, and says "ok NAME" or "fail NAME why" of each:

    client.py HOST PORT TRANSPORT PROTOCOL TAG
"""

import sys
import time

from thrift.protocol.TMultiplexedProtocol import TMultiplexedProtocol
from thrift.Thrift import TApplicationException
from thrift.transport import TSocket

import form
from probe import Wider
from probe.ttypes import Leaf, Refused, Tree

TIMEOUT = 15  # seconds; long: the machine may be busy

host, port, transport, protocol, tag = sys.argv[1:]


def dial():
    """Opens a connection, and returns a client and the transport under it."""
    socket = TSocket.TSocket(host, int(port))
    socket.setTimeout(TIMEOUT * 1000)
    tf, pf = form.factories(transport, protocol)
    trans = tf.getTransport(socket)
    trans.open()
    proto = pf.getProtocol(trans)
    if transport == "multiplexed":
        proto = TMultiplexedProtocol(proto, "Probe")
    return Wider.Client(proto), trans


def check(ok, *why):
    if not ok:
        raise AssertionError(" ".join(map(str, why)))


def echo(client, text):
    got = client.echo(text)
    check(got == text, "echo of", len(text), "bytes: got", len(got), repr(got[:40]))


def binary(client):
    data = bytearray((i * 31 + (i >> 8)) & 255 for i in range(1 << 20))
    data[: len(tag)] = tag.encode()
    got = client.echoBinary(bytes(data))
    check(got == data, "echo of", len(data), "bytes: got", len(got), "other bytes")


def tree(client):
    def leaf(i):
        return Leaf(i, "%s größe %d" % (tag, i), i % 2 == 0, i / 4)

    want = Tree(
        leaf=leaf(-1),
        named={"": leaf(0), tag: leaf(1)},
        leaves=[leaf(i) for i in range(300)],
        numbers={-1: [], 7: [1, -1, 1 << 40]},
        few={3, -300},
        blob=bytes([0, 255, 128, 1]),
        small=-8,
    )
    check(client.echoTree(want) == want, "echo of another tree")


def refuse(client):
    try:
        client.refuse(tag)
    except Refused as e:
        check(e.code == 7 and e.why == tag, "another refusal:", e)
    else:
        check(False, "not refused")


def unknown(client):
    try:
        got = client.absent(tag)
    except TApplicationException as e:
        # The library for Node.js tells the type only in words.
        known = e.type > TApplicationException.UNKNOWN_METHOD or "absent" not in str(e)
        check(not known, "another exception:", e.type, e)
    else:
        check(False, "an answer:", got)


def oneway(client, key, n):
    """Fires n times. The calls may take effect after the next call has been
    answered, but not twice."""
    for _ in range(n):
        client.fire(key)
    end = time.monotonic() + TIMEOUT
    got = client.fired(key)
    while got != n and time.monotonic() < end:
        time.sleep(0.005)
        got = client.fired(key)
    check(got == n, "fired", n, "times, came in", got, "times")


calls = {
    "string-0": lambda c: echo(c, ""),
    "string-7": lambda c: echo(c, tag),
    "string-70000": lambda c: echo(c, tag * 10000),
    "binary": binary,
    "tree": tree,
    "exception": refuse,
    "void": lambda c: c.ping(),
    "oneway": lambda c: oneway(c, tag + " one", 1),
    "oneways": lambda c: oneway(c, tag + " five", 5),
    "unknown": unknown,
    "last": lambda c: echo(c, tag + " last"),
}

client = trans = None
for name, call in calls.items():
    try:
        if client is None:
            client, trans = dial()
        call(client)
    except Exception as e:
        print("fail", name, type(e).__name__, e, flush=True)
        if trans is not None:
            trans.close()
        client = trans = None  # the next call has a connection of its own
    else:
        print("ok", name, flush=True)
if trans is not None:
    trans.close()
