//! Counters for uses of values from elsewhere (reads, bus, secrets) while templates are resolved.
//!
//! A counter that grows during an evaluation shows that the evaluation used such a value.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

/// The counters of a run, shared by all its scopes.
#[derive(Debug, Default)]
pub(in crate::template) struct Trace {
    reads: AtomicUsize,
    bus: AtomicUsize,
    /// The value of `bus` when the outermost evaluation began.
    bus_at_begin: AtomicUsize,
}

/// The counters at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceMark {
    pub(super) reads: usize,
    pub(super) bus: usize,
    pub(super) secrets: usize,
}

/// The kinds of values that an evaluation used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ValueUses {
    /// A value was read on this host or from the bus, and readers of errors must not see the value.
    pub read: bool,
    /// A value came from the bus without a signature of a trusted key.
    pub bus: bool,
    /// A secret was used.
    pub secret: bool,
}

impl ValueUses {
    /// Joins the uses of two evaluations.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self { read: self.read || other.read, bus: self.bus || other.bus, secret: self.secret || other.secret }
    }
}

impl Trace {
    pub(super) fn count_read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_bus_use(&self) {
        self.bus.fetch_add(1, Ordering::Relaxed);
    }

    pub(in crate::template) fn begin_evaluation(&self) {
        self.bus_at_begin.store(self.bus.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// True when the outermost evaluation has used the bus. The server may then control its next read or write.
    pub(super) fn has_used_bus(&self) -> bool {
        self.bus.load(Ordering::Relaxed) != self.bus_at_begin.load(Ordering::Relaxed)
    }

    pub(super) fn mark(&self, secrets: usize) -> TraceMark {
        TraceMark { reads: self.reads.load(Ordering::Relaxed), bus: self.bus.load(Ordering::Relaxed), secrets }
    }

    pub(super) fn since(&self, before: TraceMark, secrets: usize) -> ValueUses {
        let now = self.mark(secrets);
        ValueUses { read: now.reads != before.reads, bus: now.bus != before.bus, secret: now.secrets != before.secrets }
    }
}

/// True when the path leads to a value that comes from the overlay, wholly or in part.
pub(super) fn is_in_overlay<'a>(overlay: &Value, path: impl IntoIterator<Item = Option<&'a str>>) -> bool {
    let mut here = overlay;
    for step in path {
        match (here, step) {
            (Value::Null, _) => return false,
            (Value::Object(map), Some(key)) => match map.get(key) {
                Some(found) => here = found,
                None => return false,
            },
            // A list of the overlay is joined with the list below it.
            _ => return true,
        }
    }
    !matches!(here, Value::Null) && !matches!(here, Value::Object(map) if map.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_in_an_overlay_are_found() {
        let overlay = json!({"web": {"port": 1, "list": [1]}, "name": "x", "empty": {}});
        for (path, expected) in [
            (vec![], true),
            (vec![Some("web")], true),
            (vec![Some("web"), Some("port")], true),
            (vec![Some("web"), Some("host")], false),
            (vec![Some("web"), Some("list"), None], true),
            (vec![Some("name"), Some("x")], true),
            (vec![Some("other")], false),
            (vec![Some("empty"), Some("x")], false),
        ] {
            assert_eq!(is_in_overlay(&overlay, path.clone()), expected, "{path:?}");
        }
        assert!(!is_in_overlay(&json!({}), []) && !is_in_overlay(&Value::Null, [Some("x")]));
    }
}
