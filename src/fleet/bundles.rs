//! Bundles in the object store of a fleet, and the removal of those that no command refers to.
//!
//! In: the objects of a bucket, the assignments of the channels, the recorded commands, the states of nodes. Out: the unused
//! objects. The DESIRED stream has the latest assignment of each channel, the JOBS stream the earlier ones.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::fleet::connection::FleetConnection;
use crate::fleet::desired_state::view::read_channels;
use crate::fleet::job::records::{JobError, read_records};
use crate::fleet::targeting::states::NodeStates;
use crate::transport::StoredObject;
use crate::wire::{Action, Command};

/// Length of a SHA-256 digest in hex.
const DIGEST_LENGTH: usize = 64;

/// An object of a bucket, and the reason to keep it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BundleRow {
    /// The key in the bucket.
    pub key: String,
    /// The size in bytes.
    pub size: u64,
    /// The time at which the server stored it.
    pub stored: Option<Timestamp>,
    /// The reason to keep it; absent for an object that is not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_for: Option<String>,
}

/// Selects the unused objects that stay.
#[derive(Debug, Clone, Copy)]
pub struct RetentionRule {
    /// Number of the newest unused objects that stay.
    pub keep: usize,
    /// Age below which an unused object stays: its command may not be signed yet.
    pub older_than: SignedDuration,
    /// The time of the server.
    pub now: Timestamp,
}

/// The users of bundles, by the digest in the key of the bundle.
#[derive(Debug, Default)]
pub struct BundleUsers(BTreeMap<String, String>);

impl BundleUsers {
    /// Reads the users of bundles: channels, nodes, recorded commands.
    ///
    /// # Errors
    /// When a stream can't be read.
    pub async fn read(fleet: &FleetConnection, states: &NodeStates) -> Result<Self, JobError> {
        let mut users = Self::default();
        for record in read_records(&fleet.bus, &fleet.subjects).await? {
            users.add_command(&record.command, || format!("job {}", record.command.id));
        }
        for state in states.values() {
            let in_force = state.assignments.iter().filter_map(|assignment| assignment.in_force.as_ref());
            users.0.extend(in_force.map(|sha256| (sha256.clone(), format!("node {}", state.node))));
        }
        for (name, channel) in read_channels(&fleet.bus, &fleet.subjects).await? {
            users.add_command(&channel.command, || format!("channel {name}"));
        }
        Ok(users)
    }

    fn add_command(&mut self, command: &Command, user: impl Fn() -> String) {
        let sha256 = match &command.action {
            Action::Apply(apply) => &apply.sha256,
            Action::Assign(assign) => &assign.manifest.sha256,
            _ => return,
        };
        self.0.insert(sha256.clone(), user());
    }

    /// Lists the objects, the newest first, each with the reason to keep it.
    pub fn rows(&self, objects: Vec<StoredObject>, rule: RetentionRule) -> Vec<BundleRow> {
        let row = |object: StoredObject| BundleRow {
            kept_for: match digest_of_key(&object.key) {
                None => Some("not a bundle".to_owned()),
                Some(sha256) => self.0.get(sha256).cloned(),
            },
            key: object.key,
            size: object.size,
            stored: object.stored,
        };
        let mut rows: Vec<BundleRow> = objects.into_iter().map(row).collect();
        rows.sort_by(|a, b| b.stored.cmp(&a.stored).then_with(|| a.key.cmp(&b.key)));
        let newest = rows.iter_mut().filter(|row| row.kept_for.is_none());
        for (position, row) in newest.enumerate() {
            let is_young = row.stored.is_none_or(|stored| rule.now.duration_since(stored) < rule.older_than);
            row.kept_for = match (position < rule.keep, is_young) {
                (true, _) => Some(format!("the newest {} stay", rule.keep)),
                (_, true) => Some("too young".to_owned()),
                _ => None,
            };
        }
        rows
    }
}

/// Returns the digest in the key of a bundle: `<sha256>.tar.gz`, `<sha256>.yaml`.
fn digest_of_key(key: &str) -> Option<&str> {
    let (digest, _) = key.split_once('.')?;
    (digest.len() == DIGEST_LENGTH && digest.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_old_bundles_without_a_user_are_unused() {
        let at = |hour: i8| Timestamp::UNIX_EPOCH + SignedDuration::from_hours(i64::from(hour));
        let key = |letter: &str| format!("{}.tar.gz", letter.repeat(DIGEST_LENGTH));
        let object = |key: String, hour| StoredObject { key, size: 1, stored: Some(at(hour)) };
        let objects =
            [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 10)].map(|(letter, hour)| object(key(letter), hour)).to_vec();
        let objects = [objects, vec![object("notes.txt".into(), 0)]].concat();
        let users = BundleUsers([("b".repeat(DIGEST_LENGTH), "channel base".to_owned())].into());
        let unused = |keep, hours| {
            let rule = RetentionRule { keep, older_than: SignedDuration::from_hours(hours), now: at(11) };
            let rows = users.rows(objects.clone(), rule).into_iter().filter(|row| row.kept_for.is_none());
            rows.map(|row| row.key.get(..1).unwrap_or_default().to_owned()).collect::<String>()
        };
        assert_eq!([unused(0, 0), unused(0, 2), unused(2, 0), unused(9, 0), unused(0, 99)], ["edca", "dca", "ca", "", ""]);
    }
}
