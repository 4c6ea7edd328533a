//! Test data for `line`.

use crate::resource::properties_test::prelude::*;

use super::LineType;

impl TypeFixture for LineType {
    fn host(_: &Path) -> Host {
        Host::system(None)
    }

    fn wanted(root: &Path) -> BoxedStrategy<Self::Properties> {
        let root = root.to_owned();
        let names = prop::sample::select(vec!["a", "crlf", "d", "l", "new", "no/parent"]);
        let patterns = prop::sample::select(vec!["", "^k=", "k", "^# ?k"]);
        let spots = prop::sample::select(vec![("", ""), ("after", "^b"), ("before", "^b"), ("at", "start"), ("at", "end")]);
        (names, prop::sample::select(vec!["present", "absent"]), patterns, spots, any::<[bool; 3]>())
            .prop_map(move |(name, ensure, pattern, (spot, at), [all, create, backup])| {
                let mut properties = json!({
                    "name": root.join(name), "ensure": ensure, "line": "k=1", "match": pattern, "create": create,
                    "all": all && !pattern.is_empty(), "backup": backup,
                });
                if !spot.is_empty() {
                    properties[spot] = json!(at);
                }
                serde_json::from_value(properties).unwrap()
            })
            .boxed()
    }

    fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
        let texts = prop::sample::select(vec!["", "a\nb", "k=0\nb\n", "k=1\n", "# k\nk=2\nk=1"]);
        let others = vec![
            Preexisting::File("crlf", "b\r\nk=7\r\n", 0o640),
            Preexisting::Directory("d", 0o755),
            Preexisting::Link("l", "a"),
        ];
        (prop::option::of(texts), prop::sample::subsequence(others, 0..=3))
            .prop_map(|(text, others)| text.map(|text| Preexisting::File("a", text, 0o600)).into_iter().chain(others).collect())
            .boxed()
    }

    fn samples() -> (Value, Value) {
        (
            json!({"name": "/a", "ensure": "present", "path": "", "line": "l", "match": "m", "all": false, "after": "a",
                "before": "b", "at": "start", "create": false, "owner": "o", "group": "g", "mode": "0644", "validate": "v %s",
                "backup": "/b", "backup_keep": 3, "follow": false}),
            json!({"name": "/b", "ensure": "absent", "path": "/p", "line": "k", "match": "n", "all": true, "after": "c",
                "before": "d", "at": "end", "create": true, "owner": "p", "group": "h", "mode": "0600", "validate": "w %s",
                "backup": "/c", "backup_keep": 4, "follow": true}),
        )
    }

    fn canary() -> Option<Value> {
        Some(json!({"name": "/x", "line": "password=CANARY"}))
    }
}

#[test]
fn keeps_the_laws() {
    check_type::<LineType>();
}
