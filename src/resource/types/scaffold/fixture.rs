//! Test data for `scaffold`.

use crate::resource::properties_test::prelude::*;

use super::ScaffoldType;

impl TypeFixture for ScaffoldType {
    fn host(_: &Path) -> Host {
        Host::system(None)
    }

    fn wanted(root: &Path) -> BoxedStrategy<Self::Properties> {
        let root = root.to_owned();
        let engines = prop::sample::select(vec![None, Some("jinja"), Some("jet"), Some("go")]);
        let posts = prop::sample::select(vec![json!([]), json!([{"*.sh": "/bin/chmod 0755 {}"}, {"t*": "/bin/sed -i s/x/y/"}])]);
        let targets = prop::sample::select(vec!["out", "new/deep", "link"]);
        (targets, prop::sample::select(vec!["present", "absent"]), engines, any::<bool>(), any::<bool>(), posts)
            .prop_map(move |(name, ensure, engine, purge, skip_empty, post)| {
                let properties = json!({
                    "name": root.join(name), "ensure": ensure, "source": root.join("src"), "engine": engine, "purge": purge,
                    "skip_empty": skip_empty, "post": post, "data": {"x": 1},
                });
                serde_json::from_value(properties).unwrap()
            })
            .boxed()
    }

    fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
        let source = [
            Preexisting::Directory("src/sub/_partials", 0o755),
            Preexisting::Directory("src/empty", 0o700),
            Preexisting::File("src/text", "plain x\n", 0o644),
            Preexisting::File("src/sub/a.sh", "#!/bin/sh\n", 0o755),
            Preexisting::File("src/sub/_partials/p", "{{ never", 0o600),
            Preexisting::File("src/blank", " \n", 0o600),
        ];
        let target = vec![
            Preexisting::Directory("out/sub", 0o755),
            Preexisting::File("out/text", "plain y\n", 0o600),
            Preexisting::File("out/extra", "mine", 0o644),
            Preexisting::Directory("out/kept/deep", 0o755),
            Preexisting::Link("out/blank", "nowhere"),
            Preexisting::Link("link", "out"),
        ];
        prop::sample::subsequence(target, 0..=6)
            .prop_map(move |mut target| {
                let there = target.iter().any(|made| matches!(made, Preexisting::Directory("out/sub", _)));
                target.retain(|made| there || matches!(made, Preexisting::Directory("out/kept/deep", _)));
                source.iter().cloned().chain(target).collect()
            })
            .boxed()
    }

    fn samples() -> (Value, Value) {
        (
            json!({"name": "/a", "ensure": "present", "source": "/s", "engine": "jinja", "left_delimiter": "<", "right_delimiter": ">",
                "skip_empty": false, "purge": false, "data": {"a": 1}, "post": [{"*": "c"}], "follow": false}),
            json!({"name": "/b", "ensure": "absent", "source": "/t", "engine": "go", "left_delimiter": "[", "right_delimiter": "]",
                "skip_empty": true, "purge": true, "data": {"a": 2}, "post": [{"*": "d"}], "follow": true}),
        )
    }
}

#[test]
fn keeps_the_laws() {
    check_type::<ScaffoldType>();
}
