#!/usr/bin/env bash
# Builds a wheel that carries the binary with its voice. A release build that is already there is taken as it is.
#
#   scripts/wheel.sh OUT [CARGO_OPTION...]      e.g. scripts/wheel.sh dist --features cuda
#
# Needs python3 with venv and pip; maturin comes into an environment of its own, or is taken from $MATURIN.
# $CARGO_TARGET_DIR is respected. What is built here runs on this glibc and newer: the file's name says which.
set -euo pipefail
if [ $# = 0 ] || [ "${1#-}" != "$1" ]; then
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
    exit 2
fi
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

maturin=${MATURIN:-}
if [ -z "$maturin" ]; then
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install -q --disable-pip-version-check 'maturin>=1.9,<2'
    maturin="$work/venv/bin/maturin"
fi
features=$(printf '%s\n' "$@" | sed -n '/^--features$/{n;p}; s/^--features=//p' | paste -sd,)
scripts/notices.py --features "$features" -o THIRD-PARTY-NOTICES
# The same command line as `cargo build --locked --release`, so that cargo finds what that has built.
"$maturin" build --release --locked --out "$out" "$@"
ls -lh "$out"/omni_actors-*.whl
