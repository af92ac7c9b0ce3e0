#!/usr/bin/env bash
# Finds a way to compile for wasm32-unknown-unknown, and makes one if there is none.
#
#   eval "$(scripts/wasm-target.sh)" && cargo build --target wasm32-unknown-unknown
#
# Standard output: lines `export NAME='value'` that cargo needs, possibly none.
# Standard error: one line for each step. Exit code 1: no way was found; the last
# lines say which commands would help. With --check nothing is installed or built.
#
# 1. The target is there, in the sysroot of the active rustc.
# 2. An earlier run prepared Debian's rustc (see 4).
# 3. `rustup target add wasm32-unknown-unknown`.
# 4. On Debian, where rustup's downloads may be out of reach: the packages rustc-web
#    and rust-web-src are a rustc with its sources. Its std is built once for the
#    target and laid into a sysroot of our own, in the user's data directory; the
#    linker is the rust-lld that rustup's toolchain carries.
set -euo pipefail

target=wasm32-unknown-unknown
# Least minor version of a rustc that takes the workspace.
minor_min=95
# Seconds that rustup may take; without its server it fails after some retries.
rustup_seconds_max=180
data_dir="${XDG_DATA_HOME:-$HOME/.local/share}/engine"

check_only=no
case "${1:-}" in
    '') ;;
    --check) check_only=yes ;;
    *) echo "usage: wasm-target.sh [--check]" >&2; exit 2 ;;
esac

say() { echo "wasm target: $*" >&2; }

has_target() { compgen -G "$1/lib/rustlib/$target/lib/libstd-*.rlib" >/dev/null; }

# The number after "rustc 1."; 0 if it is no rustc.
minor_of() { "$1" --version 2>/dev/null | sed -n 's/^rustc 1\.\([0-9]*\)\..*/\1/p' | grep . || echo 0; }

quoted() { printf "'%s'" "${1//\'/\'\\\'\'}"; }

finish() { # rustc linker
    echo "export RUSTC=$(quoted "$1")"
    echo "export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=$(quoted "$2")"
    exit 0
}

# 1. The active rustc.
rustc="${RUSTC:-rustc}"
if ! command -v "$rustc" >/dev/null; then
    say "there is no $rustc; install Rust with rustup, see https://rustup.rs"
    exit 1
fi
sysroot="$("$rustc" --print sysroot)"
if has_target "$sysroot"; then
    say "found in $sysroot, for $("$rustc" --version)"
    exit 0
fi
say "not in $sysroot, for $("$rustc" --version)"

# 2. Debian's rustc, prepared earlier, in its own sysroot or in ours.
debian_rustc=/usr/bin/rustc
linker="$(compgen -G "$sysroot/lib/rustlib/*/bin/rust-lld" | sed -n 1p || true)"
[ -n "$linker" ] || linker="$(command -v rust-lld || command -v wasm-ld || true)"

# A sysroot for the very compiler that built it.
own_sysroot() {
    echo "$data_dir/wasm-sysroot-$("$debian_rustc" --version | sed 's/[^A-Za-z0-9.]\{1,\}/-/g; s/-$//')"
}

use_debian() {
    [ -x "$debian_rustc" ] && [ "$minor_min" -le "$(minor_of "$debian_rustc")" ] && [ -n "$linker" ] || return 0
    if has_target "$("$debian_rustc" --print sysroot)"; then
        say "found in $("$debian_rustc" --print sysroot), for $("$debian_rustc" --version); linker $linker"
        finish "$debian_rustc" "$linker"
    fi
    local own
    own="$(own_sysroot)"
    if has_target "$own" && [ -x "$own/bin/rustc" ]; then
        say "found in $own, for $("$debian_rustc" --version); linker $linker"
        finish "$own/bin/rustc" "$linker"
    fi
}
use_debian

if [ "$check_only" = yes ]; then
    say "there is no way yet to compile for $target; one of these commands would help:"
    if command -v rustup >/dev/null; then
        say "    rustup target add $target"
    fi
    if ! command -v rustup >/dev/null; then
        say "    curl --proto '=https' -sSf https://sh.rustup.rs | sh    (installs rustup, which can add it)"
    fi
    if command -v apt-get >/dev/null; then
        say "    engine doctor --fix    (or scripts/wasm-target.sh: builds std once with Debian's rustc-web)"
    fi
    exit 1
fi

# 3. rustup.
if command -v rustup >/dev/null; then
    say "trying: rustup target add $target"
    if timeout "$rustup_seconds_max" rustup target add "$target" >&2 && has_target "$sysroot"; then
        say "added to $sysroot"
        exit 0
    fi
    say "rustup could not add the target; is its server in reach?"
else
    say "there is no rustup that could add the target"
fi

# 4. Debian's packages.
if [ -z "$linker" ]; then
    say "there is no rust-lld in $sysroot and none in PATH; try: rustup toolchain install stable, or apt-get install -y lld"
    exit 1
fi
library=/usr/lib/rustlib/src/rust/library
if [ "$(minor_of "$debian_rustc")" -lt "$minor_min" ] || [ ! -e "$library/std/Cargo.toml" ]; then
    install="apt-get install -y --no-install-recommends rustc-web rust-web-src"
    if ! command -v apt-get >/dev/null; then
        say "this is no Debian, where $install would bring a rustc with sources"
        say "run rustup target add $target on a machine that reaches rustup's server"
        exit 1
    fi
    as_root=""
    if [ "$(id -u)" != 0 ]; then
        if ! sudo -n true 2>/dev/null; then
            say "run this as root, then try again: apt-get update && $install"
            exit 1
        fi
        as_root="sudo -n"
    fi
    say "trying: $install"
    if ! { $as_root apt-get update && $as_root env DEBIAN_FRONTEND=noninteractive $install; } >&2; then
        say "the packages could not be installed; run rustup target add $target where rustup's server is in reach"
        exit 1
    fi
fi
if [ "$(minor_of "$debian_rustc")" -lt "$minor_min" ] || [ ! -e "$library/std/Cargo.toml" ]; then
    say "$debian_rustc is $("$debian_rustc" --version 2>/dev/null || echo missing), and 1.$minor_min with sources in $library is needed"
    exit 1
fi
use_debian

own="$(own_sysroot)"
say "building std for $target with $("$debian_rustc" --version), once; this takes about a minute"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/crate/src"
cat >"$scratch/crate/Cargo.toml" <<'TOML'
[package]
name = "wasm-std"
version = "0.0.0"
edition = "2021"

[workspace]
TOML
: >"$scratch/crate/src/lib.rs"
# Without bitcode in std, plugins with LTO do not link.
if ! (cd "$scratch/crate" && RUSTC_BOOTSTRAP=1 RUSTC="$debian_rustc" RUSTFLAGS="-C embed-bitcode=yes" \
    CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER="$linker" CARGO_TARGET_DIR="$scratch/target" \
    cargo build --release --target "$target" -Zbuild-std=std,panic_abort >&2); then
    say "std could not be built; the lines above say why; rustup target add $target helps where its server is in reach"
    exit 1
fi
# The sysroot is made beside its place and renamed into it, so that it is whole or not there.
host="$("$debian_rustc" -vV | sed -n 's/^host: //p')"
mkdir -p "$data_dir"
made="$(mktemp -d -p "$data_dir")"
mkdir -p "$made/bin" "$made/lib/rustlib/$target/lib"
cp "$scratch/target/$target/release/deps/"*.rlib "$made/lib/rustlib/$target/lib/"
ln -s "$("$debian_rustc" --print sysroot)/lib/rustlib/$host" "$made/lib/rustlib/$host"
cat >"$made/bin/rustc" <<SH
#!/bin/sh
exec $debian_rustc --sysroot $(quoted "$own") "\$@"
SH
chmod +x "$made/bin/rustc"
rm -rf "$own"
mv "$made" "$own"
say "laid into $own"
use_debian
say "the sysroot $own was made, and yet is not usable"
exit 1
