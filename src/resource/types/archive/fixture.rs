//! Test data for `archive`.

use crate::host::account::{effective_gid, effective_uid};
use crate::http::testing::{Asked, Reply, Web};
use crate::resource::properties_test::prelude::*;
use crate::unpack::testing::{file, gzip, tar_of};

use super::ArchiveType;

impl TypeFixture for ArchiveType {
    fn host(_: &Path) -> Host {
        Host::system(None)
    }

    fn wanted(root: &Path) -> BoxedStrategy<Self::Properties> {
        let root = root.to_owned();
        let packed = gzip(&tar_of(&[file("d/below", "x"), file("a", "y")]));
        let digest = crate::host::fs::sha256(&packed);
        let web = Web::new(move |asked: &Asked| match asked.path.as_str() {
            "/a.tgz" => Reply::ok(&packed),
            _ => Reply::status("404 Not Found"),
        });
        let names = prop::sample::select(vec!["p.tgz", "l.tgz", "no/parent.tgz"]);
        let urls = prop::sample::select(vec![web.url("/a.tgz"), web.url("/a.tgz"), web.url("/none.tgz")]);
        let checksum = prop::sample::select(vec![String::new(), digest, "0".repeat(64)]);
        let ensure = prop::sample::select(vec!["present", "present", "absent"]);
        let paths = (any::<bool>(), prop::sample::select(vec!["", "d/below"]), any::<bool>());
        (names, ensure, urls, checksum, paths)
            .prop_map(move |(name, ensure, url, checksum, (extract, creates, cleanup))| {
                let path = |name: &str| if name.is_empty() { String::new() } else { root.join(name).display().to_string() };
                let properties = json!({
                    "name": path(name), "ensure": ensure, "url": url, "checksum": checksum,
                    "owner": effective_uid().to_string(), "group": effective_gid().to_string(),
                    "extract_parent": if extract { path(".") } else { String::new() }.trim_end_matches("/."),
                    // Without an extraction, no step creates the path.
                    "creates": if extract { path(creates) } else { String::new() }, "cleanup": cleanup, "headers": {"X": "***"}, "password": "***",
                });
                serde_json::from_value(properties).unwrap()
            })
            .boxed()
    }

    fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
        let made = vec![
            Preexisting::File("p.tgz", "old", 0o644),
            Preexisting::Link("l.tgz", "p.tgz"),
            Preexisting::Directory("d", 0o755),
            Preexisting::File(".p.tgz.ensign-unpacking", "", 0o600),
            Preexisting::File(".p.tgz.ensign-part", "left", 0o600),
        ];
        prop::sample::subsequence(made, 0..=5).boxed()
    }

    fn samples() -> (Value, Value) {
        (
            json!({"name": "/a.tgz", "ensure": "present", "url": "https://h/a.tgz", "headers": {"A": "b"}, "username": "u",
                "password": "p", "checksum": "0", "extract_parent": "/x", "creates": "/c", "cleanup": false, "owner": "o",
                "group": "g", "follow": false}),
            json!({"name": "/b.tgz", "ensure": "absent", "url": "https://i/a.tgz", "headers": {"A": "c"}, "username": "v",
                "password": "q", "checksum": "1", "extract_parent": "/y", "creates": "/d", "cleanup": true, "owner": "p",
                "group": "h", "follow": true}),
        )
    }

    fn canary() -> Option<Value> {
        Some(json!({
            "name": "/x.tar.gz", "ensure": "present", "url": "https://CANARYuser:CANARY@example.com/x.tar.gz", "owner": "root",
            "group": "root", "headers": {"X-Token": "CANARY"}, "username": "u", "password": "CANARY",
        }))
    }
}

#[test]
fn keeps_the_laws() {
    check_type::<ArchiveType>();
}
