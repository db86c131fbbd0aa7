#!/usr/bin/env bash
# Real Thrift clients and servers through the proxy: the Apache Thrift libraries
# for Go, Python, C++, Java and Node.js, every client against every server. See
# --help. Installs what it needs with apt-get and npm, and builds in a directory
# that it removes.
# shellcheck disable=SC2317 # functions are called by name, through start
set -euo pipefail
set -m # a process group for each job, to be ended as one
cd "$(dirname "$0")/interop"

apt_install() {
  local sudo=()
  [ "$(id -u)" -eq 0 ] || sudo=(sudo)
  "${sudo[@]}" apt-get update
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

runner=(/usr/bin/python3 run.py) # the system's Python, which python3-thrift is for
[ -x "${runner[0]}" ] || apt_install python3
for arg in "$@"; do
  case $arg in -h | --help) exec "${runner[@]}" --help ;; esac
done
languages=" $("${runner[@]}" --languages "$@") " # also checks the arguments

say() { printf 'interop: %s (%d s)\n' "$*" "$SECONDS"; }
have() { command -v "$1" >/dev/null; }
wanted() { case $languages in *" $1 "*) true ;; *) false ;; esac; }

build=$(mktemp -d "${TMPDIR:-/tmp}/forebay-interop.XXXXXX")
logs=$(mktemp -d "${TMPDIR:-/tmp}/forebay-interop-logs.XXXXXX")
cleanup() {
  local status=$?
  trap - EXIT INT TERM
  local pid
  for pid in $(jobs -p); do kill -- "-$pid" 2>/dev/null || true; done
  wait 2>/dev/null # it would tell of each that it was ended
  rm -rf "$build"
  if [ "$status" -eq 0 ]; then rm -rf "$logs"; else say "failed; logs in $logs"; fi
  exit "$status"
}
# Signals interrupt only the shell's own wait: all that takes long runs behind.
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

declare -A pids=()
start() { # name, command...: runs it behind, its output in a log
  local name=$1
  shift
  "$@" >"$logs/$name.log" 2>&1 &
  pids[$name]=$!
}
finish() { # name...: waits for them
  local name
  for name in "$@"; do
    wait "${pids[$name]}" || { cat "$logs/$name.log"; say "$name failed"; exit 1; }
  done
}

install_packages() {
  local packages=(thrift-compiler) need=() p
  if wanted py; then packages+=(python3-thrift); fi
  if wanted cpp; then
    packages+=(g++ libthrift-dev libboost-dev libevent-dev zlib1g-dev libssl-dev)
  fi
  if wanted java; then
    packages+=(libthrift-java)
    have javac || packages+=(default-jdk-headless)
  fi
  if wanted node; then have npm || packages+=(nodejs npm); fi
  for p in "${packages[@]}"; do
    [ "$(dpkg-query -Wf '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || need+=("$p")
  done
  [ "${#need[@]}" -eq 0 ] || apt_install "${need[@]}"
}

generate() { # language, generator: copies the sources, and generates the rest
  cp -r "$1/." "$build/$1"
  thrift --gen "$2" -out "$build/$1" probe.thrift
}

build_forebay() { (cd ../.. && go build -o "$build/forebay" .); }

build_go() {
  generate go go:package_prefix=interop/
  rm -r "$build"/go/probe/*-remote # programs that need not be built
  cd "$build/go"
  GOWORK=off go build -mod=readonly -o bin/ ./client ./server
}

build_py() { generate py py; }

build_cpp() {
  generate cpp cpp:no_skeleton
  cd "$build/cpp"
  printf '#include "%s"\n' probe_types.cpp Probe.cpp Wider.cpp >generated.cpp
  local unit units=()
  for unit in generated client server; do
    g++ -std=c++17 -O0 -c "$unit.cpp" &
    units+=($!)
  done
  for unit in "${units[@]}"; do wait "$unit"; done
  g++ -o client client.o generated.o -lthriftz -lthrift -lz -lpthread
  g++ -o server server.o generated.o -lthriftnb -lthriftz -lthrift -levent -lz -lpthread
}

build_java() {
  generate java java:generated_annotations=suppress
  cd "$build/java"
  javac -nowarn -proc:none -encoding UTF-8 -d classes \
    -cp /usr/share/java/thrift.jar:/usr/share/java/slf4j-api.jar ./*.java probe/*.java
}

build_node() {
  generate node js:node
  cd "$build/node"
  npm install thrift@0.22.0 --ignore-scripts --no-audit --no-fund
}

for language in $languages; do mkdir "$build/$language"; done
case " $*" in *" --forebay"*) build_forebay() { :; } ;; esac
start forebay build_forebay
start packages install_packages
finish packages
say "packages are there"
for language in $languages; do start "build-$language" "build_$language"; done
for language in $languages; do finish "build-$language"; done
finish forebay
say "all is built"

"${runner[@]}" --build "$build" --logs "$logs" "$@" &
status=0
wait $! || status=$?
say "done"
exit "$status"
