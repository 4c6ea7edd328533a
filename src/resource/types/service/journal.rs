//! Journal lines of a failed unit, for its error.

use std::time::Duration;

use jiff::Timestamp;

use crate::host::{Host, ProcessCommand};

/// Maximum number of lines in an error, from the end.
const LINES: &str = "10";
/// Maximum length of a line, in characters.
const WIDTH: usize = 300;
/// Maximum duration of the journal query; an error without lines is better than none.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the last lines of a unit since then; empty without a journal.
pub(super) fn last_lines(unit: &str, since: Timestamp, host: &Host) -> Vec<String> {
    let journal = |words: &[String]| {
        let mut command = ProcessCommand::new("journalctl", words.iter().cloned());
        command.timeout = Some(PATIENCE);
        host.run(&command).ok().filter(|output| output.code == 0)
    };
    // The last lines of the unit may not be written yet.
    let _synced = journal(&["--sync".to_owned()]);
    let asked = journal(&[
        "--quiet".to_owned(),
        "--no-pager".to_owned(),
        "--output=cat".to_owned(),
        format!("--lines={LINES}"),
        format!("--since=@{}", since.as_second()),
        format!("--unit={unit}"),
    ]);
    let text = asked.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines().map(clean).filter(|line| !line.is_empty()) {
        // systemd logs an error in a file each time it reads the file.
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// Returns a line without terminal control characters.
fn clean(line: &str) -> String {
    let harmless: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    harmless.trim().chars().take(WIDTH).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_short_and_harmless() {
        assert_eq!(clean("  \u{1b}[31mred\tx \n"), "[31mred x");
        assert_eq!(clean(&"x".repeat(1000)).len(), WIDTH);
    }
}
