//! Stores assignments and withdrawals by compare-and-set: of two commands at the same time, the second is a [`Conflict`].
//!
//! A serial is chosen after the last message of its channel. The stream stores the command only while that message is still
//! the last. A channel therefore never has two contents under one serial. No command replaces an assignment that its
//! operator had not read.

use std::fmt;
use std::time::Duration;

use crate::transport::{Bus, EXPECTED_LAST, MESSAGE_ID, TransportError};
use crate::wire::Subjects;
use crate::wire::command::Channel;

use crate::fleet::desired_state::view;
use crate::fleet::desired_state::view::{ChannelCommand, ChannelMessage};
use crate::fleet::job::seal::SealedCommand;

/// Most attempts to store a message whose acknowledgement was lost.
const ATTEMPTS: u32 = 3;
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// Errors of storing or sending a command.
#[derive(Debug, thiserror::Error)]
pub enum DispatchError {
    /// The server does not store it, or the connection is lost.
    #[error(transparent)]
    Bus(#[from] TransportError),
    /// Another command was stored in the channel after the serial was chosen. This command was not stored.
    #[error("{0}")]
    Conflict(Box<Conflict>),
    /// The channel has the command, and the JOBS stream has no record of it.
    #[error("serial {} of channel {} is assigned, but its record was not stored", place.serial, place.name)]
    NoRecord {
        /// Its position in the channel.
        place: Channel,
        /// The cause.
        #[source]
        source: TransportError,
    },
}

/// Two commands for the same position of a channel, from the side of the second command.
#[derive(Debug, Clone, PartialEq)]
pub struct Conflict {
    /// The position that the command was signed for.
    pub place: Channel,
    /// The command that the channel has; `None` when it can't be read, or is no command.
    pub winner: Option<ChannelCommand>,
    /// True when the acknowledgement of an earlier attempt was lost: that attempt may have been stored, and then replaced.
    pub maybe_stored: bool,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Channel { name, serial, .. } = &self.place;
        write!(f, "channel {name}: cannot store serial {serial}: another command was stored first")?;
        match &self.winner {
            None => write!(f, ", and it can't be read"),
            Some(ChannelCommand { place, command, digest, keyids, published, .. }) => {
                let at = published.unwrap_or(command.issued);
                let signers = if keyids.is_empty() { "no name".to_owned() } else { keyids.join(", ") };
                let what = command.action.name();
                write!(f, ": serial {}, {what} {}, sha256 {digest}, signed as {signers}, at {at:.0}", place.serial, command.id)
            }
        }?;
        if self.maybe_stored {
            write!(f, "; the server did not answer the first attempt, so this command may have been active for a moment")
        } else {
            Ok(())
        }
    }
}

/// Stores an assignment or a withdrawal in its channel, and then its record.
///
/// # Errors
/// See [`DispatchError`].
pub(in crate::fleet) async fn store_in_channel(
    bus: &Bus,
    subjects: &Subjects,
    signed: &SealedCommand,
) -> Result<(), DispatchError> {
    let Some(place) = &signed.command.channel else { return Ok(()) };
    let id = signed.command.id.to_string();
    let mut unsure = false;
    let subject = subjects.desired(&place.name);
    let after = signed.last_sequence.to_string();
    // The id makes the server answer a second attempt as it would have answered the first.
    let headers = [(MESSAGE_ID, id.as_str()), (EXPECTED_LAST, after.as_str())];
    for attempt in 1.. {
        match bus.publish_stored(subject.as_str(), &headers, signed.envelope.clone()).await {
            Ok(_) => break,
            Err(TransportError::Conflict(_)) => {
                let latest = view::read_channel(bus, subjects, &place.name).await.unwrap_or_default();
                if is_same_command(&latest, signed) {
                    break;
                }
                let conflict = Conflict { place: place.clone(), winner: latest.desired, maybe_stored: unsure };
                return Err(DispatchError::Conflict(Box::new(conflict)));
            }
            Err(TransportError::TimedOut(_) | TransportError::Disconnected) if attempt < ATTEMPTS => {
                unsure = true;
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) if unsure => {
                if view::read_channel(bus, subjects, &place.name).await.is_ok_and(|latest| is_same_command(&latest, signed)) {
                    break;
                }
                return Err(error.into());
            }
            Err(error) => return Err(error.into()),
        }
    }
    store_record(bus, subjects, signed).await.map_err(|source| DispatchError::NoRecord { place: place.clone(), source })
}

/// Stores the record of a command that its channel has already.
async fn store_record(bus: &Bus, subjects: &Subjects, signed: &SealedCommand) -> Result<(), TransportError> {
    let (id, subject) = (signed.command.id.to_string(), subjects.job_command(signed.command.id));
    for attempt in 1.. {
        match bus.publish_stored(subject.as_str(), &[(MESSAGE_ID, id.as_str())], signed.envelope.clone()).await {
            Ok(_) => break,
            Err(TransportError::TimedOut(_) | TransportError::Disconnected) if attempt < ATTEMPTS => {
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// True when the channel has this command itself: then its acknowledgement was lost.
fn is_same_command(latest: &ChannelMessage, signed: &SealedCommand) -> bool {
    latest.desired.as_ref().is_some_and(|desired| desired.envelope == signed.envelope)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_conflict_names_the_first_command() {
        let command = serde_json::from_value(json!({
            "id": "0198c1f2-7a3b-7c4d-8e5f-102030405060", "fleet": "f", "to": {"all": true},
            "issued": "2026-11-20T10:00:00Z", "expires": "2026-12-20T10:00:00Z",
            "channel": {"name": "base", "epoch": 1, "serial": 5}, "action": {"withdraw": {}},
        }));
        let place = Channel { name: "base".into(), epoch: 1, serial: 5 };
        let winner = ChannelCommand {
            place: place.clone(),
            command: command.unwrap(),
            digest: "ab".into(),
            keyids: vec!["ops-bob".into()],
            envelope: vec![],
            published: Some("2026-11-20T10:00:07.5Z".parse().unwrap()),
        };
        let conflict = Conflict { place: place.clone(), winner: Some(winner), maybe_stored: false };
        let text = conflict.to_string();
        for part in ["channel base: cannot store serial 5", "serial 5, withdraw 0198c1f2-", "sha256 ab", "as ops-bob", "10:00:0"]
        {
            assert!(text.contains(part), "{text}");
        }
        assert!(Conflict { place, winner: None, maybe_stored: true }.to_string().contains("may have been active"));
    }
}
