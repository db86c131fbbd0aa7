"""Serves the probe service with the Thrift library for Python:

    server.py KIND PORT:TRANSPORT:PROTOCOL...
"""

import collections
import logging
import sys
import threading

from thrift.server import TNonblockingServer, TServer
from thrift.TMultiplexedProcessor import TMultiplexedProcessor
from thrift.transport import TSocket

import form
from probe import Probe
from probe.ttypes import Refused

WORKERS = 8  # more than the connections the proxy and a direct client hold at once


class Handler:
    def __init__(self):
        self.lock = threading.Lock()
        self.fires = collections.Counter()

    def echo(self, text):
        return text

    def echoBinary(self, data):
        return data

    def echoTree(self, tree):
        return tree

    def refuse(self, why):
        raise Refused(7, why)

    def ping(self):
        pass

    def fire(self, key):
        with self.lock:
            self.fires[key] += 1

    def fired(self, key):
        with self.lock:
            return self.fires[key]


class ShortReads:
    """A socket that never fills the buffer given to recv. The library's
    non-blocking server takes a full buffer for a sign that more has come, and
    closes the connection, or never reads it again, where that is not so: where
    the bytes that wait are a multiple of 8,192, by chance of timing."""

    def __init__(self, socket):
        self.socket = socket

    def recv(self, size):
        return self.socket.recv(size - 1)

    def __getattr__(self, name):
        return getattr(self.socket, name)


class Connection(TNonblockingServer.Connection):
    def __init__(self, socket, wake_up):
        super().__init__(ShortReads(socket), wake_up)


TNonblockingServer.Connection = Connection


def serve(kind, port, transport, protocol):
    processor = Probe.Processor(Handler())
    if transport == "multiplexed":
        multiplexed = TMultiplexedProcessor()
        multiplexed.registerProcessor("Probe", processor)
        processor = multiplexed
    socket = TSocket.TServerSocket(host="127.0.0.1", port=port)
    tf, pf = form.factories(transport, protocol)
    if kind == "nonblocking":
        server = TNonblockingServer.TNonblockingServer(processor, socket, pf)
    elif kind == "threadpool":
        server = TServer.TThreadPoolServer(processor, socket, tf, pf, daemon=True)
        server.setNumThreads(WORKERS)
    elif kind == "threaded":
        server = TServer.TThreadedServer(processor, socket, tf, pf, daemon=True)
    elif kind == "simple":
        server = TServer.TSimpleServer(processor, socket, tf, pf)
    else:
        sys.exit("unknown kind " + kind)
    server.serve()


logging.basicConfig()
threads = []
for spec in sys.argv[2:]:
    port, transport, protocol = spec.split(":")
    args = (sys.argv[1], int(port), transport, protocol)
    threads.append(threading.Thread(target=serve, args=args, daemon=True))
    threads[-1].start()
for thread in threads:
    thread.join()
