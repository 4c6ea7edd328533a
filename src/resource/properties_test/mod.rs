//! The laws that every resource type keeps, tested with generated properties over generated hosts:
//! after `apply`, `diff` is empty; observing twice says the same; a dry run changes nothing;
//! properties survive being written and read; validation never looks at the host.

mod effects;
mod secrets;
mod system;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::json;

use crate::host::Host;
use crate::host::account::{effective_gid, effective_uid};
use crate::http::testing::{Asked, Reply, Web};
use crate::skip::is_root;
use crate::unpack::testing::{file, gzip, tar_of};

use super::{Resource, ResourceError, ResourceType, State, TYPES, TypeEntry};

/// What the laws need of a type: properties, and what may be there before, both below `root`.
trait TypeFixture: Resource {
    /// How many cases are tried.
    const CASES: u32 = 200;
    /// True where only root can do it.
    const ROOT: bool = false;
    /// False where the laws can't let a resource change anything: the reason is at the type.
    const CHANGES: bool = true;
    /// The machine that it runs on.
    fn host(_root: &Path) -> Host {
        Host::system(None)
    }
    fn wanted(root: &Path) -> BoxedStrategy<Self::Properties>;
    fn before(root: &Path) -> BoxedStrategy<Vec<Preexisting>>;
    /// What does the work; a type whose hosts can't be made here has a simulation of one in the directory.
    fn provider(_: &Path, host: &Host) -> Box<Self::Provider> {
        (Self::PROVIDERS[0].open)(host)
    }
}

/// Something that is on the host before the resource runs.
#[derive(Debug, Clone)]
enum Preexisting {
    File(&'static str, &'static str, u32),
    Directory(&'static str, u32),
    Link(&'static str, &'static str),
}

impl Preexisting {
    fn make(&self, root: &Path) {
        let mode = |path: &Path, mode: u32| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        match self {
            Self::File(name, content, bits) => {
                std::fs::write(root.join(name), content).unwrap();
                mode(&root.join(name), *bits);
            }
            Self::Directory(name, bits) => {
                std::fs::create_dir_all(root.join(name)).unwrap();
                mode(&root.join(name), *bits);
            }
            Self::Link(name, target) => std::os::unix::fs::symlink(target, root.join(name)).unwrap(),
        }
    }
}

/// All that can be seen below a directory.
fn snapshot(root: &Path) -> BTreeMap<String, String> {
    let mut seen = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(directory) = todo.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let content = if meta.is_file() {
                format!("{:?}", std::fs::read(&path))
            } else {
                format!("{:?}", std::fs::read_link(&path).ok())
            };
            let facts = format!("{:o} {} {} {} {} {content}", meta.mode(), meta.uid(), meta.gid(), meta.ino(), meta.mtime_nsec());
            seen.insert(path.display().to_string(), facts);
            if meta.is_dir() {
                todo.push(path);
            }
        }
    }
    seen
}

/// One step of a type, as [`Resource::apply`].
type Step<R> = fn(
    &<R as Resource>::Change,
    &<R as Resource>::Properties,
    &mut <R as Resource>::State,
    &<R as Resource>::Provider,
    &Host,
) -> Result<(), ResourceError>;

/// Number of cases in which a type changed something, and number of those in which all steps succeeded.
#[derive(Default)]
struct Tried {
    changes: Cell<u32>,
    successes: Cell<u32>,
}

/// Tests the laws of a type that takes its steps with `apply`.
fn check<R: TypeFixture>(apply: Step<R>, config: ProptestConfig) -> Result<(), String> {
    let mut runner = TestRunner::new(config);
    // The root must be known before the properties are made: one for all cases, emptied between them.
    let root = tempfile::tempdir().unwrap();
    let root = root.path().join("root");
    let (strategy, tried) = ((R::before(&root), R::wanted(&root)), Tried::default());
    let result = runner.run(&strategy, |(before, properties)| {
        let _cleared = std::fs::remove_dir_all(&root);
        std::fs::create_dir(&root).unwrap();
        before.iter().for_each(|made| made.make(&root));
        check_case::<R>(&root, &properties, apply, &tried)
    });
    result.map_err(|error| error.to_string())?;
    let (changes, successes) = (tried.changes.get(), tried.successes.get());
    // Some cases ask for what can't be; the generators make most of them possible.
    let enough = if R::CHANGES { successes > 0 && successes * 4 >= changes } else { changes == 0 };
    if enough { Ok(()) } else { Err(format!("{successes} of {changes} cases with changes succeeded")) }
}

fn check_case<R: TypeFixture>(
    root: &Path,
    properties: &R::Properties,
    apply: Step<R>,
    tried: &Tried,
) -> Result<(), TestCaseError> {
    let written = serde_json::to_value(properties).unwrap();
    prop_assert!(serde_json::from_value::<R::Properties>(written.clone()).unwrap() == *properties, "survives writing: {written}");
    if R::validate(properties).is_err() {
        return Ok(());
    }
    let host = R::host(root);
    let provider = R::provider(root, &host);
    let untouched = snapshot(root);
    let first = R::observe(properties, &provider, &host).unwrap();
    let second = R::observe(properties, &provider, &host).unwrap();
    let said = |state: &R::State| (state.ensure().to_owned(), serde_json::to_value(state).unwrap());
    prop_assert_eq!(said(&first), said(&second), "observing twice says the same");
    let Ok(changes) = R::diff(properties, &first) else { return Ok(()) };
    prop_assert!(changes == R::diff(properties, &second).unwrap(), "diff depends on nothing but the state");
    prop_assert_eq!(&untouched, &snapshot(root), "looking changes nothing");
    let mut state = first;
    let applied = changes.iter().try_for_each(|change| apply(change, properties, &mut state, &provider, &host));
    if !changes.is_empty() {
        tried.changes.set(tried.changes.get() + 1);
        tried.successes.set(tried.successes.get() + u32::from(applied.is_ok()));
    }
    if applied.is_ok() && R::CONVERGES {
        let left = R::diff(properties, &R::observe(properties, &provider, &host).unwrap()).unwrap();
        let left: Vec<String> = left.iter().map(ToString::to_string).collect();
        prop_assert!(left.is_empty(), "after apply nothing is left to do: {:?} of {}", left, written);
    }
    if changes.is_empty() {
        prop_assert_eq!(&untouched, &snapshot(root), "a stable resource is not touched");
    }
    Ok(())
}

/// Tests the laws of a type, and that they refuse the same type with steps that always fail, or that do nothing.
fn hold<R: TypeFixture>() {
    if R::ROOT && !is_root(&format!("the laws of {} need root", R::TYPE)) {
        return;
    }
    let config = ProptestConfig { cases: R::CASES, failure_persistence: None, ..ProptestConfig::default() };
    check::<R>(R::apply, config.clone()).unwrap();
    let few = ProptestConfig { cases: 20, max_shrink_iters: 0, ..config };
    if R::CHANGES {
        let failing = check::<R>(|_, _, _, _, _| Err(ResourceError::State("fails".to_owned())), few.clone());
        failing.expect_err("a type whose steps always fail");
    }
    if R::CHANGES && R::CONVERGES {
        check::<R>(|_, _, _, _, _| Ok(()), few).expect_err("a type whose steps do nothing");
    }
}

impl TypeFixture for crate::resource::types::file::File {
    fn wanted(root: &Path) -> BoxedStrategy<Self::Properties> {
        let root = root.to_owned();
        let (owner, group) = (effective_uid().to_string(), effective_gid().to_string());
        let names = prop::sample::select(vec!["a", "d", "l", "new", "no/parent", "d/below"]);
        let content = prop::option::of(prop::sample::select(vec!["", "x", "two\nlines\n", "ünï\u{0}code"]));
        let modes = prop::sample::select(vec!["0644", "600", "0o755", "0000", "0777"]);
        (names, prop::sample::select(vec!["present", "absent", "directory"]), content, modes, any::<[bool; 4]>())
            .prop_map(move |(name, ensure, content, mode, [force, recurse, purge, backup])| {
                let recurse = recurse && ensure == "directory";
                let name = root.join(name);
                let content = content.filter(|_| ensure == "present");
                let properties = json!({
                    "name": name, "ensure": ensure, "content": content, "owner": owner, "group": group, "mode": mode,
                    "force": force && ensure == "absent", "recurse": recurse, "purge": purge && recurse,
                    "source": if purge && recurse { root.join("source") } else { std::path::PathBuf::new() },
                    "backup": backup && !recurse,
                });
                serde_json::from_value(properties).unwrap()
            })
            .boxed()
    }

    fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
        prop::sample::subsequence(
            vec![
                Preexisting::File("a", "x", 0o644),
                Preexisting::Directory("d", 0o755),
                Preexisting::File("d/below", "", 0o600),
                Preexisting::Link("l", "a"),
                Preexisting::File("l2", "y", 0o444),
                Preexisting::Directory("source/below", 0o700),
                Preexisting::File("source/below/x", "x", 0o600),
                Preexisting::Link("source/l", "../a"),
            ],
            0..=8,
        )
        .prop_map(|mut made| {
            if !made.iter().any(|one| matches!(one, Preexisting::Directory("d", _))) {
                made.retain(|one| !matches!(one, Preexisting::File("d/below", ..)));
            }
            if !made.iter().any(|one| matches!(one, Preexisting::Directory("source/below", _))) {
                made.retain(|one| !matches!(one, Preexisting::File("source/below/x", ..) | Preexisting::Link("source/l", _)));
            }
            made
        })
        .boxed()
    }
}

/// Only what is so on every Debian host: packages are changed in containers, by `tests/it/package.rs`.
impl TypeFixture for crate::resource::types::package::Package {
    const CHANGES: bool = false;

    fn wanted(_: &Path) -> BoxedStrategy<Self::Properties> {
        let here = prop::sample::select(vec!["dpkg", "base-files"]).prop_map(|name| (name, "present"));
        let absent = prop::sample::select(vec!["ensign-no-such", "no.such", "no+such:i386"]).prop_map(|name| (name, "absent"));
        (prop_oneof![here, absent], prop::option::of(prop::sample::select(vec!["1h", "0s"])))
            .prop_map(|((name, ensure), age)| {
                serde_json::from_value(json!({"name": name, "ensure": ensure, "cache_valid": age})).unwrap()
            })
            .boxed()
    }

    fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
        Just(Vec::new()).boxed()
    }
}

impl TypeFixture for crate::resource::types::line::Line {
    fn wanted(root: &Path) -> BoxedStrategy<Self::Properties> {
        let root = root.to_owned();
        let names = prop::sample::select(vec!["a", "crlf", "d", "l", "new", "no/parent"]);
        let patterns = prop::sample::select(vec!["", "^k=", "k", "^# ?k"]);
        let spots = prop::sample::select(vec![("", ""), ("after", "^b"), ("before", "^b"), ("at", "start"), ("at", "end")]);
        (names, prop::sample::select(vec!["present", "absent"]), patterns, spots, any::<[bool; 3]>())
            .prop_map(move |(name, ensure, pattern, (spot, at), [all, create, backup])| {
                let mut properties = json!({
                    "name": root.join(name), "ensure": ensure, "line": "k=1", "match": pattern, "create": create,
                    "all": all && !pattern.is_empty(), "backup": backup,
                });
                if !spot.is_empty() {
                    properties[spot] = json!(at);
                }
                serde_json::from_value(properties).unwrap()
            })
            .boxed()
    }

    fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
        let texts = prop::sample::select(vec!["", "a\nb", "k=0\nb\n", "k=1\n", "# k\nk=2\nk=1"]);
        let others = vec![
            Preexisting::File("crlf", "b\r\nk=7\r\n", 0o640),
            Preexisting::Directory("d", 0o755),
            Preexisting::Link("l", "a"),
        ];
        (prop::option::of(texts), prop::sample::subsequence(others, 0..=3))
            .prop_map(|(text, others)| text.map(|text| Preexisting::File("a", text, 0o600)).into_iter().chain(others).collect())
            .boxed()
    }
}

impl TypeFixture for crate::resource::types::symlink::Symlink {
    fn wanted(root: &Path) -> BoxedStrategy<Self::Properties> {
        let root = root.to_owned();
        let owners = prop::sample::select(vec![String::new(), effective_uid().to_string()]);
        let names = prop::sample::select(vec!["a", "d", "full", "l", "new", "no/parent"]);
        let ensure = prop::sample::select(vec!["present", "absent"]);
        (names, ensure, prop::sample::select(vec!["a", "d/", "../x", "/no such/ü"]), owners, any::<bool>())
            .prop_map(move |(name, ensure, target, owner, force)| {
                let name = root.join(name);
                serde_json::from_value(json!({"name": name, "ensure": ensure, "target": target, "owner": owner, "force": force}))
                    .unwrap()
            })
            .boxed()
    }

    fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
        let links = prop::sample::select(vec!["a", "d", "../x"]);
        let others = vec![
            Preexisting::File("a", "x", 0o644),
            Preexisting::Directory("d", 0o755),
            Preexisting::Directory("full/below", 0o755),
        ];
        (prop::option::of(links), prop::sample::subsequence(others, 0..=3))
            .prop_map(|(link, others)| link.map(|target| Preexisting::Link("l", target)).into_iter().chain(others).collect())
            .boxed()
    }
}

/// Only what needs no change of this host: `mount/tests.rs` has the laws over a host in memory, the scenarios real mounts.
impl TypeFixture for crate::resource::types::mount::Mount {
    const CHANGES: bool = false;

    fn wanted(root: &Path) -> BoxedStrategy<Self::Properties> {
        let root = root.to_owned();
        (prop::sample::select(vec!["a", "d", "no/parent"]), prop::sample::select(vec!["", "tmpfs", "UUID=1"]))
            .prop_map(move |(name, device)| {
                serde_json::from_value(json!({"name": root.join(name), "ensure": "absent", "device": device})).unwrap()
            })
            .boxed()
    }

    fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
        prop::sample::subsequence(vec![Preexisting::Directory("d", 0o755)], 0..=1).boxed()
    }
}

impl TypeFixture for crate::resource::types::exec::Exec {
    fn wanted(root: &Path) -> BoxedStrategy<Self::Properties> {
        let root = root.to_owned();
        let commands = prop::sample::select(vec!["/bin/true", "/bin/false", "/usr/bin/touch made"]);
        let guards = prop::sample::select(vec!["", "/bin/true", "/bin/false", "/usr/bin/test -f a"]);
        (commands, guards.clone(), guards, any::<bool>(), any::<bool>())
            .prop_map(move |(command, onlyif, unless, creates, refreshonly)| {
                let creates = if creates { root.join("a").display().to_string() } else { String::new() };
                let properties = json!({
                    "name": "x", "command": command, "cwd": root, "onlyif": onlyif, "unless": unless, "creates": creates,
                    "refreshonly": refreshonly,
                });
                serde_json::from_value(properties).unwrap()
            })
            .boxed()
    }

    fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
        prop::sample::subsequence(vec![Preexisting::File("a", "x", 0o644)], 0..=1).boxed()
    }
}

impl TypeFixture for crate::resource::types::archive::Archive {
    fn wanted(root: &Path) -> BoxedStrategy<Self::Properties> {
        let root = root.to_owned();
        let packed = gzip(&tar_of(&[file("d/below", "x"), file("a", "y")]));
        let digest = crate::host::fs::sha256(&packed);
        let web = Web::new(move |asked: &Asked| match asked.path.as_str() {
            "/a.tgz" => Reply::ok(&packed),
            _ => Reply::status("404 Not Found"),
        });
        let names = prop::sample::select(vec!["p.tgz", "l.tgz", "no/parent.tgz"]);
        let urls = prop::sample::select(vec![web.url("/a.tgz"), web.url("/a.tgz"), web.url("/none.tgz")]);
        let checksum = prop::sample::select(vec![String::new(), digest, "0".repeat(64)]);
        let ensure = prop::sample::select(vec!["present", "present", "absent"]);
        let paths = (any::<bool>(), prop::sample::select(vec!["", "d/below"]), any::<bool>());
        (names, ensure, urls, checksum, paths)
            .prop_map(move |(name, ensure, url, checksum, (extract, creates, cleanup))| {
                let path = |name: &str| if name.is_empty() { String::new() } else { root.join(name).display().to_string() };
                let properties = json!({
                    "name": path(name), "ensure": ensure, "url": url, "checksum": checksum,
                    "owner": effective_uid().to_string(), "group": effective_gid().to_string(),
                    "extract_parent": if extract { path(".") } else { String::new() }.trim_end_matches("/."),
                    // Without an extraction, nothing leads to it.
                    "creates": if extract { path(creates) } else { String::new() }, "cleanup": cleanup, "headers": {"X": "***"}, "password": "***",
                });
                serde_json::from_value(properties).unwrap()
            })
            .boxed()
    }

    fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
        let made = vec![
            Preexisting::File("p.tgz", "old", 0o644),
            Preexisting::Link("l.tgz", "p.tgz"),
            Preexisting::Directory("d", 0o755),
            Preexisting::File(".p.tgz.ensign-unpacking", "", 0o600),
            Preexisting::File(".p.tgz.ensign-part", "left", 0o600),
        ];
        prop::sample::subsequence(made, 0..=5).boxed()
    }
}

/// The engine runs the manifest of an `apply`; the type itself takes no step.
impl TypeFixture for crate::resource::types::apply::Apply {
    const CHANGES: bool = false;

    fn wanted(_: &Path) -> BoxedStrategy<Self::Properties> {
        let data = prop::option::of(prop::sample::select(vec![json!({}), json!({"a": [1, "x"]})]));
        (prop::sample::select(vec!["m.yaml", "sub/m.yaml"]), any::<bool>(), any::<bool>(), data)
            .prop_map(|(name, noop, allow, data)| {
                serde_json::from_value(json!({"name": name, "noop": noop, "allow_apply": allow, "data": data})).unwrap()
            })
            .boxed()
    }

    fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
        Just(Vec::new()).boxed()
    }
}

impl TypeFixture for crate::resource::types::service::Service {
    fn wanted(_: &Path) -> BoxedStrategy<Self::Properties> {
        let names = prop::sample::select(vec!["a", "b.timer", "once", "fail", "flap"]);
        let refresh = prop::sample::select(vec!["restart", "reload", "reload-or-restart"]);
        (names, prop::sample::select(vec!["running", "stopped"]), prop::option::of(any::<bool>()), refresh)
            .prop_map(|(name, ensure, enable, refresh)| {
                let properties = json!({"name": name, "ensure": ensure, "enable": enable, "refresh": refresh, "timeout": "1m"});
                serde_json::from_value(properties).unwrap()
            })
            .boxed()
    }

    fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
        let states = vec![
            "active=active word=enabled",
            "active=inactive word=disabled",
            "active=failed word=static",
            "active=inactive word=masked load=masked",
            "active=activating sub=auto-restart word=enabled",
        ];
        let units = ["a.service", "b.timer", "once.service", "fail.service", "flap.service"];
        prop::sample::select(states)
            .prop_map(move |state| units.map(|unit| Preexisting::File(unit, state, 0o644)).to_vec())
            .boxed()
    }

    fn provider(root: &Path, host: &Host) -> Box<Self::Provider> {
        Box::new(crate::resource::types::service::simulated::services(root, host).0)
    }
}

impl TypeFixture for crate::resource::types::scaffold::Scaffold {
    fn wanted(root: &Path) -> BoxedStrategy<Self::Properties> {
        let root = root.to_owned();
        let engines = prop::sample::select(vec![None, Some("jinja"), Some("jet"), Some("go")]);
        let posts = prop::sample::select(vec![json!([]), json!([{"*.sh": "/bin/chmod 0755 {}"}, {"t*": "/bin/sed -i s/x/y/"}])]);
        let targets = prop::sample::select(vec!["out", "new/deep", "link"]);
        (targets, prop::sample::select(vec!["present", "absent"]), engines, any::<bool>(), any::<bool>(), posts)
            .prop_map(move |(name, ensure, engine, purge, skip_empty, post)| {
                let properties = json!({
                    "name": root.join(name), "ensure": ensure, "source": root.join("src"), "engine": engine, "purge": purge,
                    "skip_empty": skip_empty, "post": post, "data": {"x": 1},
                });
                serde_json::from_value(properties).unwrap()
            })
            .boxed()
    }

    fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
        let source = [
            Preexisting::Directory("src/sub/_partials", 0o755),
            Preexisting::Directory("src/empty", 0o700),
            Preexisting::File("src/text", "plain x\n", 0o644),
            Preexisting::File("src/sub/a.sh", "#!/bin/sh\n", 0o755),
            Preexisting::File("src/sub/_partials/p", "{{ never", 0o600),
            Preexisting::File("src/blank", " \n", 0o600),
        ];
        let target = vec![
            Preexisting::Directory("out/sub", 0o755),
            Preexisting::File("out/text", "plain y\n", 0o600),
            Preexisting::File("out/extra", "mine", 0o644),
            Preexisting::Directory("out/kept/deep", 0o755),
            Preexisting::Link("out/blank", "nowhere"),
            Preexisting::Link("link", "out"),
        ];
        prop::sample::subsequence(target, 0..=6)
            .prop_map(move |mut target| {
                let there = target.iter().any(|made| matches!(made, Preexisting::Directory("out/sub", _)));
                target.retain(|made| there || matches!(made, Preexisting::Directory("out/kept/deep", _)));
                source.iter().cloned().chain(target).collect()
            })
            .boxed()
    }
}

/// Makes one test a type, and the list of the tested types.
macro_rules! laws {
    ($($name:ident: $kind:ty,)*) => {
        mod of {
            $(#[test]
            fn $name() {
                super::hold::<$kind>();
            })*
        }

        const TESTED: &[&str] = &[$(<$kind as Resource>::TYPE),*];
    };
}

laws! {
    file: crate::resource::types::file::File,
    package: crate::resource::types::package::Package,
    service: crate::resource::types::service::Service,
    exec: crate::resource::types::exec::Exec,
    archive: crate::resource::types::archive::Archive,
    line: crate::resource::types::line::Line,
    symlink: crate::resource::types::symlink::Symlink,
    mount: crate::resource::types::mount::Mount,
    apply: crate::resource::types::apply::Apply,
    scaffold: crate::resource::types::scaffold::Scaffold,
    user: crate::resource::types::user::User,
    group: crate::resource::types::group::Group,
    cron: crate::resource::types::cron::Cron,
    sysctl: crate::resource::types::sysctl::Sysctl,
}

#[test]
fn every_type_has_a_test_of_its_laws() {
    let known: Vec<&str> = TYPES.iter().map(|kind| kind.name()).collect();
    let untested: Vec<_> = known.iter().filter(|name| !TESTED.contains(name)).collect();
    assert!(untested.is_empty() && TESTED.len() == known.len(), "without a line in `laws!`: {untested:?}");
}

#[test]
fn deferred_properties_exist() {
    for kind in TYPES {
        let schema = kind.schema(&mut schemars::SchemaGenerator::default()).to_value();
        for name in kind.deferred() {
            assert!(schema["properties"].get(name).is_some(), "{}: {name}", kind.name());
        }
    }
    assert_eq!(TypeEntry::<crate::resource::types::file::File>::NEW.name(), "file");
}
