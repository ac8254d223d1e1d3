#!/usr/bin/env bash
# Lints and tests the feature `cuda`. Compiling needs a CUDA compiler, which comes from PyPI where there is none; no GPU
# is needed, and tests that need one say so.
#
#   scripts/cuda.sh [DIR]      DIR keeps the compiler: ${OMNI_CUDA_DIR:-~/.cache/omni-actors/cuda} by default
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${1:-${OMNI_CUDA_DIR:-$HOME/.cache/omni-actors/cuda}}
if [ -z "${NVCC:-}${CUDA_HOME:-}" ] && ! command -v nvcc >/dev/null; then
    [ -x "$cache/nvidia/cu13/bin/nvcc" ] || scripts/cuda-toolkit.sh "$cache"
    export CUDA_HOME=$cache/nvidia/cu13
fi
cargo clippy --locked --features cuda -p omni-actors -p omni-cuda -p omni-engine -p omni-tools --all-targets -- -D warnings
cargo test --locked -p omni-cuda
cargo test --locked --features cuda --test cli
