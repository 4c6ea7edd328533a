//! Facts: properties of a host for templates, conditions and the overrides of data.
//!
//! Each family is one small file; a new family is that file and a line in `FAMILIES` (`gather.rs`). Facts come from the kernel and a few
//! files. No program runs, and no packet is sent. A family that fails is a warning. Facts of administrators (`custom.rs`)
//! come last. Neighbours: `template` reads facts as `Facts`, `agent` reports some of them.

mod cpu;
mod custom;
mod gather;
mod host;
mod memory;
mod network;
mod partition;
mod platform;
mod source;
mod virtualization;

pub use gather::{FAMILIES, GatheredFacts, gather, platform_name};
