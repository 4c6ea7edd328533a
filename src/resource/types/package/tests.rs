//! The decision table, and transactions of a simulated package manager.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use serde_json::json;

use std::collections::HashMap;

use super::change::PackageAction;
use super::manager::TransactionFailure;
use super::state::{Installed, Offer, VersionOrder};
use super::*;
use crate::host::fake::{FakeRunner, host};
use crate::model::HumanDuration;
use crate::resource::Change;

/// Returns the lines that a program answers to an input.
pub(super) fn ask(program: &str, args: &[&str], input: &str) -> Vec<String> {
    let mut child = Command::new(program).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn properties(name: &str, ensure: &str) -> Properties {
    serde_json::from_value(json!({"name": name, "ensure": ensure})).unwrap()
}

/// Parses a state: `1.0-1`, `1.0-1@i386`, `held`, `broken`, `?word` for an unfinished one. `<1.0-1` is an offer, the candidate
/// first; `<` is an empty offer.
fn state(versions: VersionOrder, words: &str) -> PackageState {
    let mut state = PackageState {
        versions,
        manager: "fake",
        name: "x".to_owned(),
        installed: Vec::new(),
        unfinished: None,
        broken: false,
        held: false,
        offer: Offer::NotAsked,
    };
    for word in words.split_whitespace() {
        match (word, word.split_at(1)) {
            ("held", _) => state.held = true,
            ("broken", _) => state.broken = true,
            ("<", _) => state.offer = Offer::Unknown,
            (_, ("?", word)) => state.unfinished = Some(word.to_owned()),
            (_, ("<", version)) => {
                let mut known = match std::mem::take(&mut state.offer) {
                    Offer::Known { versions, .. } => versions,
                    _ => Vec::new(),
                };
                known.push(version.to_owned());
                state.offer = Offer::Known { candidate: known.first().cloned(), versions: known };
            }
            _ => {
                let (version, architecture) = word.split_once('@').unwrap_or((word, "amd64"));
                state.installed.push(Installed { version: version.to_owned(), architecture: architecture.to_owned() });
            }
        }
    }
    state
}

/// The decision table: properties, state and offer, steps, details.
#[test]
fn decisions() {
    use VersionOrder::{Debian, Rpm};
    for (ensure, rule, there, done, details) in [
        ("present", Debian, "", "installed", "absent → present"),
        ("present", Debian, "<2.0-1", "installed", "absent → 2.0-1"),
        ("present", Debian, "<", "installed, which no package index has now", "absent → present, which no package index has now"),
        ("present", Debian, "1.0-1 <2.0-1", "", ""),
        ("present", Debian, "1.0-1 held", "", ""),
        ("present", Debian, "1.0-1 ?half-configured", "finished the installation", "half-configured → installed"),
        ("present", Debian, "?half-installed <1.0-1", "installed", "absent → 1.0-1"),
        ("absent", Debian, "", "", ""),
        ("absent", Debian, "held", "", ""),
        ("absent", Debian, "1.0-1", "uninstalled", "1.0-1 → absent"),
        ("absent", Debian, "1.0-1 ?unpacked", "uninstalled", "unpacked → absent"),
        ("absent", Debian, "1.0-1 held", "!is on hold (1.0-1): release it with `apt-mark unhold x`", ""),
        ("latest", Debian, "<2.0-1", "installed latest", "absent → 2.0-1"),
        ("latest", Debian, "1.0-1 <2.0-1", "upgraded to latest", "1.0-1 → 2.0-1"),
        ("latest", Debian, "2.0-1 <2.0-1", "", ""),
        ("latest", Debian, "2.0-1 held <2.0-1", "", ""),
        ("latest", Debian, "1.0-1 held <2.0-1", "!is on hold", ""),
        ("latest", Debian, "2.0-1 <", "", ""),
        ("latest", Debian, "2.0-1 <1:1.0-1", "upgraded to latest", "2.0-1 → 1:1.0-1"),
        ("latest", Debian, "2.0-1 <1.0-1", "downgraded to latest", "2.0-1 → 1.0-1"),
        ("latest", Debian, "2.0-1 ?half-configured <2.0-1", "finished the installation", "half-configured → installed"),
        ("latest", Debian, "2.0-1 1.0-1@i386 <2.0-1", "upgraded to latest", "1.0-1 → 2.0-1"),
        ("1.0-1", Debian, "", "installed version 1.0-1", "absent → 1.0-1"),
        (
            "1.0-1",
            Debian,
            "<2.0-1",
            "installed version 1.0-1, which no package index has now",
            "absent → 1.0-1, which no package index has now",
        ),
        ("1.0-1", Debian, "1.0-1", "", ""),
        ("1.0", Debian, "1.0-0", "", ""),
        ("1.0-1", Debian, "1.0-1 1.0-1@i386", "", ""),
        (
            "2.0-1",
            Debian,
            "1.0-1 <1.0-1",
            "upgraded to 2.0-1, which no package index has now",
            "1.0-1 → 2.0-1, which no package index has now",
        ),
        ("2.0-1", Debian, "1.0-1 2.0-1@i386", "upgraded to 2.0-1", "1.0-1 → 2.0-1"),
        ("1.0-1", Debian, "1.0~rc1-1", "upgraded to 1.0-1", "1.0~rc1-1 → 1.0-1"),
        ("1.0A.9-1", Debian, "1.0a.5-1", "downgraded to 1.0A.9-1", "1.0a.5-1 → 1.0A.9-1"),
        ("1.0", Debian, "1.0-1", "downgraded to 1.0", "1.0-1 → 1.0"),
        ("2.0-1", Debian, "1:1.0-1", "downgraded to 2.0-1", "1:1.0-1 → 2.0-1"),
        ("1.0-1", Debian, "1.0-1 ?half-configured", "finished the installation", "half-configured → installed"),
        ("1.0", Rpm, "1.0-3", "", ""),
        ("1.0-3", Rpm, "1.0-3", "", ""),
        ("1.0-3", Rpm, "1:1.0-3", "", ""),
        ("0:1.0-3", Rpm, "1:1.0-3 <1.0-3", "downgraded to 0:1.0-3", "1:1.0-3 → 1.0-3"),
        ("1.0", Rpm, "1.0~rc1-1 <1.0-1", "upgraded to 1.0", "1.0~rc1-1 → 1.0-1"),
        ("1.0", Rpm, "2.0-1 <2.0-1 <1:1.0-1", "upgraded to 1.0", "2.0-1 → 1:1.0-1"),
        ("1.0", Rpm, "<1.0-1 <1.0-2", "installed version 1.0", "absent → 1.0-2"),
        ("5.8", Rpm, "5.8-1 5.9-1", "", ""),
        ("5.7", Rpm, "5.8-1 5.9-1 <5.7-1", "downgraded to 5.7", "5.9-1 → 5.7-1"),
        ("latest", Rpm, "5.8-1 5.9-1 <5.9-1", "", ""),
        ("latest", Rpm, "1.0-1 <1.0-2", "upgraded to latest", "1.0-1 → 1.0-2"),
    ] {
        let (p, state) = (properties("x", ensure), state(rule, there));
        let said = match PackageType::diff(&p, &state) {
            Err(error) => {
                let text = error.to_string();
                assert!(done.starts_with('!') && text.contains(&done[1..]), "{ensure} of {there}: {text}");
                continue;
            }
            Ok(changes) => changes,
        };
        let texts: Vec<String> = said.iter().map(ToString::to_string).collect();
        let found: Vec<String> = said.iter().flat_map(Change::details).collect();
        assert_eq!((texts.concat().as_str(), found.concat().as_str()), (done, details), "{ensure} of {there}");
    }
}

#[test]
fn states_are_shown() {
    let shown = serde_json::to_value(state(VersionOrder::Debian, "1.0-1 held ?half-configured <2.0-1")).unwrap();
    let extended = json!({"status": "half-configured", "held": true});
    let metadata = json!({
        "name": "x", "version": "1.0-1", "arch": "amd64", "provider": "fake", "candidate": "2.0-1", "extended": extended,
    });
    assert_eq!(shown, json!({ "metadata": metadata }));
    let absent = serde_json::to_value(state(VersionOrder::Rpm, "")).unwrap();
    assert_eq!(
        absent["metadata"],
        json!({"name": "x", "version": "absent", "provider": "fake", "extended": {"status": "absent"}})
    );
}

/// A package manager that knows every package except `unknown`. Transactions with a package `bad` fail.
#[derive(Default)]
struct Fake {
    installed: Mutex<BTreeSet<String>>,
    transactions: Mutex<Vec<String>>,
}

impl PackageManager for Fake {
    fn prefetch(&self, _: &[&Properties]) {}

    fn installed_state(&self, name: &str, _: &Host) -> Result<PackageState, ResourceError> {
        let installed = self.installed.lock().unwrap().contains(name);
        Ok(state(VersionOrder::Debian, if installed { "1.0-1" } else { "" }))
    }

    fn offer(&self, p: &Properties, _: &Host) -> Result<Offer, ResourceError> {
        let versions = vec!["1.0-1".to_owned()];
        let known = Offer::Known { candidate: versions.first().cloned(), versions };
        Ok(if p.name == "unknown" { Offer::Unknown } else { known })
    }

    fn refresh(&self, _: &Properties, _: HumanDuration, _: &Host) -> Result<(), ResourceError> {
        Ok(())
    }

    fn can_combine(&self, one: PackageAction, other: PackageAction) -> bool {
        one == other
    }

    fn transact(&self, jobs: &[PackageJob<'_>], _: &Host) -> Result<(), TransactionFailure> {
        let names: Vec<&str> = jobs.iter().map(|job| job.properties.name.as_str()).collect();
        let verb = PackageAction::from_change(jobs[0].change);
        self.transactions.lock().unwrap().push(format!("{} {}", verb.name(), names.join(" ")));
        if names.contains(&"locked") {
            return Err(TransactionFailure { message: "another process holds the lock".to_owned(), is_permanent: true });
        }
        if names.contains(&"bad") {
            // Like apt, applies the possible changes in spite of the failure.
            self.installed.lock().unwrap().extend(names.iter().filter(|name| name.starts_with("early")).map(|n| (*n).to_owned()));
            return Err(TransactionFailure { message: "bad is bad".to_owned(), is_permanent: false });
        }
        let mut installed = self.installed.lock().unwrap();
        for name in names {
            let _known = if verb == PackageAction::Remove { installed.remove(name) } else { installed.insert(name.to_owned()) };
        }
        Ok(())
    }

    /// `n1` needs `between`, which needs `n0`.
    fn needs(&self, _: &[&str], _: &Host) -> Result<HashMap<String, Vec<String>>, ResourceError> {
        let needs = |one: &str, other: &str| (one.to_owned(), vec![other.to_owned()]);
        Ok(HashMap::from([needs("n1", "between"), needs("between", "n0"), needs("n0", "n1")]))
    }

    fn records_failures(&self) -> bool {
        true
    }
}

/// Runs a batch, written as `name` or `-name`. Returns the transactions and the errors by name.
fn run(batch: &str) -> (Vec<String>, Vec<String>) {
    let (transactions, errors, _) = run_all(batch);
    (transactions, errors)
}

/// Runs a batch, and also returns the names of packages with changes of their own.
fn run_all(batch: &str) -> (Vec<String>, Vec<String>, Vec<String>) {
    let (fake, host) = (Fake::default(), host(FakeRunner::exiting(&[])));
    let wanted: Vec<Properties> = batch
        .split(' ')
        .map(|word| word.strip_prefix('-').map_or_else(|| properties(word, "present"), |name| properties(name, "absent")))
        .collect();
    fake.installed.lock().unwrap().extend(wanted.iter().filter(|p| p.ensure == "absent").map(|p| p.name.clone()));
    let mut pending: Vec<Pending<'_, PackageType>> = wanted
        .iter()
        .map(|p| {
            let state = PackageType::observe(p, &fake, &host).unwrap();
            Pending { properties: p, changes: PackageType::diff(p, &state).unwrap(), state }
        })
        .collect();
    let results = PackageType::apply_all(&mut pending, &fake, &host);
    assert_eq!(results.len(), wanted.len());
    let errors = wanted.iter().zip(results).filter_map(|(p, result)| Some(format!("{}: {}", p.name, result.err()?))).collect();
    let changed = pending.iter().filter(|one| !one.changes.is_empty()).map(|one| one.properties.name.clone()).collect();
    (fake.transactions.into_inner().unwrap(), errors, changed)
}

#[test]
fn many_changes_are_one_transaction() {
    let (transactions, errors) = run("a b c");
    assert_eq!((transactions, errors), (vec!["install a b c".to_owned()], vec![]));
    let (transactions, errors) = run("a b -c -d e");
    assert_eq!((transactions, errors), (["install a b", "uninstall c d", "install e"].map(str::to_owned).to_vec(), vec![]));
}

#[test]
fn a_culprit_is_found_and_the_rest_succeeds() {
    let (transactions, errors) = run("a early bad b");
    assert_eq!(transactions, ["install a early bad b", "install a", "install bad", "install b"]);
    assert_eq!(errors, ["bad: failed to install package \"bad\": bad is bad"]);
}

#[test]
fn requirements_of_an_earlier_package_count_as_installed_with_it() {
    for (batch, changed) in [
        ("n1 a n0", vec!["n1", "a"]),
        ("n0 n1", vec!["n0"]),
        ("a n0", vec!["a", "n0"]),
        ("n1", vec!["n1"]),
        ("-n1 -n0", vec!["n1", "n0"]),
    ] {
        assert_eq!(run_all(batch).2, changed, "{batch}");
    }
}

#[test]
fn packages_without_an_offer_are_not_tried() {
    let (transactions, errors) = run("a unknown b");
    assert_eq!(transactions, ["install a b"]);
    assert_eq!(errors.len(), 1);
    assert!(errors[0].starts_with("unknown: no package index has a package of the name"), "{errors:?}");
    assert!(run("unknown").0.is_empty());
}

#[test]
fn a_permanent_failure_is_not_retried() {
    let (transactions, errors) = run("a locked b");
    assert_eq!(transactions, ["install a locked b"]);
    assert_eq!(errors.len(), 3);
    assert_eq!(errors[0], "a: failed to install package \"a\": another process holds the lock");
}
