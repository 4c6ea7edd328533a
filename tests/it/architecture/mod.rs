//! Holds the code to the layers of `src/lib.rs`, to the owners of what only some files may use, and to its shape: no circle
//! between files, one style of modules, every file part of the crate.

mod resource_types;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proc_macro2::{Delimiter, TokenTree};

use crate::support::paths::{Crate, Edge};
use crate::support::source::{self, Source, each_token, sources};
use crate::support::violations;

/// Module and layer. Within a layer modules do not import each other, except those of L0.
const LAYERS: &[(&str, u8)] = &[
    ("model", 0),
    ("diag", 0),
    ("host", 1),
    ("wire", 1),
    ("template", 1),
    ("yaml", 1),
    ("config", 1),
    ("http", 1),
    ("unpack", 1),
    ("trust", 2),
    ("facts", 2),
    ("data", 2),
    ("goss", 2),
    ("resource", 2),
    ("manifest", 2),
    ("store", 2),
    ("transport", 2),
    ("watch", 2),
    ("engine", 3),
    ("registry", 3),
    ("agent", 4),
    ("fleet", 4),
    ("web", 4),
    ("cli", 5),
];

/// Text that only some files may hold, and the paths below `src/` of those files.
const OWNERS: &[(&str, &[&str])] = &[
    ("async_nats", &["transport/nats.rs", "transport/nats/"]),
    ("nkeys::", &["transport/nkey.rs", "trust/keys/key.rs", "fleet/account/"]),
    ("ed25519_dalek", &["trust/"]),
    ("serde_yaml", &["yaml/"]),
    ("saphyr", &["yaml/"]),
    ("reqwest", &["http/"]),
    ("std::fs", &["host/", "store/"]),
    ("unix::fs", &["host/", "store/"]),
    ("tokio::fs", &["host/", "store/"]),
    ("std::process::Command", &["host/", "store/"]),
    ("nix::", &["host/", "store/"]),
    ("zbus", &["host/systemd.rs", "host/unit_events.rs"]),
    ("println!", &["cli/ui/"]),
    ("eprintln!", &["cli/ui/"]),
    ("print!", &["cli/ui/"]),
    ("eprint!", &["cli/ui/"]),
    ("dbg!", &[]),
    ("io::stdout", &["cli/ui/"]),
    ("io::stderr", &["cli/ui/", "cli/agent/log.rs"]),
    ("error.print", &["cli/ui/"]),
    ("of_format", &["cli/ui/text.rs"]),
    ("set_hook", &["cli/mod.rs"]),
    ("/dev/tty", &["host/terminal.rs", "host/confine/"]),
    ("std::env", &["cli/", "main.rs", "host/command.rs", "host/checkpoint.rs"]),
    ("Timestamp::now", &["host/", "template/expr/functions/time.rs"]),
    ("SystemTime", &["host/"]),
];

/// Methods of `Path` that query the file system.
const FILE_SYSTEM_METHODS: &[&str] = &[
    "canonicalize",
    "exists",
    "is_dir",
    "is_file",
    "is_symlink",
    "metadata",
    "read_dir",
    "read_link",
    "symlink_metadata",
    "try_exists",
];

/// Methods of the same names that query no file system: file, method, and the type whose method it is.
const OTHER_METHODS: &[(&str, &str)] = &[
    ("resource/types/archive/extract.rs metadata", "an open file"),
    ("resource/types/symlink.rs read_link", "a place of `host`"),
    ("template/text/lookup.rs exists", "a value of gjson"),
    ("unpack/tar.rs is_dir", "the kind of an entry"),
    ("unpack/tar.rs is_file", "the kind of an entry"),
    ("unpack/zip.rs is_dir", "an entry"),
];

/// Names that every module of a kind defines for itself, with the kind.
const NAMES_OF_A_KIND: &[(&str, &str)] = &[("Properties", "a resource type"), ("Handle", "a task of the agent")];

fn layer(module: &str) -> Option<u8> {
    LAYERS.iter().find(|(name, _)| *name == module).map(|(_, layer)| *layer)
}

/// All rules about the text of the sources, which are parsed once. Every rule that is broken is reported.
#[test]
fn the_sources_keep_the_rules() {
    let sources = sources();
    let paths = Crate::new(&sources);
    let rules = [layers(&paths), owners(&sources, &paths), file_system(&sources), circles(&paths.edges()), type_names(&sources)];
    let broken: Vec<String> = rules.into_iter().filter_map(Result::err).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// A module imports only modules of lower layers.
fn layers(paths: &Crate) -> Result<(), String> {
    let mut wrong = BTreeSet::new();
    for (file, path) in paths.absolute() {
        let module = file.split(['/', '.']).next().unwrap();
        let Some(own) = layer(module) else {
            assert!(["lib", "main"].contains(&module), "{file}: the module is in no layer");
            continue;
        };
        let Some(other) = path.first() else { continue };
        match layer(other) {
            Some(theirs) if other == module || theirs < own || (own == 0 && theirs == 0) => {}
            Some(theirs) => _ = wrong.insert(format!("{file} (L{own}) imports {other} (L{theirs})")),
            None => _ = wrong.insert(format!("{file} imports crate::{other}, which is in no layer")),
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.into_iter().collect::<Vec<_>>().join("\n")) }
}

/// True when the text holds `what`, and not only as the end of a longer name.
fn names(text: &str, what: &str) -> bool {
    text.match_indices(what).any(|(at, _)| !text[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_'))
}

/// A name with an owner occurs only in the files of its owner.
fn owners(sources: &[Source], paths: &Crate) -> Result<(), String> {
    let (mut found, imports) = (BTreeMap::new(), paths.imports());
    for source in sources {
        let imports = imports.iter().filter(|(file, _)| *file == source.path).map(|(_, path)| path.join("::") + "::");
        let code = source.code() + &imports.collect::<Vec<_>>().join("\n");
        for (what, owners) in OWNERS {
            if names(&code, what) && !owners.iter().any(|owner| source.path.starts_with(owner)) {
                found.insert(format!("{} {what}", source.path), format!("belongs to {}", owners.join(", ")));
            }
        }
    }
    violations::none("owners", &found)
}

/// Returns the methods of [`FILE_SYSTEM_METHODS`] that are called without arguments, or named with their type.
///
/// A `?` after a truth value means that the method belongs to a type of `host`, not to `Path`.
fn file_system_methods(source: &Source) -> BTreeSet<&'static str> {
    let mut tokens = Vec::new();
    each_token(&source.tokens, &mut |token| tokens.push(token.clone()));
    let is = |token: Option<&TokenTree>, text: &str| {
        token.is_some_and(|token| !matches!(token, TokenTree::Group(_)) && token.to_string() == text)
    };
    let mut found = BTreeSet::new();
    for (at, token) in tokens.iter().enumerate().skip(3) {
        let Some(method) = FILE_SYSTEM_METHODS.iter().find(|method| is(Some(token), method)) else { continue };
        let is_call = is(tokens.get(at - 1), ".")
            && matches!(tokens.get(at + 1), Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis && group.stream().is_empty());
        let is_truth = !["canonicalize", "metadata", "read_dir", "read_link", "symlink_metadata", "try_exists"].contains(method);
        let is_of_host = is_truth && is(tokens.get(at + 2), "?");
        let is_named = is(tokens.get(at - 1), ":") && ["Path", "PathBuf"].iter().any(|name| is(tokens.get(at - 3), name));
        if (is_call && !is_of_host) || is_named {
            found.insert(*method);
        }
    }
    found
}

/// Only `host` and `store` ask the file system.
fn file_system(sources: &[Source]) -> Result<(), String> {
    let mut found = BTreeMap::new();
    for source in sources.iter().filter(|source| !["host/", "store/"].iter().any(|owner| source.path.starts_with(owner))) {
        for method in file_system_methods(source) {
            found.insert(format!("{} {method}", source.path), "belongs to host/ and store/".to_owned());
        }
    }
    for (entry, of) in OTHER_METHODS {
        assert!(found.remove(*entry).is_some(), "remove from OTHER_METHODS: {entry} ({of})");
    }
    violations::none("file_system", &found)
}

/// Finds the strongly connected components of more than one file.
fn components(edges: &BTreeSet<Edge>) -> Vec<BTreeSet<&str>> {
    let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    edges.iter().for_each(|edge| _ = uses.entry(&edge.from).or_default().insert(&edge.to));
    let reached = |start: &'_ str| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![start.to_owned()]);
        while let Some(file) = next.pop() {
            for other in uses.get(file.as_str()).into_iter().flatten() {
                if seen.insert(*other) {
                    next.push((*other).to_owned());
                }
            }
        }
        seen
    };
    let all: BTreeMap<&str, BTreeSet<&str>> = uses.keys().map(|file| (*file, reached(file))).collect();
    let mut found: Vec<BTreeSet<&str>> = Vec::new();
    for (file, reached) in &all {
        if reached.contains(file) && !found.iter().any(|circle| circle.contains(file)) {
            let back = |other: &&str| all.get(other).is_some_and(|theirs| theirs.contains(file));
            found.push(reached.iter().copied().filter(back).collect());
        }
    }
    found
}

/// A file uses no file that uses it, directly or by way of others.
///
/// A use is any path, in code, macros and attributes, that leads to an item defined in the other file. Re-exports are followed
/// to the definition. `mod child;` and `pub use child::Item` in a parent are no uses. A call of a method is none either: the
/// code that makes the value names its type. So a parent either declares and re-exports its children, or uses them. In the
/// second case the children do not use the parent's definitions. The shared part then goes to a file of its own.
/// `ENSIGN_CIRCLES=1` prints every use within the circles.
fn circles(edges: &BTreeSet<Edge>) -> Result<(), String> {
    let mut found = BTreeMap::new();
    for (number, circle) in components(edges).iter().enumerate() {
        let within = |edge: &&Edge| circle.contains(edge.from.as_str()) && circle.contains(edge.to.as_str());
        if std::env::var_os("ENSIGN_CIRCLES").is_some() {
            println!("circle {number}: {} files", circle.len());
            edges.iter().filter(within).for_each(|edge| println!("  {} uses {} of {}", edge.from, edge.name, edge.to));
        }
        for file in circle {
            let uses: Vec<_> = edges.iter().filter(within).filter(|edge| edge.from == *file).collect();
            let shown: Vec<_> = uses.iter().take(3).map(|edge| format!("{} of {}", edge.name, edge.to)).collect();
            let more = if uses.len() > 3 { ", ..." } else { "" };
            found.insert((*file).to_owned(), format!("circle {number}: uses {}{more}", shown.join(", ")));
        }
    }
    violations::none("circles", &found)
}

/// A name of a type means one thing in the crate. No two structs, enums, unions, traits or aliases share a name. Exceptions:
/// types that are private to their files, and [`NAMES_OF_A_KIND`].
fn type_names(sources: &[Source]) -> Result<(), String> {
    let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources {
        for (name, is_private) in types(&source.file.items) {
            if !is_private {
                places.entry(name).or_default().insert(source.path.clone());
            }
        }
    }
    let is_of_a_kind = |name: &str| NAMES_OF_A_KIND.iter().any(|(known, _)| *known == name);
    let several = places.into_iter().filter(|(name, files)| files.len() > 1 && !is_of_a_kind(name));
    let found = several.map(|(name, files)| (name, files.into_iter().collect::<Vec<_>>().join(", "))).collect();
    violations::none("type_names", &found)
}

/// Returns the names of the types. True for a type that is private to its module.
fn types(items: &[syn::Item]) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    for item in items {
        let (name, visibility) = match item {
            syn::Item::Enum(item) => (&item.ident, &item.vis),
            syn::Item::Struct(item) => (&item.ident, &item.vis),
            syn::Item::Trait(item) => (&item.ident, &item.vis),
            syn::Item::Type(item) => (&item.ident, &item.vis),
            syn::Item::Union(item) => (&item.ident, &item.vis),
            syn::Item::Mod(inner) => {
                found.extend(inner.content.iter().flat_map(|(_, items)| types(items)));
                continue;
            }
            _ => continue,
        };
        found.push((name.to_string(), matches!(visibility, syn::Visibility::Inherited)));
    }
    found
}

/// The rules find violations in code after unit tests, within macros and through re-exports.
#[test]
fn violations_are_found() {
    let text = "//! std::fs\n/// Doc.\n#[cfg(test)]\nmod tests { use std::process::Command; }\nfn f(p: &Path) { let s = \"é\"; p.exists(); std::fs::read(p) }\n";
    let source = Source::parse("agent/a.rs", &["agent", "a"], text);
    let code = source.code();
    assert!(names(&code, "std::fs") && !names(&code, "Command") && !code.contains("Doc") && code.len() == text.len(), "{code}");
    assert_eq!(file_system_methods(&source), BTreeSet::from(["exists"]));
    let files = [
        Source::parse("lib.rs", &[], "mod a;"),
        Source::parse("a/mod.rs", &["a"], "mod b; mod c; mod d; pub use c::C; struct Shared;"),
        Source::parse("a/b.rs", &["a", "b"], "fn f() { assert!(super::C::is()); }"),
        Source::parse("a/c.rs", &["a", "c"], "use super::d; pub struct C(d::D, super::Shared);"),
        Source::parse("a/d.rs", &["a", "d"], "#[serde(with = \"crate::a::b::f\")] pub struct D;"),
    ];
    assert_eq!(components(&Crate::new(&files).edges()), [BTreeSet::from(["a/b.rs", "a/c.rs", "a/d.rs"])]);
}

/// A module with children is `foo/mod.rs`, one without is `foo.rs`; neither `foo.rs` beside `foo/` nor a lone `foo/mod.rs`.
#[test]
fn one_style_of_modules() {
    let mut found = BTreeMap::new();
    let mut directories = vec![source::root()];
    while let Some(directory) = directories.pop() {
        let name = directory.strip_prefix(source::root()).unwrap().display().to_string();
        let inside: Vec<_> = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        if directory.with_extension("rs").is_file() {
            found.insert(format!("{name}.rs"), format!("becomes {name}/mod.rs"));
        } else if inside.len() == 1 {
            found.insert(format!("{name}/mod.rs"), format!("becomes {name}.rs"));
        }
        directories.extend(inside.into_iter().filter(|path| path.is_dir()));
    }
    if let Err(why) = violations::none("module_style", &found) {
        panic!("{why}");
    }
}

#[test]
fn every_file_is_part_of_the_crate() {
    let (mut files, mut directories) = (BTreeSet::new(), vec![source::root()]);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.insert(path.strip_prefix(source::root()).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    let known = source::all_paths();
    let unused: Vec<_> = files.difference(&known).collect();
    assert!(unused.is_empty(), "files below src/ that no `mod` declares: {unused:?}");
}

/// A test that does not run calls `support::skip`, which fails where a skip is not allowed.
#[test]
fn every_skip_is_counted() {
    let (mut wrong, mut next) = (Vec::new(), vec![source::root(), Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it")]);
    while let Some(path) = next.pop() {
        if path.is_dir() {
            next.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if !path.ends_with("support/skip.rs")
            && std::fs::read_to_string(&path).unwrap().contains(concat!("print", "ln!(\"skipped"))
        {
            wrong.push(path);
        }
    }
    assert!(wrong.is_empty(), "these skip a test by themselves: {wrong:?}");
}

#[test]
fn every_test_file_is_part_of_the_suite() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let main = std::fs::read_to_string(root.join("main.rs")).unwrap();
    for entry in std::fs::read_dir(root).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let module = name.trim_end_matches(".rs");
        assert!(module == "main" || main.contains(&format!("mod {module};")), "tests/it/{name} is not in main.rs");
    }
}
