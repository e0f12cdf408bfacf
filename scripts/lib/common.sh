# Sourced by the scripts beside this folder: where the checkout is, where caches live, what a fresh
# Debian 12 lacks. Nothing here writes into the checkout.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# Outside the checkout, so that a fresh clone starts warm and a checkout stays clean.
POLDER_CACHE=${POLDER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/polder}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$POLDER_CACHE/target}
# Tools that cargo installs; kept apart from the target folder, which may be wiped.
POLDER_TOOLS=${POLDER_TOOLS:-$POLDER_CACHE/tools}
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}

say() { printf '%s\n' "$*" >&2; }

die() {
    say "$(basename "$0"): $*"
    exit 1
}

# need_rust: cargo, or a sentence on how to get it.
need_rust() {
    command -v cargo >/dev/null || die "cargo is not on the PATH; Rust 1.95 or newer is needed (rustup.rs)"
}

# need_packages PACKAGE...: installs those of Debian's packages that are missing, all at once.
need_packages() {
    local missing=() package
    for package in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true 2>/dev/null ||
            die "these packages are missing, and only root can install them: apt-get install ${missing[*]}"
        as_root=(sudo -n)
    fi
    say "installing ${missing[*]}"
    "${as_root[@]}" apt-get -qq update || die "apt-get update failed"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null ||
        die "apt-get install ${missing[*]} failed"
}

# claim_target: several checkouts may share one target folder, and cargo judges freshness by the time
# of files alone: one that was built from another checkout may pass for fresh although the sources
# differ. So what belongs to the workspace is forgotten when the checkout is another; dependencies stay.
claim_target() {
    mkdir -p "$CARGO_TARGET_DIR"
    local mark="$CARGO_TARGET_DIR/.polder-checkout" now
    now="$ROOT $(stat -c '%d:%i:%W' "$ROOT")"
    if [ "$(cat "$mark" 2>/dev/null)" != "$now" ]; then
        find "$CARGO_TARGET_DIR" -maxdepth 4 -type d -path '*/.fingerprint/polder*' -prune -exec rm -rf {} +
        printf '%s\n' "$now" >"$mark"
    fi
}

# cargo_tool NAME VERSION: path of a cargo subcommand's binary, installed once (minutes of compiling).
cargo_tool() {
    local name=$1 version=$2 bin
    bin="$POLDER_TOOLS/$name-$version/bin/$name"
    if [ ! -x "$bin" ]; then
        if command -v "$name" >/dev/null && [ "$("$name" --version 2>/dev/null | awk '{print $2}')" = "$version" ]; then
            command -v "$name"
            return
        fi
        say "building $name $version, once"
        # Its own target folder: other features of shared crates must not rebuild ours.
        CARGO_TARGET_DIR="$POLDER_TOOLS/build" cargo install --quiet --locked --root "$POLDER_TOOLS/$name-$version" \
            "$name@$version" >&2 || return 1
        rm -rf "$POLDER_TOOLS/build"
    fi
    printf '%s\n' "$bin"
}
