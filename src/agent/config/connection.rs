//! The connection settings of an agent.

use crate::config::AgentSettings;
use crate::host::fs::FsError;
use crate::transport::BusSettings;

/// Returns the settings of the bus. Inboxes are the node's own, so that the server can keep other users from reading them.
///
/// # Errors
/// When a file with a secret cannot be read.
pub fn bus_settings(settings: &AgentSettings) -> Result<BusSettings, FsError> {
    let node = settings.node.as_str();
    let settings = BusSettings::from_config(&settings.nats, format!("ensign-agent {node}"))?;
    let inbox_prefix = settings.inbox_prefix.or_else(|| Some(format!("_INBOX_{node}")));
    Ok(BusSettings { inbox_prefix, retry_initial: true, ..settings })
}
