//! Changes of a dry run, and the digests by which two plans are compared (`docs/wire.md`, "Plans").
//!
//! Pure: the agent feeds the events of a dry run, and the operator compares the results.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::diag::{count_noun, shorten};

use super::command::Action;
use super::report::{PlannedChange, PlannedChanges};

/// The most changes that a plan lists. The digest covers all changes.
const MAX_CHANGES: usize = 50;
/// The most characters of a listed change.
const MAX_CHANGE_CHARS: usize = 200;
/// The longest diff of one change, in bytes. All diffs of a plan have a limit too, because the ledger keeps results and
/// servers limit messages.
const MAX_DIFF_BYTES: usize = 4 << 10;
const MAX_DIFFS_BYTES: usize = 48 << 10;

/// The first string under the digest: the kind of the digest.
const DIGEST_DOMAIN: &str = "ensign.plan.v1";
const RESOLVED_DIGEST_DOMAIN: &str = "ensign.plan.resolved.v1";

/// Strings under a digest, each as a netstring: its length in bytes, `:`, its bytes, `,`.
#[derive(Debug, Clone)]
struct NetstringHasher(Vec<u8>);

impl NetstringHasher {
    fn new(domain: &str) -> Self {
        let mut strings = Self(Vec::new());
        strings.add(domain);
        strings
    }

    fn add(&mut self, text: &str) {
        self.0.extend_from_slice(text.len().to_string().as_bytes());
        self.0.push(b':');
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(b',');
    }

    fn digest(&self) -> String {
        super::digest(&self.0)
    }
}

/// Collects the changes of a dry run, in the order of the run.
#[derive(Debug, Clone)]
pub struct PlanBuilder {
    change_hasher: NetstringHasher,
    resolved_hasher: NetstringHasher,
    changes: Vec<PlannedChange>,
    more: u64,
    /// The bytes that are left for diffs.
    diff_bytes_left: usize,
}

impl PlanBuilder {
    /// Begins a plan of a manifest with this SHA-256 in lower-case hex; empty for a single resource.
    pub fn new(manifest: &str) -> Self {
        let mut change_hasher = NetstringHasher::new(DIGEST_DOMAIN);
        change_hasher.add(manifest);
        Self {
            change_hasher,
            resolved_hasher: NetstringHasher::new(RESOLVED_DIGEST_DOMAIN),
            changes: Vec::new(),
            more: 0,
            diff_bytes_left: MAX_DIFFS_BYTES,
        }
    }

    /// Adds a resource (`type#name`) with its change in words, and its wanted state in any deterministic form.
    ///
    /// A diff is for people, and in no digest.
    pub fn change(&mut self, resource: &str, what: &str, wanted: &str, diff: Option<&str>) {
        self.change_hasher.add(resource);
        self.change_hasher.add(what);
        self.resolved_hasher.add(resource);
        self.resolved_hasher.add(wanted);
        if self.changes.len() < MAX_CHANGES {
            let diff =
                diff.filter(|_| self.diff_bytes_left > 0).map(|diff| head_lines(diff, MAX_DIFF_BYTES.min(self.diff_bytes_left)));
            self.diff_bytes_left = self.diff_bytes_left.saturating_sub(diff.as_ref().map_or(0, String::len));
            let short = |text| shorten(text, MAX_CHANGE_CHARS).into_owned();
            self.changes.push(PlannedChange { resource: short(resource), what: short(what), diff });
        } else {
            self.more += 1;
        }
    }

    /// Returns the plan of `action`.
    pub fn build(self, action: &Action) -> PlannedChanges {
        PlannedChanges {
            digest: self.change_hasher.digest(),
            resolved_digest: self.resolved_hasher.digest(),
            action: action_digest(action),
            changes: self.changes,
            more: self.more,
        }
    }
}

/// Returns the first whole lines of a diff that fit, and the number of the others.
fn head_lines(diff: &str, room: usize) -> String {
    if diff.len() <= room {
        return diff.to_owned();
    }
    let mut shown = String::new();
    let mut lines = diff.split_inclusive('\n');
    for line in lines.by_ref() {
        if shown.len() + line.len() > room {
            break;
        }
        shown.push_str(line);
    }
    // The line that did not fit is left out too.
    shown + &format!("... {} more lines\n", lines.count() + 1)
}

/// Returns the SHA-256 of an action in lower-case hex. The input is JSON with sorted keys and without blanks, so equal
/// actions have equal digests.
pub fn action_digest(action: &Action) -> String {
    // Plain data with text keys: encoding cannot fail.
    super::digest(sorted(serde_json::to_value(action).unwrap_or_default()).to_string().as_bytes())
}

/// Returns the same value with the keys of its objects sorted.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let pairs: BTreeMap<String, Value> = map.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            Value::Object(pairs.into_iter().collect())
        }
        Value::Array(items) => items.into_iter().map(sorted).collect(),
        plain => plain,
    }
}

impl PlannedChanges {
    /// True when nothing would be changed.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Returns the number of resources that would change.
    pub fn count(&self) -> u64 {
        self.changes.len() as u64 + self.more
    }

    /// Checks that `now`, a later plan of the same action, has the same changes or none. None means: the approved changes are
    /// already made.
    ///
    /// # Errors
    /// The first difference, in words.
    pub fn check_unchanged(&self, now: &Self) -> Result<(), String> {
        if now.is_empty() || (self.digest == now.digest && self.resolved_digest == now.resolved_digest) {
            return Ok(());
        }
        for (number, wanted) in now.changes.iter().enumerate() {
            match self.changes.get(number) {
                Some(approved) if (&approved.resource, &approved.what) == (&wanted.resource, &wanted.what) => {}
                Some(approved) if approved.resource == wanted.resource => {
                    return Err(format!(
                        "{} now needs another change: \"{}\" instead of \"{}\" in the plan",
                        wanted.resource, wanted.what, approved.what
                    ));
                }
                _ if self.changes.iter().all(|known| known.resource != wanted.resource) && self.more == 0 => {
                    return Err(format!("{} now needs a change that is not in the plan: \"{}\"", wanted.resource, wanted.what));
                }
                Some(approved) => {
                    return Err(format!(
                        "{} (\"{}\") no longer needs its change, or needs it later",
                        approved.resource, approved.what
                    ));
                }
                None => break,
            }
        }
        if let Some(gone) = self.changes.get(now.changes.len()) {
            return Err(format!("{} (\"{}\") no longer needs its change", gone.resource, gone.what));
        }
        if self.count() != now.count() {
            return Err(format!(
                "{} would now change, instead of {} in the plan",
                count_noun(now.count(), "resource"),
                self.count()
            ));
        }
        let what = if self.digest == now.digest {
            "the same resources need other values: facts, data or templates have changed"
        } else {
            "the changes differ in a part that plans do not list"
        };
        Err(what.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(text: &str) -> Action {
        serde_json::from_str(text).unwrap()
    }

    fn plan(changes: &[(&str, &str, &str)]) -> PlannedChanges {
        let mut planning = PlanBuilder::new("");
        changes.iter().for_each(|(resource, what, wanted)| planning.change(resource, what, wanted, None));
        planning.build(&action(r#"{"status": {}}"#))
    }

    /// The vectors of `docs/wire.md`: `printf '14:ensign.plan.v1,0:,' | sha256sum`.
    #[test]
    fn the_digest_is_the_documented_one() {
        assert_eq!(plan(&[]).digest, "b3bc8ad2353a618f003cee2d2daf82aef54ef943f98446e82fd73cecebe80086");
        let mut planning = PlanBuilder::new(&"0".repeat(64));
        planning.change("package#nginx", "installed version 1.24", "", None);
        planning.change("file#/etc/motd", "updated: Größe", "", Some("+x"));
        let planned = planning.build(&action(r#"{"status": {}}"#));
        assert_eq!(planned.digest, "47130d4f67bc1a8352ea1107e06b5c23939e3f4f311f1f0e4827f358a8516606");
    }

    #[test]
    fn equal_actions_have_equal_digests() {
        let one = action(r#"{"ensure": {"type": "file", "properties": {"name": "/a", "mode": "0644"}}}"#);
        let same = action(r#"{"ensure":{"properties":{"mode":"0644","name":"/a"},"type":"file"}}"#);
        let other = action(r#"{"ensure": {"type": "file", "properties": {"name": "/a", "mode": "0666"}}}"#);
        assert_eq!(action_digest(&one), action_digest(&same));
        assert_ne!(action_digest(&one), action_digest(&other));
        let text = r#"{"ensure":{"properties":{"mode":"0644","name":"/a"},"type":"file"}}"#;
        assert_eq!(action_digest(&one), crate::wire::digest(text.as_bytes()));
    }

    #[test]
    fn long_plans_are_cut_and_their_digest_is_not() {
        let names: Vec<String> = (0..60).map(|number| format!("file#/{number}")).collect();
        let long = "ä".repeat(300);
        let of = |last: &str| {
            let mut planning = PlanBuilder::new("");
            names.iter().for_each(|name| planning.change(name, &long, "", None));
            planning.change(last, "x", "", None);
            planning.build(&action(r#"{"status": {}}"#))
        };
        let (one, other) = (of("file#/a"), of("file#/b"));
        assert_eq!((one.changes.len(), one.more, one.count()), (50, 11, 61));
        assert_eq!((one.changes[0].what.chars().count(), one.changes[0].what.ends_with('…')), (200, true));
        assert!(one.changes == other.changes && one.digest != other.digest);
        assert!(one.check_unchanged(&other).unwrap_err().contains("a part that plans do not list"));
    }

    #[test]
    fn diffs_are_cut_and_no_part_of_what_is_compared() {
        let plan = |diff: &str, count: usize| {
            let mut planning = PlanBuilder::new("");
            (0..count).for_each(|number| planning.change(&format!("file#/{number}"), "content", "1", Some(diff)));
            planning.build(&action(r#"{"status": {}}"#))
        };
        let (one, other) = (plan("-a\n+b\n", 1), plan("-c\n+b\n", 1));
        assert_eq!((one.changes[0].diff.as_deref(), &one.digest), (Some("-a\n+b\n"), &other.digest));
        assert_eq!(one.check_unchanged(&other), Ok(()));
        let long = plan(&"+0123456789\n".repeat(1000), 40);
        let cut = long.changes[0].diff.as_ref().unwrap();
        assert!(cut.len() <= MAX_DIFF_BYTES + 30 && cut.ends_with("\n... 659 more lines\n"), "{cut}");
        let all: usize = long.changes.iter().filter_map(|change| change.diff.as_ref()).map(String::len).sum();
        assert!(all < MAX_DIFFS_BYTES + 1000 && long.changes[39].diff.is_none(), "{all}");
    }

    #[test]
    fn the_first_difference_is_named() {
        let approved = plan(&[("file#/a", "content", "1"), ("file#/b", "mode", "1")]);
        for (now, said) in [
            (plan(&[("file#/a", "content", "1"), ("file#/b", "mode", "1")]), None),
            (plan(&[]), None),
            (plan(&[("file#/a", "content", "1")]), Some("file#/b (\"mode\") no longer needs its change")),
            (plan(&[("file#/b", "mode", "1")]), Some("file#/a (\"content\") no longer needs its change")),
            (plan(&[("file#/a", "owner", "1"), ("file#/b", "mode", "1")]), Some("file#/a now needs another change: \"owner\"")),
            (
                plan(&[("file#/a", "content", "1"), ("file#/c", "new", "1"), ("file#/b", "mode", "1")]),
                Some("file#/c now needs a change that is not in the plan"),
            ),
            (
                plan(&[("file#/a", "content", "1"), ("file#/b", "mode", "1"), ("file#/c", "new", "1")]),
                Some("file#/c now needs a change that is not in the plan"),
            ),
            (plan(&[("file#/a", "content", "2"), ("file#/b", "mode", "1")]), Some("need other values")),
        ] {
            match (approved.check_unchanged(&now), said) {
                (Ok(()), None) => {}
                (Err(why), Some(said)) if why.starts_with(said) || why.contains(said) => {}
                (verdict, said) => panic!("{verdict:?}, wanted {said:?}"),
            }
        }
        assert!(plan(&[]).check_unchanged(&approved).unwrap_err().contains("file#/a now needs a change that is not in the plan"));
    }
}
