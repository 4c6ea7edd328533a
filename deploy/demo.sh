#!/usr/bin/env bash
# Demonstrates Ensign on this machine, in a few seconds: finds or downloads a nats-server, builds, runs `ensign demo`.
# usage: deploy/demo.sh [arguments of `ensign demo`]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

new_enough() {
    local version
    version=$("$1" --version 2>/dev/null | sed -n 's/.*v\([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
    read -r major minor <<<"${version:-0 0}"
    [ "$major" -gt 2 ] || { [ "$major" -eq 2 ] && [ "$minor" -ge 10 ]; }
}

if [ -z "${NATS_SERVER:-}" ]; then
    found=$(command -v nats-server || true)
    if [ -n "$found" ] && new_enough "$found"; then
        NATS_SERVER=$found
    else
        NATS_SERVER=$(tests/tools/get-nats-server.sh target/tools)
    fi
fi
export NATS_SERVER

cargo build --quiet
exec target/debug/ensign demo "$@"
