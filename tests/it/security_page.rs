//! Every statement of `docs/security.md`, and of the pages in `docs/security`, names the tests that prove it. A comment has the
//! names: `<!-- shown by: name, name -->`, at the end of a paragraph, list item or table row. A statement without a behaviour
//! has `<!-- advice -->` or `<!-- definition -->` instead.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const MARK: &str = "<!-- shown by: ";
/// Marks of statements that claim no behaviour.
const NO_CLAIM: [&str; 2] = ["<!-- advice -->", "<!-- definition -->"];
/// The first and last lines of the part that the resource types generate. Another test covers this part.
const GENERATED: [&str; 2] = ["<!-- effects: generated from the types -->", "<!-- end of effects -->"];

fn rust_files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The names of all tests of this package.
fn tests() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    rust_files(&root.join("src"), &mut files);
    rust_files(&root.join("tests/it"), &mut files);
    let mut names = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            let head = line.strip_prefix("async ").unwrap_or(line);
            match head.strip_prefix("fn ") {
                Some(rest) if is_test => {
                    names.insert(rest.split('(').next().unwrap().to_owned());
                    is_test = false;
                }
                Some(_) => is_test = false,
                None => is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test"),
            }
        }
    }
    names
}

/// The statements of a page: paragraphs, list items and table rows, each with the line that it begins at.
fn statements(page: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut open, mut in_block, mut generated) = (false, false, false);
    for (number, line) in (1..).zip(page.lines()) {
        let text = line.trim();
        if text.starts_with("```") {
            in_block = !in_block;
        }
        generated = match text {
            _ if text == GENERATED[0] => true,
            _ if text == GENERATED[1] => false,
            _ => generated,
        };
        let is_row = text.starts_with('|');
        let is_rule = is_row && text.chars().all(|character| "|-: ".contains(character));
        if is_rule && !in_block && !generated {
            // The row before was the head of a table, which is no statement.
            found.pop();
        }
        let is_nothing = text.is_empty() || text.starts_with('#') || text.starts_with("```") || GENERATED.contains(&text);
        if in_block || generated || is_nothing || is_rule {
            open = false;
        } else if open && !is_row && !text.starts_with("- ") {
            let last = found.last_mut().unwrap();
            last.1.push(' ');
            last.1.push_str(text);
        } else {
            found.push((number, text.to_owned()));
            open = true;
        }
    }
    found
}

#[test]
fn every_statement_of_the_security_pages_is_shown_by_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let below = std::fs::read_dir(root.join("docs/security")).unwrap().map(|entry| entry.unwrap().path());
    let known = tests();
    assert!(known.contains("every_statement_of_the_security_pages_is_shown_by_a_test"));
    let mut wrong = Vec::new();
    for path in below.chain([root.join("docs/security.md")]) {
        let page = std::fs::read_to_string(&path).unwrap();
        let path = path.strip_prefix(root).unwrap().display();
        for (line, statement) in statements(&page) {
            if NO_CLAIM.iter().any(|mark| statement.trim_end_matches([' ', '|']).ends_with(mark)) {
                continue;
            }
            let Some((_, named)) = statement.split_once(MARK) else {
                wrong.push(format!("{path}:{line}: no test is named: {statement}"));
                continue;
            };
            let named = named.split_once("-->").unwrap_or((named, "")).0;
            for name in named.split(',').map(str::trim).filter(|name| !known.contains(*name)) {
                wrong.push(format!("{path}:{line}: unknown test {name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn statements_are_paragraphs_items_and_rows() {
    let page = "# T\n\nOne\ntwo.\n\n- a\n  b\n- c\n\n| h |\n|---|\n| r |\n\n```\nx\n```\n\
                <!-- effects: generated from the types -->\n| y |\n|---|\n| z |\n<!-- end of effects -->\n";
    let found: Vec<String> = statements(page).into_iter().map(|(_, text)| text).collect();
    assert_eq!(found, ["One two.", "- a b", "- c", "| r |"]);
}
