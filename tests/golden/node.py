"""Hosts for the golden cases with `node: true`: systemd containers, one a case.

A node is systemd-nspawn on an overlay of ROOTFS (made by tests/tools/node.sh), with only loopback for a network. It lies in mount and pid namespaces of its own and ends with the
process that started it, however that ends. What a case finds in its node:
  /srv/repo   the repositories of repos.sh, read-only; /srv/apt and /srv/dnf are links into it (deb, rpm), which the
              package manager reads: a case turns them to deb-old, deb-new and so on; apt's index has been read
  @ROOT@      the same folder, at the same path, as outside
  PROGRAM     the engine
A node that `needs: [dnf]` looks like a host without apt: neither its programs nor dpkg's database are there, the rpm database is
where Red Hat has it, dnf.conf is Red Hat's (best=True). Any other node has no dnf and rpm.
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

PROGRAM = "/usr/local/bin/engine"
NEEDS = {"apt", "dnf", "systemd"}
TOOLS = {  # a package manager is there when its programs are
    "apt": ["apt", "apt-get", "apt-cache", "apt-mark", "dpkg", "dpkg-query", "dpkg-deb"],
    "dnf": ["dnf", "dnf-3", "rpm", "rpmkeys", "rpmdb", "yum"],
}
STATE = {"n": "not-installed", "c": "config-files", "H": "half-installed", "U": "unpacked", "F": "half-configured",
         "W": "triggers-awaited", "t": "triggers-pending", "i": "installed"}
CGROUPS = ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"]
if os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
    CGROUPS = ["/sys/fs/cgroup"]
REPOS = pathlib.Path(__file__).resolve().parent / "repos.sh"
BOOT = r"""
set -e
for d in %s; do [ ! -e $d/cgroup.procs ] || { mkdir -p $d/$1; echo 0 >$d/$1/cgroup.procs; }; done
mount -t overlay overlay -o lowerdir=$2,upperdir=$3/u,workdir=$3/w $3/m
shift 3; exec "$@"
""" % " ".join(CGROUPS)


def child(pid):
    return pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]


class Nodes:
    """Starts nodes of one root directory; makes their package repositories when the first starts."""

    def __init__(self, rootfs=None):
        self.rootfs, self.repos = rootfs and os.path.realpath(rootfs), None
        self.lock = threading.Lock()
        if rootfs and not os.path.isdir(f"{rootfs}/usr/lib/systemd"):
            sys.exit(f"--nodes {rootfs}: not a root with systemd")
        if rootfs and not shutil.which("systemd-nspawn"):
            sys.exit("--nodes needs systemd-nspawn (package systemd-container)")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.repos:
            shutil.rmtree(self.repos, ignore_errors=True)

    def start(self, needs, binds, program):
        with self.lock:
            if not self.repos:
                self.repos = tempfile.mkdtemp(prefix="ensign-golden-repos-")
                subprocess.run([REPOS, self.repos], check=True, stdout=subprocess.DEVNULL)
        return Node(self.rootfs, self.repos, needs, binds, os.path.realpath(program))


class Node:
    """One container, from its start to its end."""

    def __init__(self, rootfs, repos, needs, binds, program):
        self.needs = needs
        self.dir = tempfile.mkdtemp(prefix=f"ensign-golden-{os.environ.get('ENSIGN_RUN', '')}-node-", dir="/var/tmp")
        self.name = "golden-" + os.path.basename(self.dir).rpartition("-")[2].replace("_", "x")
        self.process = None
        for sub in "uwm":
            os.mkdir(f"{self.dir}/{sub}")
        os.chmod(f"{self.dir}/u", 0o755)
        self.prepare(rootfs)
        binds = [f"--bind={b}" for b in binds] + [f"--bind-ro={repos}:/srv/repo", f"--bind-ro={program}:{PROGRAM}"]
        with open(f"{self.dir}/log", "w") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private", "--pid", "--mount-proc",
                 "--fork", "--kill-child", "--", "/bin/sh", "-c", BOOT, "boot", self.name, rootfs, self.dir,
                 "systemd-nspawn", "-q", "-b", "-D", f"{self.dir}/m", "-M", self.name, f"--hostname={self.name}", "--register=no",
                 "--keep-unit", "--private-network", "--resolv-conf=off", "--timezone=off", "--console=pipe", *binds],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )
        try:
            self.wait()
            if "dnf" not in needs:
                self.run("apt-get", "update", "-q")
        except BaseException:
            self.stop()
            raise

    def prepare(self, rootfs):
        """What the node has before it starts, in the upper layer."""
        upper = pathlib.Path(self.dir) / "u"

        def put(path, text):
            to = upper / path
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(text)

        def hide(path):
            if os.path.lexists(f"{rootfs}/{path}"):  # a character device 0:0 hides what is below
                (upper / path).parent.mkdir(parents=True, exist_ok=True)
                os.mknod(upper / path, 0o600 | 0o020000, 0)

        put("etc/hostname", self.name + "\n")
        put("etc/machine-id", "")
        (upper / "srv").mkdir()
        for tool in TOOLS["apt" if "dnf" in self.needs else "dnf"]:
            hide(f"usr/bin/{tool}")
        if "dnf" in self.needs:
            hide("var/lib/dpkg")
            hide("etc/debian_version")
            put("usr/lib/os-release", 'NAME="Test"\nID=fedora\nVERSION_ID=40\n')
            put("etc/rpm/macros", "%_dbpath /var/lib/rpm\n")
            put("etc/dnf/dnf.conf", "[main]\ngpgcheck=1\ninstallonly_limit=3\nclean_requirements_on_remove=True\nbest=True\nskip_if_unavailable=False\n")
            put("etc/yum.repos.d/demo.repo", "[demo]\nname=demo\nbaseurl=file:///srv/dnf\ngpgcheck=0\nenabled=1\n")
            os.symlink("/srv/repo/rpm", upper / "srv/dnf")
        else:
            put("etc/apt/sources.list", "deb [trusted=yes] copy:/srv/apt ./\n")  # file: would not keep a copy of the index
            os.symlink("/srv/repo/deb", upper / "srv/apt")

    def leader(self):
        """The process that is the node's init."""
        return child(child(self.process.pid))

    def argv(self, argv, cwd="/"):
        return ["nsenter", "-t", self.leader(), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "--", "env", "-C", cwd, *argv]

    def run(self, *argv, check=True):
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root"}
        done = subprocess.run(self.argv(argv), env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        if check and done.returncode:
            raise RuntimeError(f"node: {' '.join(argv)} exited {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
        return done

    def wait(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError, IndexError, subprocess.TimeoutExpired):
                if self.run("systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded"):
                    return
            time.sleep(0.05)
        raise RuntimeError(f"node does not start: {pathlib.Path(self.dir, 'log').read_text()[-1000:]}")

    def stop(self):
        if self.process:
            with contextlib.suppress(OSError, IndexError):
                os.kill(int(child(self.process.pid)), signal.SIGKILL)  # nspawn, and with it everything in its pid namespace
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
            self.process.kill()
            self.process.wait()
        for cgroup in CGROUPS:
            for _ in range(100):
                for folder, _, _ in os.walk(f"{cgroup}/{self.name}", topdown=False):
                    with contextlib.suppress(OSError):
                        os.rmdir(folder)
                if not os.path.exists(f"{cgroup}/{self.name}"):
                    break
                time.sleep(0.02)
        shutil.rmtree(self.dir, ignore_errors=True)

    def observe(self, wanted, fill):
        """The state of the packages, units and files that a case names."""
        found = {}
        for kind in ("packages", "units", "files"):
            if wanted.get(kind):
                one = getattr(self, kind[:-1])
                found[kind] = {name: one(fill(name)) for name in wanted[kind]}
        return found

    def package(self, name):
        if "dnf" in self.needs:
            done = self.run("rpm", "-q", "--qf", "%|EPOCH?{%{EPOCH}:}|%{VERSION}-%{RELEASE}\n", name, check=False)
            return {"state": "installed", "version": done.stdout.strip()} if done.returncode == 0 else {"state": "not-installed"}
        done = self.run("dpkg-query", "-W", "-f", "${db:Status-Abbrev}|${Version}\n", name, check=False)
        if done.returncode or not done.stdout.strip():
            return {"state": "not-installed"}
        abbrev, _, version = done.stdout.splitlines()[0].partition("|")
        if abbrev[1] == "n":
            return {"state": "not-installed"}
        one = {"state": STATE[abbrev[1]]}
        if version and abbrev[1] != "c":
            one["version"] = version
        if abbrev[0] == "h":
            one["held"] = True
        return one

    def unit(self, name):
        def ask(*argv):
            return self.run("systemctl", *argv, name, check=False).stdout.strip()

        log = self.run("cat", f"/var/log/demo/{name}", check=False).stdout.splitlines()
        one = {"active": ask("is-active"), "enabled": ask("is-enabled") or "not-found"}
        for word in ("start", "reload"):
            one[f"{word}s"] = sum(1 for line in log if line.split()[0] == word)
        if re.fullmatch("yes", ask("show", "-p", "NeedDaemonReload", "--value")):
            one["needs_reload"] = True
        return one

    def file(self, path):
        done = self.run("cat", path, check=False)
        return done.stdout if done.returncode == 0 else None
