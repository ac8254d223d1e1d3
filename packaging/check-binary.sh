#!/usr/bin/env bash
# Whether a binary that was installed somewhere does what a user tries first, and has at most 80 MB ($OMNI_MOST_MB: for
# one with CUDA). It is run without the repository, without a home folder and with an empty environment.
#
#   packaging/check-binary.sh BINARY
set -euo pipefail
if [ $# != 1 ] || [ ! -x "$1" ]; then
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
    exit 2
fi
binary=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

size=$(stat -c %s "$binary") most=${OMNI_MOST_MB:-80}
if [ "$size" -gt "${most}000000" ]; then
    echo "FAILED: the binary has $size bytes: expected at most $most MB; was it stripped (Cargo.toml, profile.release)?" >&2
    exit 1
fi
echo "$size bytes"
env -i "$binary" --version
env -i "$binary" say 'The weather is lovely today.' -o hello.wav --seed 1
python3 - <<'PYTHON'
import array, wave

with wave.open("hello.wav") as file:
    samples = array.array("h", file.readframes(file.getnframes()))
    seconds = len(samples) / file.getframerate()
loud = max(map(abs, samples))
assert 0.8 < seconds < 10 and loud > 1000, f"not speech: {seconds:.2f} s, peak {loud}"
PYTHON
