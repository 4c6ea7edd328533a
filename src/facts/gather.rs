//! Gathers all families of facts, and merges the custom facts.

use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::diag;
use crate::host::Host;
use crate::model::merge::deep_merge;

use super::source::FactError;
use super::{cpu, custom, host, memory, network, partition};

/// The function that gathers a family of facts.
type Family = fn(&Host) -> Result<Value, FactError>;

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
