//! The watch hub: reports which resources may have changed, without polling them.
//!
//! A resource names its targets ([`crate::model::WatchTarget`]) under a [`ResourceKey`]. [`Hub::set`] arms the watches before
//! it returns, so a check after that misses no change. [`Hub::wait`] blocks until a target changes. A report can be superfluous,
//! and none is lost. A target that the kernel does not report is polled, as [`Armed`] tells the caller.
//!
//! ```text
//!  inotify (one instance)   /proc/self/mountinfo   systemd over D-Bus    intervals
//!          │                        │               (own thread)            │
//!          ▼                        ▼                    ▼                  ▼
//!      paths: trie of watched paths, filter by name     units            timers
//!          └────────────────────────┴──── hub ───────────┴──────────────────┘
//!                                          │ one poll(2)
//!                                          ▼ dirty resources, each once, with a cause
//! ```
//!
//! Neighbours: `host` makes the system calls. The reconciler of `engine` and `agent` debounces and checks.

mod armed_trie;
mod file_system;
mod hub;
mod paths;
mod report;
mod timers;
mod trie;
mod units;

#[cfg(test)]
mod tests;

pub use hub::{Hub, HubOptions, WatchError};
pub use report::{Armed, Cause, Dirty, HubStats, PollReason, ResourceKey};
