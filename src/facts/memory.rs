//! Memory facts: `memory` with total, free and swap. In bytes, huge pages in pages.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::source::{FactError, percent, text, text_or_empty};
use crate::host::Host;

/// Names of the facts, and the kernel's names.
const FIELDS: &[(&str, &str)] = &[
    ("total", "MemTotal"),
    ("free", "MemFree"),
    ("active", "Active"),
    ("inactive", "Inactive"),
    ("buffers", "Buffers"),
    ("cached", "Cached"),
    ("writeBack", "Writeback"),
    ("dirty", "Dirty"),
    ("writeBackTmp", "WritebackTmp"),
    ("shared", "Shmem"),
    ("slab", "Slab"),
    ("sreclaimable", "SReclaimable"),
    ("sunreclaim", "SUnreclaim"),
    ("pageTables", "PageTables"),
    ("swapCached", "SwapCached"),
    ("commitLimit", "CommitLimit"),
    ("committedAS", "Committed_AS"),
    ("highTotal", "HighTotal"),
    ("highFree", "HighFree"),
    ("lowTotal", "LowTotal"),
    ("lowFree", "LowFree"),
    ("swapTotal", "SwapTotal"),
    ("swapFree", "SwapFree"),
    ("mapped", "Mapped"),
    ("vmallocTotal", "VmallocTotal"),
    ("vmallocUsed", "VmallocUsed"),
    ("vmallocChunk", "VmallocChunk"),
    ("hugePagesTotal", "HugePages_Total"),
    ("hugePagesFree", "HugePages_Free"),
    ("hugePagesRsvd", "HugePages_Rsvd"),
    ("hugePagesSurp", "HugePages_Surp"),
    ("hugePageSize", "Hugepagesize"),
    ("anonHugePages", "AnonHugePages"),
    // Names of other kernels.
    ("wired", ""),
    ("laundry", ""),
];

/// The kernel counts some events in pages of this size.
const PAGE: u64 = 4096;

/// Gathers memory facts.
pub(super) fn gather(_: &Host) -> Result<Value, FactError> {
    let (meminfo, vmstat) = (text("/proc/meminfo")?, text_or_empty("/proc/vmstat"));
    let (meminfo, vmstat) = (numbers(&meminfo), numbers(&vmstat));
    Ok(json!({
        "virtual": memory(&meminfo),
        "swap": {"info": swap(&meminfo, &vmstat), "devices": devices(&text_or_empty("/proc/swaps"))},
    }))
}

/// Parses `Name: 12 kB` and `name 12`, in bytes where the kernel has kB.
fn numbers(text: &str) -> HashMap<&str, u64> {
    let number = |line: &'_ str| -> Option<(usize, u64)> {
        let end = line.find([':', ' '])?;
        let mut words = line.get(end + 1..)?.split_whitespace();
        let value: u64 = words.next()?.parse().ok()?;
        Some((end, if words.next() == Some("kB") { value.saturating_mul(1024) } else { value }))
    };
    text.lines().filter_map(|line| number(line).and_then(|(end, value)| Some((line.get(..end)?, value)))).collect()
}

fn memory(meminfo: &HashMap<&str, u64>) -> Value {
    let get = |name: &str| meminfo.get(name).copied().unwrap_or(0);
    let mut facts: Map<_, _> = FIELDS.iter().map(|(name, kernel)| ((*name).to_owned(), get(kernel).into())).collect();
    let total = get("MemTotal");
    // Kernels before 3.14 do not report the available memory.
    let guess = get("MemFree") + get("Buffers") + get("Cached");
    let available = meminfo.get("MemAvailable").copied().unwrap_or(guess);
    let used = total.saturating_sub(available);
    facts.insert("available".to_owned(), available.into());
    facts.insert("used".to_owned(), used.into());
    facts.insert("usedPercent".to_owned(), percent(used, total).into());
    Value::Object(facts)
}

fn swap(meminfo: &HashMap<&str, u64>, vmstat: &HashMap<&str, u64>) -> Value {
    let (total, free) = (meminfo.get("SwapTotal").copied().unwrap_or(0), meminfo.get("SwapFree").copied().unwrap_or(0));
    let used = total.saturating_sub(free);
    let pages = |name: &str| vmstat.get(name).copied().unwrap_or(0).saturating_mul(PAGE);
    json!({
        "total": total, "used": used, "free": free, "usedPercent": percent(used, total),
        "sin": pages("pswpin"), "sout": pages("pswpout"), "pgIn": pages("pgpgin"), "pgOut": pages("pgpgout"),
        "pgFault": pages("pgfault"), "pgMajFault": pages("pgmajfault"),
    })
}

fn devices(swaps: &str) -> Vec<Value> {
    let device = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let &[name, _, size, used, ..] = fields.as_slice() else { return None };
        let (size, used) = (size.parse::<u64>().ok()?.saturating_mul(1024), used.parse::<u64>().ok()?.saturating_mul(1024));
        Some(json!({"name": name, "usedBytes": used, "freeBytes": size.saturating_sub(used)}))
    };
    swaps.lines().skip(1).filter_map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read() {
        let meminfo =
            numbers("MemTotal:    1000 kB\nMemFree: 100 kB\nMemAvailable: 750 kB\nHugePages_Total:  3\nSwapTotal: 10 kB\n");
        let found = memory(&meminfo);
        assert_eq!(found["total"], 1_024_000);
        assert_eq!(found["used"], 256_000);
        assert_eq!(found["usedPercent"], 25.0);
        assert_eq!(found["hugePagesTotal"], 3);
        assert_eq!(found["wired"], 0);
        let found = swap(&meminfo, &numbers("pswpin 2\n"));
        assert_eq!((&found["total"], &found["sin"]), (&json!(10240), &json!(8192)));
        let swaps = "Filename\tType\tSize\tUsed\tPriority\n/dev/vdb partition 100 40 -2\n";
        assert_eq!(devices(swaps), [json!({"name": "/dev/vdb", "usedBytes": 40960, "freeBytes": 61440})]);
    }
}
