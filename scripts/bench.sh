#!/usr/bin/env bash
# forebay beside HAProxy, nginx and no proxy at all, on this machine: processor
# time, requests per second, latency, memory. See --help. Installs nothing, and
# removes what it builds.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { printf 'bench: %s\n' "$*" >&2; exit 1; }

[ "$(uname -s)" = Linux ] || fail "needs Linux, whose /proc it reads"
command -v python3 >/dev/null ||
  fail "needs Python 3: apt install python3 (Debian, Ubuntu), dnf install python3 (Fedora), apk add python3 (Alpine)"

# -B: no __pycache__ in the tree. exec: signals reach the program that stops the others.
exec python3 -B scripts/bench/run.py "$@"
