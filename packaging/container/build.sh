#!/usr/bin/env bash
# Builds the image omni-actors, or omni-actors:cuda, by podman or docker.
#
#   packaging/container/build.sh [cuda]
set -euo pipefail
case ${1:-} in
    '') image=omni-actors ;;
    cuda) image=omni-actors:cuda ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
cd "$(dirname "$0")/../.."
arguments=(-f packaging/container/Containerfile -t "$image" --build-arg "FEATURES=${1:-}" .)
if command -v podman >/dev/null; then
    # The other format has no place for a health check.
    podman build --format docker "${arguments[@]}"
else
    docker build "${arguments[@]}"
fi
