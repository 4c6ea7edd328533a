//! Keys of admitted nodes: the admissions that operators have stored beside the states.
//!
//! A node that no operator of this machine has met gets its key from its admission. Without an admission, its first state
//! decides (`node_identity.rs`). An admission after the removal of a node ends the removal.

use jiff::Timestamp;

use crate::model::NodeId;
use crate::transport::Message;
use crate::trust::decide::join::{AdmissionError, open_admission};
use crate::trust::{KeyError, TrustedBundle};
use crate::wire::join::{AdmissionDecision, AdmissionStatement};
use crate::wire::{Envelope, Subjects, json};

use super::pinned_keys::PinnedKey;

/// An admission that does not count.
#[derive(Debug, thiserror::Error)]
pub enum AdmittedKeyError {
    /// The record is no admission that the trust bundle allows.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// The record is of another fleet or node, or a refusal.
    #[error("the record is not an admission of the node in its subject")]
    OtherNode,
    /// The key of the node can't be read.
    #[error("the key of the node can't be read")]
    Key(#[from] KeyError),
}

/// Verifies the admission of a node by the trust bundle of the operator, as of the time of the decision. Returns the node, its
/// key, and the time of the decision, or of the server where that is earlier.
///
/// # Errors
/// The reason why the admission does not count.
pub fn verify_admitted_key(
    message: &Message,
    subjects: &Subjects,
    trust: &TrustedBundle,
) -> Result<(NodeId, PinnedKey), AdmittedKeyError> {
    let envelope = Envelope::parse(&message.payload).map_err(AdmissionError::from)?;
    let issued = json::read::<AdmissionStatement>(&envelope.payload).map_err(AdmissionError::from)?.issued;
    // The hours in which a host may use the answer are over. The decision stays.
    let admission = open_admission(&message.payload, trust, issued)?;
    let is_admitted = matches!(admission.decision, AdmissionDecision::Admitted { .. });
    let is_of_fleet = admission.fleet == subjects.fleet() && trust.fleet() == subjects.fleet();
    if !is_admitted || !is_of_fleet || subjects.admitted(&admission.node).as_str() != message.subject {
        return Err(AdmittedKeyError::OtherNode);
    }
    let since: Timestamp = message.time.map_or(issued, |stored| stored.min(issued));
    Ok((admission.node, PinnedKey { key: admission.node_key.parse()?, since }))
}
