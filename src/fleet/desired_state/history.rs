//! The versions of a channel: its signed commands, from the records of jobs and from the stream of desired state.
//!
//! The server can hide versions, and add messages without a valid signature. The history marks these messages, and no operator
//! signs them again.

use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use crate::diag::error_chain;
use crate::wire::command::{Action, Command, Target};

use crate::fleet::desired_state::view::ChannelCommand;
use crate::fleet::job::checked::{CheckedCommand, Checker};
use crate::fleet::job::records::JobRecord;

/// A version of a channel.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChannelVersion {
    /// The epoch.
    pub epoch: u64,
    /// The serial.
    pub serial: u64,
    /// The id of the command.
    pub id: Uuid,
    /// SHA-256 of its signed bytes.
    pub digest: String,
    /// The time of the signature, as signed.
    pub issued: Timestamp,
    /// `assign` or `withdraw`.
    pub action: &'static str,
    /// The URL of the manifest; `None` for a withdrawal.
    pub manifest: Option<String>,
    /// SHA-256 of the manifest.
    pub sha256: Option<String>,
    /// The target.
    pub to: Target,
    /// The reason that its signer gave.
    pub reason: Option<String>,
    /// True for the command that the stream of desired state has now.
    pub latest: bool,
    /// The keys that signed it; hints of the envelope when the signature is not valid.
    pub signers: Vec<String>,
    /// The reason why the signature is not valid.
    pub unverified: Option<String>,
    /// The command, when its signature is valid.
    #[serde(skip)]
    pub checked: Option<CheckedCommand>,
}

/// Errors of the choice of a version.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NoVersion {
    /// No earlier assignment is recorded.
    #[error("channel {0} has no earlier assignment on record")]
    NoEarlier(String),
    /// The serial is not recorded.
    #[error("channel {channel} has no serial {serial} on record")]
    Unknown {
        /// The channel.
        channel: String,
        /// The serial.
        serial: u64,
    },
    /// The signature of the version is not valid.
    #[error("serial {serial} is not verified: {why}")]
    Unverified {
        /// The serial.
        serial: u64,
        /// The reason.
        why: String,
    },
    /// The version is a withdrawal.
    #[error("serial {0} is a withdrawal")]
    Withdrawal(u64),
    /// Two signed commands have the serial.
    #[error("serial {0} has two signed commands with different content")]
    Ambiguous(u64),
}

/// Returns the versions of a channel, the latest first.
pub fn versions(channel: &str, latest: Option<&ChannelCommand>, records: &[JobRecord], checker: &Checker) -> Vec<ChannelVersion> {
    let stored = latest.map(|latest| (&latest.command, &latest.digest, &latest.envelope, &latest.keyids));
    let recorded = records.iter().map(|record| (&record.command, &record.digest, &record.envelope, &record.keyids));
    let mut versions: Vec<ChannelVersion> = Vec::new();
    for (command, digest, envelope, keyids) in stored.into_iter().chain(recorded) {
        let is_here = command.channel.as_ref().is_some_and(|place| place.name == channel);
        if !is_here || !command.action.is_desired_state() {
            continue;
        }
        let checked = checker.check(envelope).map_err(|error| error_chain(&error));
        // The same command, once with its signature and once without, is shown with its signature.
        if versions.iter().any(|version| version.digest == *digest && (version.checked.is_some() || checked.is_err())) {
            continue;
        }
        versions.retain(|version| version.digest != *digest);
        let mut version = version(command, digest, keyids, checked);
        version.latest = latest.is_some_and(|latest| latest.digest == *digest);
        versions.push(version);
    }
    versions.sort_by_key(|version| std::cmp::Reverse((version.epoch, version.serial, version.issued)));
    versions
}

fn version(command: &Command, digest: &str, keyids: &[String], checked: Result<CheckedCommand, String>) -> ChannelVersion {
    let assign = if let Action::Assign(assign) = &command.action { Some(assign) } else { None };
    let place = command.channel.as_ref();
    let (checked, unverified) = checked.map_or_else(|why| (None, Some(why)), |checked| (Some(checked), None));
    ChannelVersion {
        epoch: place.map_or(0, |place| place.epoch),
        serial: place.map_or(0, |place| place.serial),
        id: command.id,
        digest: digest.to_owned(),
        issued: command.issued,
        action: command.action.name(),
        manifest: assign.map(|assign| assign.manifest.url.clone()),
        sha256: assign.map(|assign| assign.manifest.sha256.clone()),
        to: command.to.clone(),
        reason: command.reason.clone(),
        latest: false,
        signers: checked.as_ref().map_or_else(|| keyids.to_vec(), |checked| checked.signers().to_vec()),
        unverified,
        checked,
    }
}

/// Chooses the version to go back to: this serial of the latest epoch, or the assignment before the latest command.
///
/// Without a valid signature, the latest command of the stream is ignored, as nodes ignore it.
///
/// # Errors
/// When there is no such version, or its signature is not valid.
pub fn version_before<'a>(
    channel: &str,
    versions: &'a [ChannelVersion],
    serial: Option<u64>,
) -> Result<&'a CheckedCommand, NoVersion> {
    let mut signed = versions.iter().filter(|version| version.checked.is_some());
    let latest = signed.clone().find(|version| version.latest).or_else(|| signed.next());
    let latest = latest.ok_or_else(|| NoVersion::NoEarlier(channel.to_owned()))?;
    let of_epoch = versions.iter().filter(|version| version.epoch == latest.epoch);
    let Some(serial) = serial else {
        let mut earlier = of_epoch.filter(|version| version.serial < latest.serial && version.action == "assign");
        let found = earlier.find(|version| version.checked.is_some()).ok_or_else(|| NoVersion::NoEarlier(channel.to_owned()))?;
        return version_before(channel, versions, Some(found.serial));
    };
    let named: Vec<&ChannelVersion> = of_epoch.filter(|version| version.serial == serial).collect();
    let mut signed = named.iter().filter_map(|version| version.checked.as_ref());
    match (signed.next(), signed.next()) {
        (Some(_), Some(_)) => Err(NoVersion::Ambiguous(serial)),
        (Some(only), None) if matches!(only.command().action, Action::Assign(_)) => Ok(only),
        (Some(_), None) => Err(NoVersion::Withdrawal(serial)),
        (None, _) => Err(match named.into_iter().find_map(|version| version.unverified.clone()) {
            Some(why) => NoVersion::Unverified { serial, why },
            None => NoVersion::Unknown { channel: channel.to_owned(), serial },
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::trust::{SigningKey, sign_envelope};
    use crate::wire::COMMAND_TYPE;

    fn record(serial: u64, number: u32, action: &serde_json::Value, key: u8) -> JobRecord {
        let command: Command = serde_json::from_value(json!({
            "id": Uuid::from_u128(number.into()), "fleet": "f", "to": {"all": true},
            "issued": format!("2026-11-20T10:{number:02}:00Z"), "expires": "2026-12-20T10:00:00Z",
            "channel": {"name": "base", "epoch": 1, "serial": serial}, "action": action,
        }))
        .unwrap();
        let key = SigningKey::from_seed(&[key; 32]);
        let envelope = sign_envelope(COMMAND_TYPE, serde_json::to_vec(&command).unwrap(), &[("k", &key)]);
        let (digest, envelope) = (envelope.digest(), envelope.encode());
        JobRecord { command, digest, envelope, keyids: vec!["k".into()] }
    }

    fn assign(content: char) -> serde_json::Value {
        json!({"assign": {"manifest": {"url": "https://h/m", "sha256": content.to_string().repeat(64), "size": 1}}})
    }

    #[test]
    fn only_a_signed_version_is_chosen() {
        let checker = Checker::new("f", None, vec![SigningKey::from_seed(&[1; 32]).public()]).unwrap();
        let forged = record(4, 9, &assign('f'), 2);
        let records = [
            record(6, 6, &assign('d'), 1),
            record(5, 5, &json!({"withdraw": {}}), 1),
            record(3, 3, &assign('b'), 1),
            record(2, 2, &assign('a'), 1),
            record(2, 8, &assign('c'), 1),
            forged.clone(),
        ];
        let latest = ChannelCommand {
            place: records[0].command.channel.clone().unwrap(),
            command: records[0].command.clone(),
            digest: records[0].digest.clone(),
            keyids: vec![],
            envelope: records[0].envelope.clone(),
            published: None,
        };
        let all = versions("base", Some(&latest), &records, &checker);
        let shown: Vec<_> = all.iter().map(|version| (version.serial, version.unverified.is_none(), version.latest)).collect();
        assert_eq!(
            shown,
            [(6, true, true), (5, true, false), (4, false, false), (3, true, false), (2, true, false), (2, true, false)]
        );
        let chosen = |serial| version_before("base", &all, serial).map(|checked| checked.command().id);
        // The withdrawal and the forged version are passed over.
        assert_eq!(chosen(None), Ok(records[2].command.id));
        assert_eq!(chosen(Some(3)), Ok(records[2].command.id));
        assert_eq!(chosen(Some(5)), Err(NoVersion::Withdrawal(5)));
        assert_eq!(chosen(Some(2)), Err(NoVersion::Ambiguous(2)), "a server may show a command that lost");
        assert_eq!(chosen(Some(9)), Err(NoVersion::Unknown { channel: "base".into(), serial: 9 }));
        assert!(matches!(chosen(Some(4)), Err(NoVersion::Unverified { serial: 4, .. })));
        let alone = versions("base", Some(&latest), &records[..1], &checker);
        assert_eq!(version_before("base", &alone, None).unwrap_err(), NoVersion::NoEarlier("base".into()));
        assert!(versions("other", Some(&latest), &records, &checker).is_empty());
        // A command that nodes ignore is not the latest: the versions on record count.
        let junk = ChannelCommand {
            command: forged.command.clone(),
            digest: forged.digest.clone(),
            envelope: forged.envelope.clone(),
            ..latest
        };
        let all = versions("base", Some(&junk), &records, &checker);
        assert_eq!(version_before("base", &all, None).unwrap().command().id, records[2].command.id);
        let all = versions("base", Some(&junk), &[], &checker);
        assert_eq!(version_before("base", &all, None).unwrap_err(), NoVersion::NoEarlier("base".into()));
    }
}
