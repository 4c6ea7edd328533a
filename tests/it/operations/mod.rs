//! Operating an agent: what it does when it is told to, and what it tells who asks.

mod alarms;
mod contexts;
mod discovery;
mod files;
mod local;
mod reload;
