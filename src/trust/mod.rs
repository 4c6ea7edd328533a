//! Who may ask what of this node: keys, signatures, the trust bundle, policy, local limits.
//!
//! Pure: bytes, a clock reading and what was seen before go in, a decision comes out; the agent
//! writes down and runs. What signs may be elsewhere (`ssh_agent.rs`). The only user of the signature library, and the only maker of
//! [`Verified`]. Formats are `wire`'s, the memory of accepted commands is `store`'s.

pub mod bundle;
pub mod data;
pub mod keys;
pub mod limits;
mod mounts;
mod pattern;
pub mod pinned_key_line;
pub mod policy;
mod pseudonym;
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
pub use receipt::{ReceiptError, VerifiedReceipt, issue_receipt, proves_success, verify_receipt};
pub use rejection::{Rejection, RejectionCode};
pub use rights::Rights;
pub use sign::{SignError, Signer, countersign, sign_envelope, sign_envelope_with};
pub use verify::{KnownTrust, OpenedMessage, ReplayStore, SignatureBudget, Verified, Verifier};
