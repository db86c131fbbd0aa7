"""What is compared: forebay, and its peers in two forms each. One form has a thread
or worker for each processor and default buffers; the other, "1", has one in all, and
128-KiB buffers."""

import collections
import json
import os
import re
import shutil
import subprocess

import programs

Proxy = collections.namedtuple("Proxy", "name kind tuned flags")  # flags: of forebay

PEERS = [
    Proxy("haproxy", "haproxy", False, ()),
    Proxy("haproxy 1", "haproxy", True, ()),
    Proxy("nginx", "nginx", False, ()),
    Proxy("nginx 1", "nginx", True, ()),
]

# Packages by distribution.
PACKAGES = {
    "haproxy": ("haproxy", "haproxy", "haproxy"),
    "nginx": ("nginx libnginx-mod-stream", "nginx nginx-mod-stream", "nginx nginx-mod-stream"),
    "go": ("golang-go", "golang", "go"),
}

MAX_THREADS = 64  # of HAProxy
MAX_CONNECTIONS = 4500
START_ATTEMPTS = 3


def install_hint(tool):
    names = PACKAGES[tool]
    return "apt install %s (Debian, Ubuntu), dnf install %s (Fedora), apk add %s (Alpine)" % names


def find(tool):
    # Debian has servers where only root looks for programs.
    return shutil.which(tool) or shutil.which(tool, path="/usr/local/sbin:/usr/sbin:/sbin")


def said(*argv):
    """Returns what a program says of its version, wherever it writes it."""
    p = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return p.stdout.decode(errors="replace")


def version_in(text):
    found = re.search(r"\d+\.\d\S*", text)
    return found.group() if found else "(unknown version)"


class Haproxy:
    def __init__(self, path, setup):
        self.path, self.setup = path, setup
        self.version = version_in(said(path, "-v"))
        self.missing = ""

    def command(self, proxy, port, backends):
        threads = 1 if proxy.tuned else min(self.setup.processors, MAX_THREADS)
        # It refuses to start where the descriptors of its pipes would not suffice.
        room = (self.setup.descriptors - 100 - 4 * threads) * 2 // 5
        lines = ["global", "nbthread %d" % threads]
        lines += ["maxconn %d" % max(1, min(MAX_CONNECTIONS, room))]
        lines += ["tune.bufsize 131072"] if proxy.tuned else []
        lines += ["defaults", "mode tcp", "timeout connect 5s"]
        lines += ["timeout client 60s", "timeout server 60s"]
        lines += [] if proxy.tuned else ["option splice-auto"]
        lines += ["listen l", "bind 127.0.0.1:%d" % port, "balance leastconn"]
        lines += ["server s%d 127.0.0.1:%d" % (i, b) for i, b in enumerate(backends)]
        return [self.path, "-db", "-f", self.setup.write(proxy.name + ".cfg", lines)]


class Nginx:
    def __init__(self, path, setup):
        self.path, self.setup = path, setup
        about = said(path, "-V")
        self.version = version_in(about)
        self.module, self.missing = "", ""
        if "--with-stream " in about + " ":
            return  # built in
        found = re.search(r"--modules-path=(\S+)", about)
        self.module = os.path.join(found.group(1) if found else "", "ngx_stream_module.so")
        if not os.path.exists(self.module):
            self.missing = "has no stream module"

    def command(self, proxy, port, backends):
        name = proxy.name.replace(" ", "-")
        workers = 1 if proxy.tuned else self.setup.processors
        lines = ["load_module %s;" % self.module] if self.module else []
        # The memory of workers under another user's id could not be read.
        lines += ["user root;"] if os.geteuid() == 0 else []
        lines += ["worker_processes %d;" % workers, "daemon off;"]
        lines += ["pid %s.pid;" % name, "error_log %s.err;" % name]
        lines += ["events { worker_connections %d; }" % (2 * MAX_CONNECTIONS)]
        lines += ["stream {", "upstream u { least_conn;"]
        lines += ["server 127.0.0.1:%d;" % b for b in backends]
        lines += ["}", "server { listen 127.0.0.1:%d reuseport;" % port]
        lines += ["proxy_pass u; proxy_timeout 60s;"]
        lines += ["proxy_buffer_size 128k;"] if proxy.tuned else []
        lines += ["} }"]
        config = self.setup.write(name + ".conf", lines)
        return [self.path, "-p", self.setup.directory, "-c", config]


class Forebay:
    missing = ""

    def __init__(self, path, version):
        self.path, self.version = path, version

    def command(self, proxy, port, backends, protocol="raw", most=2048):
        argv = [self.path, "--log-level", "warn", "--drain-timeout", "1s", *proxy.flags]
        argv += ["--listen", "127.0.0.1:%d" % port, "--protocol", protocol]
        for b in backends:
            argv += ["--backend", "127.0.0.1:%d,max=%d" % (b, most)]
        return argv


def forebays(flags, engines):
    """Returns forebay, or forebay with each of the engines."""
    if not engines:
        return [Proxy("forebay", "forebay", False, tuple(flags))]
    return [Proxy("forebay/" + e, "forebay", False, (*flags, "--engine", e)) for e in engines]


class Setup:
    """What the proxies may use, and where their files are."""

    def __init__(self, directory, descriptors):
        self.directory, self.descriptors = directory, descriptors
        self.processors = len(os.sched_getaffinity(0))

    def sessions(self):
        """Returns how many sessions every proxy can have within the descriptors: two
        for each, and forebay keeps a quarter of all for connections dialed ahead."""
        return max(1, (self.descriptors - 100 - 4 * min(self.processors, MAX_THREADS)) * 3 // 8)

    def write(self, name, lines):
        path = os.path.join(self.directory, name.replace(" ", "-"))
        with open(path, "w") as f:
            f.write("\n".join(lines) + "\n")
        return path


def start(running, tools, proxy, backends, **options):
    """Starts a proxy and returns it with its port. The port was free when it was
    picked; should it have been taken since, others are tried."""
    for attempt in range(START_ATTEMPTS):
        port = programs.free_port()
        argv = tools[proxy.kind].command(proxy, port, backends, **options)
        program = running.start(proxy.name.replace(" ", "-").replace("/", "-"), argv)
        try:
            program.wait_for_port(port)
            return program, port
        except programs.NotListening:
            running.stop(program)
            if attempt == START_ATTEMPTS - 1:
                raise


def try_out(running, tools, proxy, protocol):
    """Starts and stops a proxy once. Returns what is wrong with it, and the engine
    that a forebay says it has."""
    options = {"protocol": protocol} if proxy.kind == "forebay" else {}
    proxy = proxy._replace(name="try " + proxy.name)  # a log apart from those of the runs
    if options:
        proxy = proxy._replace(flags=(*proxy.flags, "--log-level", "info", "--log-format", "json"))
    try:
        program, _ = start(running, tools, proxy, [programs.free_port()], **options)
    except programs.NotListening as e:
        word = str(e)
        return word[len("forebay: ") :] if word.startswith("forebay: ") else word, ""
    running.stop(program)
    return "", engine_of(program.log) if options else ""


def engine_of(log):
    with open(log, errors="replace") as f:
        for line in f:
            try:
                said_so = json.loads(line).get("engine", "")
            except (ValueError, AttributeError):
                continue
            if said_so:
                return said_so
    return ""
