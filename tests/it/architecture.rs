//! Holds the code to the layer table of `src/lib.rs` and to the single owners of `docs/architecture.md`.

use std::path::{Path, PathBuf};

/// Module and layer. Within a layer modules do not import each other, except L0, where `diag` stands beside `model`.
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
    ("engine", 3),
    ("registry", 3),
    ("agent", 4),
    ("fleet", 4),
    ("web", 4),
    ("cli", 5),
];

/// What only some modules may name: the text, and the paths (below `src/`) that may.
const OWNERS: &[(&str, &[&str])] = &[
    ("async_nats", &["transport/nats.rs", "transport/nats/"]),
    ("ed25519_dalek", &["trust/"]),
    ("serde_yaml", &["yaml.rs", "yaml/"]),
    ("saphyr", &["yaml.rs", "yaml/"]),
    ("reqwest", &["http.rs", "http/"]),
    ("std::fs", &["host/", "store/"]),
    ("std::process::Command", &["host/", "store/"]),
    ("nix::", &["host/", "store/"]),
    ("zbus", &["host/systemd.rs"]),
    ("println!", &["cli/ui.rs"]),
    ("eprintln!", &["cli/ui.rs"]),
    ("print!", &["cli/ui.rs"]),
    ("eprint!", &["cli/ui.rs"]),
    ("dbg!", &[]),
    ("io::stdout", &["cli/ui.rs"]),
    ("io::stderr", &["cli/ui.rs", "cli/agent/log.rs"]),
    ("error.print", &["cli/ui.rs"]),
    ("of_format", &["cli/ui/text.rs"]),
    ("set_hook", &["cli/mod.rs"]),
    ("/dev/tty", &["host/terminal.rs", "host/confine.rs"]),
    ("std::env", &["cli/", "main.rs", "host/command.rs", "host/checkpoint.rs"]),
    ("Timestamp::now", &["host/"]),
    ("SystemTime", &["host/"]),
];

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Every source file by its path below `src/`, without its unit tests and comments.
fn code() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    sources(&root, &mut found);
    found.sort();
    let read = |path: &PathBuf| {
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        let text = std::fs::read_to_string(path).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default().to_owned();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
        (name, lines)
    };
    // Whole files of tests: their `mod` line has the `cfg`.
    let test_only = |name: &str| {
        let known = ["resource/laws.rs", "resource/service/simulated.rs", "host/fake.rs", "unpack/testing.rs", "cli/pages.rs"];
        name.ends_with("tests.rs") || name.starts_with("resource/laws/") || known.contains(&name)
    };
    found.iter().map(read).filter(|(name, _)| !test_only(name)).collect()
}

fn layer(module: &str) -> Option<u8> {
    LAYERS.iter().find(|(name, _)| *name == module).map(|(_, layer)| *layer)
}

#[test]
fn modules_import_only_lower_layers() {
    let mut wrong = Vec::new();
    for (file, text) in code() {
        let module = file.split(['/', '.']).next().unwrap();
        let Some(own) = layer(module) else {
            assert!(["lib", "main"].contains(&module), "{file}: the module is in no layer");
            continue;
        };
        for part in text.split("crate::").skip(1) {
            // `use crate::{a, b::C}` names several modules at once.
            let named: Vec<&str> = match part.strip_prefix('{') {
                Some(group) => top_names(group),
                None => vec![part.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()],
            };
            for other in named {
                match layer(other) {
                    Some(theirs) if other == module || theirs < own || (own == 0 && theirs == 0) => {}
                    Some(theirs) => wrong.push(format!("{file} (L{own}) imports {other} (L{theirs})")),
                    None => wrong.push(format!("{file} imports crate::{other}, which is in no layer")),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The first name of every path in a `use` group.
fn top_names(group: &str) -> Vec<&str> {
    let (mut depth, mut names, mut start) = (0, Vec::new(), 0);
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => {
                names.push(&group[start..at]);
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                names.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    names.into_iter().map(|name| name.trim().split("::").next().unwrap_or_default()).filter(|name| !name.is_empty()).collect()
}

/// True when `what` stands in the text, not as the end of a longer name.
fn names(text: &str, what: &str) -> bool {
    text.match_indices(what).any(|(at, _)| !text[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_'))
}

#[test]
fn single_owners() {
    let mut wrong = Vec::new();
    for (file, text) in code() {
        for (what, owners) in OWNERS {
            if names(&text, what) && !owners.iter().any(|owner| file.starts_with(owner)) {
                wrong.push(format!("{file} uses {what}, which belongs to {}", owners.join(", ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_test_file_is_forgotten() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let main = std::fs::read_to_string(root.join("main.rs")).unwrap();
    for entry in std::fs::read_dir(root).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let module = name.trim_end_matches(".rs");
        assert!(module == "main" || main.contains(&format!("mod {module};")), "tests/it/{name} is not in main.rs");
    }
}
