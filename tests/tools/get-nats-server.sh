#!/usr/bin/env bash
# Downloads a nats-server without an installation: the binary from a Debian package of a newer release.
#
# usage: get-nats-server.sh DIR [SUITE]
#   DIR    the directory of the binary; a second call finds it there
#   SUITE  trixie (2.10, the oldest that Ensign supports; the default) or sid (the newest); bookworm is
#          too old (2.9)
# Prints the path of the binary.
set -euo pipefail

[ $# -ge 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
suite=${2:-trixie}
mkdir -p "$1"
dir=$(cd "$1" && pwd)
binary=$dir/$suite/usr/sbin/nats-server
if [ -x "$binary" ]; then
    echo "$binary"
    exit 0
fi

# The mirror in the configuration of this machine.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security | head -n 1)
[ -n "$mirror" ] || { echo "apt knows no mirror on this machine; set NATS_SERVER to a nats-server of 2.10 or later" >&2; exit 1; }

# A package list of that release alone, separate from the machine's own.
work=$(mktemp -d "$dir/get.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$work/sources.list"
apt=(apt-get -qq
    -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
"${apt[@]}" update >&2
(cd "$work" && "${apt[@]}" download "nats-server/$suite" >&2)
dpkg -x "$work"/nats-server_*.deb "$work/root"

# Moved in one step: a concurrent call never finds half of the directory.
rm -rf "${dir:?}/$suite"
mv -T "$work/root" "$dir/$suite"
echo "$binary"
