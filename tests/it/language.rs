//! Holds doc comments and texts of the program to plain English.
//!
//! A doc comment begins with a noun phrase or a verb in the third person. A sentence of it has at most 20 words and names its
//! subject. Neither a doc comment nor a string literal has a word of [`BANNED`]. No function, type or module has a name of
//! [`BANNED_NAMES`].

use std::collections::BTreeMap;

use proc_macro2::{Group, TokenStream, TokenTree};
use syn::Lit;

use crate::support::source::{Source, each_token, sources};
use crate::support::violations;

/// Most words of a sentence in a doc comment.
const WORDS: usize = 20;

/// Words with which no doc comment begins.
const NO_BEGINNING: &[&str] = &[
    "also", "and", "as", "because", "but", "how", "if", "so", "then", "there", "when", "where", "whether", "which", "while",
    "why",
];

/// Words that are no subject: no sentence of a doc comment begins with them.
pub(crate) const NO_SUBJECT: &[&str] =
    &["else", "it", "nobody", "one", "such", "that", "they", "what", "whatever", "who", "whoever", "whom", "whose"];

/// Words that outside readers do not search for, and phrases that hide the subject; each with a plain way to write it.
const BANNED: &[(&str, &str)] = &[
    ("anybody", "any user, any process"),
    ("are said", "name who reports what"),
    ("are to be", "are, must be"),
    ("are told", "is reported to, gets"),
    ("be said", "name who reports what"),
    ("be told", "is reported to, gets"),
    ("by word of mouth", "by a plain message"),
    ("came right", "verified"),
    ("come right", "verify"),
    ("comes right", "verifies"),
    ("ever heard", "unknown"),
    ("everybody", "all users, every process"),
    ("foretell", "predict, prefetch"),
    ("foretells", "predicts, prefetches"),
    ("foretold", "predicted, prefetched"),
    ("freshen", "refresh"),
    ("freshens", "refreshes"),
    ("heard of", "known, received"),
    ("hearsay", "provisional, unverified"),
    ("in vain", "without success"),
    ("is said", "name who reports what"),
    ("is to be", "is, must be"),
    ("is told", "is reported to, gets"),
    ("leave alone", "leave unchanged"),
    ("leaves alone", "leaves unchanged"),
    ("left alone", "unchanged, ignored"),
    ("mend", "repair, fix"),
    ("mended", "repaired, fixed"),
    ("mends", "repairs, fixes"),
    ("newcomer", "unknown node"),
    ("newcomers", "unknown nodes"),
    ("nobody", "no user, no process, none"),
    ("notary", "receipt signer, node key"),
    ("nothing but", "only"),
    ("nothing else but", "only"),
    ("obey", "accept, execute"),
    ("obeyed", "accepted, executed"),
    ("obeys", "accepts, executes"),
    ("of late", "recently"),
    ("once more", "again"),
    ("owed", "pending"),
    ("roster", "node identities, known_nodes"),
    ("said so", "reported"),
    ("shall", "must, will"),
    ("somebody", "a user, another process"),
    ("stands", "is, is set, is active, is stored"),
    ("stranger", "unknown node"),
    ("strangers", "unknown nodes"),
    ("such a one", "name it"),
    ("takes its turn", "waits for the lock"),
    ("treat", "converge, handle"),
    ("treatment", "run of a resource"),
    ("treats", "converges, handles"),
    ("trouble", "alarm, error"),
    ("troubles", "alarms, errors"),
    ("twin", "duplicate node id"),
    ("twins", "duplicate node ids"),
    ("unheard", "unknown"),
    ("veil", "redact"),
    ("veiled", "redacted"),
    ("veils", "redacts"),
    ("vigil", "liveness monitor"),
    ("was said", "name who reports what"),
    ("was to be", "was, had to be"),
    ("was told", "got"),
    ("were to be", "were, had to be"),
    ("were told", "got"),
    ("what stands", "desired state, active assignment"),
    ("whoever", "the user that, the process that"),
];

/// Names without meaning for a reader who searches. They hold for functions, types and modules, in the form of a function's
/// name.
const BANNED_NAMES: &str = "alone around ask attention bare begun believe believed care conceal deeper done doubt doubtful fits foretell freshen \
    given hall hear heard hearsay held here hopeless how hushed judge kept kinder known laid lay learn look made meant meet \
    meets misshapen newcomer newcomers notary noted obey of one owed put reach roster said say saying seen settle share \
    shown some speaks spent stand standing stands stranger strangers suits surround surroundings talk tell there together \
    told treat treatment trouble turn twin unheard vault veil vigil wants went what whom whose why word wrong yes";

/// A text of a file, with the line on which it begins.
struct Text {
    line: usize,
    text: String,
}

/// The texts of one file.
#[derive(Default)]
struct Texts {
    docs: Vec<Text>,
    literals: Vec<Text>,
}

impl Texts {
    fn of(source: &Source) -> Self {
        let mut texts = Self::default();
        texts.read(&source.tokens);
        texts
    }

    fn read(&mut self, tokens: &TokenStream) {
        let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
        let mut last_line = None;
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) => {
                    let is_attribute =
                        at > 0 && matches!(&tokens[at - 1], TokenTree::Punct(punct) if "#!".contains(punct.as_char()));
                    match doc(group).filter(|_| is_attribute) {
                        Some(doc) => {
                            let line = doc.line;
                            match self.docs.last_mut() {
                                Some(block) if last_line.is_some_and(|last| last + 1 == line) => {
                                    block.text.push('\n');
                                    block.text.push_str(&doc.text);
                                }
                                _ => self.docs.push(doc),
                            }
                            last_line = Some(line);
                        }
                        None => self.read(&group.stream()),
                    }
                }
                TokenTree::Literal(literal) => {
                    if let Lit::Str(text) = Lit::new(literal.clone()) {
                        self.literals.push(Text { line: literal.span().start().line, text: text.value() });
                    }
                }
                _ => {}
            }
        }
    }
}

/// Returns the text of `[doc = "..."]`.
fn doc(group: &Group) -> Option<Text> {
    let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
    let [TokenTree::Ident(name), TokenTree::Punct(_), TokenTree::Literal(literal)] = tokens.as_slice() else { return None };
    let Lit::Str(text) = Lit::new(literal.clone()) else { return None };
    (name == "doc").then(|| Text { line: group.span().start().line, text: text.value() })
}

/// Returns the parts of a doc comment without code blocks: paragraphs, items of lists, cells of tables. Each has its line.
fn paragraphs(doc: &Text) -> Vec<Text> {
    let (mut found, mut is_code, mut is_open): (Vec<Text>, _, _) = (Vec::new(), false, false);
    for (number, line) in doc.text.lines().enumerate() {
        let text = line.trim();
        if text.starts_with("```") {
            is_code = !is_code;
        }
        if is_code || text.is_empty() || text.starts_with("```") || text.starts_with('#') {
            is_open = false;
            continue;
        }
        let line = doc.line + number;
        if text.starts_with('|') {
            found.extend(text.split('|').map(|cell| Text { line, text: cell.trim().to_owned() }));
            is_open = false;
            continue;
        }
        let item = text
            .strip_prefix("- ")
            .or_else(|| text.split_once(". ").filter(|(number, _)| number.parse::<u8>().is_ok()).map(|(_, rest)| rest));
        match (item, found.last_mut().filter(|_| is_open)) {
            (None, Some(paragraph)) => {
                paragraph.text.push(' ');
                paragraph.text.push_str(text);
            }
            _ => found.push(Text { line, text: item.unwrap_or(text).to_owned() }),
        }
        is_open = true;
    }
    found
}

/// Returns the sentences of a paragraph. Code between backticks is one word.
pub(crate) fn sentences(paragraph: &str) -> Vec<String> {
    let mut plain = String::new();
    for (number, part) in paragraph.split('`').enumerate() {
        plain.push_str(if number % 2 == 0 { part } else { "CODE" });
    }
    let mut found = vec![String::new()];
    for word in plain.split_whitespace() {
        let sentence = found.last_mut().unwrap();
        sentence.push_str(word);
        sentence.push(' ');
        let is_short = ["e.g.", "i.e.", "etc."].contains(&word);
        if word.trim_end_matches([')', '"', ']', '*']).ends_with(['.', '!', '?']) && !is_short {
            found.push(String::new());
        }
    }
    found.retain(|sentence| !sentence.is_empty());
    found
}

/// Returns the words of a text, in lower case, without punctuation at their ends.
pub(crate) fn words(text: &str) -> Vec<String> {
    let bare = |word: &str| word.trim_matches(|character: char| !character.is_alphanumeric()).to_lowercase();
    text.split_whitespace().map(bare).filter(|word| !word.is_empty()).collect()
}

pub(crate) fn banned(text: &str) -> impl Iterator<Item = String> {
    let text = format!(" {} ", words(text).join(" "));
    let found = BANNED.iter().filter(move |(phrase, _)| text.contains(&format!(" {phrase} ")));
    found.map(|(phrase, plain)| format!("\"{phrase}\": write {plain}"))
}

/// Returns the findings in a file: line and text.
fn findings(source: &Source) -> Vec<(usize, String)> {
    let (texts, mut found) = (Texts::of(source), Vec::new());
    for doc in &texts.docs {
        for (number, paragraph) in paragraphs(doc).into_iter().enumerate() {
            let line = paragraph.line;
            for (at, sentence) in sentences(&paragraph.text).iter().enumerate() {
                let words = words(sentence);
                let first = words.first().map_or("", String::as_str);
                if NO_SUBJECT.contains(&first) || (number == 0 && at == 0 && NO_BEGINNING.contains(&first)) {
                    found.push((line, format!("begins with \"{first}\": {}", sentence.trim())));
                }
                if words.len() > WORDS {
                    found.push((line, format!("{} words: {}", words.len(), sentence.trim())));
                }
            }
            found.extend(banned(&paragraph.text).map(|text| (line, text)));
        }
    }
    // A text of one word is data.
    for literal in texts.literals.iter().filter(|literal| literal.text.trim().contains(' ')) {
        found.extend(banned(&literal.text).map(|text| (literal.line, format!("{text}, in {:?}", literal.text))));
    }
    found.sort();
    found
}

/// Returns a name in the form of a function's name: `RunEnd` becomes `run_end`.
fn snake(name: &str) -> String {
    let mut found = String::new();
    for character in name.chars() {
        if character.is_uppercase() && !found.is_empty() {
            found.push('_');
        }
        found.extend(character.to_lowercase());
    }
    found
}

/// Returns the functions, types and modules of a file that have a name of [`BANNED_NAMES`]: each with its line.
fn banned_names(source: &Source) -> BTreeMap<String, usize> {
    let (mut tokens, mut found) = (Vec::new(), BTreeMap::new());
    each_token(&source.tokens, &mut |token| tokens.push(token.clone()));
    for pair in tokens.windows(2) {
        if let [TokenTree::Ident(keyword), TokenTree::Ident(name)] = pair
            && ["enum", "fn", "mod", "struct", "trait", "type"].iter().any(|known| keyword == known)
            && BANNED_NAMES.split_whitespace().any(|banned| banned == snake(&name.to_string()))
        {
            found.entry(format!("{} {keyword} {name}", source.path)).or_insert(name.span().start().line);
        }
    }
    found
}

#[test]
fn names_are_plain() {
    let found: BTreeMap<String, String> = sources()
        .iter()
        .flat_map(|source| {
            banned_names(source).into_iter().map(|(name, line)| (name, format!("line {line}"))).collect::<Vec<_>>()
        })
        .collect();
    if let Err(why) = violations::none("names", &found) {
        panic!("{why}");
    }
}

#[test]
fn docs_and_messages_are_plain() {
    let mut files = BTreeMap::new();
    for source in &sources() {
        for (line, text) in findings(source) {
            files.insert(format!("src/{}:{line}", source.path), text);
        }
    }
    if let Err(why) = violations::none("language", &files) {
        panic!("{why}");
    }
}

/// The lint finds its own examples.
#[test]
fn private_language_is_found() {
    let long = "word ".repeat(WORDS + 1);
    let text = format!(
        "/// What stands on\n/// it. Reads a file. It is\n/// left.\nfn f() {{ g(\"nobody is there\", r\"Whoever, else\", \"nobody\") }}\n/// Ok `it is to be` {long}.\n#[doc(hidden)]\nfn g() {{}}\n"
    );
    let found = findings(&Source::parse("a.rs", &["a"], &text));
    let found: Vec<String> = found.iter().map(|(line, text)| format!("{line} {}", text.split(':').next().unwrap())).collect();
    let expected = [
        "1 \"stands\"",
        "1 \"what stands\"",
        "1 begins with \"it\"",
        "1 begins with \"what\"",
        "4 \"nobody\"",
        "4 \"whoever\"",
        "5 \"is to be\"",
        "5 23 words",
    ];
    assert_eq!(found, expected);
    let found = banned_names(&Source::parse("a.rs", &["a"], "fn of() {}\nenum Told { Of }\nfn tell_all() {}"));
    assert_eq!(found, BTreeMap::from([("a.rs enum Told".to_owned(), 2), ("a.rs fn of".to_owned(), 1)]));
}
