"""Runs every client against every server, directly and through the proxy, and
compares: a call falls short only where it works directly and not through the
proxy, since the libraries do not all agree with each other. interop.sh builds
what this runs, and starts it."""

import argparse
import collections
import concurrent.futures
import itertools
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time

PATIENCE = 20  # seconds for one client, or for a program to listen
PARALLEL = 4  # clients at once; no more than the proxy's connections

# A form is a transport and a protocol. Multiplexed is framed, with service names;
# old is the binary protocol before it had a version ("non-strict").
FRAMED = ["framed-binary", "framed-compact", "multiplexed-binary"]
BUFFERED = ["buffered-binary", "buffered-compact"]
HEADER = ["header-binary", "header-compact"]

CLIENTS = {
    "go": FRAMED + BUFFERED + HEADER + ["framed-old", "buffered-old"],
    "py": FRAMED + BUFFERED + HEADER,
    "cpp": FRAMED + BUFFERED + HEADER + ["framed-old", "buffered-old"],
    "java": FRAMED + BUFFERED + ["framed-old", "buffered-old"],
    "node": FRAMED + BUFFERED + HEADER,
}

# Non-blocking servers frame by themselves; those of Python and Java take nothing
# else, and that of C++ a header in the frame.
SERVERS = {
    "go/simple": CLIENTS["go"],  # the name notwithstanding, a goroutine per connection
    "py/simple": CLIENTS["py"],
    "py/threaded": CLIENTS["py"],
    "py/threadpool": CLIENTS["py"],
    "py/nonblocking": FRAMED,
    "cpp/simple": CLIENTS["cpp"],
    "cpp/threaded": CLIENTS["cpp"],
    "cpp/threadpool": CLIENTS["cpp"],
    "cpp/nonblocking": FRAMED + HEADER + ["framed-old"],
    "java/simple": CLIENTS["java"],
    "java/threadpool": CLIENTS["java"],
    "java/nonblocking": FRAMED + ["framed-old"],
    "java/hsha": FRAMED + ["framed-old"],
    "java/selector": FRAMED + ["framed-old"],
    "node/events": CLIENTS["node"],
}

# These serve one connection at a time, and let the next one wait.
ONE_AT_A_TIME = {"py/simple", "cpp/simple", "java/simple"}

# One of each way to serve, and each library.
QUICK = [
    "go/simple",
    "py/threadpool",
    "py/nonblocking",
    "cpp/simple",
    "cpp/nonblocking",
    "java/threadpool",
    "java/selector",
    "node/events",
]

CALLS = ["string-0", "string-7", "string-70000", "binary", "tree", "exception", "void"]
CALLS += ["oneway", "oneways", "unknown", "last"]

JARS = ":".join("/usr/share/java/%s.jar" % jar for jar in ("thrift", "slf4j-api", "slf4j-nop"))


def command(role, language, build):
    """Returns the command of a language's client or server."""
    at = os.path.join(build, language)
    java = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", at + "/classes:" + JARS]
    return {
        "go": [os.path.join(at, "bin", role)],
        "py": ["/usr/bin/python3", os.path.join(at, role + ".py")],
        "cpp": [os.path.join(at, role)],
        "java": java + [role.capitalize()],
        "node": ["node", os.path.join(at, role + ".js")],
    }[language]


def parse():
    p = argparse.ArgumentParser(
        prog="interop.sh",
        description="Runs clients and servers of the Apache Thrift libraries for Go, Python, C++, "
        "Java and Node.js against each other, directly and through forebay, and "
        "exits with 1 if a call works directly and not through forebay.",
    )
    p.add_argument("--quick", action="store_true", help="fewer kinds of server; for CI")
    p.add_argument(
        "--only",
        metavar="CLIENT,SERVER",
        default=",",
        help="one client, one server, or one of both: go,java or go,java/selector or ,java or go,",
    )
    p.add_argument("--protocol", default="thrift", help="forebay's --protocol (default: thrift)")
    p.add_argument(
        "--flags",
        default="",
        help="more flags for forebay, in one argument (with =): --flags='--oneway-method fire'",
    )
    p.add_argument(
        "--forebay",
        metavar="PROGRAM",
        help="the program to run, by its whole path (default: built from this tree)",
    )
    # For interop.sh: which languages to build, and where they are.
    p.add_argument("--languages", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--build", help=argparse.SUPPRESS)
    p.add_argument("--logs", help=argparse.SUPPRESS)
    args = p.parse_args()

    client, comma, server = args.only.partition(",")
    args.clients = [c for c in CLIENTS if client in ("", c)]
    args.servers = [s for s in SERVERS if server in ("", s, s.partition("/")[0])]
    if not comma or not args.clients or not args.servers:
        p.error("--only wants a client of %s and a server of %s" % (list(CLIENTS), list(SERVERS)))
    if args.quick:
        args.servers = [s for s in args.servers if s in QUICK or s == server]
    return args


def free_ports(n):
    """Returns n ports that nobody listens on, below those that the kernel hands
    out to clients by itself."""
    ports = []
    while len(ports) < n:
        port = random.randrange(20000, 30000)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports


class Program:
    """A running program that listens. It must be stopped."""

    def __init__(self, name, cmd, ports, logs):
        self.log = os.path.join(logs, name.replace("/", "-") + ".log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(cmd, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.ports = ports

    def wait_for_ports(self):
        end = time.monotonic() + PATIENCE
        for port in self.ports:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    if self.process.poll() is not None or time.monotonic() > end:
                        with open(self.log, errors="replace") as log:
                            raise RuntimeError("%s does not listen: %s" % (self.log, log.read()))
                    time.sleep(0.02)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Outcome:
    """What one client said of its calls."""

    def __init__(self, client, output, ended, seconds):
        self.output, self.ended, self.seconds = output, ended, seconds
        calls = CALLS + ["pipelined"] if client == "node" else CALLS
        self.faults = dict.fromkeys(calls, "no word: the client " + ended)  # None: it went well
        for line in output.splitlines():
            verdict, call, why = (line + "  ").split(" ", 2)
            if call in self.faults:
                self.faults[call] = None if verdict == "ok" else why.strip()

    def well(self):
        return sum(why is None for why in self.faults.values())


tags = itertools.count()


def run_client(args, client, form, port, patience):
    transport, protocol = form.split("-")
    tag = "t%06d" % next(tags)  # 7 bytes, and in all that this client sends
    cmd = command("client", client, args.build)
    cmd += ["127.0.0.1", str(port), transport, protocol, tag]
    began = time.monotonic()
    with subprocess.Popen(
        cmd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as p:
        try:
            output, _ = p.communicate(timeout=patience)
            ended = "ended with status %d" % p.returncode
        except subprocess.TimeoutExpired:
            p.kill()
            output, _ = p.communicate()
            ended = "did not end in %d s" % patience
        except BaseException:
            p.kill()
            raise
    return Outcome(client, output.decode(errors="replace"), ended, time.monotonic() - began)


def run_clients(args, patience, ports, parallel):
    """Runs the clients of the cells, which are pairs of client and form, each with
    the patience there is for it."""
    with concurrent.futures.ThreadPoolExecutor(parallel) as pool:
        futures = {
            (client, form): pool.submit(run_client, args, client, form, ports[form], seconds)
            for (client, form), seconds in patience.items()
        }
        return {cell: future.result() for cell, future in futures.items()}


def run_server(args, server):
    """Returns what the clients of one server said directly, and through forebay."""
    language, kind = server.split("/")
    # By form, so that different clients share the proxy's connections.
    cells = [(c, form) for form in SERVERS[server] for c in args.clients if form in CLIENTS[c]]
    forms = list(dict.fromkeys(form for _, form in cells))
    ports = free_ports(2 * len(forms))
    direct = dict(zip(forms, ports))
    through = dict(zip(forms, ports[len(forms) :]))
    alone = server in ONE_AT_A_TIME

    programs = []

    def start(name, cmd, *listens):
        programs.append(Program(name, cmd, listens, args.logs))
        return programs[-1]

    try:
        specs = ["%d:%s" % (port, form.replace("-", ":")) for form, port in direct.items()]
        cmd = command("server", language, args.build) + [kind] + specs
        start(server, cmd, *direct.values()).wait_for_ports()
        patience = dict.fromkeys(cells, PATIENCE)
        first = run_clients(args, patience, direct, 1 if alone else PARALLEL)
        # The proxies only now: one that held a connection ahead would keep the
        # direct clients of a server that serves one at a time waiting.
        for form in forms:
            cmd = [args.forebay or os.path.join(args.build, "forebay")]
            cmd += ["--listen", "127.0.0.1:%d" % through[form]]
            cmd += ["--backend", "127.0.0.1:%d,max=%d" % (direct[form], 1 if alone else PARALLEL)]
            cmd += ["--protocol", args.protocol, "--log-level", "warn", "--drain-timeout", "1s"]
            name = "%s-%s-forebay" % (server, form)
            start(name, cmd + shlex.split(args.flags), through[form])
        for p in programs[1:]:
            p.wait_for_ports()
        # Where the machine is slow, it is so for both.
        patience = {cell: PATIENCE + 4 * outcome.seconds for cell, outcome in first.items()}
        second = run_clients(args, patience, through, PARALLEL)
        for p in programs:
            if p.process.poll() is not None:
                raise RuntimeError("a program ended before its time: " + p.log)
        return first, second
    finally:
        for p in reversed(programs):
            p.stop()


def report(args, results):
    """Prints the table and what is behind it. Returns whether all is well."""
    width = max(map(len, args.servers)) + 2
    print("\nform/call pairs that went well: directly / through forebay")
    print(" " * width + "".join(c.rjust(12) for c in args.clients))
    short, faults = [], collections.defaultdict(list)
    for server in args.servers:
        row = server.ljust(width)
        for client in args.clients:
            well, mark = None, ""
            for (c, form), first in results[server][0].items():
                if c != client:
                    continue
                second = results[server][1][c, form]
                well = well or [0, 0]
                well = [well[0] + first.well(), well[1] + second.well()]
                for call, why in first.faults.items():
                    if why is not None:
                        faults[client, server, call, why].append(form)
                    elif second.faults[call] is not None:
                        short.append((client, server, form, call, second))
                        mark = "!"
            row += ("%d/%d%s" % (*well, mark) if well else "-").rjust(12)
        print(row)
    if faults:
        print("\nfailed directly: the libraries' doing")
        for (client, server, call, why), forms in faults.items():
            print("  %s -> %s %s: %s: %s" % (client, server, ",".join(forms), call, why))
    if short:
        print("\nfell short: well directly, not through forebay")
        said = set()
        for client, server, form, call, outcome in short:
            print("  %s -> %s %s: %s: %s" % (client, server, form, call, outcome.faults[call]))
            if (client, server, form) not in said:
                said.add((client, server, form))
                name = "%s-%s-%s-client.log" % (server.replace("/", "-"), form, client)
                with open(os.path.join(args.logs, name), "w") as log:
                    log.write("%sthe client %s\n" % (outcome.output, outcome.ended))
    return not short


def main():
    args = parse()
    if args.languages:
        print(*dict.fromkeys(args.clients + [s.partition("/")[0] for s in args.servers]))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of each finally
    results = {}
    for server in args.servers:
        began = time.monotonic()
        try:
            results[server] = run_server(args, server)
        except RuntimeError as e:
            print("%s: %s" % (server, e), file=sys.stderr)
            return 2
        print("%s in %.1f s" % (server, time.monotonic() - began), flush=True)
    return 0 if report(args, results) else 1


if __name__ == "__main__":
    sys.exit(main())
