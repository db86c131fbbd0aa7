#!/usr/bin/env bash
# Everything that must hold before a commit: format, vet, lint, import rules,
# tidy modules, tests under the race detector and on one processor, and each fuzz
# target by count (a time limit ends some runs as failures that found nothing).
set -euo pipefail
cd "$(dirname "$0")/.."

staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2
fuzz_count=${FUZZ_COUNT:-20000}

step() { printf '\n== %s\n' "$*"; }
fail() { printf 'check: %s\n' "$*" >&2; exit 1; }

step "format"
out=$(gofmt -l .)
[ -z "$out" ] || fail "gofmt would change: $out"

step "vet"
go vet ./...
for os in darwin windows; do GOOS=$os go vet .; done # the engine net is for every platform

step "lint"
go run "$staticcheck" ./...

step "import rules"
# Arrows only point down: a package may import the ones named behind it.
may_import() {
  local pkg=$1 allowed=" $* "
  for dep in $(go list -f '{{join .Imports " "}}' "./$pkg"); do
    case $dep in
      forebay/*) case $allowed in *" ${dep#forebay/} "*) ;; *) fail "$pkg must not import $dep" ;; esac ;;
    esac
  done
}
may_import balance
may_import balance/health
may_import balance/simulate balance
may_import balance/simulate/plot balance balance/simulate
may_import pool
may_import proxy/engine
may_import proxy/config
may_import proxy/frame
may_import proxy/exchange proxy/frame
may_import proxy balance balance/health pool proxy/engine proxy/exchange proxy/frame
may_import proxy/admin proxy balance balance/health pool proxy/engine
may_import proxy/admin/ctl proxy/admin
may_import proxy/admin/dashboard
may_import proxy/admin/top proxy/admin
may_import proxy/proxytest
may_import proxy/enginetest proxy/engine
may_import proxy/loadtest proxy proxy/engine
may_import proxy/command balance balance/health balance/simulate balance/simulate/plot proxy proxy/admin proxy/admin/ctl \
  proxy/admin/dashboard proxy/admin/top proxy/config proxy/engine proxy/frame proxy/loadtest
# These are pure: the standard library alone, beside each other.
for pkg in balance balance/health balance/simulate proxy/frame; do
  n=$(go list -deps -f '{{if not .Standard}}{{.ImportPath}}{{end}}' "./$pkg" | grep -vc '^forebay/' || true)
  [ "$n" -eq 0 ] || fail "$pkg must import only the standard library"
done

step "modules"
go mod tidy -diff

step "tests, race detector"
go test -race -shuffle=on ./...

step "tests, one processor"
GOMAXPROCS=1 go test -p 2 -count=1 ./... # the number is no part of what the test cache goes by

step "fuzz"
for pkg in $(go list ./...); do
  for target in $(go test -list '^Fuzz' "$pkg" | grep '^Fuzz' || true); do
    go test -run '^$' -fuzz "^$target\$" -fuzztime "${fuzz_count}x" "$pkg"
  done
done

step "all well"
