//! Facts: what a host is, for templates, conditions and the overrides of data.
//!
//! One small file a family; a new one is that file and a line in [`FAMILIES`]. Everything is read
//! from the kernel and a few files, nothing is run and nothing is sent. A family that fails is a
//! warning. Neighbours: `template` sees them as `Facts`, `agent` reports some of them.

mod cpu;
mod custom;
mod host;
mod memory;
mod network;
mod partition;

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::diag;
use crate::host::{Host, fs, fs::FsError};
use crate::model::merge::deep_merge;

/// The most that is read of a file of the kernel.
const MAX_BYTES: u64 = 8 << 20;

/// Why a family of facts is not there.
#[derive(Debug, thiserror::Error)]
pub enum FactError {
    /// A file could not be read.
    #[error(transparent)]
    File(#[from] FsError),
    /// The kernel did not answer.
    #[error("the kernel did not answer")]
    Kernel(#[from] io::Error),
}

/// How a family of facts is gathered.
pub type Family = fn(&Host) -> Result<Value, FactError>;

/// The families, with the name they have among the facts.
pub static FAMILIES: &[(&str, Family)] = &[
    ("host", host::gather),
    ("network", network::gather),
    ("partition", partition::gather),
    ("cpu", cpu::gather),
    ("memory", memory::gather),
];

/// The facts of a host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gathered {
    /// A map: a key for each family, and what custom facts add.
    pub value: Value,
    /// What could not be gathered, and why.
    pub warnings: Vec<String>,
}

/// Gathers the facts, with those that files in the `custom` directories add; later directories win.
pub fn gather(host: &Host, custom: &[PathBuf]) -> Gathered {
    let mut facts = Map::new();
    let mut warnings = Vec::new();
    for (name, family) in FAMILIES {
        match family(host) {
            Ok(value) => {
                facts.insert((*name).to_owned(), value);
            }
            Err(error) => warnings.push(format!("facts about {name}: {}", diag::chain(&error))),
        }
    }
    let mut value = Value::Object(facts);
    for directory in custom {
        for more in custom::read(directory, &mut warnings) {
            value = deep_merge(value, more);
        }
    }
    Gathered { value, warnings }
}

/// A file of the kernel or the system.
fn text(path: &str) -> Result<String, FactError> {
    Ok(fs::read_text(Path::new(path), MAX_BYTES)?)
}

/// A file that may not be there, without the white space around its text.
fn text_or_empty(path: &str) -> String {
    text(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// The part of a whole, in percent; of nothing it is nothing.
#[expect(clippy::cast_precision_loss, reason = "a percentage needs no more digits")]
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn every_family_answers_with_its_documented_names() {
        let host = Host::system(None);
        let started = Instant::now();
        let gathered = gather(&host, &[]);
        let elapsed = started.elapsed();
        assert_eq!(gathered.warnings, Vec::<String>::new());
        assert!(elapsed.as_millis() < 500, "{elapsed:?}");
        let facts = gathered.value;
        for pointer in [
            "/host/info/hostname",
            "/host/info/uptime",
            "/host/info/bootTime",
            "/host/info/procs",
            "/host/info/platform",
            "/host/info/platformFamily",
            "/host/info/platformVersion",
            "/host/info/kernelVersion",
            "/host/info/kernelArch",
            "/host/info/virtualizationSystem",
            "/host/info/virtualizationRole",
            "/host/info/hostId",
            "/network/interfaces/0/index",
            "/network/interfaces/0/mtu",
            "/network/interfaces/0/name",
            "/network/interfaces/0/hardwareAddr",
            "/network/interfaces/0/flags",
            "/network/interfaces/0/addrs",
            "/network/addresses",
            "/network/default_ipv4",
            "/network/default_ipv6",
            "/partition/partitions",
            "/partition/usage",
            "/cpu/info/0/cpu",
            "/memory/virtual/total",
            "/memory/virtual/available",
            "/memory/swap/info/total",
            "/memory/swap/devices",
        ] {
            assert!(facts.pointer(pointer).is_some(), "{pointer}");
        }
        assert_eq!(facts.pointer("/host/info/os"), Some(&Value::from("linux")));
        assert!(facts.pointer("/memory/virtual/total").and_then(Value::as_u64).unwrap() > 1 << 20);
    }
}
