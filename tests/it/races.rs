//! A local user swaps files, links and directories in the own home as fast as possible. Meanwhile resources manage the content
//! of that home. Root's files are neither given away, nor changed, nor disclosed.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::skip::{has_program, is_root};
use ensign::host::Host;
use ensign::host::confine::{AccessibleFiles, Confinement};
use ensign::host::fs::sha256;
use ensign::model::ResourceLimits;
use ensign::resource::Resource;
use ensign::resource::types::archive::ArchiveType;
use ensign::resource::types::file::FileType;
use ensign::resource::types::line::LineType;
use ensign::resource::types::scaffold::ScaffoldType;
use ensign::resource::types::symlink::SymlinkType;
use serde_json::{Value, json};

const ROUNDS: usize = 2000;
/// The number of rounds between two checks.
const SOME: usize = 100;
/// The user and group `nobody`.
const USER: u32 = 65534;
const SECRET: &str = "root:$6$only-root-knows";

/// Swaps entries of the home at random until its end, and searches readable files for the secret.
const SWAPPER: &str = r#"
import os, random, sys
home, vault, stop = sys.argv[1:4]
os.chdir(home)
os.umask(0)

def attempt(do, *arguments):
    try:
        do(*arguments)
    except OSError:
        pass

def swap(name):
    # A directory and a link to root's own change places.
    if os.path.islink(name):
        attempt(os.rename, name, name + ".bait")
        attempt(os.rename, name + ".real", name)
    else:
        attempt(os.rename, name, name + ".real")
        attempt(os.rename, name + ".bait", name)
        if not os.path.islink(name):
            attempt(os.rename, name, "junk%d" % random.getrandbits(48))
            attempt(os.symlink, vault, name)

def replace(name):
    fresh = name + ".fresh"
    kind = random.randrange(5)
    if kind == 0:
        attempt(lambda: open(fresh, "w").write("theirs"))
    elif kind == 1:
        attempt(os.symlink, vault + "/secret", fresh)
    elif kind == 2:
        attempt(os.link, vault + "/secret", fresh)
    elif kind == 3:
        attempt(os.mkfifo, fresh)
    else:
        attempt(os.symlink, "../nowhere", fresh)
    attempt(os.rename, fresh, name)
    attempt(os.unlink, fresh)

def peek(name):
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
        if b"only-root-knows" in os.read(handle, 4096):
            open("pwned", "w").write(name)
        os.close(handle)
    except OSError:
        pass

print("ready", flush=True)
while not os.path.exists(stop):
    for _ in range(20):
        choice = random.randrange(6)
        if choice == 0:
            swap("sub")
        elif choice == 1:
            swap("sub/deep")
        else:
            replace(random.choice(["sub/conf", "sub/deep/conf", "sub/a.tar", "sub/link"]))
        peek("sub/conf")
    for name in os.listdir("."):
        if name.startswith("junk") and random.randrange(50) == 0:
            attempt(os.rmdir, name)
"#;

struct Stage {
    dir: tempfile::TempDir,
    before: BTreeMap<PathBuf, String>,
}

impl Stage {
    /// A home of the user, root's own directory beside it, and sources for resources. None where the test is skipped.
    fn new() -> Option<Self> {
        if !is_root("only root can act as another user") || !has_program("python3", "python3") {
            return None;
        }
        let dir = tempfile::Builder::new().prefix("ensign-races").tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["home/sub/deep", "vault/deep", "vault/tree", "templates/deep", "out"] {
            std::fs::create_dir_all(at(name)).unwrap();
        }
        for name in ["vault/conf", "vault/deep/conf", "vault/tree/x", "vault/link", "vault/a.tar", "vault/authorized_keys"] {
            std::fs::write(at(name), format!("{SECRET} {name}\n")).unwrap();
        }
        std::fs::write(at("vault/secret"), SECRET).unwrap();
        for name in ["templates/conf", "templates/deep/conf"] {
            std::fs::write(at(name), "managed\n").unwrap();
        }
        for (path, _) in snapshot(&at("vault")) {
            if path.is_file() {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
            }
        }
        for name in ["home", "home/sub", "home/sub/deep"] {
            chown(at(name), Some(USER), Some(USER)).unwrap();
        }
        for name in ["home/sub.bait", "home/sub/deep.bait"] {
            symlink(at("vault"), at(name)).unwrap();
            std::os::unix::fs::lchown(at(name), Some(USER), Some(USER)).unwrap();
        }
        let before = snapshot(&at("vault"));
        Some(Self { dir, before })
    }

    fn at(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// Runs rounds of one resource against the swapper, first without and then with the kernel's confinement. Returns the
    /// number of rounds that succeeded.
    fn rounds<R: Resource>(&self, properties: impl Fn(usize) -> Value + Sync) -> usize {
        let swapper = Swapper::start(self);
        let free = Host::system(None);
        let paths = vec![self.at("home"), self.at("out")];
        let reads = vec![self.at("home"), self.at("templates")];
        let list = |paths: &[String]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        let files = Some(AccessibleFiles { write: list(&paths), read: list(&reads) });
        let confinement = Confinement { files, ..Confinement::default() };
        let bounds = ResourceLimits { write_paths: Some(paths), read_paths: Some(reads), ..ResourceLimits::default() };
        let bound = free.clone().with_limits(bounds);
        let some = |first: usize| {
            let round = |round: usize| {
                let (ended, said) = apply_once::<R>(properties(round), if round.is_multiple_of(2) { &free } else { &bound });
                assert!(!said.contains("only-root-knows") && !said.contains(&sha256(SECRET.as_bytes())), "{said}");
                usize::from(ended)
            };
            (first..first + SOME).map(round).sum::<usize>()
        };
        let mut done = 0;
        for is_confined in [false, true] {
            for first in (0..ROUNDS).step_by(SOME) {
                done += if is_confined {
                    // A thread of its own, as a confinement never ends.
                    let confined = || confinement.apply().map(|_| some(first)).unwrap();
                    std::thread::scope(|scope| scope.spawn(confined).join().unwrap())
                } else {
                    some(first)
                };
                swapper.paused(|| self.check());
            }
        }
        swapper.stop(self);
        self.check();
        println!("{}: {done} of {} rounds went through", R::TYPE, 2 * ROUNDS);
        done
    }

    /// Panics unless root's files are unchanged, and no file that the user can read holds the secret.
    fn check(&self) {
        assert_eq!(snapshot(&self.dir.path().join("vault")), self.before);
        assert!(!self.dir.path().join("home/pwned").exists(), "{}", std::fs::read_to_string(self.at("home/pwned")).unwrap());
        for (path, _) in snapshot(&self.dir.path().join("home")).into_iter().chain(snapshot(&self.dir.path().join("out"))) {
            let Ok(meta) = path.symlink_metadata() else { continue };
            let is_readable = meta.mode() & 0o004 != 0 || (meta.uid() == USER && meta.mode() & 0o400 != 0);
            if meta.is_file() && is_readable {
                let text = std::fs::read(&path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
                assert!(!text.contains("only-root-knows"), "{} has the secret", path.display());
            }
        }
    }
}

struct Swapper(Child);

impl Swapper {
    fn start(stage: &Stage) -> Self {
        let _old = std::fs::remove_file(stage.at("stop"));
        let mut command = Command::new("python3");
        command.args(["-c", SWAPPER, &stage.at("home"), &stage.at("vault"), &stage.at("stop")]);
        let mut child = command.uid(USER).gid(USER).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }

    /// Checks while the swapper is paused. The check itself must not follow a link to root's files, nor wait at a FIFO.
    fn paused(&self, look: impl FnOnce()) {
        let pid = nix::unistd::Pid::from_raw(self.0.id() as i32);
        let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
        while !state().contains(") T ") {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        look();
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).unwrap();
    }

    fn stop(mut self, stage: &Stage) {
        std::fs::write(stage.at("stop"), "").unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        // A failed test leaves no process behind.
        let _ended = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// Everything below a directory: kind, owner, mode and content.
fn snapshot(directory: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(meta) = path.symlink_metadata() else { continue };
            let kind = meta.file_type();
            let content = if kind.is_file() { std::fs::read(&path).unwrap_or_default() } else { Vec::new() };
            if kind.is_dir() {
                waiting.push(path.clone());
            }
            let about = format!("{} {} {} {:o} {}", kind.is_symlink(), kind.is_fifo(), meta.uid(), meta.mode(), sha256(&content));
            found.insert(path, about);
        }
    }
    found
}

/// Observes and applies a resource as the engine does. Returns true for success, and all reported text.
fn apply_once<R: Resource>(properties: Value, host: &Host) -> (bool, String) {
    let p: R::Properties = serde_json::from_value(properties).unwrap();
    R::validate(&p).unwrap();
    let provider = (R::PROVIDERS[0].open)(host);
    let mut said = R::redacted(&p).to_string();
    let mut go = || {
        let mut state = R::observe(&p, &provider, host)?;
        said += &serde_json::to_string(&state).unwrap();
        if let Some(preview) = R::preview(&p, &state, host) {
            said += &preview.before;
            said += &preview.after;
        }
        for change in R::diff(&p, &state)? {
            R::apply(&change, &p, &mut state, &provider, host)?;
        }
        Ok::<_, ensign::resource::ResourceError>(())
    };
    let ended = go();
    if let Err(error) = &ended {
        said += &ensign::diag::error_chain(error);
    }
    (ended.is_ok(), said)
}

#[test]
fn swapped_paths_do_not_divert_content_and_backups() {
    let Some(stage) = Stage::new() else { return };
    let done = stage.rounds::<FileType>(|round| {
        json!({"name": stage.at("home/sub/conf"), "ensure": "present", "content": format!("managed {round}"), "owner": USER,
               "group": USER, "mode": "0644", "backup": "true", "backup_keep": 2})
    });
    assert!(done > 0);
}

#[test]
fn swapped_paths_do_not_divert_owners_and_modes() {
    let Some(stage) = Stage::new() else { return };
    stage.rounds::<FileType>(|round| {
        let mode = if round % 3 == 0 { "0644" } else { "0664" };
        json!({"name": stage.at("home/sub/conf"), "ensure": "present", "owner": USER, "group": USER, "mode": mode})
    });
}

#[test]
fn swapped_paths_do_not_divert_copied_files() {
    let Some(stage) = Stage::new() else { return };
    stage.rounds::<FileType>(|_| {
        json!({"name": stage.at("out/copy"), "ensure": "present", "source": stage.at("home/sub/conf"), "owner": 0, "group": 0,
               "mode": "0644"})
    });
}

#[test]
fn swapped_paths_do_not_divert_lines() {
    let Some(stage) = Stage::new() else { return };
    let done = stage.rounds::<LineType>(|round| {
        json!({"name": stage.at("home/sub/conf"), "line": format!("x={round}"), "match": "^x=", "create": true, "mode": "0644",
               "owner": USER, "backup": "true", "backup_keep": 1})
    });
    assert!(done > 0);
}

#[test]
fn swapped_paths_do_not_divert_symbolic_links() {
    let Some(stage) = Stage::new() else { return };
    let done = stage.rounds::<SymlinkType>(|round| {
        json!({"name": stage.at("home/sub/link"), "target": format!("to-{round}"), "force": true, "owner": USER, "group": USER})
    });
    assert!(done > 0);
}

#[test]
fn swapped_paths_do_not_divert_scaffolds() {
    let Some(stage) = Stage::new() else { return };
    stage.rounds::<ScaffoldType>(|round| {
        json!({"name": stage.at("home/sub"), "ensure": if round % 5 == 4 { "absent" } else { "present" }, "engine": "jet",
               "source": stage.at("templates"), "purge": round % 2 == 0})
    });
}

#[test]
fn swapped_paths_do_not_divert_recursive_directories() {
    let Some(stage) = Stage::new() else { return };
    stage.rounds::<FileType>(|round| match round % 4 {
        0 => json!({"name": stage.at("home/sub"), "ensure": "directory", "recurse": true, "owner": USER, "group": USER,
                    "mode": "0644"}),
        1 => json!({"name": stage.at("home/sub/deep"), "ensure": "absent", "force": true}),
        _ => json!({"name": stage.at("home/sub"), "ensure": "directory", "recurse": true, "purge": true, "owner": USER,
                    "group": USER, "mode": "0644", "source": stage.at("templates")}),
    });
}

#[test]
fn swapped_paths_do_not_divert_archives() {
    let Some(stage) = Stage::new() else { return };
    let mut builder = tar::Builder::new(Vec::new());
    for name in ["conf", "deep/conf", "link"] {
        let mut header = tar::Header::new_ustar();
        header.set_size(8);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, "unpacked".as_bytes()).unwrap();
    }
    let packed = builder.into_inner().unwrap();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let checksum = sha256(&packed);
    // Serves until the process of the test ends.
    std::thread::spawn(move || {
        for stream in server.incoming().flatten() {
            let (mut reader, mut writer) = (BufReader::new(stream.try_clone().unwrap()), stream);
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|count| count > 2) {
                line.clear();
            }
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", packed.len());
            // The client may have gone.
            let _sent = writer.write_all(head.as_bytes()).and_then(|()| writer.write_all(&packed));
        }
    });
    stage.rounds::<ArchiveType>(|round| {
        json!({"name": stage.at("home/sub/a.tar"), "ensure": "present", "url": format!("http://127.0.0.1:{port}/a.tar"),
               "checksum": if round % 2 == 0 { checksum.as_str() } else { "" }, "extract_parent": stage.at("home/sub/deep"),
               "creates": stage.at("home/sub/deep/never"), "cleanup": round % 3 == 0, "owner": USER, "group": USER})
    });
}

#[test]
fn a_planted_directory_is_not_followed() {
    let Some(stage) = Stage::new() else { return };
    symlink(stage.at("vault"), stage.at("home/.ssh")).unwrap();
    let host = Host::system(None);
    let key = stage.at("home/.ssh/authorized_keys");
    let file = json!({"name": key, "ensure": "present", "content": "key\n", "owner": USER, "group": USER, "mode": "0600"});
    let said = [
        apply_once::<FileType>(file.clone(), &host),
        apply_once::<FileType>(json!({"name": key, "ensure": "absent", "backup": "true"}), &host),
        apply_once::<LineType>(json!({"name": key, "line": "key", "create": true}), &host),
        apply_once::<SymlinkType>(json!({"name": stage.at("home/.ssh/id"), "target": "x"}), &host),
        apply_once::<SymlinkType>(json!({"name": key, "target": "x", "force": true}), &host),
        apply_once::<ScaffoldType>(
            json!({"name": stage.at("home/.ssh"), "ensure": "present", "source": stage.at("templates")}),
            &host,
        ),
        apply_once::<ScaffoldType>(
            json!({"name": stage.at("home/.ssh/deep"), "ensure": "absent", "source": stage.at("templates")}),
            &host,
        ),
    ];
    for (ended, said) in said {
        assert!(!ended && said.contains("is a symbolic link") && said.contains("follow: true"), "{said}");
        assert!(!said.contains("only-root-knows"), "{said}");
    }
    stage.check();
    // An own directory replaces the link.
    let directory = json!({"name": stage.at("home/.ssh"), "ensure": "directory", "owner": USER, "group": USER, "mode": "0700"});
    assert!(apply_once::<FileType>(directory, &host).0);
    stage.check();
    assert!(!Path::new(&stage.at("home/.ssh")).is_symlink());
    // With this property, the type follows the link.
    symlink(stage.at("out"), stage.at("home/meant")).unwrap();
    let mut meant = file;
    (meant["name"], meant["follow"]) = (json!(stage.at("home/meant/f")), json!(true));
    assert!(apply_once::<FileType>(meant, &host).0);
    let mut text = String::new();
    std::fs::File::open(stage.at("out/f")).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "key\n");
}
