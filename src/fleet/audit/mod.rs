//! The audit trail: what a fleet was told, and what its nodes say they did, in a file that proves it by itself.
//!
//! `export.rs` writes the streams of a fleet into a file of `record.rs`; `verify.rs` checks such a file without a
//! server, message by message (`inspect.rs`), node by node (`chain.rs`) and job by job (`jobs.rs`). `table.rs` is who
//! asked for what and why, of a fleet that is there.
//!
//! What proves what: the signature of an operator that a command was given; the receipt of a node that it said
//! something; the chain of its receipts that nothing it said in between is missing.

pub mod describe;
pub mod export;
pub mod export_format;
mod hash_chain;
pub mod job_log;
mod jobs;
mod message_check;
pub mod verify;

pub use export_format::{ExportHeader, ExportRecord, RecordError};
pub use verify::{AuditReport, Finding, FindingKind, verify};
