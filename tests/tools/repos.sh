#!/usr/bin/env bash
# Package repositories for tests, offline: the same small packages for apt and for dnf.
#
#   repos.sh DIR      makes them in DIR, unless they are there already
#
#   DIR/apt/old, DIR/dnf/old   before the 2.0 of everything was published
#   DIR/apt/new, DIR/dnf/new   with both
#
#   try-plain  1.0-1 2.0-1               try-needs    1.0-1, needs try-plain
#   try-tilde  2.0~rc1-1 2.0-1           try-epoch    2.0-1 and the newer 1:1.0-1 (in `old` too)
#   try-conf   1.0-1 2.0-1, /etc/try.conf that differs
#   try-post   1.0-1 2.0-1, postinst fails (dnf: %pre fails)
#   try-stay   1.0-1, prerm fails        try-unmet    1.0-1, needs what does not exist
#   try-multi  1.0-1 2.0-1, apt only: native and i386 beside each other
#   try-01 .. try-20  1.0-1
set -euo pipefail
[ $# = 1 ] || { sed -n '2,16s/^# \{0,1\}//p' "$0" >&2; exit 2; }
export LC_ALL=C SOURCE_DATE_EPOCH=1700000000
mkdir -p "$1"
out=$(cd "$1" && pwd)
stamp=$(cksum <"$0")
exec 9>"$out/lock"
flock 9
[ "$(cat "$out/made" 2>/dev/null || true)" != "$stamp" ] || exit 0
for tool in dpkg-deb dpkg-scanpackages rpmbuild createrepo_c; do
    command -v "$tool" >/dev/null || { echo "repos.sh needs $tool (packages dpkg-dev, rpm, createrepo-c)" >&2; exit 1; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$out/apt" "$out/dnf" "$out/made"
mkdir -p "$out"/apt/{old,new} "$out"/dnf/{old,new}
native=$(dpkg --print-architecture)

# What the next package has: files below root/, scripts below scripts/.
fresh() { rm -rf "$work/p"; mkdir -p "$work/p/root/usr/share/try" "$work/p/scripts"; echo "$1 $2" >"$work/p/root/usr/share/try/$1"; }

# NAME VERSION SERIES [ARCHITECTURE] [further fields]
deb() {
    local tree=$work/deb
    rm -rf "$tree"; cp -a "$work/p/root" "$tree"; mkdir "$tree/DEBIAN"
    { printf 'Package: %s\nVersion: %s\nArchitecture: %s\n' "$1" "$2" "${4:-all}"
      printf 'Maintainer: nobody <nobody@example.invalid>\nDescription: for tests\n'
      [ -z "${5:-}" ] || printf '%s\n' "$5"; } >"$tree/DEBIAN/control"
    find "$work/p/scripts" -type f -exec install -m 755 {} "$tree/DEBIAN/" \;
    [ ! -d "$tree/etc" ] || (cd "$tree" && find etc -type f -printf '/%p\n') >"$tree/DEBIAN/conffiles"
    dpkg-deb --root-owner-group -Zgzip -b "$tree" "$out/apt/$3/$1_${2#*:}_${4:-all}.deb" >/dev/null
}

# NAME VERSION SERIES [further fields] [scripts]
rpm_() {
    local epoch='' version=$2 spec=$work/spec
    case $version in *:*) epoch="Epoch: ${version%%:*}" version=${version#*:} ;; esac
    { printf 'Name: %s\nVersion: %s\nRelease: %s\n%s\n' "$1" "${version%-*}" "${version##*-}" "$epoch"
      printf 'Summary: for tests\nLicense: none\nBuildArch: noarch\nAutoReqProv: no\n%s\n%%description\nx\n' "${4:-}"
      printf '%%install\ncp -a %s/. %%{buildroot}/\n%s\n%%files\n' "$work/p/root" "${5:-}"
      (cd "$work/p/root" && find . -type f | sed -e 's|^\.||' -e 's|^/etc/|%config(noreplace) /etc/|'); } >"$spec"
    rpmbuild -bb --quiet --define "_topdir $work/build" --define "_rpmdir $out/dnf/$3" --define '_build_id_links none' \
        --define '_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.rpm' --define '__os_install_post %{nil}' "$spec" \
        >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
}

both() { fresh "$1" "$2"; deb "$1" "$2" "$3"; rpm_ "$1" "$2" "$3"; }

both try-plain 1.0-1 old; both try-plain 2.0-1 new
both try-tilde 2.0~rc1-1 old; both try-tilde 2.0-1 new
both try-epoch 2.0-1 old; both try-epoch 1:1.0-1 old
for n in $(seq -w 1 20); do both "try-$n" 1.0-1 old; done
for series in 1.0-1:old 2.0-1:new; do
    version=${series%:*}
    fresh try-conf "$version"; mkdir "$work/p/root/etc"; echo "as of $version" >"$work/p/root/etc/try.conf"
    deb try-conf "$version" "${series#*:}"; rpm_ try-conf "$version" "${series#*:}"
    fresh try-post "$version"; printf '#!/bin/sh\necho "try-post refuses"\nexit 7\n' >"$work/p/scripts/postinst"
    deb try-post "$version" "${series#*:}"
    rpm_ try-post "$version" "${series#*:}" '' $'%pre -p <lua>\nerror("try-post refuses")'
    rm -rf "$work/p/root" "$work/p/scripts"; mkdir "$work/p/root" "$work/p/scripts"
    for arch in "$native" i386; do deb try-multi "$version" "${series#*:}" "$arch" 'Multi-Arch: same'; done
done
fresh try-stay 1.0-1; printf '#!/bin/sh\necho "try-stay stays" >&2\nexit 7\n' >"$work/p/scripts/prerm"
deb try-stay 1.0-1 old; rpm_ try-stay 1.0-1 old '' $'%preun -p <lua>\nerror("try-stay stays")'
fresh try-needs 1.0-1; deb try-needs 1.0-1 old all 'Depends: try-plain'; rpm_ try-needs 1.0-1 old 'Requires: try-plain'
fresh try-unmet 1.0-1; deb try-unmet 1.0-1 old all 'Depends: try-nowhere'; rpm_ try-unmet 1.0-1 old 'Requires: try-nowhere'

cp "$out"/apt/old/*.deb "$out/apt/new/"
cp "$out"/dnf/old/*.rpm "$out/dnf/new/"
for series in old new; do
    (cd "$out/apt/$series" && dpkg-scanpackages -m . /dev/null >Packages 2>"$work/log") || { cat "$work/log" >&2; exit 1; }
    createrepo_c -q "$out/dnf/$series"
done
echo "$stamp" >"$out/made"
