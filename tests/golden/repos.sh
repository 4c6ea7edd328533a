#!/usr/bin/env bash
# repos.sh DIR: tiny apt and dnf repositories for tests, the same bytes each time, offline.
#
#   DIR/deb      flat apt repository (deb [trusted=yes] file:DIR/deb ./)     DIR/rpm      the same packages for dnf
#   DIR/deb-old  the same before demo-plain 2.0-1 was published              DIR/rpm-old
#   DIR/deb-new  the same after demo-plain 1.x was taken away                DIR/rpm-new
#
# A stale index: let the host read `-old`, then put `deb` in its place (a newer version exists that the host has not heard of),
# or put `-new` in its place (the index names files that are gone). Put a symlink in the host's source list for that, and for apt
# copy: instead of file:, which keeps no copy of the index.
#
#   demo-plain     1.0-1 1.1-1 2.0-1                    demo-epoch     2.0-1 and the newer 1:1.0-1
#   demo-tilde     1.0~rc1-1 1.0-1                      demo-release   1.0-1 1.0-2 (only the release differs)
#   demo-letters   1.0a.5-1 1.0A.9-1                    demo-conffile  1.0-1 2.0-1, /etc/demo-conffile.conf differs
#   demo-badpost   1.0-1, postinst (rpm: %post) fails   demo-badpre    1.0-1, preinst fails: nothing is installed
#   demo-badrm     1.0-1, prerm fails: can't be removed demo-needs     1.0-1, needs demo-plain >= 1.1
#   demo-unmet     1.0-1, needs what does not exist     demo-many-01 .. demo-many-20   1.0-1
#   demo-multi     1.0-1, apt only: Multi-Arch same, native and i386
#   demo-svc       1.0-1 1.1-1, units; each start and reload adds a line to /var/log/demo/UNIT (1.1 writes `start two`):
#     demo-ok            long running, reloads                  demo-fail       fails at start
#     demo-slow          ExecStartPre sleeps 2 s                demo-slowstop   ExecStop sleeps 3 s
#     demo-notify        Type=notify, ready after 1 s           demo-never      Type=notify, never ready, gives up after 2 s
#     demo-static        no [Install]                           demo-tmpl@      template
#     demo-flap          fails at start, next try after 20 s    demo-once       Type=oneshot, over at once
set -euo pipefail
[ $# = 1 ] || { sed -n '2,25s/^# \{0,1\}//p' "$0" >&2; exit 2; }
umask 022; export SOURCE_DATE_EPOCH=1700000000 LC_ALL=C TZ=UTC
mkdir -p "$1"; out=$(cd "$1" && pwd); w=$(mktemp -d); trap 'rm -rf "$w"' EXIT
rm -rf "$out"/{deb,rpm}{,-old,-new}; mkdir -p "$out"/{deb,rpm}{,-old,-new}
native=$(dpkg --print-architecture 2>/dev/null || echo amd64)

# deb NAME VERSION FOLDER [ARCH] [control lines]; FOLDER may hold DEBIAN/ with scripts and conffiles
deb() { local d=$w/b; rm -rf "$d"; cp -a "$3" "$d"; mkdir -p "$d/DEBIAN"; chmod -R u=rwX,go=rX "$d"
  find "$d/DEBIAN" -name 'p*' -exec chmod 755 {} +
  printf 'Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: nobody <nobody@example.invalid>\nDescription: test package\n%s' "$1" "$2" "${4:-all}" "${5:+$5
}" >"$d/DEBIAN/control"
  dpkg-deb --root-owner-group -Zgzip -b "$d" "$out/deb/$1_${2#*:}_${4:-all}.deb" >/dev/null; }
# rpm NAME VERSION-RELEASE FOLDER [preamble] [scripts]; a config file is any file in /etc
rpm_() { local e= v=$2; case $v in *:*) e="Epoch: ${v%%:*}"; v=${v#*:};; esac
  { printf 'Name: %s\nVersion: %s\nRelease: %s\n%s\nSummary: test package\nLicense: none\nBuildArch: noarch\nAutoReqProv: no\n%s\n%%description\ntest package\n%%install\ncp -a %s/. %%{buildroot}/\nrm -rf %%{buildroot}/DEBIAN\n%s\n%%files\n' \
    "$1" "${v%-*}" "${v##*-}" "$e" "${4:-}" "$3" "${5:-}"
    (cd "$3" && find . \( -type f -o -type l \) ! -path './DEBIAN/*' | sort | sed -e 's|^\.||' -e 's|^/etc/|%config(noreplace) /etc/|'); } >"$w/p.spec"
  rpmbuild -bb --quiet --target noarch --define "_topdir $w/rpmbuild" --define "_rpmdir $out/rpm" --define '_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.noarch.rpm' \
    --define '_buildhost localhost' --define 'use_source_date_epoch_as_buildtime 1' --define 'clamp_mtime_to_source_date_epoch 1' \
    --define '_build_id_links none' --define '__os_install_post %{nil}' --define '_binary_payload w6.gzdio' "$w/p.spec" >"$w/log" 2>&1 || { cat "$w/log" >&2; exit 1; }; }
folder() { rm -rf "$w/f"; mkdir -p "$w/f/usr/share/$1"; echo "$1 $2" >"$w/f/usr/share/$1/version"; }
both() { folder "$1" "$2"; deb "$1" "$2" "$w/f"; rpm_ "$1" "$2" "$w/f"; }

for v in 1.0-1 1.1-1 2.0-1; do both demo-plain $v; done
both demo-epoch 2.0-1; both demo-epoch 1:1.0-1
both demo-tilde 1.0~rc1-1; both demo-tilde 1.0-1
both demo-release 1.0-1; both demo-release 1.0-2
both demo-letters 1.0a.5-1; both demo-letters 1.0A.9-1
for n in $(seq -w 1 20); do both demo-many-$n 1.0-1; done

for v in 1.0-1 2.0-1; do
  folder demo-conffile $v; mkdir -p "$w/f/etc" "$w/f/DEBIAN"
  echo "from $v" >"$w/f/etc/demo-conffile.conf"; echo /etc/demo-conffile.conf >"$w/f/DEBIAN/conffiles"
  deb demo-conffile $v "$w/f"; rpm_ demo-conffile $v "$w/f"
done
bad() { folder "$1" 1.0-1; mkdir -p "$w/f/DEBIAN"; printf '#!/bin/sh\necho "%s of %s says no" >&2\nexit 3\n' "$2" "$1" >"$w/f/DEBIAN/$2"
  deb "$1" 1.0-1 "$w/f"; rpm_ "$1" 1.0-1 "$w/f" "" "%$3 -p <lua>
error(\"$2 of $1 says no\")"; }
bad demo-badpost postinst post; bad demo-badpre preinst pre; bad demo-badrm prerm preun
folder demo-needs 1.0-1; deb demo-needs 1.0-1 "$w/f" all 'Depends: demo-plain (>= 1.1)'; rpm_ demo-needs 1.0-1 "$w/f" 'Requires: demo-plain >= 1.1'
folder demo-unmet 1.0-1; deb demo-unmet 1.0-1 "$w/f" all 'Depends: demo-nowhere'; rpm_ demo-unmet 1.0-1 "$w/f" 'Requires: demo-nowhere'
rm -rf "$w/f"; mkdir "$w/f"
for a in "$native" i386; do deb demo-multi 1.0-1 "$w/f" "$a" 'Multi-Arch: same'; done

# unit NAME [lines of [Service]] [no: without [Install]]
unit() { cat >"$w/f/usr/lib/systemd/system/$1.service" <<U
[Unit]
Description=$1

[Service]
ExecStartPre=/bin/sh -c 'mkdir -p /var/log/demo; echo start$word >>/var/log/demo/%n'
ExecReload=/bin/sh -c 'echo reload >>/var/log/demo/%n'
${2:-ExecStart=/bin/sleep infinity}
U
  [ "${3:-}" = no ] || printf '\n[Install]\nWantedBy=multi-user.target\n' >>"$w/f/usr/lib/systemd/system/$1.service"; }
for v in 1.0-1 1.1-1; do
  folder demo-svc $v; mkdir -p "$w/f/usr/lib/systemd/system"; word=; [ $v = 1.0-1 ] || word=' two'
  sleep='ExecStart=/bin/sleep infinity'
  unit demo-ok
  unit demo-fail $'ExecStartPre=/bin/sh -c \'echo "demo-fail: the disk is full" >&2; exit 7\'\n'"$sleep"
  unit demo-slow "ExecStartPre=/bin/sleep 2"$'\n'"$sleep"
  unit demo-slowstop "$sleep"$'\nExecStop=/bin/sleep 3'
  unit demo-notify $'Type=notify\nNotifyAccess=all\nExecStart=/bin/sh -c \'sleep 1; systemd-notify --ready; exec sleep infinity\''
  unit demo-never $'Type=notify\nTimeoutStartSec=2\n'"$sleep"
  unit demo-static "$sleep" no
  unit demo-tmpl@
  unit demo-flap $'Restart=on-failure\nRestartSec=20\nExecStartPre=/bin/false\n'"$sleep"
  unit demo-once $'Type=oneshot\nExecStart=/bin/true'
  mkdir -p "$w/f/DEBIAN"; for s in postinst postrm; do printf '#!/bin/sh\nif [ -d /run/systemd/system ]; then systemctl daemon-reload; fi\n' >"$w/f/DEBIAN/$s"; done
  deb demo-svc $v "$w/f"
  rpm_ demo-svc $v "$w/f" "" '%post -p <lua>
if posix.stat("/run/systemd/system") then os.execute("systemctl daemon-reload") end'
done

for old in deb rpm; do cp -a "$out/$old/." "$out/$old-old"; cp -a "$out/$old/." "$out/$old-new"; done
rm "$out"/{deb-old/demo-plain_2,rpm-old/demo-plain-2}* "$out"/{deb-new/demo-plain_1,rpm-new/demo-plain-1}*
for d in deb deb-old deb-new; do (cd "$out/$d" && dpkg-scanpackages -m . /dev/null 2>/dev/null >Packages); done
for d in rpm rpm-old rpm-new; do
  touch -d @$SOURCE_DATE_EPOCH "$out/$d"/*.rpm
  createrepo_c -q --no-database --simple-md-filenames --revision "$SOURCE_DATE_EPOCH" --set-timestamp-to-revision "$out/$d"
done
