//! `cpu.info`: the processors, one entry for each the kernel runs on.

use serde_json::{Value, json};

use super::{FactError, text};
use crate::host::Host;

/// Gathers them.
pub(super) fn gather(_: &Host) -> Result<Value, FactError> {
    Ok(json!({"info": processors(&text("/proc/cpuinfo")?)}))
}

fn processors(cpuinfo: &str) -> Vec<Value> {
    let blocks = cpuinfo.split("\n\n").filter(|block| block.contains("processor"));
    blocks.filter_map(processor).collect()
}

fn processor(block: &str) -> Option<Value> {
    // The second names are those of other architectures.
    let field = |names: &[&str]| {
        let mut lines = block.lines().filter_map(|line| line.split_once(':'));
        let found = lines.find(|(name, _)| names.contains(&name.trim()));
        found.map(|(_, value)| value.trim()).unwrap_or_default()
    };
    let number = field(&["processor"]).parse::<u64>().ok()?;
    let cache = field(&["cache size"]).split(' ').next().unwrap_or_default();
    Some(json!({
        "cpu": number,
        "vendorId": field(&["vendor_id", "vendorId", "CPU implementer"]),
        "family": field(&["cpu family"]),
        "model": field(&["model", "CPU part"]),
        "stepping": field(&["stepping", "CPU revision"]).parse::<u64>().unwrap_or(0),
        "physicalId": field(&["physical id"]),
        "coreId": field(&["core id"]),
        "cores": 1,
        "modelName": field(&["model name", "Model"]),
        "mhz": field(&["cpu MHz"]).parse::<f64>().unwrap_or(0.0),
        "cacheSize": cache.parse::<u64>().unwrap_or(0),
        "flags": field(&["flags", "Features"]).split_whitespace().collect::<Vec<_>>(),
        "microcode": field(&["microcode"]),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_read() {
        let text = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 207\nmodel name\t: Xeon\nstepping\t: 2\n\
            cpu MHz\t\t: 2300.500\ncache size\t: 266240 KB\nflags\t\t: fpu vme\n\nprocessor\t: 1\n\nHardware\t: x\n";
        let found = processors(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0]["modelName"], "Xeon");
        assert_eq!(found[0]["model"], "207");
        assert_eq!(found[0]["mhz"], 2300.5);
        assert_eq!(found[0]["cacheSize"], 266_240);
        assert_eq!(found[0]["flags"], json!(["fpu", "vme"]));
        assert_eq!(found[1]["cpu"], 1);
    }
}
