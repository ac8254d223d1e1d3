#!/usr/bin/env bash
# Runs one fuzz target, guided by coverage, from its seeds on.
#
#   fuzz/run.sh TARGET [SECONDS] [FUZZER_OPTION...]
#
# Without SECONDS, or with 0, until Ctrl-C. Corpus and findings stay in fuzz/corpus and fuzz/artifacts.
set -euo pipefail
if [ $# = 0 ] || [ "${1#-}" != "$1" ]; then
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
    exit 2
fi
target=$1 seconds=${2:-0}
shift $(($# < 2 ? $# : 2))
cd "$(dirname "$0")/.."

seeds=() options=()
case $target in
    # An input is many packets. Without seeds it would stay shorter than one for as long as the fuzzer finds something.
    call) options=(-len_control=0 -max_len=20000) ;;
    chat_parts) seeds=(fuzz/seeds/chat_parts) ;;
    config) seeds=(configs) ;;
    fault_plan) seeds=(configs/faults) ;;
    picture) seeds=(fuzz/seeds/picture tests/fixtures/pictures) ;;
    realtime) seeds=(fuzz/seeds/realtime) ;;
    recording) seeds=(tests/fixtures/audio) ;;
esac
# New inputs are written into the first folder; seeds are only read.
mkdir -p "fuzz/corpus/$target"
# Coverage is a nightly option of the compiler; stable takes it with this variable. An address sanitizer would need the
# standard library's source: overflows of our own arithmetic are found without.
export RUSTC_BOOTSTRAP=1
cargo fuzz run --sanitizer none "$target" "fuzz/corpus/$target" "${seeds[@]}" -- -max_total_time="$seconds" "${options[@]}" "$@"
