//! Who may ask what of this node: keys, signatures, the trust bundle, policy, local limits.
//!
//! Pure: bytes, a clock reading and what was seen before go in, a decision comes out; the agent
//! writes down and runs. What signs may be elsewhere (`ssh_agent.rs`). The only user of the signature library, and the only maker of
//! [`Verified`]. Formats are `wire`'s, the memory of accepted commands is `store`'s.

pub mod bundle;
mod pseudonym;
pub mod data;
mod pattern;
pub mod keys;
pub mod pinned_key_line;
pub mod limits;
mod mounts;
pub mod policy;
pub mod receipt;
pub mod rejection;
pub mod rights;
pub mod sign;
mod signers;
pub mod ssh_agent;
pub mod verify;

pub use bundle::{BundleError, Pin, TrustedBundle, TrustedKey, open_bundle};
pub use keys::{KeyError, PublicKey, SigningKey};
pub use limits::NodeLimits;
pub use receipt::{VerifiedReceipt, ReceiptError, verify_receipt, issue_receipt, proves_success};
pub use rejection::{RejectionCode, Rejection};
pub use rights::Rights;
pub use sign::{Signer, SignError, countersign, sign_envelope, sign_envelope_with};
pub use verify::{SignatureBudget, KnownTrust, OpenedMessage, ReplayStore, Verified, Verifier};
