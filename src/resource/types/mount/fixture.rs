//! Test data for `mount`.

use crate::resource::properties_test::prelude::*;

use super::MountType;

/// Only cases without a change of this host. `mount/tests.rs` tests over a host in memory, the scenarios test real mounts.
impl TypeFixture for MountType {
    const CHANGES: bool = false;

    fn host(_: &Path) -> Host {
        Host::system(None)
    }

    fn wanted(root: &Path) -> BoxedStrategy<Self::Properties> {
        let root = root.to_owned();
        (prop::sample::select(vec!["a", "d", "no/parent"]), prop::sample::select(vec!["", "tmpfs", "UUID=1"]))
            .prop_map(move |(name, device)| {
                serde_json::from_value(json!({"name": root.join(name), "ensure": "absent", "device": device})).unwrap()
            })
            .boxed()
    }

    fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
        prop::sample::subsequence(vec![Preexisting::Directory("d", 0o755)], 0..=1).boxed()
    }

    fn samples() -> (Value, Value) {
        (
            json!({"name": "/a", "ensure": "mounted", "device": "/d", "fstype": "ext4", "options": "ro", "dump": 0, "pass": 0}),
            json!({"name": "/b", "ensure": "absent", "device": "/e", "fstype": "fuse.x", "options": "bind,lowerdir=/l,credentials=/c",
                "dump": 1, "pass": 1}),
        )
    }
}

#[test]
fn keeps_the_laws() {
    check_type::<MountType>();
}
