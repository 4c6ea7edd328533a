//! The files that are generated from the definitions: `schemas/` and `docs/resources/`. `ENSIGN_BLESS=1` writes them.

use std::collections::BTreeMap;
use std::path::Path;

use ensign::cli::{doc, schemas};
use ensign::resource::TYPES;

fn compare(directory: &str, wanted: &BTreeMap<String, String>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    if std::env::var_os("ENSIGN_BLESS").is_some() {
        std::fs::create_dir_all(&root).unwrap();
        wanted.iter().for_each(|(name, text)| std::fs::write(root.join(name), text).unwrap());
    }
    let found: BTreeMap<String, String> = std::fs::read_dir(&root)
        .unwrap_or_else(|error| panic!("{directory}: {error}; run the tests with ENSIGN_BLESS=1"))
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read_to_string(entry.path()).unwrap()))
        .collect();
    assert_eq!(found.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>(), "files in {directory}");
    for (name, text) in wanted {
        assert!(
            found[name] == *text,
            "{directory}/{name} is not what the definitions say; run the tests with ENSIGN_BLESS=1 and look at the difference"
        );
    }
}

#[test]
fn schemas_are_current() {
    let text = |value| format!("{}\n", serde_json::to_string_pretty(&value).unwrap());
    let wanted = schemas::ALL
        .iter()
        .map(|schema| (format!("{}.json", schema.name), text((schema.make)(&ensign::resource::Types::default()))));
    compare("schemas", &wanted.collect());
}

#[test]
fn resource_pages_are_current() {
    let wanted = TYPES.iter().map(|kind| (format!("{}.md", kind.name()), doc::type_page(*kind)));
    compare("docs/resources", &wanted.collect());
}

#[test]
fn every_rejection_code_is_documented() {
    let document = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/security.md")).unwrap();
    let missing: Vec<&str> = ensign::trust::RejectionCode::ALL
        .iter()
        .map(|code| code.as_str())
        .filter(|code| !document.contains(&format!("`{code}`")))
        .collect();
    assert!(missing.is_empty(), "docs/security.md does not explain {missing:?}");
}
