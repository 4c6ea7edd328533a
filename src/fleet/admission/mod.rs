//! Admission of hosts that ask to join: requests from the stream, decisions, signed answers.
//!
//! - `decide.rs` is the pure decision by token, record and pinned key.
//! - `desk.rs` examines requests, signs answers, and records admissions.
//! - `token.rs` makes join tokens.
//!
//! Uses are counted by the file `admitted` of the operator, never by the server. The record is on disk before the answer leaves.

pub mod decide;
mod desk;
mod token;

pub use desk::{AdmissionDesk, AnswerOutcome, DeskError, JoinCandidate, UnusableRequest};
pub use token::{TokenMakeError, TokenRequest, make_token};
