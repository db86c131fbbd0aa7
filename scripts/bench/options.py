"""The command line."""

import argparse
import shlex
import sys

import works

HELP = """\
Compares forebay with HAProxy, nginx (its stream module) and no proxy at all on
this machine, with forebay's own echo servers and load generator. HAProxy and nginx
run in two forms: with a thread or worker for each processor, default buffers and, in
HAProxy, option splice-auto; and ("1") with one in all and 128-KiB buffers. To them
Thrift is bytes like any other. What is not installed is named, and left out.

The proxies take turns in each round, in another order each time. Each run is of a
new process, loaded for 0.3 s before it is measured. A table has medians over the
rounds, and the sum of errors and mismatches:

  cpu            processor time of the proxy alone, with all its threads and children;
                 a GB is of requests and replies together
  requests/s     with as much load as there is
  p50, p99       latency, from the write of a request; paced: from when it was planned
  added p50      how much longer than directly; at least 1 µs
  KiB, descriptors   what a session adds; memory is Pss, without the kernel's buffers
  ratio          forebay over the best peer of the same round, each figure by itself:
                 below 1 it needs less or, of requests/s, does less. Where lowest and
                 highest are far apart, run more rounds before you believe the median

work:
"""

EPILOG = """\
The exit status is 1 if forebay had an error or a mismatch or did not start, 2 for a
wrong option. For CI: scripts/bench.sh --quick takes seconds and tells that all works,
not how well.
"""

QUICK = ["small", "short", "quiet", "thrift"]


class Parser(argparse.ArgumentParser):
    def error(self, message):
        message = message.replace("expected one argument", "needs a value; see --help")
        if message.startswith("argument "):
            message = message[len("argument ") :]
        print("bench: " + message, file=sys.stderr)
        sys.exit(2)


def work_list(text):
    if text == "all":
        return list(works.NAMES)
    names = text.split(",")
    for name in names:
        if name not in works.NAMES:
            takes = "takes all, or of these, with commas: " + ", ".join(works.NAMES)
            raise argparse.ArgumentTypeError('got "%s"; %s' % (name, takes))
    return list(dict.fromkeys(names))


def engine_list(text):
    names = text.split(",")
    if not all(names):
        raise argparse.ArgumentTypeError('got "%s"; takes names, with commas: net,auto' % text)
    return list(dict.fromkeys(names))


def number(kind, least, most, what):
    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError('got "%s"; takes %s' % (text, what))
        return value

    return parse


def flag_list(text):
    try:
        return shlex.split(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError('got "%s", which does not split: %s' % (text, e)) from None


def parser():
    about = HELP + "".join("  %-14s %5d %s\n" % (w.name, w.clients, w.about) for w in works.WORKS)
    p = Parser(
        prog="bench.sh",
        usage="%(prog)s [option ...]",
        description=about,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    rounds = number(int, 1, 1000, "a whole number from 1 to 1000")
    seconds = number(float, 0.1, 3600, "a number from 0.1 to 3600")
    p.add_argument("--work", metavar="LIST", type=work_list, help="as in small,bulk (default: all)")
    p.add_argument("--rounds", metavar="N", type=rounds, help="(default: 3)")
    p.add_argument("--seconds", metavar="S", type=seconds, help="length of a run (default: 3)")
    p.add_argument(
        "--flags", type=flag_list, default=[], help="more flags for forebay, in one argument"
    )
    p.add_argument(
        "--engines",
        metavar="LIST",
        type=engine_list,
        default=[],
        help="a forebay for each --engine of the list; one that it refuses is left out",
    )
    p.add_argument("--markdown", action="store_true", help="write Markdown")
    p.add_argument("--keep", action="store_true", help="keep logs and configurations")
    p.add_argument(
        "--quick",
        action="store_true",
        help="a smoke test: one round of 0.2 s of %s, peers in form 1 only" % ",".join(QUICK),
    )
    return p


def joined(argv):
    """Has --flags take the next argument whatever it looks like: a flag, mostly."""
    argv = list(argv)
    if "--flags" in argv[:-1]:
        i = argv.index("--flags")
        argv[i : i + 2] = ["--flags=" + argv[i + 1]]
    return argv


def parse(argv):
    p = parser()
    args, unknown = p.parse_known_args(joined(argv))
    if unknown:
        takes = [a.option_strings[-1] for a in p._actions]
        p.error('unknown argument "%s"; takes %s' % (unknown[0], ", ".join(takes)))
    args.work = args.work or (QUICK if args.quick else list(works.NAMES))
    args.rounds = args.rounds or (1 if args.quick else 3)
    args.seconds = args.seconds or (0.2 if args.quick else 3.0)
    return args
