//! Who may ask what of this node: keys, signatures, the trust bundle, policy, local limits.
//!
//! Pure: bytes, a clock reading and what was seen before go in, a decision comes out; the agent
//! writes down and runs. What signs may be elsewhere (`ssh_agent.rs`). The only user of the signature library, and the only maker of
//! [`Verified`]. Formats are `wire`'s, the memory of accepted commands is `store`'s.

pub mod bundle;
mod conceal;
pub mod data;
mod glob;
pub mod keys;
pub mod known;
pub mod limits;
mod mounts;
pub mod policy;
pub mod receipt;
pub mod refusal;
pub mod rights;
pub mod sign;
mod signers;
pub mod ssh_agent;
pub mod verify;

pub use bundle::{BundleError, Pin, TrustedBundle, TrustedKey, open_bundle};
pub use keys::{KeyError, PublicKey, SigningKey};
pub use limits::Limits;
pub use receipt::{Attested, ReceiptError, attest, issue, proves_success};
pub use refusal::{Code, Refusal};
pub use rights::Rights;
pub use sign::{Sign, SignError, countersign, seal, seal_by};
pub use verify::{Effort, KnownTrust, Opened, Seen, Verified, Verifier};
