//! The audit trail: the commands of a fleet and the reports of its nodes, in a file that proves itself.
//!
//! `export.rs` writes the streams of a fleet into a file of `export_format.rs`. `verify.rs` checks such a file without a server:
//! by message (`message_check.rs`), by node (`hash_chain.rs`) and by job (`jobs.rs`). `job_log.rs` lists commands with signers,
//! reasons and outcomes, from a running fleet.
//!
//! The signature of an operator proves a command. The receipt of a node proves a report. The hash chain of its receipts
//! proves that no report in between is missing.

pub mod describe;
pub mod export;
pub mod export_format;
mod finding;
mod hash_chain;
pub mod job_log;
mod jobs;
mod message_check;
pub mod verify;

pub use export_format::{ExportHeader, ExportRecord, RecordError};
pub use finding::{Finding, FindingKind};
pub use verify::{AuditReport, verify};
