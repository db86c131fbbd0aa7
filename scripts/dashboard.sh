#!/usr/bin/env bash
# The dashboard in a real browser: numbers against /api/pools, buttons, colours,
# widths. Installs Debian's Chromium where none is found, and writes pictures of the
# page to the directory that is given, else to one that it makes.
set -euo pipefail
cd "$(dirname "$0")/.."

have() { command -v "$1" >/dev/null; }

if ! have chromium && ! have chromium-browser && ! have google-chrome; then
  sudo=()
  [ "$(id -u)" -eq 0 ] || sudo=(sudo)
  "${sudo[@]}" apt-get update
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium
fi

pictures=${1:-$(mktemp -d "${TMPDIR:-/tmp}/forebay-dashboard.XXXXXX")}
mkdir -p "$pictures"
FOREBAY_SCREENSHOTS=$(realpath "$pictures") go test -count=1 -v ./scripts/dashboard
echo "dashboard: pictures in $pictures"
