//! `.env`: variables in a file, for `Environ` in templates.
//!
//! A line is `NAME=value`, optionally after `export `. In single quotes every character is literal. In double quotes `\n`,
//! `\t`, `\r`, `\"`, `\\` and `\$` have their meaning of a shell. Without quotes the value ends at ` #`, and blanks around it
//! are not part of it. Nothing is expanded. A value in quotes may span several lines.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::diag::{Diagnostic, SourceLocation};
use crate::host::fs;

use crate::cli::error::{CliError, Exit};

/// The largest file, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// Reads the variables of the files that exist; those of later files win.
///
/// # Errors
/// When a file can't be read, or a line of it is not a variable.
pub(in crate::cli) fn read(files: &[PathBuf]) -> Result<BTreeMap<String, String>, CliError> {
    let mut found = BTreeMap::new();
    for file in files.iter().filter(|file| fs::is_file(file)) {
        let text = fs::read_named_text(file, MAX_FILE).map_err(|error| {
            CliError::from_error(Exit::Usage, &error).hint("variables are read from it; --no-read-env leaves it alone")
        })?;
        let variables = parse(&text, file).map_err(|wrong| CliError::new(Exit::Usage, *wrong))?;
        found.extend(variables);
    }
    Ok(found)
}

fn parse(text: &str, file: &Path) -> Result<Vec<(String, String)>, Box<Diagnostic>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut found = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
        let here = text.len() - rest.len();
        let wrong = |message: &str| Box::new(diagnostic(text, here, file, message));
        rest = after;
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export").filter(|rest| rest.starts_with([' ', '\t'])).unwrap_or(line).trim_start();
        let (name, value) = line.split_once('=').ok_or_else(|| wrong("a line is NAME=value, or a comment"))?;
        let (name, value) = (name.trim_end(), value.trim_start());
        if !is_name(name) {
            return Err(wrong("the name of a variable is letters, digits and underscores, and does not begin with a digit"));
        }
        let value = match value.chars().next() {
            Some(quote @ ('"' | '\'')) => {
                // From the quote on in the text itself: the value may go on in later lines.
                let at = text.get(here..).and_then(|text| text.find(quote)).map_or(here, |at| here + at + 1);
                let (value, end) =
                    quoted(text.get(at..).unwrap_or_default(), quote).ok_or_else(|| wrong("the quote is not closed"))?;
                let (tail, after) = text
                    .get(at + end..)
                    .unwrap_or_default()
                    .split_once('\n')
                    .unwrap_or((text.get(at + end..).unwrap_or_default(), ""));
                if !(tail.trim().is_empty() || tail.trim_start().starts_with('#')) {
                    return Err(wrong("after the closing quote the line must end"));
                }
                rest = after;
                value
            }
            _ => unquoted(value).to_owned(),
        };
        found.push((name.to_owned(), value));
    }
    Ok(found)
}

fn is_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && name.chars().all(inner) && !name.starts_with(|c: char| c.is_ascii_digit())
}

/// Returns a value without quotes, up to a comment.
fn unquoted(value: &str) -> &str {
    let comment = value.char_indices().zip(std::iter::once(' ').chain(value.chars()));
    let end = comment.filter(|((_, c), before)| *c == '#' && before.is_whitespace()).map(|((at, _), _)| at).next();
    value.get(..end.unwrap_or(value.len())).unwrap_or(value).trim_end()
}

/// Returns the text in quotes, and the offset after them.
fn quoted(text: &str, quote: char) -> Option<(String, usize)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            _ if character == quote => return Some((value, at + 1)),
            '\\' if quote == '"' => match characters.next()?.1 {
                'n' => value.push('\n'),
                't' => value.push('\t'),
                'r' => value.push('\r'),
                plain @ ('"' | '\\' | '$' | '`') => value.push(plain),
                '\n' => {}
                other => value.extend(['\\', other]),
            },
            _ => value.push(character),
        }
    }
    None
}

/// Creates a diagnostic without the text of the line, which may hold a secret.
fn diagnostic(text: &str, offset: usize, file: &Path, message: &str) -> Diagnostic {
    let line = 1 + text.get(..offset).unwrap_or_default().matches('\n').count();
    let place =
        SourceLocation { file: file.display().to_string(), line, column: 1, text: crate::model::secret::REDACTED.to_owned() };
    Diagnostic::new(message).at(Some(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_variables() {
        let text = "# top\nA=1\nexport B = two words  # comment\nC='single $x \\n' # c\nD=\"a \\\"b\\\" \\n\\$x \\d\"\n\nE=\nF=a#b\nG=\"two\nlines\"\nexported=x\r\nH=x=y\n  I=\"\"\nA=2";
        let found: BTreeMap<_, _> = parse(text, Path::new(".env")).unwrap().into_iter().collect();
        let expected = [
            ("A", "2"),
            ("B", "two words"),
            ("C", "single $x \\n"),
            ("D", "a \"b\" \n$x \\d"),
            ("E", ""),
            ("F", "a#b"),
            ("G", "two\nlines"),
            ("H", "x=y"),
            ("I", ""),
            ("exported", "x"),
        ];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    }

    #[test]
    fn what_is_no_variable_is_named_by_its_line() {
        for (text, line, message) in [
            ("A=1\nhunter2\n", 2, "NAME=value"),
            ("1A=hunter2", 1, "name of a variable"),
            ("A=1\n\nB=\"hunter2\n", 3, "not closed"),
            ("A='x' hunter2", 1, "the line must end"),
            ("=hunter2", 1, "name of a variable"),
        ] {
            let wrong = parse(text, Path::new("d/.env")).unwrap_err();
            assert!(wrong.message.contains(message), "{wrong}");
            assert_eq!(wrong.place.as_ref().unwrap().line, line);
            assert!(!wrong.to_string().contains("hunter2"), "{wrong}");
        }
    }
}
