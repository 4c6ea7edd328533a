//! External resource types: programs in any language that describe, observe and apply resources. See `docs/external-types.md`.
//!
//! A program belongs to the owner of the host, and is trusted as the agent is. Properties belong to a key: rules and limits decide
//! over the effects that the description derives from them.

mod definition;
mod description;
mod directory;
mod external_type;
mod program;
mod property;
mod resource;
mod state;
mod text_pattern;
mod values;

pub use description::InvalidDescription;
pub use directory::{ExternalTypes, InvalidType, read_directory};
pub use external_type::ExternalType;
pub use program::ProgramError;
