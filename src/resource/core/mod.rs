//! The parts that resource types are built from.

pub(super) mod account_files;
pub mod common;
mod decode_error;
pub(super) mod dyn_type;
pub mod ensure;
pub(super) mod open_properties;
pub(super) mod owned_file;
pub(super) mod parent_checks;
pub(super) mod path_order;
pub mod policy;
pub(super) mod resource;
pub(super) mod safe_replace;
pub mod shadow_utils;
pub mod text;
pub(super) mod type_entry;
pub(super) mod type_ref;
pub(super) mod watch_targets;
