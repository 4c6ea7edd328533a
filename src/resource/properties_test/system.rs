//! The laws of types that change a host's accounts, crontabs and kernel settings: over directories that stand in the place
//! of the machine's own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;
use serde_json::json;

use crate::host::{Cancel, Command, CommandError, Host, Output, Runner, SystemClock, SystemRunner};
use crate::resource::types::{cron, group, sysctl, user};

use super::{Preexisting, TypeFixture};

/// Runs commands with `/etc` and the like below a directory in the place of the machine's own, in a mount namespace: real
/// tools, accounts of their own.
struct InPlace(PathBuf);

impl Runner for InPlace {
    fn run(&self, command: &Command, cancel: &Cancel, deadline: Option<Instant>) -> Result<Output, CommandError> {
        let script = r#"for at in etc home var/log var/mail; do mount --bind "$0/$at" "/$at" || exit 99; done; exec "$@""#;
        let first = ["--mount", "--propagation", "private", "/bin/sh", "-c", script, self.0.to_str().unwrap(), &command.program];
        let mut outer = command.clone();
        outer.program = "unshare".to_owned();
        outer.args = first.into_iter().map(str::to_owned).chain(command.args.clone()).collect();
        let output = SystemRunner::new(None).run(&outer, cancel, deadline)?;
        assert_ne!(output.code, 99, "the namespace can't be made: {output:?}");
        Ok(output)
    }
}

fn with_accounts(root: &Path) -> Host {
    Host::new(Arc::new(InPlace(root.to_owned())), Arc::new(SystemClock)).rooted(root)
}

/// A host with few accounts.
fn accounts() -> Vec<Preexisting> {
    vec![
        Preexisting::Directory("etc", 0o755),
        Preexisting::Directory("home", 0o755),
        Preexisting::Directory("var/log", 0o755),
        Preexisting::Directory("var/mail", 0o755),
        Preexisting::File("etc/login.defs", "UID_MIN 1000\nGID_MIN 1000\nUSERGROUPS_ENAB yes\nMAIL_DIR /var/mail\n", 0o644),
        Preexisting::File(
            "etc/passwd",
            "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000:Ann:/home/ann:/bin/sh\nbob:x:1001:100::/home/bob:\n",
            0o644,
        ),
        Preexisting::File("etc/group", "root:x:0:\nusers:x:100:\nann:x:1000:\ndevs:x:2000:bob,ann\nold:x:2001:gone,bob\n", 0o644),
        Preexisting::File(
            "etc/shadow",
            "root:*:19000:0:99999:7:::\nann:$6$salt$hash:19000:0:99999:7:::\nbob:!:19000:0:99999:7::20000:\n",
            0o640,
        ),
        Preexisting::File("etc/gshadow", "root:*::\nusers:!::\nann:!::\ndevs:!::bob,ann\nold:!::gone,bob\n", 0o640),
    ]
}

impl TypeFixture for group::Group {
    const CASES: u32 = 60;
    const ROOT: bool = true;

    fn host(root: &Path) -> Host {
        with_accounts(root)
    }

    fn wanted(_: &Path) -> BoxedStrategy<Self::Properties> {
        let names = prop::sample::select(vec!["root", "users", "ann", "devs", "old", "new", "New.x-1"]);
        let gids = prop::option::of(prop::sample::select(vec![100, 2000, 2002, 65_000]));
        let members = prop::sample::subsequence(vec!["ann", "bob", "nobody-here"], 0..=3);
        (names, any::<bool>(), gids, any::<bool>(), prop::option::of(members), any::<bool>())
            .prop_map(|(name, present, gid, system, members, append)| {
                let append = append && members.is_some();
                let ensure = if present { "present" } else { "absent" };
                let properties = json!({
                    "name": name, "ensure": ensure, "gid": gid, "system": system, "members": members, "append": append,
                });
                serde_json::from_value(properties).unwrap()
            })
            .boxed()
    }

    fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
        Just(accounts()).boxed()
    }
}

impl TypeFixture for user::User {
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
}

impl TypeFixture for sysctl::Sysctl {
    const ROOT: bool = true;

    fn host(root: &Path) -> Host {
        Host::system(None).rooted(root)
    }

    fn wanted(_: &Path) -> BoxedStrategy<Self::Properties> {
        let names = prop::sample::select(vec!["net.a", "net/a", "net.b", "net.none", "net.sub"]);
        let values = prop::sample::select(vec!["1", "1  2\t3", "x"]);
        (names, any::<bool>(), values, any::<bool>(), any::<bool>())
            .prop_map(|(name, present, value, persist, runtime)| {
                let ensure = if present { "present" } else { "absent" };
                let properties = json!({"name": name, "ensure": ensure, "value": value, "persist": persist, "runtime": runtime});
                serde_json::from_value(properties).unwrap()
            })
            .boxed()
    }

    fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
        let always = vec![
            Preexisting::Directory("proc/sys/net", 0o755),
            Preexisting::File("proc/sys/net/a", "1\t2\t3\n", 0o644),
            Preexisting::File("proc/sys/net/b", "1234\n", 0o644),
        ];
        prop::sample::subsequence(
            vec![
                Preexisting::File("etc/sysctl.d/99-zz-ensign-net.a.conf", "net.a = 1\n", 0o644),
                Preexisting::Link("etc/sysctl.d/99-zz-ensign-net.b.conf", "/dev/null"),
                Preexisting::File(
                    "etc/sysctl.d/99-zz-ensign-net.none.conf",
                    "# Managed by Ensign: changes are lost.\nnet.none = x\n",
                    0o600,
                ),
            ],
            0..=3,
        )
        .prop_map(move |made| [always.clone(), vec![Preexisting::Directory("etc/sysctl.d", 0o755)], made].concat())
        .boxed()
    }
}

impl TypeFixture for cron::Cron {
    const ROOT: bool = true;

    fn host(root: &Path) -> Host {
        Host::system(None).rooted(root)
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
}
