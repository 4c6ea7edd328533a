//! Violations of a rule for the sources.

use std::collections::BTreeMap;

/// Fails when a rule has violations. Each has its entry, and the detail.
///
/// # Errors
/// The violations, one a line.
pub fn none(rule: &str, found: &BTreeMap<String, String>) -> Result<(), String> {
    let text: String = found.iter().map(|(entry, detail)| format!("  {entry}: {detail}\n")).collect();
    if found.is_empty() { Ok(()) } else { Err(format!("{rule}: {} violations:\n{text}", found.len())) }
}
