//! Trust: keys, signatures, the trust bundle, policy, local limits, and the decision about every command.
//!
//! Pure functions decide from bytes, a clock reading and the memory of accepted commands. The agent persists and runs. A key may
//! be in another process (`ssh_agent`). Only this module uses the signature library, and only it creates [`Verified`]. Formats
//! belong to `wire`, the memory of accepted commands belongs to `store`.

pub mod bundle;
pub mod decide;
pub mod keys;

pub use crate::trust::decide::limits::NodeLimits;
pub use crate::trust::decide::rejection::{Rejection, RejectionCode};
pub use crate::trust::decide::rights::Rights;
pub use crate::trust::decide::verify::{KnownTrust, OpenedMessage, ReplayStore, SignatureBudget, Verified, Verifier};
pub use crate::trust::keys::key::{KeyError, PublicKey, SigningKey};
pub use crate::trust::keys::receipt::{
    ReceiptError, VerifiedReceipt, issue_receipt, proves_return, proves_success, verify_receipt,
};
pub use crate::trust::keys::sign::{SignError, Signer, countersign, sign_envelope, sign_envelope_with};
pub use bundle::{BundleAuthority, BundleError, TrustedBundle, TrustedKey, open_bundle};
