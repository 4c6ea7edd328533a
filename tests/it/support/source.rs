//! The parsed source files of the crate, without their unit tests, for the tests of structure and language.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// One file of the crate.
pub struct Source {
    /// Path below `src/`.
    pub path: String,
    /// Module path below the crate: empty for `lib.rs` and `main.rs`.
    pub module: Vec<String>,
    /// Whole text.
    pub text: String,
    /// Tokens, without unit tests.
    pub tokens: TokenStream,
    /// Syntax tree, without unit tests.
    pub file: syn::File,
}

impl Source {
    /// Reads a text as the file at a path below `src/`.
    pub fn parse(path: &str, module: &[&str], text: &str) -> Self {
        Self::filtered(path, module.iter().copied().map(str::to_owned).collect(), text.to_owned(), without_tests)
    }

    fn filtered(path: &str, module: Vec<String>, text: String, filter: fn(TokenStream) -> TokenStream) -> Self {
        let tokens = filter(text.parse().unwrap_or_else(|error| panic!("{path}: {error}")));
        let file = syn::parse2(tokens.clone()).unwrap_or_else(|error| panic!("{path}: {error}"));
        Self { path: path.to_owned(), module, text, tokens, file }
    }

    /// Returns the text with blanks instead of comments and unit tests. Every character keeps its place.
    pub fn code(&self) -> String {
        let mut kept = self.text.bytes().map(|byte| if byte == b'\n' { byte } else { b' ' }).collect::<Vec<_>>();
        let mut keep = |span: proc_macro2::Span| {
            let range = span.byte_range();
            let token = &self.text[range.clone()];
            if !token.starts_with("//") && !token.starts_with("/*") {
                kept[range].copy_from_slice(token.as_bytes());
            }
        };
        each_token(&self.tokens, &mut |token| match token {
            TokenTree::Group(group) => [group.span_open(), group.span_close()].into_iter().for_each(&mut keep),
            other => keep(other.span()),
        });
        String::from_utf8(kept).unwrap()
    }
}

/// Calls `visit` for every token, a group before its content.
pub fn each_token(tokens: &TokenStream, visit: &mut impl FnMut(&TokenTree)) {
    for token in tokens.clone() {
        visit(&token);
        if let TokenTree::Group(group) = &token {
            each_token(&group.stream(), visit);
        }
    }
}

/// Returns `src/`.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Returns all files of the library and the program, without those that are only for unit tests.
pub fn sources() -> Vec<Source> {
    let mut found = load_all(without_tests);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Returns the paths of all files, including those of unit tests.
pub fn all_paths() -> BTreeSet<String> {
    load_all(|tokens| tokens).into_iter().map(|source| source.path).collect()
}

fn load_all(filter: fn(TokenStream) -> TokenStream) -> Vec<Source> {
    let mut found = Vec::new();
    for start in ["lib.rs", "main.rs"] {
        load(Path::new(start), Vec::new(), filter, &mut found);
    }
    found
}

fn load(path: &Path, module: Vec<String>, filter: fn(TokenStream) -> TokenStream, found: &mut Vec<Source>) {
    let text = std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let source = Source::filtered(path.to_str().unwrap(), module, text, filter);
    // The directory of the children: that of `mod.rs`, `lib.rs` and `main.rs`, else the one with the name of the file.
    let is_root = ["mod.rs", "lib.rs", "main.rs"].contains(&path.file_name().unwrap().to_str().unwrap());
    let directory = if is_root { path.parent().unwrap().to_owned() } else { path.with_extension("") };
    for name in declared(&source.file.items) {
        let child = [directory.join(format!("{name}.rs")), directory.join(&name).join("mod.rs")];
        let child = child.into_iter().find(|path| root().join(path).is_file()).unwrap_or_else(|| panic!("no file of {name}"));
        load(&child, [source.module.as_slice(), &[name]].concat(), filter, found);
    }
    found.push(source);
}

/// Returns the names of `mod name;`.
fn declared(items: &[syn::Item]) -> BTreeSet<String> {
    let modules = items.iter().filter_map(|item| match item {
        syn::Item::Mod(module) if module.content.is_none() && !module.attrs.iter().any(|attr| attr.path().is_ident("path")) => {
            Some(module.ident.to_string())
        }
        _ => None,
    });
    modules.collect()
}

/// Drops every item with `#[cfg(test)]`, with its other attributes.
fn without_tests(tokens: TokenStream) -> TokenStream {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let (mut kept, mut attributes, mut at) = (Vec::new(), None, 0);
    while let Some(token) = tokens.get(at) {
        match (token, tokens.get(at + 1)) {
            (TokenTree::Punct(hash), Some(TokenTree::Group(group))) if hash.as_char() == '#' && is_bracket(group) => {
                let start = *attributes.get_or_insert(kept.len());
                if is_for_tests(group) {
                    kept.truncate(start);
                    at = after_item(&tokens, at + 2);
                    attributes = None;
                    continue;
                }
                kept.extend([token.clone(), TokenTree::Group(group.clone())]);
                at += 2;
                continue;
            }
            (TokenTree::Group(group), _) => {
                let mut inner = Group::new(group.delimiter(), without_tests(group.stream()));
                inner.set_span(group.span());
                kept.push(inner.into());
            }
            _ => kept.push(token.clone()),
        }
        attributes = None;
        at += 1;
    }
    kept.into_iter().collect()
}

fn is_bracket(group: &Group) -> bool {
    group.delimiter() == Delimiter::Bracket
}

fn is_for_tests(attribute: &Group) -> bool {
    let text = attribute.stream().to_string().replace(' ', "");
    text == "cfg(test)" || text.starts_with("cfg(all(test,")
}

/// Returns the index of the first token after the item that begins here, before or after further attributes.
fn after_item(tokens: &[TokenTree], start: usize) -> usize {
    let keyword = tokens[start..].iter().find_map(|token| match token {
        TokenTree::Ident(word) if word != "pub" => Some(word.to_string()),
        _ => None,
    });
    let ends_with_brace = !["use", "const", "static", "type", "let"].contains(&keyword.unwrap_or_default().as_str());
    let ends = |token: &TokenTree| match token {
        TokenTree::Punct(punct) => punct.as_char() == ';',
        TokenTree::Group(group) => ends_with_brace && group.delimiter() == Delimiter::Brace,
        _ => false,
    };
    start + tokens[start..].iter().position(ends).unwrap_or_else(|| panic!("an item for tests has no end")) + 1
}
