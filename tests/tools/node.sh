#!/usr/bin/env bash
# A host of its own for a test: a container with systemd as its init, on a throw-away layer over a cached root,
# with nothing but loopback for a network.
#
#   node.sh why               fails and names missing tools if nodes can't run here
#   node.sh root              makes the root if it is missing, and prints its path
#   node.sh run [OPTION...]   starts a node, prints the process id of its init once it is up, and takes it down when
#                             standard input ends (or the node does); OPTIONs go to systemd-nspawn, as
#                             --bind-ro=FROM:TO
#   node.sh exec PID CMD...   runs a command, as root, in the node of this init
#
# ENSIGN_NODE_ROOT: a root to use instead of the one that this script makes and keeps.
set -euo pipefail

# The packages that a test may expect in a node. Another list makes another root.
packages=systemd,systemd-sysv,dbus,apt,ca-certificates,procps,dnf,rpm,strace
# The release of this machine, so that a program built here runs in a node.
release=$(. /etc/os-release && [ "${ID:-}" = debian ] && printf %s "${VERSION_CODENAME:-}") || true
release=${release:-bookworm}
stamp=$(printf %s "$release,$packages" | cksum | cut -d ' ' -f 1)
root=${ENSIGN_NODE_ROOT:-/var/tmp/ensign-node-root-$stamp}
# The control groups of the nodes: one hierarchy, or several on older machines.
cgroups=(/sys/fs/cgroup)
[ -e /sys/fs/cgroup/cgroup.controllers ] || cgroups=(/sys/fs/cgroup/systemd /sys/fs/cgroup/unified)

die() { printf 'node.sh: %s\n' "$*" >&2; exit 1; }

why() {
    [ "$(id -u)" = 0 ] || die "nodes need root"
    local tool missing=()
    for tool in systemd-nspawn unshare nsenter setpriv flock; do command -v "$tool" >/dev/null || missing+=("$tool"); done
    [ -d "$root" ] || command -v debootstrap >/dev/null || missing+=(debootstrap)
    [ ${#missing[@]} = 0 ] || die "nodes need ${missing[*]} (packages systemd-container, debootstrap, util-linux)"
}

make_root() {
    [ ! -d "$root" ] || return 0
    [ -z "${ENSIGN_NODE_ROOT:-}" ] || die "ENSIGN_NODE_ROOT: $root is not a directory"
    exec 9>"$root.lock"
    flock 9
    [ ! -d "$root" ] || return 0
    local mirror part=$root.part
    # The mirror in the configuration of this machine.
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security | head -n 1)
    [ -n "$mirror" ] || die "apt knows no mirror on this machine; set ENSIGN_NODE_ROOT to a root made elsewhere"
    rm -rf "${part:?}"
    debootstrap --variant=minbase --include="$packages" "$release" "$part" "$mirror" >"$root.log" 2>&1 ||
        die "debootstrap failed: $(tail -n 3 "$root.log")"
    rm -rf "$part"/var/cache/apt/archives/*.deb "$root.log"
    # In one step: a concurrent call never finds half of the directory.
    mv -T "$part" "$root"
    exec 9>&-
}

# Prints the first child of a process.
child() {
    local pids=()
    # The line has no line end, so read returns a failure.
    read -r -a pids 2>/dev/null <"/proc/$1/task/$1/children" || true
    [ ${#pids[@]} -gt 0 ] && printf %s "${pids[0]}"
}

enter() {
    local init=$1
    shift
    nsenter -t "$init" -m -u -i -n -p -C -r -w -- env -i -C / PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        LANG=C.UTF-8 HOME=/root "$@"
}

# Runs in its own namespaces, which end with the script. Arguments: node directory, root, name, cgroups..., --, command.
# The layers are in memory, and end with the mount.
boot='
set -e
dir=$1 root=$2 name=$3; shift 3
while [ "$1" != -- ]; do [ ! -d "$1" ] || { mkdir -p "$1/$name"; echo 0 >"$1/$name/cgroup.procs"; }; shift; done; shift
mount -t tmpfs -o mode=0755 node "$dir"
mkdir "$dir/upper" "$dir/work" "$dir/root"
mount -t overlay -o "lowerdir=$root,upperdir=$dir/upper,workdir=$dir/work" node "$dir/root"
echo "$name" >"$dir/root/etc/hostname"
: >"$dir/root/etc/machine-id"
exec "$@"'

run() {
    why
    make_root
    dir=$(mktemp -d "${TMPDIR:-/tmp}/ensign-node-XXXXXX")
    name=$(basename "$dir") outer='' waiter=''
    trap down EXIT
    trap 'exit 1' INT TERM HUP
    exec 3<&0
    setpriv --pdeathsig KILL unshare --mount --propagation private --pid --mount-proc --fork --kill-child -- \
        /bin/sh -c "$boot" boot "$dir" "$root" "$name" "${cgroups[@]}" -- \
        systemd-nspawn -q -b -D "$dir/root" -M "$name" --hostname="$name" --register=no --keep-unit --private-network \
        --resolv-conf=off --timezone=off --console=pipe "$@" </dev/null >"$dir.log" 2>&1 3<&- &
    outer=$!
    local init='' state=''
    for _ in $(seq 1200); do
        kill -0 "$outer" 2>/dev/null || break
        if init=$(child "$(child "$outer")"); then
            state=$(enter "$init" systemctl is-system-running 2>/dev/null) || true
            [ "$state" = running ] || [ "$state" = degraded ] && break
        fi
        sleep 0.05
    done
    [ "$state" = running ] || [ "$state" = degraded ] || die "the node does not start (${state:-no init}): $(tail -n 20 "$dir.log")"
    echo "$init"
    cat <&3 >/dev/null &
    waiter=$!
    wait -n "$outer" "$waiter" || true
}

down() {
    local inner
    trap '' INT TERM HUP
    [ -z "$waiter" ] || kill "$waiter" 2>/dev/null || true
    if [ -n "$outer" ]; then
        # The end of the first process of the namespace ends all its processes.
        if inner=$(child "$outer"); then kill -KILL "$inner" 2>/dev/null || true; fi
        wait "$outer" 2>/dev/null || true
    fi
    for cgroup in "${cgroups[@]}"; do
        for _ in $(seq 100); do
            [ -d "$cgroup/$name" ] || break
            find "$cgroup/$name" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.02
        done
    done
    rm -rf "$dir" "$dir.log"
}

case ${1:-} in
    why) why ;;
    root) why; make_root; echo "$root" ;;
    run) shift; run "$@" ;;
    exec) shift; enter "$@" ;;
    *) sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
