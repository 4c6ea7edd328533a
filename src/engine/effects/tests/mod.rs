//! Decisions about what resources of every type do: by the rules of keys (`policy.rs`) and the limits of a node (`limits.rs`).

mod limits;
mod policy;
