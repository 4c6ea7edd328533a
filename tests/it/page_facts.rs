//! The pages name what this tree has: its files, the metrics and alarms of the agent, the keys of its configuration.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::page_language::{pages, root};

/// Folders of this tree, at the beginning of the paths that pages name.
const FOLDERS: [&str; 5] = ["src/", "tests/", "docs/", "schemas/", "deploy/"];

/// Returns all Rust files below a folder of `src` as one text, without their test modules.
fn source(folder: &str) -> String {
    fn read(path: &Path, text: &mut String) {
        if path.is_dir() {
            std::fs::read_dir(path).unwrap().for_each(|entry| read(&entry.unwrap().path(), text));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(std::fs::read_to_string(path).unwrap().split("#[cfg(test)]").next().unwrap());
        }
    }
    let mut text = String::new();
    read(&root().join(folder), &mut text);
    text
}

/// A page below `docs/`.
fn page(path: &str) -> String {
    std::fs::read_to_string(root().join("docs").join(path)).unwrap()
}

/// Returns the code spans of a page outside of fenced blocks.
fn code_spans(page: &str) -> Vec<String> {
    let mut fenced = false;
    let lines = page.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    });
    lines.flat_map(|line| line.split('`').skip(1).step_by(2).map(str::to_owned)).collect()
}

/// Returns the texts in quotes that are names of metrics.
fn metrics_of(text: &str, quote: char) -> BTreeSet<String> {
    let is_name = |part: &&str| {
        part.starts_with("ensign_") && part.chars().all(|character| character.is_ascii_lowercase() || character == '_')
    };
    text.split(quote).filter(is_name).map(str::to_owned).collect()
}

#[test]
fn files_that_pages_name_exist() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for path in pages() {
        for span in code_spans(&std::fs::read_to_string(&path).unwrap()) {
            let is_path = FOLDERS.iter().any(|folder| span.starts_with(folder)) && !span.contains(['*', ' ', '<']);
            if is_path && !span.contains("NAME") {
                count += 1;
                if !root().join(&span).exists() {
                    wrong.push(format!("{}: {span}", path.strip_prefix(root()).unwrap().display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "pages name files that do not exist:\n{}", wrong.join("\n"));
    assert!(count > 100, "only {count} paths were found");
}

/// Checks the tables with the columns folder, content and files.
#[test]
fn tables_of_folders_name_their_files() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for row in page("architecture.md").lines().filter(|line| line.starts_with("| `src/")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        if cells.len() != 3 {
            continue;
        }
        let folder = root().join(&code_spans(cells[0])[0]);
        for file in code_spans(cells.last().unwrap()) {
            count += 1;
            wrong.extend((!folder.join(&file).exists()).then(|| folder.join(&file).display().to_string()));
        }
    }
    assert!(wrong.is_empty(), "docs/architecture.md names files that do not exist:\n{}", wrong.join("\n"));
    assert!(count > 50, "only {count} files were found");
}

#[test]
fn the_monitoring_page_names_every_metric() {
    let page = page("operations/monitoring.md");
    let spans: String = code_spans(&page).iter().map(|span| format!("`{span}`")).collect();
    let (named, made) = (metrics_of(&spans, '`'), metrics_of(&source("src/web"), '"'));
    assert!(made.len() > 20, "only {} metrics were found in the source", made.len());
    assert_eq!(named, made);
}

#[test]
fn the_monitoring_page_names_every_alarm() {
    let source = source("src/agent");
    let (_, body) = source.split_once("enum AlarmKind {").expect("the agent has an enum of its alarms");
    let variants = body.split_once('}').unwrap().0.lines().filter_map(|line| line.trim().strip_suffix(','));
    let snake = |variant: &str| {
        let mut name = String::new();
        for character in variant.chars() {
            if character.is_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.push(character.to_ascii_lowercase());
        }
        name
    };
    let made: BTreeSet<String> = variants.filter(|line| !line.starts_with("//")).map(snake).collect();
    let page = page("operations/monitoring.md");
    let table = page.split("## Alarms").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let named = rows.flat_map(|row| code_spans(row.split('|').nth(1).unwrap())).collect::<BTreeSet<String>>();
    assert_eq!(named, made);
}

#[test]
fn the_agent_page_names_every_key_of_the_configuration() {
    let example = std::fs::read_to_string(root().join("agent.toml.example")).unwrap();
    let mut made = BTreeSet::new();
    let mut section = None;
    for line in example.lines() {
        let line = line.trim_start_matches('#');
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = Some(());
            made.insert(name.split('.').next().unwrap().to_owned());
        } else if let (None, Some((key, _))) = (section, line.split_once(" = "))
            && key.chars().all(|character| character.is_ascii_lowercase() || character == '_')
        {
            made.insert(key.to_owned());
        }
    }
    let page = page("operations/agent.md");
    let table = page.split("## Change the configuration").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| change") || line.starts_with("| need"));
    let named: BTreeSet<String> =
        rows.flat_map(|row| code_spans(row.split(';').next().unwrap())).filter(|span| !span.contains(' ')).collect();
    assert!(made.len() > 15, "only {} keys were found: {made:?}", made.len());
    assert_eq!(named, made);
}

#[test]
fn code_spans_are_those_outside_of_blocks() {
    assert_eq!(code_spans("a `b` c `d e`\n```\n`f`\n```\n`g`"), ["b", "d e", "g"]);
    assert_eq!(metrics_of("x \"ensign_a\" \"ensign_b{c}\" \"d\"", '"'), BTreeSet::from(["ensign_a".to_owned()]));
    let none: Vec<PathBuf> = pages().into_iter().filter(|path| path.starts_with(root().join("docs/resources"))).collect();
    assert_eq!(none, [] as [PathBuf; 0]);
}
