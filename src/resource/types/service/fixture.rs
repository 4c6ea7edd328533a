//! Test data for `service`.

use crate::resource::properties_test::prelude::*;

use super::ServiceType;

impl TypeFixture for ServiceType {
    fn host(_: &Path) -> Host {
        Host::system(None)
    }

    fn wanted(_: &Path) -> BoxedStrategy<Self::Properties> {
        let names = prop::sample::select(vec!["a", "b.timer", "once", "fail", "flap"]);
        let refresh = prop::sample::select(vec!["restart", "reload", "reload-or-restart"]);
        (names, prop::sample::select(vec!["running", "stopped"]), prop::option::of(any::<bool>()), refresh)
            .prop_map(|(name, ensure, enable, refresh)| {
                let properties = json!({"name": name, "ensure": ensure, "enable": enable, "refresh": refresh, "timeout": "1m"});
                serde_json::from_value(properties).unwrap()
            })
            .boxed()
    }

    fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
        let states = vec![
            "active=active word=enabled",
            "active=inactive word=disabled",
            "active=failed word=static",
            "active=inactive word=masked load=masked",
            "active=activating sub=auto-restart word=enabled",
        ];
        let units = ["a.service", "b.timer", "once.service", "fail.service", "flap.service"];
        prop::sample::select(states)
            .prop_map(move |state| units.map(|unit| Preexisting::File(unit, state, 0o644)).to_vec())
            .boxed()
    }

    fn provider(root: &Path, host: &Host) -> Box<Self::Provider> {
        Box::new(super::simulated::services(root, host).0)
    }

    fn samples() -> (Value, Value) {
        (
            json!({"name": "a", "ensure": "running", "enable": true, "refresh": "restart", "timeout": "1m"}),
            json!({"name": "b", "ensure": "stopped", "enable": false, "refresh": "reload", "timeout": "2m"}),
        )
    }
}

#[test]
fn keeps_the_laws() {
    check_type::<ServiceType>();
}
