//! Test data for `file`.

use crate::host::account::{effective_gid, effective_uid};
use crate::resource::properties_test::prelude::*;

use super::FileType;

impl TypeFixture for FileType {
    fn host(_: &Path) -> Host {
        Host::system(None)
    }

    fn wanted(root: &Path) -> BoxedStrategy<Self::Properties> {
        let root = root.to_owned();
        let (owner, group) = (effective_uid().to_string(), effective_gid().to_string());
        let names = prop::sample::select(vec!["a", "d", "l", "new", "no/parent", "d/below"]);
        let content = prop::option::of(prop::sample::select(vec!["", "x", "two\nlines\n", "ünï\u{0}code"]));
        let modes = prop::sample::select(vec!["0644", "600", "0o755", "0000", "0777"]);
        (names, prop::sample::select(vec!["present", "absent", "directory"]), content, modes, any::<[bool; 4]>())
            .prop_map(move |(name, ensure, content, mode, [force, recurse, purge, backup])| {
                let recurse = recurse && ensure == "directory";
                let name = root.join(name);
                let content = content.filter(|_| ensure == "present");
                let properties = json!({
                    "name": name, "ensure": ensure, "content": content, "owner": owner, "group": group, "mode": mode,
                    "force": force && ensure == "absent", "recurse": recurse, "purge": purge && recurse,
                    "source": if purge && recurse { root.join("source") } else { std::path::PathBuf::new() },
                    "backup": backup && !recurse,
                });
                serde_json::from_value(properties).unwrap()
            })
            .boxed()
    }

    fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
        prop::sample::subsequence(
            vec![
                Preexisting::File("a", "x", 0o644),
                Preexisting::Directory("d", 0o755),
                Preexisting::File("d/below", "", 0o600),
                Preexisting::Link("l", "a"),
                Preexisting::File("l2", "y", 0o444),
                Preexisting::Directory("source/below", 0o700),
                Preexisting::File("source/below/x", "x", 0o600),
                Preexisting::Link("source/l", "../a"),
            ],
            0..=8,
        )
        .prop_map(|mut made| {
            if !made.iter().any(|one| matches!(one, Preexisting::Directory("d", _))) {
                made.retain(|one| !matches!(one, Preexisting::File("d/below", ..)));
            }
            if !made.iter().any(|one| matches!(one, Preexisting::Directory("source/below", _))) {
                made.retain(|one| !matches!(one, Preexisting::File("source/below/x", ..) | Preexisting::Link("source/l", _)));
            }
            made
        })
        .boxed()
    }

    fn samples() -> (Value, Value) {
        (
            json!({"name": "/a", "ensure": "directory", "content": "x", "source": "/s", "owner": "o", "group": "g", "mode": "0644",
                "force": true, "validate": "v %s", "recurse": false, "purge": false, "backup": "/b", "backup_keep": 3, "follow": false}),
            json!({"name": "/c", "ensure": "absent", "content": "y", "source": "/t", "owner": "p", "group": "h", "mode": "0600",
                "force": [{"ensure": "absent"}, false], "validate": "w %s", "recurse": true, "purge": true, "backup": "/d",
                "backup_keep": 4, "follow": true}),
        )
    }

    fn canary() -> Option<Value> {
        Some(json!({"name": "/x", "ensure": "present", "owner": "root", "group": "root", "mode": "0600", "content": "CANARY"}))
    }
}

#[test]
fn keeps_the_laws() {
    check_type::<FileType>();
}
