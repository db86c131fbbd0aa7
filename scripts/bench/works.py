"""The works, and how one run of one of them is measured."""

import collections
import contextlib
import json
import socket
import time

import programs
import proxies

WARM_UP = 0.3  # seconds of load, unmeasured
SETTLE = 1.0  # seconds that quiet sessions have been quiet before they are looked at
REQUEST = 64  # bytes

# A column of a table; best is min or max, or None where there is nothing to compare.
Column = collections.namedtuple("Column", "key title form best")

RATE = Column("rate", "requests/s", "{:,.0f}", max)
P50 = Column("p50", "p50 µs", "{:,.0f}", min)
P99 = Column("p99", "p99 µs", "{:,.0f}", min)


def cpu(unit):
    return Column("cpu", "cpu " + unit, "{:,.1f}", min)


PER_REQUEST = [cpu("µs/request"), RATE, P50, P99]
PER_SESSION = [cpu("µs/session"), RATE._replace(title="sessions/s"), P50, P99]
PER_GB = [cpu("ms/GB"), RATE, P50, P99]
PACED = [
    cpu("µs/request"),
    RATE._replace(best=None),  # as many as were planned
    Column("abandoned", "abandoned", "{:,.0f}", None),
    P50._replace(best=None),
    Column("added", "added p50 µs", "{:,.0f}", min),
    P99,
]
QUIET = [
    Column("memory", "KiB/session", "{:,.1f}", min),
    Column("descriptors", "descriptors/session", "{:,.2f}", min),
]

# most is max of each of forebay's two backends; load is flags of forebay load.
Work = collections.namedtuple("Work", "name about protocol clients size load columns most")


def work(name, about, clients, columns, protocol="raw", size=REQUEST, load=(), most=2048):
    return Work(name, about, protocol, clients, size, load, columns, most)


ONE_REQUEST = ("--requests-per-client", "1")

WORKS = [
    work("small", "connections with 64-byte requests and replies", 64, PER_REQUEST),
    work("4k", "connections with 4-KiB requests and replies", 64, PER_REQUEST, size=4096),
    work("bulk", "connections with 256-KiB requests and replies", 4, PER_GB, size=1 << 18),
    work("short", "clients that connect, ask once and close", 32, PER_SESSION, load=ONE_REQUEST),
    work(
        "paced",
        "connections, 3,000 64-byte requests/s over all",
        64,
        PACED,
        load=("--rate", "3000"),
    ),
    work("quiet", "sessions that are quiet after one request", 3000, QUIET),
    work("thrift", "connections with Thrift calls", 64, PER_REQUEST, protocol="thrift"),
    work(
        "thrift-short",
        "clients that connect, call once and close",
        32,
        PER_SESSION,
        protocol="thrift",
        load=ONE_REQUEST,
    ),
    work(
        "thrift-fan-in",
        "connections with Thrift calls; of forebay to its backends, 2 × 16",
        1000,
        PER_REQUEST,
        protocol="thrift",
        most=16,
    ),
]

NAMES = [w.name for w in WORKS]


class Bench:
    """What all runs share. backends are the ports of the echo servers, by protocol."""

    def __init__(self, running, tools, forebay, args):
        self.running, self.tools, self.forebay = running, tools, forebay
        self.seconds = args.seconds
        self.warm_up = WARM_UP if not args.quick else 0.1
        self.settle = SETTLE if not args.quick else 0.1
        self.backends = {}

    def start_backends(self, protocol):
        """Starts two echo servers, in one process as forebay echo has them."""
        if protocol in self.backends:
            return
        ports = [programs.free_port() for _ in range(2)]
        argv = [self.forebay, "echo", "--protocol", protocol]
        for port in ports:
            argv += ["--listen", "127.0.0.1:%d" % port]
        echo = self.running.start("echo-" + protocol, argv)
        for port in ports:
            echo.wait_for_port(port)
        self.backends[protocol] = ports

    def measure(self, what, proxy):
        """Returns the figures of one run through a proxy, or to a backend directly."""
        backends = self.backends[what.protocol]
        if proxy is None:
            self.load(what, backends[0], self.warm_up)
            return self.load(what, backends[0], self.seconds)
        options = {"protocol": what.protocol, "most": what.most} if proxy.kind == "forebay" else {}
        program, port = proxies.start(self.running, self.tools, proxy, backends, **options)
        try:
            if what.columns is QUIET:
                figures = self.hold(what, port, program)
            else:
                figures = self.load_through(what, port, program)
            if program.process.poll() is not None:
                figures.pop("cpu", None)  # which ended with it
                figures["errors"] += 1
                ended = "it ended with status %d: %s"
                figures["first_error"] = ended % (program.process.returncode, program.last_line())
        finally:
            self.running.stop(program)
        return figures

    def load_through(self, what, port, program):
        warm = self.load(what, port, self.warm_up)
        before = program.cpu()
        figures = self.load(what, port, self.seconds)
        used = program.cpu() - before
        if figures["replies"]:
            per = used / figures["replies"] * 1e6
            if what.columns is PER_GB:
                per = used / (figures["replies"] * 2 * what.size / 1e9) * 1e3
            figures["cpu"] = per
        for key in ("errors", "mismatches"):  # one is one too many at any time
            figures[key] += warm[key]
        figures["first_error"] = warm["first_error"] or figures["first_error"]
        return figures

    def load(self, what, port, seconds):
        argv = [self.forebay, "load", "--json", "--target", "127.0.0.1:%d" % port]
        argv += ["--protocol", what.protocol, "--clients", str(what.clients)]
        argv += ["--size", str(what.size), "--duration", "%.3fs" % seconds, *what.load]
        status, out = self.running.output("load", argv, seconds + 60)
        if status is None:
            return figures_of({"errors": 1, "first_error": "the load did not end"})
        try:
            return figures_of(json.loads(out))
        except ValueError:
            raise RuntimeError("forebay load failed: " + " ".join(argv[1:])) from None

    def hold(self, what, port, program):
        """Opens sessions one after the other, has one reply on each, and looks at the
        proxy once they have been quiet."""
        time.sleep(self.warm_up)
        memory, descriptors = program.memory(), program.descriptors()
        figures, held = figures_of({}), 0
        with contextlib.ExitStack() as sessions:
            try:
                for held in range(1, what.clients + 1):
                    if not ask(sessions.enter_context(session(port))):
                        figures["mismatches"] += 1
                time.sleep(self.settle)
                figures["memory"] = (program.memory() - memory) / held
                figures["descriptors"] = (program.descriptors() - descriptors) / held
            except OSError as e:
                figures["errors"] += 1
                figures["first_error"] = "session %d: %s" % (held, e)
        return figures


def session(port):
    return socket.create_connection(("127.0.0.1", port), 5)


def ask(conn):
    """Reports whether a request came back as it was."""
    request = b"%064d" % conn.fileno()
    conn.sendall(request)
    reply = b""
    while len(reply) < len(request):
        part = conn.recv(len(request))
        if not part:
            raise OSError("closed before its reply")
        reply += part
    return reply == request


def figures_of(result):
    """Takes from the result of forebay load what the tables have."""
    figures = {k: result.get(k, 0) for k in ("errors", "mismatches", "abandoned", "replies")}
    figures["first_error"] = result.get("first_error", "")
    if figures["replies"]:
        figures["rate"] = result["req_per_s"]
        figures["p50"], figures["p99"] = result["p50_us"], result["p99_us"]
    return figures
