//! The way back of a line that leaves its manifest.

use crate::resource::ResourceError;
use crate::resource::core::safe_replace;

use super::properties::{LineEnsure, Properties, expression};

/// Returns properties that bring back the line that a run replaces, or remove the line that a run adds.
///
/// None for a line that was there before. None for a line that a run removes: the place among the other lines is lost.
///
/// # Errors
/// When the run replaces several lines, or a line that is no text.
pub(super) fn restoring(p: &Properties, content: &[u8]) -> Result<Option<Properties>, ResourceError> {
    let refuse = |what: &str| Err(ResourceError::State(format!("{}: {what}", p.path().display())));
    if p.ensure == LineEnsure::Absent {
        return Ok(None);
    }
    let pattern = expression("match", &p.pattern).map_err(|invalid| ResourceError::State(invalid.message))?;
    let lines = content.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let is_replaced = |line: &&[u8]| match &pattern {
        Some(pattern) => pattern.is_match(line),
        None => *line == p.line.as_bytes(),
    };
    let mut replaced: Vec<&[u8]> = lines.filter(is_replaced).collect();
    replaced.dedup();
    let line = match replaced.as_slice() {
        [] => return Ok(removing(p)),
        [line] if *line == p.line.as_bytes() => return Ok(None),
        [line] => std::str::from_utf8(line).map(str::to_owned),
        _ => return refuse("several different lines are replaced, and only one is kept"),
    };
    let Ok(line) = line else { return refuse("the replaced line is not UTF-8 text") };
    // The expression must match the new line too.
    let pattern = format!("^(?:{}|{})$", regex::escape(&p.line), regex::escape(&line));
    Ok(Some(Properties { line, pattern, all: p.all, ..reversing(p, LineEnsure::Present) }))
}

/// Returns properties that remove the line of the manifest.
pub(super) fn removing(p: &Properties) -> Option<Properties> {
    (p.ensure == LineEnsure::Present).then(|| Properties { line: p.line.clone(), ..reversing(p, LineEnsure::Absent) })
}

/// Returns properties for the same file, without a line.
fn reversing(p: &Properties, ensure: LineEnsure) -> Properties {
    Properties {
        name: p.name.clone(),
        ensure,
        path: p.path.clone(),
        line: String::new(),
        pattern: String::new(),
        all: false,
        after: String::new(),
        before: String::new(),
        at: None,
        create: false,
        owner: String::new(),
        group: String::new(),
        mode: None,
        validate: p.validate.clone(),
        follow: p.follow,
        backup: String::new(),
        backup_keep: safe_replace::KEEP,
    }
}
