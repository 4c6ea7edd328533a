//! Jobs: commands that are signed, sent and followed, and the records of them.

pub mod checked;
pub mod dispatch;
pub mod error_normalizer;
pub mod explain;
pub mod liveness_monitor;
pub mod outcome_groups;
pub mod records;
pub mod response_groups;
pub mod tracker;
