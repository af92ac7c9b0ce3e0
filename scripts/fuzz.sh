#!/usr/bin/env bash
# Fuzzes what reads foreign bytes, each target for FUZZ_SECONDS (60). Needs nightly
# Rust, and a network the first time, for cargo-fuzz, which is kept in target/tools.
# What crashed a target stays in tests/fuzz/artifacts. Usage: fuzz.sh [TARGET ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! rustup run nightly rustc --version >/dev/null 2>&1; then
    echo 'fuzzing needs nightly Rust: install it with `rustup toolchain install nightly`' >&2
    exit 1
fi
tools=$PWD/target/tools
PATH=$tools/bin:$PATH
if ! cargo fuzz --version >/dev/null 2>&1; then
    echo 'installing cargo-fuzz into target/tools, once'
    cargo install --quiet --locked --root "$tools" cargo-fuzz
fi
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    for file in tests/fuzz/fuzz_targets/*.rs; do
        targets+=("$(basename "$file" .rs)")
    done
fi
for target in "${targets[@]}"; do
    echo "--- $target for ${FUZZ_SECONDS:-60} s"
    cargo +nightly fuzz run --fuzz-dir tests/fuzz --target-dir target/fuzz "$target" -- \
        -max_total_time="${FUZZ_SECONDS:-60}" -max_len=4096 -print_final_stats=1
done
