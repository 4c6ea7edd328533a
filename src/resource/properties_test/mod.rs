//! Properties of all resource types, tested with generated resource properties over generated hosts.
//!
//! - After `apply`, `diff` is empty.
//! - Two observations are equal.
//! - A dry run changes nothing.
//! - Resource properties survive serialisation.
//! - Validation never reads the host.
//!
//! Every type of the table has a [`TypeFixture`] beside it. The tests here find the fixtures through the table.

pub(in crate::resource) mod accounts;
mod effects;
mod secrets;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::Value;

use crate::host::Host;
use crate::skip::is_root;

use super::{OutputKind, Resource, ResourceError, State, TYPES};

/// The imports of a fixture.
pub(in crate::resource) mod prelude {
    pub(in crate::resource) use std::path::Path;

    pub(in crate::resource) use proptest::prelude::*;
    pub(in crate::resource) use serde_json::{Value, json};

    pub(in crate::resource) use super::{Preexisting, TypeFixture, check_type};
    pub(in crate::resource) use crate::host::Host;
}

/// The test data of a type: resource properties, hosts and secrets. Paths are below `root`.
pub trait TypeFixture: Resource {
    /// Number of generated cases.
    const CASES: u32 = 200;
    /// True when only root can apply the type.
    const ROOT: bool = false;
    /// False when these tests can't change a resource of the type, with the reason at the type.
    const CHANGES: bool = true;
    /// Returns the host of the cases. Without `with_root`, a type that writes below `system_path` changes this machine.
    fn host(root: &Path) -> Host;
    /// Generates properties.
    fn wanted(root: &Path) -> BoxedStrategy<Self::Properties>;
    /// Generates the objects that exist before the resource runs.
    fn before(root: &Path) -> BoxedStrategy<Vec<Preexisting>>;
    /// Opens the provider. A type whose hosts can't be created here simulates one in the directory.
    fn provider(_: &Path, host: &Host) -> Box<Self::Provider> {
        (Self::PROVIDERS[0].open)(host)
    }
    /// Returns a value of every property, and another value of each.
    ///
    /// An array of an object and a value is a value that requires the properties of the object too.
    fn samples() -> (Value, Value);
    /// Returns properties with the text `CANARY` in every secret and every content, for a type with such properties.
    fn canary() -> Option<Value> {
        None
    }
}

/// The parts of a fixture that tests over the table read.
pub struct FixtureValues {
    samples: (Value, Value),
    canary: Option<Value>,
}

impl FixtureValues {
    /// Returns the fixture of a type outside of the table.
    pub fn none() -> Self {
        Self { samples: (Value::Null, Value::Null), canary: None }
    }

    /// Reads the fixture of a type.
    pub fn new<R: TypeFixture>() -> Self {
        Self { samples: R::samples(), canary: R::canary() }
    }
}

/// An object that exists before the resource runs.
#[derive(Debug, Clone)]
pub enum Preexisting {
    /// Path, content and mode.
    File(&'static str, &'static str, u32),
    /// Path and mode.
    Directory(&'static str, u32),
    /// Path and target.
    Link(&'static str, &'static str),
}

impl Preexisting {
    fn make(&self, root: &Path) {
        let made = |name: &str, result: std::io::Result<()>| {
            let hint = "before() of the fixture must list its directory first, as Preexisting::Directory";
            result.unwrap_or_else(|error| panic!("{name}: {error}: {hint}"));
        };
        let mode = |path: &Path, mode: u32| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        match self {
            Self::File(name, content, bits) => {
                made(name, std::fs::write(root.join(name), content));
                mode(&root.join(name), *bits);
            }
            Self::Directory(name, bits) => {
                std::fs::create_dir_all(root.join(name)).unwrap();
                mode(&root.join(name), *bits);
            }
            Self::Link(name, target) => made(name, std::os::unix::fs::symlink(target, root.join(name))),
        }
    }
}

/// Returns metadata and content of every file below a directory.
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

/// A step of a type, as [`Resource::apply`].
type Step<R> = fn(
    &<R as Resource>::Change,
    &<R as Resource>::Properties,
    &mut <R as Resource>::State,
    &<R as Resource>::Provider,
    &Host,
) -> Result<(), ResourceError>;

/// Number of cases in which a type changed the host, and number of those in which all steps succeeded.
#[derive(Default)]
struct CaseCounts {
    changes: Cell<u32>,
    successes: Cell<u32>,
}

/// Tests the properties of a type that applies its steps with `apply`.
fn check<R: TypeFixture>(apply: Step<R>, config: ProptestConfig) -> Result<(), String> {
    let mut runner = TestRunner::new(config);
    // The root is needed to generate the properties: all cases share it, emptied between them.
    let root = tempfile::tempdir().unwrap();
    let root = root.path().join("root");
    let (strategy, tried) = ((R::before(&root), R::wanted(&root)), CaseCounts::default());
    let result = runner.run(&strategy, |(before, properties)| {
        let _cleared = std::fs::remove_dir_all(&root);
        std::fs::create_dir(&root).unwrap();
        before.iter().for_each(|made| made.make(&root));
        check_case::<R>(&root, &properties, apply, &tried)
    });
    result.map_err(|error| error.to_string())?;
    let (changes, successes) = (tried.changes.get(), tried.successes.get());
    // Some cases request the impossible; the generators make most of them possible.
    let enough = if R::CHANGES { successes > 0 && successes * 4 >= changes } else { changes == 0 };
    let wanted = if R::CHANGES { "at least a quarter must" } else { "none may have changes, as CHANGES is false" };
    let hint = "see wanted(), before() and host() of the fixture";
    if enough { Ok(()) } else { Err(format!("{successes} of {changes} cases with changes succeeded, but {wanted}: {hint}")) }
}

fn check_case<R: TypeFixture>(
    root: &Path,
    properties: &R::Properties,
    apply: Step<R>,
    tried: &CaseCounts,
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
    prop_assert_eq!(said(&first), said(&second), "two observations are equal");
    let Ok(changes) = R::diff(properties, &first) else { return Ok(()) };
    prop_assert!(changes == R::diff(properties, &second).unwrap(), "diff depends only on the state");
    prop_assert_eq!(&untouched, &snapshot(root), "observing changes nothing");
    let mut state = first;
    let applied = changes.iter().try_for_each(|change| apply(change, properties, &mut state, &provider, &host));
    if !changes.is_empty() {
        tried.changes.set(tried.changes.get() + 1);
        tried.successes.set(tried.successes.get() + u32::from(applied.is_ok()));
    }
    for (name, value) in R::outputs(properties, &state).into_iter().filter(|(_, value)| !value.is_null()) {
        let declared = R::OUTPUTS.iter().find(|output| output.name == name);
        let fits = declared.is_some_and(|output| match output.kind {
            OutputKind::Text => value.is_string(),
            OutputKind::Number => value.is_u64() || value.is_i64(),
            OutputKind::Flag => value.is_boolean(),
            OutputKind::List => value.is_array(),
        });
        prop_assert!(fits, "the output {} = {} is not declared, or of another type", name, value);
    }
    if applied.is_ok() && R::CONVERGES {
        let left = R::diff(properties, &R::observe(properties, &provider, &host).unwrap()).unwrap();
        let left: Vec<String> = left.iter().map(ToString::to_string).collect();
        prop_assert!(left.is_empty(), "a step is pending after apply: {:?} of {}", left, written);
    }
    if changes.is_empty() {
        prop_assert_eq!(&untouched, &snapshot(root), "a converged resource is not changed");
    }
    Ok(())
}

/// Tests the properties of a type, and checks that they fail for steps that always fail or do nothing.
pub(in crate::resource) fn check_type<R: TypeFixture>() {
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

#[test]
fn every_type_tests_its_laws() {
    let types = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/resource/types");
    for name in TYPES.iter().map(|kind| kind.name()) {
        let files = [types.join(format!("{name}.rs")), types.join(name).join("fixture.rs")];
        let has_test = files
            .iter()
            .filter_map(|file| std::fs::read_to_string(file).ok())
            .any(|text| text.contains("#[test]") && text.contains("fn keeps_the_laws() {"));
        assert!(has_test, "{name}: the fixture has no test keeps_the_laws");
    }
}

#[test]
fn deferred_properties_exist() {
    for kind in TYPES {
        let schema = kind.schema(&mut schemars::SchemaGenerator::default()).to_value();
        for name in kind.runtime_templates() {
            assert!(schema["properties"].get(name).is_some(), "{}: {name}", kind.name());
        }
    }
}
