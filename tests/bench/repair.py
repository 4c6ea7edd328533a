"""Measures the repair of drift by `ensign apply --watch`, from outside and with the clock of this script.

A drift begins with the system call that causes it, and ends when the host is as wanted again. The script spins on a processor of
its own meanwhile. Every resource drifts once, because a resource with 5 repairs within a minute is flapping.
In a node (a container with systemd and dpkg), this file is the whole program: `repair.py COUNT`.
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time

BYTES = 100
WANTED = "x" * BYTES
LINE = "wanted = yes\n"
TREE = 20
# Longest wait for one repair, in seconds.
PATIENCE = 30


def others():
    """The processors of the watcher: all but the one of this script."""
    return sorted(os.sched_getaffinity(0))[1:] or sorted(os.sched_getaffinity(0))


class Watcher:
    """A running `ensign apply --watch`, with its events in a file."""

    def __init__(self, ensign, directory, resources, name="watched"):
        self.manifest = os.path.join(directory, f"{name}.yaml")
        self.out = os.path.join(directory, f"{name}.jsonl")
        write_manifest(self.manifest, resources)
        processors = others()
        with open(self.out, "wb") as out:
            self.process = subprocess.Popen(
                [ensign, "apply", "--watch", "--output", "jsonl", "--converged-timeout", "1s", self.manifest],
                stdout=out, stderr=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, processors))
        self.events = open(self.out, "rb")
        self.part = b""
        self.wait(lambda line: "converged:" in str(line.get("notice")), 120)

    def lines(self):
        """The events and notices since the last call."""
        whole = (self.part + self.events.read()).split(b"\n")
        self.part = whole.pop()
        return [json.loads(line) for line in whole]

    def wait(self, wanted, seconds=PATIENCE):
        until = time.monotonic() + seconds
        while not any([wanted(line) for line in self.lines()]):
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{self.manifest}: the watcher ended, or did not converge in {seconds} s")
            time.sleep(0.05)

    def ticks(self):
        """Processor time so far, in ms."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")

    def switches(self):
        """How often the threads went to sleep: once for each time they woke up."""
        count = 0
        for thread in os.listdir(f"/proc/{self.process.pid}/task"):
            with open(f"/proc/{self.process.pid}/task/{thread}/status") as file:
                count += sum(int(line.split()[1]) for line in file if line.startswith("voluntary"))
        return count

    def anonymous(self):
        """Private memory, in bytes."""
        with open(f"/proc/{self.process.pid}/smaps_rollup") as file:
            return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Anonymous:"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        self.events.close()


def write_manifest(path, resources, **section):
    """Replaces the manifest in one step."""
    with open(path + ".new", "w") as out:
        json.dump({"ccm": {**section, "resources": resources}}, out)
    os.rename(path + ".new", path)


def file(name, **properties):
    user, group = str(os.geteuid()), str(os.getegid())
    return {"file": {"name": name, "ensure": "present", "owner": user, "group": group, "mode": "0644", **properties}}


def directory(name, **properties):
    return file(name, ensure="directory", mode="0755", **properties)


def until(holds, started):
    """Milliseconds from the start until it holds; none when that is too long."""
    while not holds():
        if time.perf_counter() - started > PATIENCE:
            return None
    return (time.perf_counter() - started) * 1e3


def text(path):
    try:
        with open(path) as content:
            return content.read()
    except FileNotFoundError:
        return None


def print_times(name, times, note=""):
    good = sorted(took for took in times if took is not None)
    if not good:
        print(f"  {name:<44} none repaired")
        return
    at = lambda share: good[min(len(good) - 1, int(len(good) * share))]
    lost = f"  {len(times) - len(good)} not repaired" if len(good) < len(times) else ""
    print(f"  {name:<44} {statistics.median(good):>8.2f} {at(0.99):>8.2f} {good[-1]:>8.2f}{note}{lost}")
    sys.stdout.flush()


def print_head(title):
    print(f"\n{title}\n  {'':<44} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8}")


def overwrite(path):
    with open(path, "r+b", buffering=0) as out:
        started = time.perf_counter()
        out.write(b"y" * BYTES)
    return started


def call(function, *arguments):
    started = time.perf_counter()
    function(*arguments)
    return started


def drifts(top, count):
    """By name: the resources, the cause of a drift by number, and the check that it is repaired."""
    paths = {kind: [os.path.join(top, kind, str(n // 100), f"f{n}") for n in range(count)] for kind in KINDS}
    for kind in KINDS:
        for n in range(0, count, 100):
            os.makedirs(os.path.join(top, kind, str(n // 100)))
    source, away = os.path.join(top, "source"), os.path.join(top, "away")
    os.mkdir(source)
    os.mkdir(away)
    for n in range(TREE):
        with open(os.path.join(source, f"t{n}"), "w") as out:
            out.write(WANTED)
    for path in paths["line"]:
        with open(path, "w") as out:
            out.write("first\n" + LINE)
    for n in range(count):
        os.symlink("/elsewhere", os.path.join(away, f"link{n}"))
    whole = lambda path: text(path) == WANTED
    tree = lambda path: all(whole(os.path.join(path, f"t{n}")) for n in reversed(range(TREE)))
    plain = lambda kind: [file(path, content=WANTED) for path in paths[kind]]
    named = {
        "overwritten": ("file overwritten", plain("overwritten"), lambda n, path: overwrite(path), whole),
        "deleted": ("file deleted", plain("deleted"), lambda n, path: call(os.unlink, path), whole),
        "mode": ("mode of a file changed", plain("mode"), lambda n, path: call(os.chmod, path, 0o666),
                 lambda path: os.stat(path).st_mode & 0o7777 == 0o644),
        "link": ("link repointed", [{"symlink": {"name": path, "target": source}} for path in paths["link"]],
                 lambda n, path: call(os.rename, os.path.join(away, f"link{n}"), path), lambda path: os.readlink(path) == source),
        "line": ("line removed", [{"line": {"name": path, "line": LINE.strip()}} for path in paths["line"]],
                 lambda n, path: call(os.truncate, path, len("first\n")), lambda path: text(path) == "first\n" + LINE),
        "tree": (f"tree of {TREE} files moved away", [directory(path, source=source, recurse=True) for path in paths["tree"]],
                 lambda n, path: call(os.rename, path, os.path.join(away, f"tree{n}")), tree),
    }
    return [(title, paths[kind], resources, cause, repaired) for kind, (title, resources, cause, repaired) in named.items()]


KINDS = ["overwritten", "deleted", "mode", "link", "line", "tree"]


def drift(paths, cause, repaired):
    """The time of each repair. A pause lets the watcher sleep again, as on a quiet host."""
    times = []
    for number, path in enumerate(paths):
        started = cause(number, path)
        times.append(until(lambda: repaired(path), started))
        time.sleep(0.003)
    return times


@contextlib.contextmanager
def on_own_processor():
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def latency(work, top):
    count = 50 if work.quick else 1000
    cases = drifts(os.path.join(top, "drifts"), count)
    print_head(f"Repair of drift, {count} times each, {len(cases) * count} watched resources; floor: inotify, compare, replace")
    floor_of_repairs(work, top, count)
    with Watcher(work.ensign, top, [resource for case in cases for resource in case[2]]) as watcher, on_own_processor():
        for title, paths, _, cause, repaired in cases:
            before = watcher.ticks()
            times = drift(paths, cause, repaired)
            # Does not depend on the other work of the machine.
            print_times(title, times, f"   processor time {(watcher.ticks() - before) / count:.2f} each")


def floor_of_repairs(work, top, count):
    """The minimal program that repairs the files of one directory."""
    home = os.path.join(top, "floor")
    paths = [os.path.join(home, f"f{number}") for number in range(count)]
    os.mkdir(home)
    for path in paths:
        with open(path, "w") as out:
            out.write(WANTED)
        os.chmod(path, 0o644)
    processors = others()
    process = subprocess.Popen([work.floor, "repair", home, str(BYTES)], stdout=subprocess.PIPE,
                               preexec_fn=lambda: os.sched_setaffinity(0, processors))
    try:
        process.stdout.readline()
        whole = lambda path: text(path) == WANTED
        with on_own_processor():
            print_times("floor: file overwritten", drift(paths, lambda n, path: overwrite(path), whole))
            print_times("floor: file deleted", drift(paths, lambda n, path: call(os.unlink, path), whole))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def many(top, count, directories):
    """Managed directories with managed files: the resources, and the paths of the files."""
    homes = [os.path.join(top, f"d{n:03}") for n in range(directories)]
    paths = [os.path.join(homes[n % directories], f"f{n:05}") for n in range(count)]
    return [directory(path) for path in [top, *homes]] + [file(path, content=WANTED) for path in paths], paths


def idle(work, top):
    seconds = 5 if work.quick else 30
    print(f"\nIdle for {seconds} s")
    print(f"  {'':<44} {'cpu ms':>8} {'wakes':>8} {'own MiB':>8}")
    memory = {}
    for count, directories in ((10, 1), (10_000, 100)):
        resources, _ = many(os.path.join(top, f"idle{count}"), count, directories)
        with Watcher(work.ensign, top, resources) as watcher:
            time.sleep(2)
            ticks, switches = watcher.ticks(), watcher.switches()
            time.sleep(seconds)
            ticks, switches = watcher.ticks() - ticks, watcher.switches() - switches
            memory[len(resources)] = watcher.anonymous()
            print(f"  {f'{count} files in directories of 100':<44} {ticks:>8.0f} {switches:>8} "
                  f"{memory[len(resources)] / (1 << 20):>8.1f}")
    (few, least), (most, all_of_them) = memory.items()
    print(f"  {'own memory a resource':<44} {(all_of_them - least) / (most - few):>8.0f} bytes")


def swap(work, top):
    """From the new manifest in its place to the event of the last changed resource."""
    resources, paths = many(os.path.join(top, "swap"), 10_000, 100)
    changed = paths[5::1000]
    times, reading = [], []
    with Watcher(work.ensign, top, resources) as watcher:
        for turn in range(3 if work.quick else 10):
            new = [file(path, content=f"turn {turn}") if path in changed else resource
                   for path, resource in zip([None] * (len(resources) - len(paths)) + paths, resources)]
            write_manifest(watcher.manifest + ".next", new)
            missing, started = set(changed), time.perf_counter()
            os.rename(watcher.manifest + ".next", watcher.manifest)
            while missing and time.perf_counter() - started < PATIENCE:
                missing -= {line.get("name") for line in watcher.lines() if line.get("changed")}
            times.append((time.perf_counter() - started) * 1e3 if not missing else None)
            time.sleep(0.5)
        for _ in range(10):
            started = time.perf_counter()
            subprocess.run([work.ensign, "check", watcher.manifest], stdout=subprocess.DEVNULL, check=True)
            reading.append((time.perf_counter() - started) * 1e3)
    print_head(f"New manifest of 10000 files, {len(changed)} changed: until the last event (the reload waits 100 ms for quiet)")
    print_times("new manifest", times)
    print_times("ensign check of the same manifest", reading)


def storms(work, top):
    print("\nStorms")
    path = os.path.join(top, "storm")
    with Watcher(work.ensign, top, [file(path, content=WANTED)]) as watcher, on_own_processor():
        ticks, written, started = watcher.ticks(), 0, time.perf_counter()
        while (now := time.perf_counter() - started) < 3:
            while written < now * 10_000:
                with open(path, "wb", buffering=0) as out:
                    out.write(b"y")
                written += 1
        took, ended = watcher.ticks() - ticks, time.perf_counter()
        back = until(lambda: text(path) == WANTED, ended)
        print(f"  {f'{written} writes in 3 s on one file: processor time':<60} {took:>8.0f} ms")
        print(f"  {'... from the last write until it is repaired (flapping)':<60} {back or -1:>8.0f} ms")
    top = os.path.join(top, "gone")
    resources, paths = many(top, 10_000, 100)
    with Watcher(work.ensign, os.path.dirname(top), resources) as watcher:
        watcher.lines()
        started = time.perf_counter()
        # The watcher repairs meanwhile, so the command may find a directory that is not empty.
        subprocess.run(["rm", "-rf", top], stderr=subprocess.DEVNULL, check=False)
        removed = (time.perf_counter() - started) * 1e3
        back = until(lambda: all(map(os.path.exists, paths)), started)
        time.sleep(1)
        repairs = sum(1 for line in watcher.lines() if line.get("changed"))
        print(f"  {'rm -rf of 10000 files: the command itself':<60} {removed:>8.0f} ms")
        print(f"  {f'... from its start until all are back ({repairs} repairs)':<60} {back or -1:>8.0f} ms")


def parallel(work, top):
    manifest = os.path.join(top, "parallel.yaml")
    write_manifest(manifest, [{"exec": {"name": f"sleep-{n}", "command": "sleep 0.2"}} for n in range(8)], ordering="graph")
    print("\nEight commands of 200 ms, ordering: graph")
    for width in (1, 8):
        seen = []
        for _ in range(3):
            started = time.perf_counter()
            subprocess.run([work.ensign, "apply", "--parallelism", str(width), manifest], stdout=subprocess.DEVNULL, check=True)
            seen.append((time.perf_counter() - started) * 1e3)
        print(f"  {f'--parallelism {width}':<44} {min(seen):>8.0f} ms")


def measure(work):
    top = os.path.join(work.directory, "repair")
    os.mkdir(top)
    for part in (latency, idle, swap, storms, parallel):
        part(work, top)
        sys.stdout.flush()


def prepare_node(count):
    """Packages in a repository of the node, and services that leave a mark with their process id."""
    script = """
mkdir -p /srv/series /run/bench; cd /srv/series
for n in $(seq 0 $(($1 - 1))); do
  rm -rf /tmp/p; mkdir -p /tmp/p/DEBIAN /tmp/p/opt/bench; echo "$n" >"/tmp/p/opt/bench/$n"
  printf 'Package: bench-%s\\nVersion: 1\\nArchitecture: all\\nMaintainer: x <x@example.org>\\nDescription: x\\n' "$n" >/tmp/p/DEBIAN/control
  dpkg-deb -b /tmp/p "bench-$n.deb" >/dev/null
  { cat /tmp/p/DEBIAN/control; echo "Filename: ./bench-$n.deb"; echo "Size: $(stat -c %s "bench-$n.deb")"
    echo "SHA256: $(sha256sum "bench-$n.deb" | cut -d' ' -f1)"; echo; } >>Packages
  for kind in stopped killed floor; do
    printf '[Service]\\nExecStart=/bin/sh -c "echo $$$$ >/run/bench/%s; exec sleep infinity"\\n' "$kind-$n" >"/etc/systemd/system/$kind-$n.service"
  done
done
echo 'deb [trusted=yes] copy:/srv/series ./' >/etc/apt/sources.list
apt-get update -qq; systemctl daemon-reload
"""
    subprocess.run(["/bin/sh", "-ec", script, "prepare", str(count)], check=True, stdout=subprocess.DEVNULL)


def installed(package):
    holds = lambda: f"Package: {package}\nStatus: install ok installed" in (text("/var/lib/dpkg/status") or "")
    return lambda: holds() or time.sleep(0.001)


def in_node(count):
    """The measurement inside of a node."""
    quiet = lambda *argv: subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    prepare_node(count)
    mark = lambda unit: os.path.join("/run/bench", unit)
    resources = [{"service": {"name": f"{kind}-{n}", "ensure": "running"}} for kind in ("stopped", "killed") for n in range(count)]
    resources += [{"package": {"name": f"bench-{n}", "ensure": "present", "provider": "apt"}} for n in range(count)]
    print_head(f"Services and packages in a node with systemd and dpkg, {count} of each")
    floor = []
    for n in range(count):
        started = time.perf_counter()
        quiet("systemctl", "start", f"floor-{n}")
        floor.append(until(lambda: text(mark(f"floor-{n}")), started))
    print_times("floor: systemctl start", floor)
    with Watcher("ensign", "/root", resources) as _, on_own_processor():
        killed, stopped, purged = [], [], []
        for n in range(count):
            # A started process must live for 100 ms: that check of the repair before is no latency of this one.
            time.sleep(0.3)
            pid = int(text(mark(f"killed-{n}")))
            os.unlink(mark(f"killed-{n}"))
            killed.append(until(lambda: text(mark(f"killed-{n}")), call(os.kill, pid, signal.SIGKILL)))
            time.sleep(0.3)
            os.unlink(mark(f"stopped-{n}"))
            quiet("systemctl", "stop", f"stopped-{n}")
            stopped.append(until(lambda: text(mark(f"stopped-{n}")), time.perf_counter()))
        print_times("service killed", killed)
        print_times("service stopped, from the end of systemctl", stopped)
        for n in range(count):
            quiet("dpkg", "--purge", f"bench-{n}")
            purged.append(until(installed(f"bench-{n}"), time.perf_counter()))
            time.sleep(0.1)
        print_times("package removed, from the end of dpkg", purged)
    floor = []
    for n in range(count):
        quiet("dpkg", "--purge", f"bench-{n}")
        started = time.perf_counter()
        quiet("apt-get", "install", "-y", "-qq", f"bench-{n}")
        floor.append((time.perf_counter() - started) * 1e3)
    print_times("floor: apt-get install", floor)


if __name__ == "__main__":
    in_node(int(sys.argv[1]))
