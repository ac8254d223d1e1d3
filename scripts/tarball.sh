#!/usr/bin/env bash
# Packs the binary with its voice, its symbols in a file beside it, a config that explains every key, a systemd unit and
# the licences. Of a release build that is already there only the last step is done again: linking, with symbols. Needs
# objcopy (binutils).
#
#   scripts/tarball.sh OUT [--features cuda]
#
# The same binary gives the same archive, byte for byte. $CARGO_TARGET_DIR is respected.
set -euo pipefail
usage() {
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
    exit 2
}
if [ $# = 0 ] || [ "${1#-}" != "$1" ]; then usage; fi
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
features=
case $# in
    0) ;;
    2) [ "$1" = --features ] || usage; features=$2 ;;
    *) usage ;;
esac
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cargo rustc --locked --release --features "$features" --bin omni-actors -- -C strip=none
binary=${CARGO_TARGET_DIR:-target}/release/omni-actors
version=$("$binary" --version | cut -d' ' -f2)
host=$(rustc -vV | sed -n 's/^host: //p')
name=omni-actors-$version-${host/-unknown/}${features:+-$features}
folder=$work/$name
mkdir -p "$folder/bin"
# The binary names the other file, so that backtraces of panics find the symbols there.
objcopy --only-keep-debug "$binary" "$folder/bin/omni-actors.debug"
objcopy --strip-all --add-gnu-debuglink="$folder/bin/omni-actors.debug" "$binary" "$folder/bin/omni-actors"
chmod 0755 "$folder/bin/omni-actors"
chmod 0644 "$folder/bin/omni-actors.debug"
install -m 0644 configs/example.toml "$folder/config.toml"
install -m 0644 packaging/INSTALL.md "$folder/README.md"
install -m 0644 LICENSE "$folder/"
install -D -m 0644 -t "$folder/systemd" packaging/systemd/*
scripts/notices.py --features "$features" -o "$folder/THIRD-PARTY-NOTICES"
chmod 0644 "$folder/THIRD-PARTY-NOTICES"
# Nothing in the archive depends on who packs it, and when.
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-0}" -c "$name" |
    gzip -9n >"$out/$name.tar.gz"
ls -lh "$out/$name.tar.gz"
