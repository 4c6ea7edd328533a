//! The rule of effects: the kernel sees no effect of a resource that its type did not declare.
//!
//! Every scenario of every type runs under `strace`. An effect that `ensign check --effects` lists for the manifest must cover
//! each of these system calls: open for writing, create, rename, remove, change an owner or mode, mount, start a program,
//! connect. A declared program may do anything: its rule permits the program as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::support::node::{ENSIGN, Node};

use super::{Place, Run, cases, files, play};
use crate::support::skip::{has_program, is_root};

/// The options of strace: one file per thread, descriptors with their paths, whole texts.
pub(super) const STRACE: &[&str] = &[
    "-ff",
    "-q",
    "-y",
    "-s",
    "4096",
    "-e",
    "trace=open,openat,openat2,creat,rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,symlink,symlinkat,link,linkat,\
     chmod,fchmod,fchmodat,chown,lchown,fchown,fchownat,truncate,ftruncate,mknod,mknodat,setxattr,lsetxattr,fsetxattr,mount,\
     umount2,move_mount,execve,connect,clone,clone3,fork,vfork",
];

/// Programs that the types themselves start, to manage more than files.
const TOOLS: &[&str] = &[
    "useradd",
    "usermod",
    "userdel",
    "chpasswd",
    "groupadd",
    "groupmod",
    "groupdel",
    "gpasswd",
    "mount",
    "umount",
    "systemctl",
    "apt-get",
    "apt-cache",
    "dpkg",
    "dpkg-query",
    "dnf",
    "rpm",
    "chage",
];

/// The reads of every run: libraries, accounts, the facts of the host.
const OWN_READS: &[&str] = &[
    "/proc",
    "/sys",
    "/dev",
    "/usr",
    "/lib",
    "/lib64",
    "/bin",
    "/sbin",
    "/run",
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/localtime",
    "/etc/os-release",
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/ssl",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/machine-id",
    "/etc/debian_version",
    "/etc/choria",
    "/etc/ensign",
    "/var/lib/dpkg",
    "/var/lib/rpm",
];

/// Marks a run with an effect that no resource without effects may have.
const SEEN: &str = "needs effects";

/// An action of the program.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ObservedEffect {
    Write(PathBuf),
    Read(PathBuf),
    Start(String),
    Mount(PathBuf),
    Connect(String),
}

/// The texts in quotes of a line, and the paths of descriptors in angle brackets, as the kernel got them.
fn arguments(line: &str) -> Vec<String> {
    let (mut found, mut rest) = (Vec::new(), line);
    while let Some(at) = rest.find(['"', '<']) {
        let close = if rest[at..].starts_with('"') { '"' } else { '>' };
        let body = &rest[at + 1..];
        let mut end = None;
        let mut escaped = false;
        for (index, character) in body.char_indices() {
            match character {
                '\\' if !escaped => escaped = true,
                _ if character == close && !escaped => {
                    end = Some(index);
                    break;
                }
                _ => escaped = false,
            }
        }
        let Some(end) = end else { break };
        found.push(format!("{}{}", &rest[at..=at], &body[..end]));
        rest = &body[end + 1..];
    }
    found
}

/// The absolute paths of a call: a text after a descriptor is below it.
fn paths(line: &str) -> Vec<PathBuf> {
    let (mut found, mut base): (Vec<PathBuf>, Option<PathBuf>) = (Vec::new(), None);
    for argument in arguments(line.rsplit_once(" = ").map_or(line, |(call, _)| call)) {
        let (kind, text) = argument.split_at(1);
        if kind == "<" {
            base = Some(PathBuf::from(text));
        } else {
            let path = base.take().unwrap_or_default().join(text);
            if path.is_absolute() {
                found.push(plain(&path));
            }
        }
    }
    found.extend(base.filter(|path| path.is_absolute()));
    found
}

/// A path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut plain, part| {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
        plain
    })
}

/// Returns the actions of one line of a trace. A failed call has no action.
fn acts(line: &str) -> Vec<ObservedEffect> {
    let Some((call, result)) = line.rsplit_once(" = ") else { return vec![] };
    let result = result.trim();
    let name = call.split('(').next().unwrap_or_default();
    if result.starts_with('-') && !(name == "connect" && result.contains("EINPROGRESS")) {
        return vec![];
    }
    match name {
        "open" | "openat" | "openat2" | "creat" => {
            // The destination, with links followed.
            let opened = result.split_once('<').map(|(_, rest)| PathBuf::from(rest.trim_end_matches('>')));
            let path = opened.filter(|path| path.is_absolute()).or_else(|| paths(line).into_iter().next());
            let writes = ["O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC"].iter().any(|flag| call.contains(flag)) || name == "creat";
            match path {
                Some(path) if writes => vec![ObservedEffect::Write(path)],
                Some(path) if !call.contains("O_PATH") && !call.contains("O_DIRECTORY") => vec![ObservedEffect::Read(path)],
                _ => vec![],
            }
        }
        "symlink" | "symlinkat" => paths(line).into_iter().next_back().map(ObservedEffect::Write).into_iter().collect(),
        "mount" | "umount2" | "move_mount" => {
            paths(line).into_iter().next_back().map(ObservedEffect::Mount).into_iter().collect()
        }
        "execve" => {
            let program = arguments(call).into_iter().next().unwrap_or_default();
            vec![ObservedEffect::Start(program.trim_start_matches('"').to_owned())]
        }
        "connect" if call.contains("AF_INET") => vec![ObservedEffect::Connect(call.to_owned())],
        "connect" | "clone" | "clone3" | "fork" | "vfork" => vec![],
        _ => paths(line).into_iter().map(ObservedEffect::Write).collect(),
    }
}

/// Returns the actions of the program and its threads, without the programs that it started.
fn trace(threads: &BTreeMap<u32, String>, own: &str) -> BTreeSet<ObservedEffect> {
    let is_first = |text: &&String| text.lines().next().is_some_and(|line| line.starts_with("execve(") && line.contains(own));
    let first = *threads.iter().find(|(_, text)| is_first(text)).expect("the program was traced").0;
    let (mut found, mut left) = (BTreeSet::new(), vec![first]);
    while let Some(pid) = left.pop() {
        let text = threads.get(&pid).map_or("", String::as_str);
        for line in text.lines().skip(usize::from(pid == first)) {
            let done = acts(line);
            let began_another = done.iter().any(|act| matches!(act, ObservedEffect::Start(_)));
            found.extend(done);
            if began_another {
                break;
            }
            if line.starts_with("clone") || line.starts_with("fork(") || line.starts_with("vfork(") {
                left.extend(line.rsplit_once(" = ").and_then(|(_, child)| child.trim().parse::<u32>().ok()));
            }
        }
    }
    found
}

/// Returns the files of strace by thread.
fn written(directory: &Path) -> BTreeMap<u32, String> {
    let read = |path: PathBuf| {
        let pid = path.extension().unwrap().to_str().unwrap().parse().unwrap();
        (pid, String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned())
    };
    std::fs::read_dir(directory).unwrap().map(|entry| read(entry.unwrap().path())).collect()
}

/// Returns the links below a directory, each with its target.
fn links(directory: &Path) -> Vec<(PathBuf, PathBuf)> {
    let mut found = Vec::new();
    for path in std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_symlink() {
            found.extend(path.canonicalize().map(|target| (path, target)));
        } else if path.is_dir() {
            found.extend(links(&path));
        }
    }
    found
}

/// The effects that a manifest declares.
struct Declared {
    effects: Vec<Value>,
    /// The links of the scenario before the run. A read through a link is a read of its target.
    links: Vec<(PathBuf, PathBuf)>,
}

impl Declared {
    /// The effects of the scenario's manifest, and of the manifests that it applies.
    fn from_check(place: &Place, manifest: &Path, args: &[String], depth: usize) -> Self {
        let mut command = place.command(env!("CARGO_BIN_EXE_ensign"), &place.home);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", &place.home).env("TMPDIR", &place.home);
        command.arg("check").arg(manifest).args(["--effects", "--output", "json"]).args(args);
        let output = command.output().unwrap();
        let resources: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let all = resources.as_array().into_iter().flatten().flat_map(|one| one["effects"].as_array().unwrap().clone());
        let mut all: Vec<Value> = all.collect();
        let nested: Vec<String> = all.iter().filter_map(|one| one["nested"].as_str().map(str::to_owned)).collect();
        for other in nested.iter().filter(|_| depth < 3) {
            all.extend(Self::from_check(place, &manifest.parent().unwrap().join(other), &[], depth + 1).effects);
        }
        Self { effects: all, links: links(&place.root) }
    }

    fn has(&self, kind: &str) -> bool {
        self.effects.iter().any(|one| one.get(kind).is_some())
    }

    /// True when a place of these kinds covers a path.
    fn covers(&self, kinds: &[&str], path: &Path, root: &Path) -> bool {
        let places = self.effects.iter().flat_map(|one| {
            kinds
                .iter()
                .filter_map(move |kind| one.get(*kind))
                .map(|one| if one.get("place").is_some() { &one["place"] } else { one })
        });
        places.into_iter().any(|place| {
            let declared = plain(&root.join(place["path"].as_str().unwrap()));
            // A declared path may have links.
            let real = declared.parent().and_then(|parent| Some(parent.canonicalize().ok()?.join(declared.file_name()?)));
            let full = declared.canonicalize().ok();
            [Some(declared), real, full].into_iter().flatten().any(|declared| {
                path == declared
                    || is_like(path, &declared)
                    // Missing directories above are created.
                    || declared.starts_with(path)
                    // The new file is beside the old one for a moment.
                    || (path.parent() == declared.parent() && is_temporary(path))
                    || (place["below"] == true && path.starts_with(&declared))
            })
        })
    }

    /// True when a read goes through a link that is covered.
    fn is_read_through_link(&self, path: &Path, root: &Path) -> bool {
        let mut links = self.links.iter().filter(|(_, target)| path.starts_with(target));
        links.any(|(link, _)| self.covers(&["read", "write"], link, root))
    }

    fn allows(&self, act: &ObservedEffect, root: &Path, home: &Path) -> bool {
        match act {
            // The program's own files: the name of a terminal, a temporary directory, the cache of a download.
            ObservedEffect::Write(path) => {
                path.starts_with("/dev")
                    || path.starts_with(home)
                    || path.starts_with("/proc/self")
                    || self.covers(&["write"], path, root)
            }
            ObservedEffect::Read(path) => {
                OWN_READS.iter().any(|own| path.starts_with(own))
                    || path.starts_with(home)
                    || path.is_dir()
                    || !path.is_absolute()
                    || *path == root.join("manifest.yaml")
                    || self.has("nested")
                    || self.covers(&["read", "write", "look"], path, root)
                    || self.is_read_through_link(path, root)
                    || (self.has("account") && path.starts_with("/etc"))
                    || (self.has("mount") && path == Path::new("/etc/fstab"))
            }
            ObservedEffect::Start(program) => {
                let name = program.rsplit('/').next().unwrap_or_default();
                let manages = ["account", "mount", "unit", "package", "kernel"].iter().any(|kind| self.has(kind));
                self.has("run") || (manages && TOOLS.contains(&name))
            }
            ObservedEffect::Mount(path) => self
                .effects
                .iter()
                .filter_map(|one| one.get("mount"))
                .any(|one| Path::new(one["point"].as_str().unwrap()) == path),
            ObservedEffect::Connect(_) => self.has("fetch") || self.has("connect"),
        }
    }
}

/// True when a declared path with a `*` in its last part matches a path.
fn is_like(path: &Path, declared: &Path) -> bool {
    let Some((before, after)) = declared.to_str().unwrap().split_once('*') else { return false };
    let rest = path.to_str().unwrap().strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
    rest.is_some_and(|rest| !rest.contains('/'))
}

fn is_temporary(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
}

/// Returns the arguments that `check` has too.
fn check_arguments(args: &[String]) -> Vec<String> {
    let (mut found, mut rest) = (Vec::new(), args.iter());
    while let Some(arg) = rest.next() {
        if ["--fact", "--facts", "--data", "--hiera"].contains(&arg.as_str()) {
            found.extend([Some(arg.clone()), rest.next().cloned()].into_iter().flatten());
        }
    }
    found
}

fn check_run(run: &Run, place: &mut Place) -> Vec<String> {
    if let Err(why) = place.shell(&run.between) {
        return vec![why];
    }
    let declared = Declared::from_check(place, &place.root.join("manifest.yaml"), &check_arguments(&run.args), 0);
    let directory = tempfile::tempdir().unwrap();
    place.trace = Some(directory.path().join("trace"));
    place.ensign(&run.args);
    let found = trace(&written(directory.path()), env!("CARGO_BIN_EXE_ensign"));
    assert!(!found.is_empty());
    let undeclared = |declared: &Declared| -> Vec<String> {
        // A refused manifest has no effects. The program read it together with the manifests that it applies.
        let planned = |act: &ObservedEffect| {
            run.exit == 2 && matches!(act, ObservedEffect::Read(path) if Path::new(path).starts_with(&place.root))
        };
        let acts = found.iter().filter(|act| !planned(act) && !declared.allows(act, &place.root, &place.home));
        acts.map(|act| format!("{act:?} was not declared: {}", Value::Array(declared.effects.clone()))).collect()
    };
    let mut wrong = undeclared(&declared);
    if !undeclared(&Declared { effects: vec![], links: vec![] }).is_empty() {
        wrong.push(SEEN.to_owned());
    }
    wrong
}

#[test]
fn resources_have_no_undeclared_effects() {
    if !is_root("all scenarios run") || !has_program("strace", "strace") {
        return;
    }
    let mut wrong = Vec::new();
    let (mut count, mut seen) = (0, 0);
    for file in files().into_values().flatten() {
        let undeclared = play(&file, |run, place, _| check_run(run, place));
        count += 1;
        seen += usize::from(undeclared.iter().any(|why| why.ends_with(SEEN)));
        let name = file.strip_prefix(cases()).unwrap().display().to_string();
        wrong.extend(undeclared.into_iter().filter(|why| why.contains("was not declared")).map(|why| format!("{name}: {why}")));
    }
    println!("{count} scenarios traced, {seen} of them did something that must be declared");
    assert!(seen > 40, "the trace shows too little: {seen} of {count}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Resources of types that manage more than files, on a host of their own.
const ON_A_NODE: &str = r#"
ccm:
  resources:
    - group: {name: web, system: true}
    - user: {name: alice, groups: [web], home: /srv/homes/alice, manage_home: true, shell: /bin/sh}
    - file: {name: /etc/systemd/system/own.service, ensure: present, owner: root, group: root, mode: "0644", content: "[Service]\nExecStart=sleep infinity\n[Install]\nWantedBy=multi-user.target\n"}
    - service: {name: own, ensure: running, enable: true}
    - package: {name: demo-plain, ensure: latest}
    - package: {name: procps, ensure: present}
    - cron: {name: site, user: alice, minute: 5, command: /bin/true}
    - sysctl: {name: vm.swappiness, value: 7, runtime: false}
    - exec: {name: "touch /srv/made", creates: /srv/made}
"#;

#[test]
fn resources_on_a_node_have_no_undeclared_effects() {
    let Some(node) = Node::start() else { return };
    node.write("/root/manifest.yaml", ON_A_NODE);
    node.sh("mkdir -p /etc/cron.d /tmp/trace");
    let listed = node.ensign(&["check", "/root/manifest.yaml", "--effects", "--output", "json"]).ok();
    let resources: Value = serde_json::from_str(&listed).unwrap();
    let all = resources.as_array().unwrap().iter().flat_map(|one| one["effects"].as_array().unwrap().clone());
    let declared = Declared { effects: all.collect(), links: vec![] };
    for _ in 0..2 {
        // The program's own files are in one place.
        let own = &["env", "ENSIGN_RUNTIME=/var/lib/ensign/commands", "strace"][..];
        let strace = [own, STRACE, &["-o", "/tmp/trace/t", ENSIGN, "apply", "/root/manifest.yaml"]].concat();
        node.exec(&strace);
        let files = node.sh("cd /tmp/trace; for f in t.*; do echo \"@@ ${f#t.}\"; cat $f; done; rm -f t.*");
        let threads = files.split("@@ ").skip(1).filter_map(|part| part.split_once('\n'));
        let threads: BTreeMap<u32, String> = threads.map(|(pid, text)| (pid.parse().unwrap(), text.to_owned())).collect();
        let found = trace(&threads, ENSIGN);
        assert!(found.iter().any(|act| matches!(act, ObservedEffect::Write(_))), "{found:?}");
        let undeclared: Vec<_> =
            found.iter().filter(|act| !declared.allows(act, Path::new("/root"), Path::new("/var/lib/ensign"))).collect();
        assert!(undeclared.is_empty(), "{undeclared:#?} were not declared: {listed}");
    }
    assert_eq!(node.sh("systemctl is-active own; id -nG alice"), "active\nalice web\n");
}

#[test]
fn lines_of_a_trace_are_read() {
    let write = |path: &str| vec![ObservedEffect::Write(path.into())];
    for (line, expected) in [
        (r#"openat(AT_FDCWD</w>, "a", O_WRONLY|O_CREAT, 0600) = 3</w/a>"#, write("/w/a")),
        (r#"openat(5</w/d>, ".a.x", O_RDWR|O_CREAT|O_EXCL, 0600) = 6</w/d/.a.x>"#, write("/w/d/.a.x")),
        (r#"openat(AT_FDCWD</w>, "/etc/x", O_RDONLY|O_CLOEXEC) = 3</etc/y>"#, vec![ObservedEffect::Read("/etc/y".into())]),
        (r#"openat(AT_FDCWD</w>, "/etc/x", O_WRONLY) = -1 ENOENT (No such file or directory)"#, vec![]),
        (
            r#"renameat(5</w>, ".t", 5</w>, "a") = 0"#,
            vec![ObservedEffect::Write("/w/.t".into()), ObservedEffect::Write("/w/a".into())],
        ),
        (r#"symlinkat("/etc", 5</w>, "l") = 0"#, write("/w/l")),
        (r#"fchmod(3</w/a>, 0644) = 0"#, write("/w/a")),
        (r#"execve("/usr/bin/id", ["id"], 0x7ff /* 3 vars */) = 0"#, vec![ObservedEffect::Start("/usr/bin/id".into())]),
        (r#"mkdirat(5</w>, "x\"y", 0755) = 0"#, write("/w/x\\\"y")),
    ] {
        assert_eq!(acts(line), expected, "{line}");
    }
}
