//! The context and the results of probes.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::diag::error_chain;
use crate::host::{Host, fs};
use crate::template;

/// The largest file below `/proc` or `/sys` that a probe reads, in bytes.
const MAX_PROC: u64 = 16 << 20;

/// A value that a probe found on the host.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ProbedValue {
    /// A value.
    Value(Value),
    /// A text for a test line by line. Failures hide the content of files (`shown` is false).
    Text { text: String, shown: bool },
}

/// The values of an item by attribute, or the reason why an attribute can't be read.
pub(super) type Attributes = BTreeMap<&'static str, Result<ProbedValue, String>>;

/// The context of a probe: an item and the host.
pub(super) struct ProbeContext<'a> {
    pub(super) key: &'a str,
    pub(super) options: &'a Map<String, Value>,
    /// The attributes with a wanted value. A probe may skip the others.
    pub(super) attributes: &'a [&'static str],
    pub(super) host: &'a Host,
}

impl ProbeContext<'_> {
    /// The text of an option; none when the option is missing or empty.
    pub(super) fn text(&self, option: &str) -> Option<String> {
        option_text(self.options, option)
    }

    /// The name of the item: this option, else the key.
    pub(super) fn name(&self, option: &str) -> String {
        self.text(option).unwrap_or_else(|| self.key.to_owned())
    }

    pub(super) fn flag(&self, option: &str) -> bool {
        self.options.get(option).and_then(Value::as_bool).unwrap_or(false)
    }

    /// The option `timeout`; the default is in milliseconds.
    pub(super) fn timeout(&self, default: u64) -> Duration {
        Duration::from_millis(self.options.get("timeout").and_then(Value::as_u64).filter(|time| *time > 0).unwrap_or(default))
    }

    pub(super) fn is_wanted(&self, attribute: &str) -> bool {
        self.attributes.contains(&attribute)
    }
}

/// The text of an option; none when the option is missing or empty.
pub(super) fn option_text(options: &Map<String, Value>, option: &str) -> Option<String> {
    options.get(option).filter(|value| !value.is_null()).map(template::to_text).filter(|text| !text.is_empty())
}

/// A found value.
pub(super) fn found_value(value: impl Into<Value>) -> Result<ProbedValue, String> {
    Ok(ProbedValue::Value(value.into()))
}

/// Reads a file of the system: the kernel's, or a file in `/etc`.
pub(super) fn read_system_file(path: &str) -> Result<String, String> {
    fs::read_text(Path::new(path), MAX_PROC).map_err(|error| error_chain(&error))
}
