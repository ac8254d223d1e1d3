# Short names for what people do here. `just` lists them; CI runs the same scripts without just.
# just itself: `cargo install just`, or `pip install rust-just`.

# lists the recipes
default:
    @just --list

# formats every crate
fmt:
    cargo fmt --all

# style and lints, as CI has them
lint:
    scripts/check.sh fmt lint scripts

# documentation without a warning
docs:
    scripts/check.sh docs

# all tests that need no GPU; arguments go to cargo test: just test -p omni-core
test *ARGS:
    cargo test --locked {{ ARGS }}

# the whole suite many times side by side: just soak --runs 50 --lanes 4
soak *ARGS:
    scripts/soak.py {{ ARGS }}

# licences, sources and advisories of dependencies; a licence text for each
deny:
    scripts/check.sh deny notices

# the GPU engine: lints and tests, with a compiler from PyPI where there is none
cuda:
    scripts/cuda.sh

# the binary, with its voice
release *ARGS:
    cargo build --locked --release {{ ARGS }}

# a reference's golden cases against the release binary
verify: release
    cargo run --locked --release -- verify --golden assets/voice/golden
    cargo run --locked --release -- verify --golden tests/fixtures/qwen3_omni/golden
    cargo run --locked --release -- verify --golden tests/fixtures/qwen3_tts/golden

# one benchmark: just bench actors
bench NAME *ARGS:
    cargo bench --locked --bench {{ NAME }} {{ ARGS }}

# a wheel in dist/
wheel *ARGS:
    scripts/wheel.sh dist {{ ARGS }}

# an archive with a systemd unit in dist/
tarball *ARGS:
    scripts/tarball.sh dist {{ ARGS }}

# an image by podman or docker: just container, just container cuda
container FEATURES="":
    packaging/container/build.sh {{ FEATURES }}

# a fuzz target until Ctrl-C: just fuzz frame
fuzz TARGET SECONDS="0":
    fuzz/run.sh {{ TARGET }} {{ SECONDS }}

# makes the goldens again and compares them
goldens DIR:
    oracle/regenerate.sh {{ DIR }}

# everything that must hold before a change lands
ci:
    bash .ci/run
