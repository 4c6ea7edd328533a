//! Test data for `user`.

use crate::resource::properties_test::accounts::{accounts, with_accounts};
use crate::resource::properties_test::prelude::*;

use super::UserType;

impl TypeFixture for UserType {
    const CASES: u32 = 60;
    const ROOT: bool = true;

    fn host(root: &Path) -> Host {
        with_accounts(root)
    }

    fn wanted(_: &Path) -> BoxedStrategy<Self::Properties> {
        let names = prop::sample::select(vec!["ann", "bob", "new", "users"]);
        let uid = prop::option::of(prop::sample::select(vec![1000, 1002, 1500]));
        let groups = prop::option::of(prop::sample::subsequence(vec!["devs", "old", "users"], 0..=3));
        let home = prop::sample::select(vec!["", "/home/ann", "/home/deep/er"]);
        let shell = prop::sample::select(vec!["", "/bin/sh", "/usr/sbin/nologin"]);
        let comment = prop::option::of(prop::sample::select(vec!["", "Ann", "Ünï B."]));
        let expires = prop::sample::select(vec!["", "never", "2024-10-04", "2030-01-01"]);
        let flags = (any::<bool>(), any::<bool>(), any::<bool>(), prop::option::of(any::<bool>()));
        let group = prop::sample::select(vec!["", "100", "devs"]);
        ((names, uid, group, groups, home), (shell, comment, expires, flags))
            .prop_map(|((name, uid, group, groups, home), (shell, comment, expires, (present, manage, append, locked)))| {
                let (manage, append) = (manage && !home.is_empty(), append && groups.is_some());
                let properties = json!({
                    "name": name, "ensure": if present { "present" } else { "absent" }, "uid": uid, "group": group,
                    "groups": groups, "append": append, "home": home, "manage_home": manage, "shell": shell,
                    "comment": comment, "locked": locked, "expires": expires,
                });
                serde_json::from_value(properties).unwrap()
            })
            .boxed()
    }

    fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
        any::<bool>()
            .prop_map(|home| {
                let mut made = accounts();
                made.extend(home.then_some(Preexisting::Directory("home/ann", 0o700)));
                made
            })
            .boxed()
    }

    fn samples() -> (Value, Value) {
        (
            json!({"name": "a", "ensure": "present", "uid": 1, "group": "g", "groups": ["x"], "append": false, "home": "/h",
                "manage_home": false, "shell": "/s", "comment": "c", "system": false, "password_hash": "*", "locked": false,
                "expires": "never"}),
            json!({"name": "b", "ensure": "absent", "uid": 0, "group": "h", "groups": ["y"], "append": true, "home": "/i",
                "manage_home": true, "shell": "/t", "comment": "d", "system": true, "password_hash": "!", "locked": true,
                "expires": "2030-01-01"}),
        )
    }

    fn canary() -> Option<Value> {
        Some(json!({"name": "x", "password_hash": format!("$6$CANARY${}", "x".repeat(86))}))
    }
}

#[test]
fn keeps_the_laws() {
    check_type::<UserType>();
}
