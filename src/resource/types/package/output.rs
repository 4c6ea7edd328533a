//! Output of a package manager for errors: the end of both streams, because maintainer scripts write to either.

use crate::host::Output;

/// Maximum number of lines of each stream in an error.
const LINES: usize = 12;

/// Maximum length of a line in an error, in characters.
const WIDTH: usize = 300;

/// The exit code and the end of both streams.
pub(super) fn describe(program: &str, output: &Output) -> String {
    let mut text = format!("{program} exited {}", output.code);
    for (name, stream) in [("stderr", &output.stderr), ("stdout", &output.stdout)] {
        let said = tail(&String::from_utf8_lossy(stream));
        if !said.is_empty() {
            text = format!("{text}\n{name}:\n{said}");
        }
    }
    text
}

fn tail(stream: &str) -> String {
    // A progress display overwrites its lines: only the last text counts.
    let lines = stream.lines().map(|line| line.trim_end().rsplit('\r').next().unwrap_or_default());
    let lines: Vec<&str> = lines.filter(|line| !line.trim().is_empty()).collect();
    let last = lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default();
    let shown = last.iter().map(|line| format!("  {}", without_credentials(&line.chars().take(WIDTH).collect::<String>())));
    shown.collect::<Vec<_>>().join("\n")
}

/// Removes the user and password of URLs from a line.
fn without_credentials(line: &str) -> String {
    let mut parts = line.split("://");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let authority = part.split(['/', ' ', '\'', '"']).next().unwrap_or_default();
        let shown = authority.rfind('@').map_or(part, |at| part.get(at + 1..).unwrap_or_default());
        text = format!("{text}://{shown}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_streams_are_heard_and_no_password() {
        let stdout: String = (0..40).map(|n| format!("line {n}\n")).collect();
        let stderr = b"\n10%\r20%\rE: https://user:hunter2@host/debian failed, see http://other/a@b\n".to_vec();
        let text = describe("apt-get", &Output { code: 100, stdout: stdout.into_bytes(), stderr });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..4],
            ["apt-get exited 100", "stderr:", "  E: https://host/debian failed, see http://other/a@b", "stdout:"]
        );
        assert_eq!((lines[4], lines[15], lines.len()), ("  line 28", "  line 39", 16));
        assert_eq!(describe("dnf", &Output { code: 1, ..Output::default() }), "dnf exited 1");
    }
}
