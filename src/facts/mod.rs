//! Facts: properties of a host for templates, conditions and the overrides of data.
//!
//! Each family is one small file; a new family is that file and a line in [`FAMILIES`]. Facts come from the kernel and a few
//! files. No program runs, and no packet is sent. A family that fails is a warning. Facts of administrators (`custom.rs`)
//! come last. Neighbours: `template` reads facts as `Facts`, `agent` reports some of them.

mod cpu;
mod custom;
mod host;
mod memory;
mod network;
mod partition;
mod platform;
mod virtualization;

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::diag;
use crate::host::{Host, fs, fs::FsError};
use crate::model::merge::deep_merge;

/// The largest part of a kernel file that is read, in bytes.
const MAX_BYTES: u64 = 8 << 20;

/// The reason for which a family of facts is missing.
#[derive(Debug, thiserror::Error)]
pub enum FactError {
    /// A file could not be read.
    #[error(transparent)]
    File(#[from] FsError),
    /// A system call failed.
    #[error("the kernel did not answer")]
    Kernel(#[from] io::Error),
}

/// The function that gathers a family of facts.
pub type Family = fn(&Host) -> Result<Value, FactError>;

/// The families, by their name among the facts.
pub static FAMILIES: &[(&str, Family)] = &[
    ("host", host::gather),
    ("network", network::gather),
    ("partition", partition::gather),
    ("cpu", cpu::gather),
    ("memory", memory::gather),
];

/// The facts of a host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GatheredFacts {
    /// A map: a key for each family, and the custom facts.
    pub value: Value,
    /// Facts that could not be gathered, each with the reason.
    pub warnings: Vec<String>,
}

/// Returns the operating system, its version and the processor, as `debian 12.11 x86_64`; none when unknown.
pub fn platform_name() -> Option<String> {
    let platform = host::host_platform();
    let machine = crate::host::kernel::names().ok()?.machine;
    let parts = [platform.name, platform.version, machine];
    Some(parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" "))
}

/// Gathers the facts, with those in files of the `custom` directories; later directories win.
pub fn gather(host: &Host, custom: &[PathBuf]) -> GatheredFacts {
    let mut facts = Map::new();
    let mut warnings = Vec::new();
    for (name, family) in FAMILIES {
        match family(host) {
            Ok(value) => {
                facts.insert((*name).to_owned(), value);
            }
            Err(error) => warnings.push(format!("facts about {name}: {}", diag::error_chain(&error))),
        }
    }
    let mut value = Value::Object(facts);
    for directory in custom {
        for more in custom::read(directory, &mut warnings) {
            value = deep_merge(value, more);
        }
    }
    GatheredFacts { value, warnings }
}

/// Reads a file of the kernel or the system.
fn text(path: &str) -> Result<String, FactError> {
    Ok(fs::read_text(Path::new(path), MAX_BYTES)?)
}

/// Reads a file that may be missing, without the white space around its text.
fn text_or_empty(path: &str) -> String {
    text(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// Returns the value of the first `name: value` line with this name, without the blanks around it.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(key, value)| (key.trim(), value.trim())).find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Returns the part of a whole in percent; 0 when the whole is 0.
#[expect(clippy::cast_precision_loss, reason = "a percentage needs no more digits")]
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::host::fake;

    fn machine() -> Host {
        // No script runs: a command would fail.
        fake::host(fake::FakeRunner::exiting(&[]))
    }

    /// The names below `value`; those of the first element of a list.
    fn names(value: &Value) -> Vec<&str> {
        let value = if value.is_array() { &value[0] } else { value };
        let mut names: Vec<_> = value.as_object().map(|map| map.keys().map(String::as_str).collect()).unwrap_or_default();
        names.sort_unstable();
        names
    }

    #[test]
    fn this_machine_has_every_fact() {
        let started = Instant::now();
        let gathered = gather(&machine(), &[]);
        // Not a measurement: gathering waits for no process and no network.
        assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
        assert_eq!(gathered.warnings, Vec::<String>::new());
        let cases = [
            ("", "cpu host memory network partition"),
            (
                "/host/info",
                "bootTime hostId hostname kernelArch kernelVersion os platform platformFamily platformVersion procs uptime \
                 virtualizationRole virtualizationSystem",
            ),
            ("/network", "addresses default_ipv4 default_ipv6 interfaces"),
            ("/network/interfaces", "addrs flags hardwareAddr index mtu name"),
            ("/partition", "partitions usage"),
            ("/cpu/info", "cacheSize coreId cores cpu family flags mhz microcode model modelName physicalId stepping vendorId"),
            (
                "/memory/virtual",
                "active anonHugePages available buffers cached commitLimit committedAS dirty free highFree highTotal \
                 hugePageSize hugePagesFree hugePagesRsvd hugePagesSurp hugePagesTotal inactive laundry lowFree lowTotal mapped \
                 pageTables shared slab sreclaimable sunreclaim swapCached swapFree swapTotal total used usedPercent \
                 vmallocChunk vmallocTotal vmallocUsed wired writeBack writeBackTmp",
            ),
            ("/memory/swap", "devices info"),
            ("/memory/swap/info", "free pgFault pgIn pgMajFault pgOut sin sout total used usedPercent"),
        ];
        for (path, expected) in cases {
            let found = gathered.value.pointer(path).unwrap_or_else(|| panic!("{path}"));
            assert_eq!(names(found), expected.split_whitespace().collect::<Vec<_>>(), "{path}");
        }
        assert_eq!(gathered.value["host"]["info"]["os"], "linux");
        assert!(gathered.value["memory"]["virtual"]["total"].as_u64().unwrap() > 0);
    }

    #[test]
    fn facts_of_files_are_laid_over_the_machine() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("facts.yaml"), "site: lab\nhost: {info: {os: other}}\n").unwrap();
        let gathered = gather(&machine(), &[directory.path().to_owned()]);
        assert_eq!(gathered.value["site"], "lab");
        assert_eq!(gathered.value["host"]["info"]["os"], "other");
        assert!(gathered.value["host"]["info"]["kernelVersion"].is_string());
    }
}
