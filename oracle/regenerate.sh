#!/usr/bin/env bash
# Makes tests/fixtures/qwen3_omni, qwen3_tts and qwen3_forced_aligner again, from nothing, and compares every file with
# what is in the repository. Some 3 GB of Python packages and a few minutes on two cores; needs python3.11 with venv, gcc and
# binutils.
#
#   oracle/regenerate.sh WORKDIR      leaves the files in WORKDIR/tiny; nothing in the repository is changed
set -euo pipefail
if [ $# != 1 ] || [ "${1#-}" != "$1" ]; then
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
    exit 2
fi
mkdir -p "$1"
work=$(cd "$1" && pwd)
cd "$(dirname "$0")"
# The goldens were made with two threads; another number changes the last bits of sums.
export OMP_NUM_THREADS=2 HF_HUB_OFFLINE=1

environment() {
    local python="$work/$1/bin/python" libraries
    [ -x "$python" ] || python3.11 -m venv "$work/$1"
    "$work/$1/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "requirements-$1.txt"
    # PyPI's torch is linked to CUDA libraries that a CPU does not need: stand-ins let it be imported without them.
    if ! "$python" -c 'import torch' 2>/dev/null; then
        libraries=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/torch/lib
        python3.11 make_stubs.py "$libraries" "$work/stubs-$1"
        cp "$work/stubs-$1"/*.so* "$libraries/"
    fi
}

environment v4
environment v5
omni=$work/tiny/qwen3_omni tts=$work/tiny/qwen3_tts
"$work/v4/bin/python" make_tiny_qwen3_omni.py "$omni"
"$work/v5/bin/python" dump_qwen3_omni.py "$omni" "$omni/golden"
"$work/v4/bin/python" make_tiny_qwen3_tts.py "$tts"
"$work/v4/bin/python" dump_qwen3_tts.py "$tts"
"$work/v4/bin/python" make_tiny_forced_aligner.py "$work/tiny/qwen3_forced_aligner"
"$work/v4/bin/python" label_cases.py "$omni/golden" "$tts/golden"
# The formulas of docs/spec.md, recomputed from the tensors alone.
"$work/v4/bin/python" verify_claims.py "$work/tiny"
sums=$PWD/../tests/fixtures/SHA256SUMS
# The cases of mixed media (mm_*) need the environment v5mm: README.md.
(cd "$work/tiny" && grep -v /mm_ "$sums" | sha256sum --quiet -c -)
echo "all $(grep -vc /mm_ "$sums") files are those of tests/fixtures"
