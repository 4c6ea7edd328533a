//! Commands on rendered files, by patterns of names.
//!
//! Commands run on a copy in a private directory, never in the target. Their result is compared and put in place like any
//! rendered file. Only files that differ from the target are processed.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::host::{Host, ProcessCommand, WriteSpec, fs};

use super::rendered::Content;
use crate::resource::core::text;
use crate::resource::{Invalid, ResourceError};

/// Maximum duration of a command.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Placeholder for the path of the file.
const PLACE: &str = "{}";
/// Maximum length of a failed command's output in its error, in characters from the end.
const TAIL: usize = 400;
/// The largest result of a command, in bytes.
const MAX_FILE: u64 = 64 << 20;

/// The property `post`.
type Posts = [BTreeMap<String, String>];

fn pairs(posts: &Posts) -> impl Iterator<Item = (&String, &String)> {
    posts.iter().flatten()
}

/// Checks that patterns and commands can be parsed.
pub(super) fn check(posts: &Posts) -> Result<(), Invalid> {
    for (pattern, line) in pairs(posts) {
        if pattern.is_empty() {
            return Err(Invalid::new("post", "post keys cannot be empty"));
        }
        if line.trim().is_empty() {
            return Err(Invalid::new("post", format!("post value for key \"{pattern}\" cannot be empty")));
        }
        if matches(pattern, "").is_none() {
            return Err(Invalid::new("post", format!("post key \"{pattern}\" is no pattern: a [ or \\ has no end")));
        }
        match text::words(line) {
            Ok(words) if words.is_empty() => {
                return Err(Invalid::new("post", format!("post value for key \"{pattern}\" cannot be empty")));
            }
            Ok(_) => {}
            Err(error) => return Err(Invalid::new("post", format!("invalid post command \"{line}\": {error}"))),
        }
    }
    Ok(())
}

/// Returns the commands for a file, in order.
fn commands<'a>(posts: &'a Posts, path: &'a str) -> impl Iterator<Item = &'a str> {
    let name = path.rsplit('/').next().unwrap_or(path);
    pairs(posts).filter(move |(pattern, _)| matches(pattern, name) == Some(true)).map(|(_, line)| line.as_str())
}

/// True when a file has commands.
pub(super) fn has_commands(posts: &Posts, path: &str) -> bool {
    commands(posts, path).next().is_some()
}

/// Runs the commands for a file on a copy, and returns the result.
pub(super) fn run(posts: &Posts, path: &str, content: &Content, host: &Host) -> Result<Content, ResourceError> {
    let state = |message: String| ResourceError::State(format!("failed to post process {path}: {message}"));
    let directory = fs::private_directory()?;
    let name = path.rsplit('/').next().unwrap_or(path);
    let copy = directory.path().join(name);
    fs::write_atomic(&copy, &mut content.bytes.as_slice(), WriteSpec { uid: None, gid: None, mode: content.mode })?;
    let shown = copy.display().to_string();
    for line in commands(posts, path) {
        let mut words = text::words(line).map_err(|error| state(error.to_string()))?.into_iter();
        let program = words.next().unwrap_or_default();
        let mut args: Vec<String> = words.collect();
        if args.iter().any(|arg| arg.contains(PLACE)) {
            args = args.into_iter().map(|arg| arg.replace(PLACE, &shown)).collect();
        } else {
            args.push(shown.clone());
        }
        let mut command = ProcessCommand::new(program, args);
        command.cwd = Some(directory.path().to_owned());
        command.timeout = Some(TIMEOUT);
        let output = host.run(&command).map_err(|error| state(crate::diag::error_chain(&error)))?;
        if output.code != 0 {
            let said = if output.stderr.is_empty() { output.stdout } else { output.stderr };
            let said = String::from_utf8_lossy(&said).trim().to_owned();
            let tail: String = said.chars().skip(said.chars().count().saturating_sub(TAIL)).collect();
            return Err(state(format!("\"{line}\" ended with exit code {}: {tail:?}", output.code)));
        }
    }
    let mode = fs::stat(&copy, false)?.map_or(content.mode, |look| look.mode & 0o777);
    let bytes = fs::read_regular(&copy, MAX_FILE).map_err(|error| state(crate::diag::error_chain(&error)))?;
    Ok(Content::from_bytes(bytes, mode))
}

/// Matches a name with a pattern of `*`, `?`, `[a-z]`, `[^a-z]` and `\` before a literal character. None for an invalid pattern.
/// The rules are those of Go's `filepath.Match`.
fn matches(pattern: &str, name: &str) -> Option<bool> {
    let parts = parts(pattern)?;
    let name: Vec<char> = name.chars().collect();
    // The positions in the name that the parts so far can reach.
    let mut reached = vec![false; name.len() + 1];
    *reached.first_mut()? = true;
    for part in &parts {
        let mut next = vec![false; name.len() + 1];
        let mut any = false;
        for (at, was) in reached.iter().copied().enumerate() {
            any |= was;
            if let PatternPart::Any = part {
                if let Some(place) = next.get_mut(at) {
                    *place = any;
                }
            } else if was
                && name.get(at).is_some_and(|c| part.matches_char(*c))
                && let Some(place) = next.get_mut(at + 1)
            {
                *place = true;
            }
        }
        reached = next;
    }
    reached.last().copied()
}

/// A part of a pattern.
enum PatternPart {
    /// `*`
    Any,
    /// `?`
    One,
    Is(char),
    /// Ranges of characters, and true for the complement.
    In(Vec<(char, char)>, bool),
}

impl PatternPart {
    fn matches_char(&self, c: char) -> bool {
        match self {
            Self::Any | Self::One => true,
            Self::Is(one) => *one == c,
            Self::In(ranges, not) => ranges.iter().any(|(from, to)| (*from..=*to).contains(&c)) != *not,
        }
    }
}

fn parts(pattern: &str) -> Option<Vec<PatternPart>> {
    let mut parts = Vec::new();
    let mut letters = pattern.chars().peekable();
    while let Some(c) = letters.next() {
        parts.push(match c {
            '*' => PatternPart::Any,
            '?' => PatternPart::One,
            '\\' => PatternPart::Is(letters.next()?),
            '[' => {
                let not = letters.next_if_eq(&'^').is_some();
                let mut ranges = Vec::new();
                loop {
                    let mut one = || match letters.next()? {
                        ']' | '-' => None,
                        '\\' => letters.next(),
                        c => Some(c),
                    };
                    let from = one()?;
                    let to = if letters.next_if_eq(&'-').is_some() {
                        match letters.next()? {
                            ']' | '-' => return None,
                            '\\' => letters.next()?,
                            c => c,
                        }
                    } else {
                        from
                    };
                    ranges.push((from, to));
                    if letters.next_if_eq(&']').is_some() {
                        break;
                    }
                }
                PatternPart::In(ranges, not)
            }
            c => PatternPart::Is(c),
        });
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_filepath_match() {
        for (pattern, name, expected) in [
            ("*.sh", "a.sh", Some(true)),
            ("*.sh", "a.sh.bak", Some(false)),
            ("*", "", Some(true)),
            ("a*b*c", "aXbYbZc", Some(true)),
            ("a?c", "abc", Some(true)),
            ("a?c", "ac", Some(false)),
            ("[a-c]x", "bx", Some(true)),
            ("[^a-c]x", "bx", Some(false)),
            ("[^a-c]x", "dx", Some(true)),
            ("[abz]", "z", Some(true)),
            ("\\*", "*", Some(true)),
            ("\\*", "a", Some(false)),
            ("[\\]]", "]", Some(true)),
            ("é?", "éü", Some(true)),
            ("[a", "a", None),
            ("[]a]", "]", None),
            ("[-]", "-", None),
            ("a\\", "a", None),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
