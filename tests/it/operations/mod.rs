//! The operation of an agent: its reactions to signals and requests, and the information that it gives.

mod alarms;
mod contexts;
mod discovery;
mod files;
mod local;
mod reload;
