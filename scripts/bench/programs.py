"""Starts programs, measures them and makes sure that they end."""

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time

PATIENCE = 10  # seconds for a program to listen
GRACE = 5  # seconds for a program to end when it is told to
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class NotListening(Exception):
    """A program ended, or did not listen in time. The text says what it said."""


class Signals:
    """Ends the run at the first signal, by way of each finally, but never between
    the start of a program and the note that it has to be stopped."""

    def __init__(self):
        self.holding, self.pending = False, 0
        for s in SIGNALS:
            if signal.getsignal(s) != signal.SIG_IGN:  # as nohup sets it
                signal.signal(s, self.handle)

    def handle(self, number, _frame):
        if self.holding:
            self.pending = number
            return
        self.ignore()
        sys.exit(128 + number)

    def ignore(self):
        for s in SIGNALS:
            signal.signal(s, signal.SIG_IGN)

    @contextlib.contextmanager
    def held(self):
        self.holding = True
        try:
            yield
        finally:
            self.holding = False
            if self.pending:
                self.handle(self.pending, None)


class Programs:
    """All that runs. What is left when the with statement ends is stopped."""

    def __init__(self, directory):
        self.directory = directory
        self.running = []
        self.signals = Signals()
        # The operator's own settings are no part of the comparison.
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("FOREBAY_")}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.signals.ignore()
        for p in self.running:
            p.process.terminate()  # all at once, so that their graces overlap
        self.stop(*self.running)

    def start(self, name, argv, stdout=None, cwd=None):
        """Starts a program whose output goes to the end of a log. It has a process
        group of its own, so that Ctrl-C does not end it in the middle of its work."""
        path = os.path.join(self.directory, name + ".log")
        with open(path, "ab") as log, self.signals.held():
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stdout or log,
                stderr=log,
                cwd=cwd or self.directory,
                env=self.env,
                start_new_session=True,
            )
            program = Program(name, process, path)
            self.running.append(program)
        return program

    def stop(self, *programs):
        for p in list(programs):
            p.stop()
            self.running.remove(p)

    def output(self, name, argv, patience, cwd=None):
        """Runs a program to its end. Returns its exit status and what it wrote."""
        program = self.start(name, argv, stdout=subprocess.PIPE, cwd=cwd)
        try:
            out, _ = program.process.communicate(timeout=patience)
            return program.process.returncode, out.decode(errors="replace")
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            self.stop(program)


class Program:
    """A running program, with the processes that it has started."""

    def __init__(self, name, process, log):
        self.name, self.process, self.log = name, process, log

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        # What it started and left behind is in the group that has its id.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        if self.process.stdout:
            self.process.stdout.close()

    def wait_for_port(self, port):
        end = time.monotonic() + PATIENCE
        while not listens(port):
            if self.process.poll() is not None or time.monotonic() > end:
                raise NotListening(self.last_line() or "no word from it")
            time.sleep(0.02)
        # Whoever got the port, it was not this program if that has ended.
        if self.process.poll() is not None:
            raise NotListening(self.last_line() or "no word from it")

    def last_line(self):
        """Returns the last line of the log, apart from hints at the help."""
        with open(self.log, errors="replace") as log:
            lines = [s.strip() for s in log if s.strip() and not s.startswith("see ")]
        return lines[-1] if lines else ""

    def cpu(self):
        """Returns the seconds of processor time used so far, to the nanosecond."""
        return sum(map(cpu_clock, tree(self.process.pid)))

    def memory(self):
        """Returns the KiB of memory, shared pages divided by those who share them."""
        kib = 0
        for pid in tree(self.process.pid):
            with open("/proc/%d/smaps_rollup" % pid) as f:
                kib += sum(int(line.split()[1]) for line in f if line.startswith("Pss:"))
        return kib

    def descriptors(self):
        return sum(len(os.listdir("/proc/%d/fd" % pid)) for pid in tree(self.process.pid))


def cpu_clock(pid):
    """Reads the clock of another process, as clock_getcpuclockid(3) names it. Unlike
    /proc/PID/stat it does not count in ticks, and unlike schedstat it remembers the
    threads that have ended."""
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError as e:
        if e.errno == errno.EINVAL:  # it has ended
            return 0
        raise


def tree(root):
    """Returns a process and all its descendants. Not every kernel lists children."""
    children = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % name) as f:
                parent = int(f.read().rsplit(")", 1)[1].split()[1])  # a name may contain )
        except OSError:
            continue  # it has ended
        children.setdefault(parent, []).append(int(name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def listens(port):
    with socket.socket() as s:
        s.settimeout(1)
        try:
            s.connect(("127.0.0.1", port))
        except OSError:
            return False
        # A socket that connects to its own port has met nobody else there.
        return s.getsockname() != s.getpeername()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
