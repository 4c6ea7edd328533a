//! Divergence: the assignments of this node differ from the stream of desired state.
//!
//! The causes: a serial with two contents, a lost assignment, or an old message in place of a newer one. Each leaves nodes with
//! different states, and no node has an error to show. So each node compares its assignments with the stream, and raises an
//! alarm. Only a signed command changes an assignment.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::transport::Message;
use crate::wire::{Action, Command, Envelope, Subjects, Target, json};

use crate::agent::reconcile::desired_state::Assignment;

/// The latest command of a channel, reduced to the parts that are compared.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::agent) struct ChannelHead {
    version: (u64, u64),
    id: Uuid,
    digest: String,
    keyids: Vec<String>,
    withdraws: bool,
    target: Target,
}

impl ChannelHead {
    fn from_command(command: &Command, digest: &str, keyids: Vec<String>) -> Option<Self> {
        let place = command.channel.as_ref()?;
        Some(Self {
            version: (place.epoch, place.serial),
            id: command.id,
            digest: digest.to_owned(),
            keyids,
            withdraws: matches!(command.action, Action::Withdraw(_)),
            target: command.to.clone(),
        })
    }

    /// Returns the command of an assignment of this node.
    pub(in crate::agent) fn from_assignment(statement: &Assignment) -> Option<Self> {
        Self::from_command(&statement.command, statement.command.digest(), statement.command.signers().to_vec())
    }

    /// Returns the command of a message of the stream; none for an unreadable one. The signature is not verified.
    pub(in crate::agent) fn from_message(message: &Message, name: &str) -> Option<Self> {
        let envelope = Envelope::parse(&message.payload).ok()?;
        let command: Command = json::read(&envelope.payload).ok()?;
        let keyids = envelope.signatures.iter().map(|signature| signature.keyid.clone()).collect();
        command.channel.as_ref().filter(|place| place.name == name)?;
        Self::from_command(&command, &envelope.digest(), keyids)
    }

    fn describe(&self) -> String {
        let signers = if self.keyids.is_empty() { "no name".to_owned() } else { self.keyids.join(", ") };
        format!(
            "serial {} ({}, sha256 {}, signed as {signers})",
            self.version.1,
            self.id,
            self.digest.get(..12).unwrap_or_default()
        )
    }
}

/// The last message of each channel in the stream.
pub(in crate::agent) type StreamHeads = BTreeMap<String, Option<ChannelHead>>;

/// Records a message of the stream.
pub(in crate::agent) fn record(found: &mut StreamHeads, message: &Message, subjects: &Subjects) {
    if let Some(name) = message.subject.strip_prefix(subjects.desired("").as_str()) {
        found.insert(name.to_owned(), ChannelHead::from_message(message, name));
    }
}

/// Returns the text of the alarm about all differences, if there is one. `is_meant` tells whether a target includes
/// this node.
pub(in crate::agent) fn alarm(
    held: &BTreeMap<String, ChannelHead>,
    found: &StreamHeads,
    is_meant: impl Fn(&Target) -> bool,
) -> Option<String> {
    let differences = held.iter().filter_map(|(name, held)| {
        let why = difference(held, found.get(name), &is_meant)?;
        Some(format!("channel {name}: {why}"))
    });
    Some(differences.collect::<Vec<_>>().join("; ")).filter(|text| !text.is_empty())
}

/// Returns the difference between the assignment of this node and the stream, if there is one.
fn difference(held: &ChannelHead, stored: Option<&Option<ChannelHead>>, is_meant: impl Fn(&Target) -> bool) -> Option<String> {
    let keeps = format!("this node has {}", held.describe());
    let stored = match stored {
        // A withdrawn channel equals a missing one.
        None if held.withdraws => return None,
        None => return Some(format!("{keeps}, and the stream has no message of the channel")),
        Some(None) => return Some(format!("{keeps}, and the message of the stream is unreadable")),
        Some(Some(stored)) if stored.digest == held.digest => return None,
        Some(Some(stored)) => stored,
    };
    if stored.version > held.version && !is_meant(&stored.target) {
        // The newer command is for other nodes. The rule that allows it decides whether this assignment ends.
        return None;
    }
    let has = stored.describe();
    Some(if stored.version > held.version {
        format!("{keeps}, and did not accept {has}")
    } else {
        format!("{keeps}, and the stream has {has}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(serial: u64, digest: &str) -> ChannelHead {
        ChannelHead {
            version: (1, serial),
            id: Uuid::nil(),
            digest: digest.repeat(32),
            keyids: vec!["ops".into()],
            withdraws: false,
            target: Target::all(),
        }
    }

    #[test]
    fn only_other_content_is_a_difference() {
        let ended = ChannelHead { withdraws: true, ..side(5, "aa") };
        let for_others = ChannelHead { target: Target::groups(vec!["other".into()]), ..side(6, "bb") };
        let gone: Option<&Option<ChannelHead>> = None;
        for (held, stored, wanted) in [
            (side(5, "aa"), Some(&Some(side(5, "aa"))), None),
            (side(5, "aa"), Some(&Some(side(5, "bb"))), Some("the stream has serial 5")),
            (side(5, "aa"), Some(&Some(side(4, "bb"))), Some("the stream has serial 4")),
            (side(5, "aa"), Some(&Some(side(6, "bb"))), Some("did not accept serial 6")),
            (side(5, "aa"), Some(&Some(for_others)), None),
            (side(5, "aa"), Some(&None), Some("is unreadable")),
            (side(5, "aa"), gone, Some("no message")),
            (ended.clone(), gone, None),
            (ended, Some(&Some(side(4, "bb"))), Some("the stream has serial 4")),
        ] {
            let said = difference(&held, stored, |to| to.all == Some(true));
            assert!(wanted.map_or(said.is_none(), |part| said.as_ref().is_some_and(|said| said.contains(part))), "{said:?}");
        }
    }
}
