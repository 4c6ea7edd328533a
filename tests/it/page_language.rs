//! The pages of `docs/` and the README are in plain English, and their links lead somewhere.
//!
//! - A sentence has at most 20 words. Fenced blocks, tables and the generated pages of `docs/resources` are left out.
//! - No page has a banned word of `language.rs`, also in tables. No sentence begins with a word that is no subject.
//! - A link to a file of this project names a file that exists, and a heading that exists in it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::language::{NO_SUBJECT, banned, sentences, words};

/// The most words of a sentence. A code span counts as one word.
const MAX_WORDS: usize = 20;

/// The promise of the project, which the README and the security model quote: the only exception.
const PROMISE: &str = "obeys a signature, not a broker";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Prose,
    Cell,
    Heading,
}

#[derive(Debug, PartialEq, Eq)]
struct Block {
    line: usize,
    kind: Kind,
    text: String,
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns all pages that people write: `docs/` without `docs/resources`, and the README.
pub(crate) fn pages() -> Vec<PathBuf> {
    fn below(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("docs/resources") {
                below(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    let mut found = vec![root().join("README.md")];
    below(&root().join("docs"), &mut found);
    found.sort();
    found
}

/// True for the first line of a list item, with a dash or a number.
fn is_item(line: &str) -> bool {
    let digits = line.trim_start_matches(|character: char| character.is_ascii_digit());
    line.starts_with("- ") || line.starts_with("* ") || (digits.len() < line.len() && digits.starts_with(". "))
}

/// Returns the paragraphs, items, table cells and headings of a page, without fenced blocks and comments.
fn blocks(page: &str) -> Vec<Block> {
    let (mut found, mut open, mut fenced, mut comment): (Vec<Block>, bool, bool, bool) = (Vec::new(), false, false, false);
    for (number, raw) in (1..).zip(page.lines()) {
        if raw.trim_start().starts_with("```") {
            (fenced, open) = (!fenced, false);
            continue;
        }
        if fenced {
            continue;
        }
        let (text, still_open) = without_comments(raw, comment);
        comment = still_open;
        let line = text.trim();
        let mut push = |kind, text: &str| found.push(Block { line: number, kind, text: text.to_owned() });
        if line.is_empty() {
            open = open && !raw.trim().is_empty();
        } else if line.starts_with('|') {
            line.replace("\\|", "/").trim_matches('|').split('|').for_each(|cell| push(Kind::Cell, cell.trim()));
            open = false;
        } else if line.starts_with('#') {
            push(Kind::Heading, line.trim_start_matches('#').trim());
            open = false;
        } else if open && !is_item(line) {
            let last = found.last_mut().unwrap();
            last.text.push(' ');
            last.text.push_str(line);
        } else {
            let text = line.trim_start_matches(|character: char| character.is_ascii_digit() || "-*. ".contains(character));
            push(Kind::Prose, if is_item(line) { text } else { line });
            open = true;
        }
    }
    found
}

/// Returns a line without its comments, and true when a comment continues in the next line.
fn without_comments(line: &str, mut inside: bool) -> (String, bool) {
    let (mut kept, mut rest) = (String::new(), line);
    loop {
        let mark = if inside { "-->" } else { "<!--" };
        let Some((before, after)) = rest.split_once(mark) else {
            kept.push_str(if inside { "" } else { rest });
            return (kept, inside);
        };
        kept.push_str(if inside { "" } else { before });
        (inside, rest) = (!inside, after);
    }
}

/// Splits at code spans. Returns the text of each part, and true for code.
fn spans(text: &str) -> impl Iterator<Item = (&str, bool)> {
    text.split('`').enumerate().map(|(index, part)| (part, index % 2 == 1))
}

/// Returns the text of a reader: a word for each code span, and links without their addresses.
fn readable(text: &str) -> String {
    let mut plain: String = spans(text).map(|(part, is_code)| if is_code { "code" } else { part }).collect();
    while let Some(start) = plain.find("](") {
        let end = plain[start..].find(')').map_or(plain.len(), |end| start + end + 1);
        plain.replace_range(start..end, "");
    }
    plain.replace(['[', ']'], "").replace("**", "")
}

/// Returns the faults of a sentence of this kind of block.
fn faults(kind: Kind, sentence: &str) -> Vec<String> {
    let words = words(sentence);
    let mut found = Vec::new();
    if kind == Kind::Prose && words.len() > MAX_WORDS {
        found.push(format!("{} words", words.len()));
    }
    // "One" is a number here: a page has no other use of it at the beginning of a sentence.
    let first = words.first().map_or("", String::as_str);
    if kind == Kind::Prose && first != "one" && NO_SUBJECT.contains(&first) {
        found.push(format!("begins with \"{first}\""));
    }
    found.extend(banned(&sentence.replace(PROMISE, "")));
    found
}

#[test]
fn sentences_of_the_pages_are_short_and_plain() {
    let mut wrong = Vec::new();
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        let name = page.strip_prefix(root()).unwrap().display().to_string();
        for block in blocks(&text) {
            for sentence in sentences(&readable(&block.text)) {
                for fault in faults(block.kind, &sentence) {
                    wrong.push(format!("{name}:{}: {fault}: {sentence}", block.line));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} sentences:\n{}", wrong.len(), wrong.join("\n"));
}

/// Returns the anchor of a heading, in the form of the usual viewers of Markdown.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase().replace('`', "");
    kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns the addresses of links in a text, without those in code spans.
fn links(text: &str) -> Vec<String> {
    let prose: String = spans(text).map(|(part, is_code)| if is_code { "code" } else { part }).collect();
    prose.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect()
}

#[test]
fn links_of_the_pages_lead_to_pages_and_headings() {
    let headings = |path: &Path| -> BTreeSet<String> {
        let text = std::fs::read_to_string(path).unwrap();
        blocks(&text).iter().filter(|block| block.kind == Kind::Heading).map(|block| anchor(&block.text)).collect()
    };
    let (mut wrong, mut count) = (Vec::new(), 0);
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for block in blocks(&text) {
            for link in links(&block.text).into_iter().filter(|link| !link.contains("://")) {
                count += 1;
                let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
                let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
                if !target.exists() || (!heading.is_empty() && !headings(&target).contains(heading)) {
                    wrong.push(format!("{}:{}: {link}", page.strip_prefix(root()).unwrap().display(), block.line));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
    assert!(count > 60, "only {count} links were found");
}

#[test]
fn each_decision_has_context_decision_and_consequence() {
    let mut count = 0;
    for page in pages().into_iter().filter(|page| page.parent().unwrap().ends_with("docs/design/decisions")) {
        let text = std::fs::read_to_string(&page).unwrap();
        for entry in text.split("\n### ").skip(1) {
            count += 1;
            let title = entry.lines().next().unwrap();
            let body = entry.split("\n## ").next().unwrap();
            let parts = ["\n**Context.** ", "\n**Decision.** ", "\n**Consequence.** "].map(|part| body.find(part));
            assert!(parts.is_sorted() && parts[0].is_some(), "{}: {title}: {parts:?}", page.display());
            let sentences = sentences(&readable(body)).len();
            // The three markers are counted as sentences.
            assert!(sentences <= 13, "{}: {title}: {sentences} sentences", page.display());
        }
    }
    assert!(count > 100, "only {count} decisions were found");
}

#[test]
fn a_page_is_read_as_paragraphs_items_cells_and_headings() {
    let page =
        "# A `b`\n\nOne\ntwo. <!-- shown by: x,\ny --> Three.\n\n- a\n  b\n1. c\n\n| h |\n|---|\n| `x` r |\n\n```\nz\n```\n";
    let found: Vec<(Kind, String)> = blocks(page).into_iter().map(|block| (block.kind, block.text)).collect();
    let wanted = [
        (Kind::Heading, "A `b`"),
        (Kind::Prose, "One two. Three."),
        (Kind::Prose, "a b"),
        (Kind::Prose, "c"),
        (Kind::Cell, "h"),
        (Kind::Cell, "---"),
        (Kind::Cell, "`x` r"),
    ];
    assert_eq!(found, wanted.map(|(kind, text)| (kind, text.to_owned())));
}

#[test]
fn faults_of_a_sentence_are_found() {
    let faults = |kind, text: &str| -> Vec<String> {
        faults(kind, text).iter().map(|fault| fault.split(':').next().unwrap().to_owned()).collect()
    };
    assert_eq!(readable("See [the `x` page](a.md#b) **now**."), "See the code page now.");
    assert_eq!(faults(Kind::Prose, &"word ".repeat(21)), ["21 words"]);
    assert_eq!(faults(Kind::Cell, &"word ".repeat(21)), [""; 0]);
    assert_eq!(faults(Kind::Cell, "The clock shall be right, and nobody waits."), ["\"nobody\"", "\"shall\""]);
    assert_eq!(faults(Kind::Prose, "What runs goes on."), ["begins with \"what\""]);
    assert_eq!(faults(Kind::Cell, "What runs"), [""; 0]);
    assert_eq!(faults(Kind::Prose, "One node obeys a signature, not a broker."), [""; 0]);
    assert_eq!(anchor("What `halt` does, and when"), "what-halt-does-and-when");
    assert_eq!(links("[a](b.md) and `[x](y)` and [c](https://d)"), ["b.md", "https://d"]);
}
