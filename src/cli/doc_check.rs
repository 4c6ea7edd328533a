//! Checks that the commands in `docs/` and in the README exist, with their flags.

use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap::error::ErrorKind;

use super::Cli;
use crate::resource::core::text;

/// The placeholders of the pages, each with a value that could replace it.
const PLACEHOLDERS: &[(&str, &str)] = &[
    ("ID", "0198c1f2-7a3b-7c4d-8e5f-102030405060"),
    ("HEX", "00"),
    ("BYTES", "1"),
    ("TYPE", "file"),
    ("$(id -un):$(id -gn)", "root:root"),
    ("$PWD", "/"),
    ("[", ""),
    ("]", ""),
];

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |directory: &str| std::fs::read_dir(root.join(directory)).unwrap().map(|entry| entry.unwrap().path());
    let docs = read("docs").chain(read("docs/operations")).chain(read("docs/security"));
    docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")).chain([root.join("README.md")]).collect()
}

/// Returns the calls of the program in a shell line, without pipes and redirections.
fn commands_in(line: &str) -> Vec<Vec<String>> {
    let mut line = line.trim().trim_start_matches("$ ").split(" #").next().unwrap_or_default().to_owned();
    for (placeholder, value) in PLACEHOLDERS {
        // A placeholder that is a word replaces whole words only.
        let is_word = placeholder.chars().all(char::is_alphanumeric);
        let replaced = |word: &str| if word == *placeholder { (*value).to_owned() } else { word.to_owned() };
        line =
            if is_word { line.split(' ').map(replaced).collect::<Vec<_>>().join(" ") } else { line.replace(placeholder, value) };
    }
    let mut found = Vec::new();
    let mut call: Vec<String> = Vec::new();
    // An end beyond the last word closes the last call.
    for word in text::words(&line).unwrap_or_default().into_iter().chain(["|".to_owned()]) {
        let ends = ["|", "&&", "&", ";", ">", "2>"].contains(&word.as_str());
        let plain = word.trim_end_matches(';').to_owned();
        if !ends {
            call.push(plain.clone());
        }
        if ends || plain != word {
            found.push(std::mem::take(&mut call));
        }
    }
    found.retain(|call| call.first().is_some_and(|program| program.rsplit('/').next() == Some("ensign")));
    found
}

/// Returns the error of clap for a command. Shown help is no error.
fn usage_error(call: &[String]) -> Option<clap::Error> {
    let error = Cli::command().try_get_matches_from(call).err()?;
    (!matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)).then_some(error)
}

#[test]
fn the_commands_of_the_pages_are_there() {
    let mut count = 0;
    for page in pages() {
        let document = std::fs::read_to_string(&page).unwrap();
        let (mut fenced, mut lines) = (false, Vec::new());
        for line in document.lines() {
            if line.starts_with("```") {
                fenced = !fenced;
            } else if fenced {
                lines.push((line, true));
            } else {
                // Inline code may be only the beginning of a command.
                let code = line.split('`').skip(1).step_by(2);
                lines.extend(code.filter(|code| !code.contains("...")).map(|code| (code, false)));
            }
        }
        for (line, whole) in lines {
            for call in commands_in(line) {
                count += 1;
                let Some(error) = usage_error(&call) else { continue };
                let is_unknown = matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand);
                assert!(!whole && !is_unknown, "{}: `{line}`\n{error}", page.display());
            }
        }
    }
    assert!(count > 150, "only {count} commands were found");
}
