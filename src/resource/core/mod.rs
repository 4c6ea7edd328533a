//! The parts that resource types are built from.

pub mod common;
mod decode_error;
pub(super) mod dyn_type;
pub mod ensure;
pub(super) mod owned_file;
pub(super) mod parent_checks;
pub mod path_order;
pub(super) mod resource;
pub(super) mod safe_replace;
pub mod shadow_utils;
pub mod text;
pub(super) mod type_entry;
