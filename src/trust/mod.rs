//! Who may ask what of this node: keys, signatures, the trust bundle, policy, local limits.
//!
//! Pure: bytes, a clock reading and what was seen before go in, a decision comes out; the agent
//! writes down and runs. What signs may be elsewhere (`ssh_agent.rs`). The only user of the signature library, and the only maker of
//! [`Verified`]. Formats are `wire`'s, the memory of accepted commands is `store`'s.

pub mod bundle;
pub mod decide;
pub mod keys;

pub use crate::trust::decide::limits::NodeLimits;
pub use crate::trust::decide::rejection::{Rejection, RejectionCode};
pub use crate::trust::decide::rights::Rights;
pub use crate::trust::decide::verify::{KnownTrust, OpenedMessage, ReplayStore, SignatureBudget, Verified, Verifier};
pub use crate::trust::keys::key::{KeyError, PublicKey, SigningKey};
pub use crate::trust::keys::receipt::{ReceiptError, VerifiedReceipt, issue_receipt, proves_success, verify_receipt};
pub use crate::trust::keys::sign::{SignError, Signer, countersign, sign_envelope, sign_envelope_with};
pub use bundle::{BundleError, Pin, TrustedBundle, TrustedKey, open_bundle};
