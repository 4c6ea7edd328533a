//! The examples of the user pages do what the pages say. A comment before a fenced block names the action of the test:
//!
//! - `<!-- file NAME -->`: the test writes the block to a file;
//! - `<!-- apply NAME [ARGUMENTS] -->`: the same, then `ensign check` and `ensign apply --noop` must succeed;
//! - `<!-- run -->`: a shell runs the lines that begin with `$ `, and must print the lines below them.
//!
//! A line of `...` matches any lines. At the beginning or end of a line, `...` matches the rest of the line.

use std::path::Path;
use std::process::Command;

use crate::local::Desk;

struct Block {
    line: usize,
    verb: String,
    argument: String,
    text: String,
}

fn blocks(document: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut lines = document.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let Some(marker) = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")) else { continue };
        let (verb, argument) = marker.split_once(' ').unwrap_or((marker, ""));
        let fence = lines.next().unwrap().0;
        assert!(fence.starts_with("```"), "line {number}: a fenced block follows the comment");
        let text: String = lines.by_ref().take_while(|(line, _)| *line != "```").map(|(line, _)| format!("{line}\n")).collect();
        found.push(Block { line: number, verb: verb.to_owned(), argument: argument.to_owned(), text });
    }
    found
}

/// True when lines are as expected. `...` matches any lines.
fn lines_match(expected: &[&str], found: &[&str]) -> bool {
    match expected.split_first() {
        None => found.is_empty(),
        Some((&"...", rest)) => (0..=found.len()).any(|skip| lines_match(rest, &found[skip..])),
        Some((line, rest)) => {
            found.first().is_some_and(|found| line_matches(&words(line), &words(found))) && lines_match(rest, &found[1..])
        }
    }
}

/// True when a line is as expected, word by word.
fn line_matches(expected: &[&str], found: &[&str]) -> bool {
    match expected {
        ["...", rest @ ..] => found.ends_with(rest),
        [rest @ .., "..."] => found.starts_with(rest),
        _ => expected == found,
    }
}

/// Returns the words of a line. The widths of columns depend on the host.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn shell(desk: &Desk, line: &str) -> String {
    let binaries = Path::new(env!("CARGO_BIN_EXE_ensign")).parent().unwrap().display().to_string();
    let mut command = Command::new("/bin/sh");
    command.env_clear().env("PATH", format!("{binaries}:/usr/bin:/bin")).env("HOME", desk.path("home"));
    command.env("ENSIGN_HISTORY", desk.path("runs")).env("ENSIGN_RUNTIME", desk.path("commands"));
    command.current_dir(desk.path(".")).args(["-c", &format!("{{ {line}\n}} 2>&1")]);
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

fn run(desk: &Desk, block: &Block, page: &str) {
    for step in block.text.split("$ ").skip(1).map(|step| step.trim_end_matches('\n')) {
        let (line, expected) = step.split_once('\n').unwrap_or((step, ""));
        let printed = shell(desk, line);
        let (wanted, found): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), printed.lines().collect());
        assert!(lines_match(&wanted, &found), "{page}, the block at line {}: `{line}` printed\n{printed}", block.line);
    }
}

/// Copies the examples of external types, as a reader installs them.
fn install_types(desk: &Desk) {
    std::fs::create_dir(desk.path("types")).unwrap();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/examples/types/hosts_entry");
    std::fs::copy(example, desk.path("types/hosts_entry")).unwrap();
}

#[test]
fn examples_of_the_user_pages_work() {
    let mut count = 0;
    for page in [
        "data.md",
        "templates.md",
        "health.md",
        "policy.md",
        "watch.md",
        "sessions.md",
        "ordering.md",
        "reversal.md",
        "external-types.md",
    ] {
        let document = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(page)).unwrap();
        let desk = Desk::new();
        install_types(&desk);
        for block in blocks(&document) {
            count += 1;
            match block.verb.as_str() {
                "file" => std::fs::write(desk.path(&block.argument), &block.text).unwrap(),
                "apply" => {
                    let mut words = block.argument.split(' ');
                    let name = words.next().unwrap();
                    std::fs::write(desk.path(name), &block.text).unwrap();
                    let args: Vec<&str> = std::iter::once(name).chain(words).collect();
                    for command in [&["check"][..], &["apply", "--noop"]] {
                        desk.run(&[command, &args].concat()).ends(0);
                    }
                }
                "run" => run(&desk, &block, page),
                other => panic!("{page}, line {}: unknown action <!-- {other} -->", block.line),
            }
        }
    }
    assert!(count > 10, "only {count} examples were found");
}
