//! The next position in a channel.

use crate::diag::error_chain;
use crate::fleet::NodeStates;
use crate::fleet::desired_state::view;
use crate::fleet::job::draft::next_in_channel;
use crate::model::check_name;
use crate::wire::command::Channel;

use super::super::error::CliError;
use super::super::ui::{Ui, text};
use super::session::{FleetSession, connection_failure};

/// Checks the name of a channel.
///
/// # Errors
/// When the name is not valid.
pub(super) fn check_channel(name: &str) -> Result<(), CliError> {
    check_name("channel", name).map_err(|error| CliError::usage(error.to_string()))
}

/// Returns the position after the latest command of a channel with a valid signature, and after those of the nodes. Also
/// returns the sequence number of the message that the next one follows.
///
/// # Errors
/// When the channel can't be read.
pub(super) async fn next_position(
    name: &str,
    states: &NodeStates,
    session: &FleetSession,
    ui: &mut Ui,
) -> Result<(Channel, u64), CliError> {
    let latest = view::read_channel(&session.bus, &session.subjects, name).await.map_err(|error| connection_failure(&error))?;
    let published = match latest.desired.map(|desired| session.checker().map(|checker| checker.check(&desired.envelope))) {
        None => None,
        Some(checked) => match checked? {
            Ok(checked) => checked.command().channel.clone().filter(|channel| channel.name == name),
            Err(error) => {
                ui.warn(text!("channel {}: ignored the published command: {}", name, error_chain(&error)));
                None
            }
        },
    };
    Ok((next_in_channel(name, states, published.as_ref()), latest.sequence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_channels_are_tokens() {
        assert!(check_channel("base").is_ok());
        assert!(check_channel("a.b").is_err());
    }
}
