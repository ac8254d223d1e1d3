#!/usr/bin/env bash
# Makes a CUDA 13.0 compiler out of the packages that NVIDIA publishes for Python: nvcc, its back end and the headers,
# 270 MB, no root, no driver, no GPU. Enough to build the feature `cuda`; not a toolkit to link other programs with.
#
#   scripts/cuda-toolkit.sh DIR        then: export CUDA_HOME=DIR/nvidia/cu13
#
# Needs python3 with pip (or $PIP) and a C++ compiler for nvcc to preprocess with.
set -euo pipefail

if [ $# != 1 ] || [ "${1#-}" != "$1" ]; then
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
    exit 2
fi
folder=$1
home=$folder/nvidia/cu13
read -r -a pip <<<"${PIP:-python3 -m pip}"

# One release of everything: nvcc refuses a back end of another one.
packages=(
    nvidia-cuda-nvcc==13.0.88    # nvcc itself
    nvidia-cuda-crt==13.0.88     # what it includes into every file
    nvidia-nvvm==13.0.88         # its back end, cicc
    nvidia-cuda-runtime==13.0.96 # the headers: cuda_runtime.h, cuda_bf16.h
    nvidia-cuda-cccl==13.0.85    # the headers that those include
)

mkdir -p "$folder"
"${pip[@]}" install --quiet --disable-pip-version-check --no-deps --no-compile --upgrade --target "$folder" "${packages[@]}"

# Whether it works, on the smallest kernel there is.
trial=$(mktemp -d)
trap 'rm -rf "$trial"' EXIT
printf '#include <cuda_bf16.h>\nextern "C" __global__ void nothing(__nv_bfloat16* x) { *x = __float2bfloat16(1.f); }\n' >"$trial/trial.cu"
"$home/bin/nvcc" -fatbin -gencode=arch=compute_90,code=sm_90 -o "$trial/trial.fatbin" "$trial/trial.cu"
"$home/bin/nvcc" --version | tail -n 2
echo "export CUDA_HOME=$(cd "$home" && pwd)"
