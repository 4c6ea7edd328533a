//! Known violations of a rule of the code: one file per rule, which only shrinks.

use std::collections::BTreeMap;
use std::path::Path;

/// Compares violations with those of `tests/it/architecture/known/RULE.txt`: both lists must be equal.
///
/// `ENSIGN_BLESS=1` writes the file.
///
/// # Errors
/// The violations that are new, or those that are repaired.
pub fn compare(rule: &str, found: &BTreeMap<String, String>) -> Result<(), String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/architecture/known").join(rule).with_extension("txt");
    if std::env::var_os("ENSIGN_BLESS").is_some() {
        let text: String = found.keys().map(|entry| format!("{entry}\n")).collect();
        if text.is_empty() {
            let _none = std::fs::remove_file(&path);
        } else {
            std::fs::write(&path, text).unwrap();
        }
        return Ok(());
    }
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let known: Vec<&str> = text.lines().collect();
    let new: Vec<_> = found.iter().filter(|(entry, _)| !known.contains(&entry.as_str())).collect();
    let mended: Vec<_> = known.iter().filter(|entry| !found.contains_key(**entry)).collect();
    let text: String = new.iter().map(|(entry, detail)| format!("  {entry}: {detail}\n")).collect();
    if !new.is_empty() {
        return Err(format!("{rule}: {} new violations:\n{text}", new.len()));
    }
    if !mended.is_empty() {
        return Err(format!("{rule}: repaired; remove from {}: {mended:#?}", path.display()));
    }
    Ok(())
}
