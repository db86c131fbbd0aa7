"""Builds forebay, runs the works through it and its peers, and writes what came of
it. bench.sh starts this."""

import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time

import options
import programs
import proxies
import report
import works

BUILD_PATIENCE = 600  # seconds
QUICK_SESSIONS = 200  # quiet ones, in the smoke test
OVERHEAD = 0.6  # seconds that a run takes besides, roughly: to start, warm up and stop


class Refused(Exception):
    """What forebay says of its flags."""


def progress(text):
    print("bench: " + text, file=sys.stderr, flush=True)


def raise_descriptors():
    """Raises the limit of descriptors to the hard one and returns that."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return 1 << 20 if hard == resource.RLIM_INFINITY else hard


def build(running, directory):
    """Builds forebay and returns its path."""
    if not shutil.which("go"):
        raise RuntimeError("needs Go to build forebay: " + proxies.install_hint("go"))
    progress("building forebay")
    path = os.path.join(directory, "forebay")
    # The header names the version, so that git need not trust this directory.
    argv = ["go", "build", "-buildvcs=false", "-o", path, "."]
    status, _ = running.output("build", argv, BUILD_PATIENCE, cwd=os.getcwd())
    if status != 0:
        with open(os.path.join(directory, "build.log"), errors="replace") as log:
            raise RuntimeError("forebay does not build: " + log.read().strip())
    return path


def version():
    argv = ["git", "describe", "--tags", "--always", "--dirty"]
    try:
        p = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    except OSError:
        return "(no git to tell its version)"
    return p.stdout.decode().strip() or "(not from git)"


def find_tools(setup, forebay):
    """Returns the tools by kind, and lines on those that are missing."""
    tools, lines = {"forebay": proxies.Forebay(forebay, version())}, []
    for kind, make in ("haproxy", proxies.Haproxy), ("nginx", proxies.Nginx):
        path = proxies.find(kind)
        tool = make(path, setup) if path else None
        missing = tool.missing if tool else "is not installed"
        if missing:
            lines.append((kind, "%s: %s" % (missing, proxies.install_hint(kind))))
        else:
            tools[kind] = tool
            lines.append((kind, tool.version))
    return tools, lines


def choose(running, tools, args):
    """Tries all proxies out. Returns those that start, by protocol, what was said of
    the others, and the engine of each forebay."""
    peers = [p for p in proxies.PEERS if p.kind in tools and (p.tuned or not args.quick)]
    wrong = {p.name: proxies.try_out(running, tools, p, "raw")[0] for p in peers}
    notes = ["%s does not start: %s" % (p.name, wrong[p.name]) for p in peers if wrong[p.name]]
    peers = [p for p in peers if not wrong[p.name]]
    usable, engines, refused = {}, {}, {}
    for protocol in dict.fromkeys(w.protocol for w in args.chosen):
        usable[protocol] = []
        for proxy in proxies.forebays(args.flags, args.engines):
            word, engine = proxies.try_out(running, tools, proxy, protocol)
            if word:
                refused.setdefault((proxy.name, word), []).append(protocol)
                continue
            usable[protocol].append(proxy)
            engines[proxy.name] = engine
        usable[protocol] += peers
    for (name, word), protocols in refused.items():
        notes.append("%s is left out (%s): %s" % (name, ", ".join(protocols), word))
    if not engines:
        raise Refused("no forebay starts: " + "; ".join(word for _, word in refused))
    return usable, notes, engines


def processor():
    with open("/proc/cpuinfo", errors="replace") as f:
        for line in f:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def header(setup, tools, tool_lines, engines, args):
    runs = "%d round%s of %g s" % (args.rounds, "s" * (args.rounds > 1), args.seconds)
    machine = "%d processors (%s), " % (setup.processors, processor())
    forebay = tools["forebay"].version
    for name, engine in engines.items():
        forebay += ", engine %s" % engine if not args.engines else ", %s: %s" % (name, engine)
    if args.flags:
        forebay += ", with " + " ".join(args.flags)
    go = proxies.said("go", "version").split()
    return [
        ("date", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())),
        ("machine", machine + "%s %s" % (platform.system(), platform.release())),
        ("forebay", forebay),
        *tool_lines,
        ("go", go[2] if len(go) > 2 else "?"),
        ("runs", runs),
        ("load", "the load generator and the backends share the processors with the proxy"),
    ]


def scaled(what, setup, quick):
    """Returns the work with no more clients than there are descriptors for, and a
    note if that made it smaller."""
    if quick and what.columns is works.QUIET:
        what = what._replace(clients=QUICK_SESSIONS)
    most = setup.sessions()
    if what.clients <= most:
        return what, []
    note = "scaled down from %s %s: the limit of descriptors is %d (ulimit -Hn)"
    note %= ("{:,}".format(what.clients), "sessions", setup.descriptors)
    return what._replace(clients=most), [note]


def one_round(bench, what, turn):
    """Returns the figures of each, in the order in which it is their turn."""
    runs = {proxy.name: bench.measure(what, proxy) for proxy in turn}
    if what.columns is not works.QUIET:
        runs["direct"] = bench.measure(what, None)
    report.add_p50(runs)
    return runs


def run_work(bench, what, usable, rounds):
    """Returns the figures of all rounds, by name."""
    bench.start_backends(what.protocol)
    names = [p.name for p in usable] + ["direct"]
    rows = {name: [] for name in names}
    for r in range(rounds):
        progress("%s, round %d of %d" % (what.name, r + 1, rounds))
        first = r % len(usable)
        for name, run in one_round(bench, what, usable[first:] + usable[:first]).items():
            rows[name].append(run)
    return {name: runs for name, runs in rows.items() if runs}


def fault_notes(rows):
    """Tells of each that had faults what the first one was, and whether any of them
    was forebay's."""
    notes, failed = [], False
    for name, runs in rows.items():
        if any(run[f] for run in runs for f in report.FAULTS):
            first = next((run["first_error"] for run in runs if run["first_error"]), "")
            notes.append("first fault of %s (for logs: --keep): %s" % (name, first or "unknown"))
            failed = failed or name.startswith("forebay")
    return notes, failed


def expected(args, usable):
    runs = sum(len(usable[w.protocol]) + 1 for w in args.chosen) * args.rounds
    seconds = runs * (args.seconds + OVERHEAD)
    length = "%d seconds" % seconds if seconds < 90 else "%d minutes" % round(seconds / 60)
    return "%d runs, about %s" % (runs, length)


def run(running, directory, args):
    setup = proxies.Setup(directory, raise_descriptors())
    forebay = build(running, directory)
    tools, tool_lines = find_tools(setup, forebay)
    usable, notes, engines = choose(running, tools, args)
    out = report.Report(args.markdown)
    out.header(header(setup, tools, tool_lines, engines, args))
    out.notes(notes)
    progress(expected(args, usable))
    bench, failed = works.Bench(running, tools, forebay, args), False
    for what in args.chosen:
        if not any(p.kind == "forebay" for p in usable[what.protocol]):
            continue  # a note says why
        what, notes = scaled(what, setup, args.quick)
        rows = run_work(bench, what, usable[what.protocol], args.rounds)
        faults, bad = fault_notes(rows)
        failed = failed or bad
        title = "%s: %s %s" % (what.name, "{:,}".format(what.clients), what.about)
        out.work(title, what.columns, rows, notes + faults)
    return 1 if failed else 0


def main():
    args = options.parse(sys.argv[1:])
    args.chosen = [works.WORKS[works.NAMES.index(name)] for name in args.work]
    for stream in sys.stdout, sys.stderr:
        stream.reconfigure(encoding="utf-8")
    directory = tempfile.mkdtemp(prefix="forebay-bench-")
    try:
        with programs.Programs(directory) as running:
            return run(running, directory, args)
    except Refused as e:
        progress(str(e))
        return 2
    except (RuntimeError, programs.NotListening) as e:
        progress(str(e))
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nobody reads on: write no more
        return 1
    finally:
        if args.keep:
            progress("logs and configurations are in " + directory)
        else:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
