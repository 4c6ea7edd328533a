//! Processor facts: `cpu.info[]`, an entry for each logical processor.

use serde_json::{Value, json};

use super::source::{FactError, field, text, text_or_empty};
use crate::host::Host;

/// Gathers processor facts.
pub(super) fn gather(_: &Host) -> Result<Value, FactError> {
    let max_khz = |cpu: u64| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq");
        text_or_empty(&path).parse().ok()
    };
    Ok(json!({"info": processors(&text("/proc/cpuinfo")?, max_khz)}))
}

/// Parses `/proc/cpuinfo` of x86 and of ARM. `max_khz` returns the highest clock of a processor, where known. The present
/// clock is no fact, because it changes with every read.
fn processors(cpuinfo: &str, max_khz: impl Fn(u64) -> Option<f64>) -> Value {
    cpuinfo.split("\n\n").filter_map(|block| processor(block, &max_khz)).collect()
}

fn processor(block: &str, max_khz: impl Fn(u64) -> Option<f64>) -> Option<Value> {
    // 32-bit ARM ends with a block about the board.
    let cpu: u64 = field(block, "processor")?.parse().ok()?;
    let one = |name| field(block, name).unwrap_or_default();
    let either = |x86, arm| field(block, x86).unwrap_or_else(|| one(arm));
    let stepping: u64 = either("stepping", "CPU revision").parse().unwrap_or(0);
    let cache = one("cache size").split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0);
    let mhz = max_khz(cpu).map_or_else(|| one("cpu MHz").parse().unwrap_or(0.0), |khz| khz / 1000.0);
    Some(json!({
        "cpu": cpu,
        "vendorId": vendor(either("vendor_id", "CPU implementer")),
        "family": either("cpu family", "CPU architecture"),
        "model": either("model", "CPU part"),
        "stepping": stepping,
        "physicalId": one("physical id"),
        "coreId": one("core id"),
        // An entry is one logical processor, so that the sum over all is their number.
        "cores": 1,
        "modelName": either("model name", "Processor"),
        "mhz": mhz,
        "cacheSize": cache,
        "flags": either("flags", "Features").split_whitespace().collect::<Vec<_>>(),
        "microcode": one("microcode"),
    }))
}

/// Returns the maker of an ARM processor by its number; x86 has the name itself.
fn vendor(id: &str) -> &str {
    match id {
        "0x41" => "ARM",
        "0x42" => "Broadcom",
        "0x43" => "Cavium",
        "0x46" => "Fujitsu",
        "0x48" => "HiSilicon",
        "0x4e" => "NVIDIA",
        "0x50" => "Ampere",
        "0x51" => "Qualcomm",
        "0x61" => "Apple",
        "0xc0" => "Ampere",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X86: &str = "processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 158
model name\t: Intel(R) Core(TM) i7-8750H CPU @ 2.20GHz
stepping\t: 10
microcode\t: 0xf4
cpu MHz\t\t: 2200.123
cache size\t: 9216 KB
physical id\t: 0
siblings\t: 12
core id\t\t: 3
cpu cores\t: 6
flags\t\t: fpu vme sse2
bugs\t\t: spectre_v1
power management:

processor\t: 1
vendor_id\t: GenuineIntel
cpu MHz\t\t: 800.000
power management:

";

    const ARM: &str = "processor\t: 0
model name\t: ARMv7 Processor rev 4 (v7l)
BogoMIPS\t: 38.40
Features\t: half thumb neon
CPU implementer\t: 0x41
CPU architecture: 7
CPU variant\t: 0x0
CPU part\t: 0xd03
CPU revision\t: 4

Hardware\t: BCM2835
Revision\t: a02082
";

    #[test]
    fn x86_has_an_entry_for_each_processor() {
        let found = processors(X86, |cpu| (cpu == 1).then_some(4_100_000.0));
        let first = json!({
            "cpu": 0, "vendorId": "GenuineIntel", "family": "6", "model": "158", "stepping": 10, "physicalId": "0",
            "coreId": "3", "cores": 1, "modelName": "Intel(R) Core(TM) i7-8750H CPU @ 2.20GHz", "mhz": 2200.123,
            "cacheSize": 9216, "flags": ["fpu", "vme", "sse2"], "microcode": "0xf4",
        });
        assert_eq!(found[0], first);
        assert_eq!((&found[1]["cpu"], &found[1]["mhz"]), (&json!(1), &json!(4100.0)));
        assert_eq!(found.as_array().unwrap().len(), 2);
    }

    #[test]
    fn arm_has_other_field_names() {
        let found = processors(ARM, |_| None);
        let expected = json!([{
            "cpu": 0, "vendorId": "ARM", "family": "7", "model": "0xd03", "stepping": 4, "physicalId": "",
            "coreId": "", "cores": 1, "modelName": "ARMv7 Processor rev 4 (v7l)", "mhz": 0.0,
            "cacheSize": 0, "flags": ["half", "thumb", "neon"], "microcode": "",
        }]);
        assert_eq!(found, expected);
        assert_eq!(processors("", |_| None), json!([]));
    }
}
