#!/usr/bin/env bash
# Builds plugins for WebAssembly into target/plugins/NAME.wasm.
# Usage: scripts/build-plugins.sh NAME...
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# -eq 0 ]; then
    echo "usage: scripts/build-plugins.sh NAME...; \`make plugins\` builds those of this project" >&2
    exit 2
fi
# Says which toolchain it found, installs what is missing, and sets RUSTC and the linker if needed.
exports="$(scripts/wasm-target.sh)"
eval "$exports"
packages=()
for name in "$@"; do
    # A package may be called otherwise than its folder, where another crate has that name.
    packages+=(-p "$(sed -n 's/^name = "\(.*\)"/\1/p' "plugins/$name/Cargo.toml" | head -n 1)")
done
RUSTFLAGS="${PLUGIN_RUSTFLAGS:--Ctarget-feature=+simd128}" \
    cargo build --profile plugin --target wasm32-unknown-unknown --target-dir target/wasm "${packages[@]}"
mkdir -p target/plugins
for name in "$@"; do
    cp "target/wasm/wasm32-unknown-unknown/plugin/$name.wasm" "target/plugins/$name.wasm"
done
