#!/usr/bin/env bash
# Lints, documents and tests everything with the feature `cuda`. Compiling needs a CUDA compiler, which comes from PyPI
# where there is none (scripts/nvcc.sh); no GPU is needed, and tests that need one are ignored.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/nvcc.sh
finds_nvcc
CARGO_WHAT='--workspace --features cuda' scripts/check.sh lint docs test
