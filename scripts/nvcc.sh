# shellcheck shell=bash
# Read by other scripts with `.`, not run: finds a CUDA compiler, or makes one from PyPI's packages in
# ${OMNI_CUDA_DIR:-~/.cache/omni-actors/cuda}, and exports CUDA_HOME for it. Fails where there is none to be had.
finds_nvcc() {
    local cache=${OMNI_CUDA_DIR:-$HOME/.cache/omni-actors/cuda}
    if [ -n "${NVCC:-}${CUDA_HOME:-}" ] || command -v nvcc >/dev/null; then
        return 0
    fi
    [ -x "$cache/nvidia/cu13/bin/nvcc" ] || scripts/cuda-toolkit.sh "$cache" || return 1
    export CUDA_HOME="$cache/nvidia/cu13"
}
