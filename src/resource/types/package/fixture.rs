//! Test data for `package`.

use crate::resource::properties_test::prelude::*;

use super::PackageType;

/// Only cases that hold on every Debian host. `tests/it/package.rs` changes packages in containers.
impl TypeFixture for PackageType {
    const CHANGES: bool = false;

    fn host(_: &Path) -> Host {
        Host::system(None)
    }

    fn wanted(_: &Path) -> BoxedStrategy<Self::Properties> {
        let here = prop::sample::select(vec!["dpkg", "base-files"]).prop_map(|name| (name, "present"));
        let absent = prop::sample::select(vec!["ensign-no-such", "no.such", "no+such:i386"]).prop_map(|name| (name, "absent"));
        (prop_oneof![here, absent], prop::option::of(prop::sample::select(vec!["1h", "0s"])))
            .prop_map(|((name, ensure), age)| {
                serde_json::from_value(json!({"name": name, "ensure": ensure, "cache_valid": age})).unwrap()
            })
            .boxed()
    }

    fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
        Just(Vec::new()).boxed()
    }

    fn samples() -> (Value, Value) {
        (
            json!({"name": "a", "ensure": "present", "cache_valid": "1h", "lock_timeout": "1m"}),
            json!({"name": "b", "ensure": "1.0", "cache_valid": "2h", "lock_timeout": "2m"}),
        )
    }
}

#[test]
fn keeps_the_laws() {
    check_type::<PackageType>();
}
