//! Test data for `cron`.

use crate::resource::properties_test::prelude::*;

use super::CronType;

impl TypeFixture for CronType {
    const ROOT: bool = true;

    fn host(root: &Path) -> Host {
        Host::system(None).with_root(root)
    }

    fn wanted(_: &Path) -> BoxedStrategy<Self::Properties> {
        let names = prop::sample::select(vec!["a", "link", "job_1-X"]);
        let when = prop::sample::select(vec![
            json!({"minute": "*/5", "weekday": "fri-sun"}),
            json!({"minute": "0", "hour": "3,4-6", "month": "jan"}),
            json!({"schedule": "@hourly"}),
            json!({"schedule": "1 2 3 4 5"}),
        ]);
        let environment = prop::sample::subsequence(vec!["A=", "MAILTO=x y", "B=\"q\"=", "C='"], 0..=4);
        let commands = prop::sample::select(vec!["/bin/true", "date +%F # x=1", "A=1 b  c"]);
        (names, any::<bool>(), when, commands, environment, prop::sample::select(vec!["", "root", "nobody-here"]))
            .prop_map(|(name, present, when, command, environment, user)| {
                let ensure = if present { "present" } else { "absent" };
                let mut all =
                    json!({"name": name, "ensure": ensure, "command": command, "environment": environment, "user": user});
                all.as_object_mut().unwrap().extend(when.as_object().unwrap().clone());
                serde_json::from_value(all).unwrap()
            })
            .boxed()
    }

    fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
        prop::sample::subsequence(
            vec![
                Preexisting::File("etc/cron.d/a", "# Managed by Ensign: changes are lost.\n@hourly root /bin/true\n", 0o644),
                Preexisting::Link("etc/cron.d/link", "a"),
                Preexisting::File("etc/cron.d/other", "@daily root x\n", 0o644),
            ],
            0..=3,
        )
        .prop_map(|made| [vec![Preexisting::Directory("etc/cron.d", 0o755)], made].concat())
        .boxed()
    }

    fn samples() -> (Value, Value) {
        (
            json!({"name": "a", "ensure": "present", "command": "c", "user": "u", "schedule": "@daily", "minute": "1", "hour": "1",
                "day": "1", "month": "1", "weekday": "1", "environment": ["SHELL=/s"]}),
            json!({"name": "b", "ensure": "absent", "command": "d", "user": "v", "schedule": "@hourly", "minute": "2", "hour": "2",
                "day": "2", "month": "2", "weekday": "2", "environment": ["SHELL=/t"]}),
        )
    }

    fn canary() -> Option<Value> {
        Some(json!({"name": "x", "command": "true", "schedule": "@daily", "environment": ["TOKEN=CANARY"]}))
    }
}

#[test]
fn keeps_the_laws() {
    check_type::<CronType>();
}
