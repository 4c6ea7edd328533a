//! Steps and commands for each state, and invalid properties.

use serde_json::{Value, json};

use super::state::ObservedAccount;
use super::*;
use crate::host::fake::{FakeRunner, host};
use crate::host::passwd::PasswdEntry;
use crate::model::ResourceLimits;
use crate::resource::Change;

const HASH: &str = "$6$saltsalt$hashhashhash";

fn properties(extra: &Value) -> Properties {
    let mut all = json!({"name": "alice"});
    all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    serde_json::from_value(all).unwrap()
}

fn there(password: &str) -> UserState {
    let account = PasswdEntry {
        name: "alice".into(),
        uid: 1000,
        gid: 100,
        comment: "A".into(),
        home: "/home/alice".into(),
        shell: "/bin/sh".into(),
    };
    let shadow = ShadowEntry { password: Secret::new(password), expires: Some(20000) };
    let seen = observe_account(&account, "users".into(), vec!["devs".into(), "adm".into()], true, Some(&shadow));
    UserState { account: Some(seen), wanted_gid: Some(100), own_group: false, wanted_home: true }
}

/// Returns the details of the steps, and their commands, for properties and a state.
fn goes(extra: &Value, state: &UserState) -> Result<(Vec<String>, Vec<String>), String> {
    let p = properties(extra);
    UserType::validate(&p).map_err(|invalid| invalid.message)?;
    let changes = UserType::diff(&p, state).map_err(|error| error.to_string())?;
    let runner = FakeRunner::exiting(&[0; 4]);
    let host = host(runner.clone());
    for change in changes.iter().filter(|change| **change != UserChange::MakeHome) {
        UserType::apply(change, &p, &mut state.clone(), &ShadowTools::open(&host), &host).unwrap();
    }
    let commands = runner.ran().iter().map(|words| words.join(" ")).collect();
    Ok((changes.iter().flat_map(Change::details).collect(), commands))
}

/// The decision table.
#[test]
fn decisions() {
    let nobody = UserState::default();
    let grouped = UserState { own_group: true, ..UserState::default() };
    let homeless = |old: bool| {
        let mut state = there("!");
        state.wanted_home = false;
        state.account.as_mut().unwrap().home_is_there = old;
        state
    };
    let other_group = UserState { wanted_gid: None, ..there("!") };
    for (extra, state, details, commands) in [
        (json!({}), nobody.clone(), vec!["created the user"], vec!["useradd --no-create-home alice"]),
        (json!({}), grouped, vec!["created the user"], vec!["useradd --gid alice --no-create-home alice"]),
        (
            json!({
                "uid": "1500", "group": 100, "groups": ["b", "a", "b"], "home": "/srv/alice", "manage_home": true,
                "shell": "/bin/bash", "comment": "Alice", "system": true, "expires": "2030-12-31", "password_hash": HASH,
            }),
            nobody.clone(),
            vec!["created the user", "set the password"],
            vec![
                "useradd --uid 1500 --gid 100 --groups a,b --home-dir /srv/alice --create-home --shell /bin/bash --comment \
                 Alice --expiredate 2030-12-31 --system alice",
                "chpasswd --encrypted",
            ],
        ),
        (json!({"locked": true}), nobody.clone(), vec!["created the user"], vec!["useradd --no-create-home alice"]),
        (json!({"ensure": "absent"}), nobody.clone(), vec![], vec![]),
        (json!({}), there("!"), vec![], vec![]),
        (
            json!({"uid": 1000, "group": "users", "groups": ["adm", "devs"], "home": "/home/alice", "shell": "/bin/sh",
                   "comment": "A", "expires": "2024-10-04", "manage_home": true, "locked": true}),
            there("!"),
            vec![],
            vec![],
        ),
        (
            json!({"uid": 7, "group": "x", "shell": "/bin/zsh", "comment": "", "expires": "never", "groups": []}),
            other_group,
            vec![
                "uid 1000 → 7",
                "group users → x",
                "groups adm,devs → (none)",
                "shell /bin/sh → /bin/zsh",
                "comment A → (none)",
                "expires 2024-10-04 → never",
            ],
            vec!["usermod --uid 7 --gid x --groups  --shell /bin/zsh --comment  --expiredate  alice"],
        ),
        (json!({"groups": ["adm"], "append": true}), there("!"), vec![], vec![]),
        (
            json!({"groups": ["web"], "append": true}),
            there("!"),
            vec!["groups adm,devs → adm,devs,web"],
            vec!["usermod --groups adm,devs,web alice"],
        ),
        (json!({"home": "/srv/a"}), there("!"), vec!["home /home/alice → /srv/a"], vec!["usermod --home /srv/a alice"]),
        (
            json!({"home": "/srv/a", "manage_home": true}),
            homeless(true),
            vec!["home /home/alice → /srv/a"],
            vec!["usermod --home /srv/a --move-home alice"],
        ),
        (
            json!({"home": "/srv/a", "manage_home": true}),
            homeless(false),
            vec!["home /home/alice → /srv/a", "made the home"],
            vec!["usermod --home /srv/a alice"],
        ),
        (json!({"home": "/home/alice", "manage_home": true}), homeless(false), vec!["made the home"], vec![]),
        (json!({"ensure": "absent"}), there("!"), vec!["removed the user"], vec!["userdel alice"]),
        (
            json!({"ensure": "absent", "home": "/home/alice", "manage_home": true}),
            there("!"),
            vec!["removed the user and the home"],
            vec!["userdel --remove alice"],
        ),
        (
            json!({"ensure": "absent", "home": "/home/alice", "manage_home": true}),
            homeless(false),
            vec!["removed the user"],
            vec!["userdel alice"],
        ),
    ] {
        let (found, ran) = goes(&extra, &state).unwrap_or_else(|why| panic!("{extra}: {why}"));
        assert_eq!(
            (found, ran),
            (details.iter().map(|&d| d.to_owned()).collect(), commands.iter().map(|&c| c.to_owned()).collect()),
            "{extra}"
        );
    }
    for (extra, state) in
        [(json!({"locked": false}), nobody), (json!({"ensure": "absent", "home": "/other", "manage_home": true}), there("!"))]
    {
        assert!(goes(&extra, &state).is_err(), "{extra}");
    }
}

/// Properties, the entry in shadow(5), the step.
#[test]
fn passwords() {
    let (locked, two) = (format!("!{HASH}"), "!!".to_owned());
    let with = |locked: Option<bool>| json!({"password_hash": HASH, "locked": locked});
    for (extra, now, wanted) in [
        (with(None), HASH, None),
        (with(None), &locked, None),
        (with(None), "!", Some(UserChange::Password { locked: false })),
        (with(None), &two, Some(UserChange::Password { locked: false })),
        (with(None), "$6$other$hashhashhash", Some(UserChange::Password { locked: false })),
        (with(None), "!$6$other$hashhashhash", Some(UserChange::Password { locked: true })),
        (with(Some(true)), HASH, Some(UserChange::Password { locked: true })),
        (with(Some(true)), &locked, None),
        (with(Some(false)), &locked, Some(UserChange::Password { locked: false })),
        (json!({"password_hash": "*"}), "*", None),
        (json!({"password_hash": "*"}), HASH, Some(UserChange::Password { locked: false })),
        (json!({"locked": true}), HASH, Some(UserChange::Lock)),
        (json!({"locked": true}), "", Some(UserChange::Lock)),
        (json!({"locked": true}), "!", None),
        (json!({"locked": false}), &locked, Some(UserChange::Unlock)),
        (json!({"locked": false}), HASH, None),
        (json!({"locked": false}), "*", None),
    ] {
        let changes = UserType::diff(&properties(&extra), &there(now)).unwrap();
        assert_eq!(changes, wanted.into_iter().collect::<Vec<_>>(), "{extra} {now}");
    }
    assert!(UserType::diff(&properties(&json!({"locked": false})), &there("!!")).is_err());
    let mut lineless = there("!");
    lineless.account.as_mut().unwrap().password = None;
    assert!(UserType::diff(&properties(&with(None)), &lineless).unwrap_err().to_string().contains("/etc/shadow"));
}

#[test]
fn the_hash_is_nowhere_to_be_seen() {
    let p = properties(&json!({"password_hash": HASH}));
    let runner = FakeRunner::exiting(&[1]);
    let host = host(runner.clone());
    let change = UserChange::Password { locked: false };
    let error = UserType::apply(&change, &p, &mut there("!"), &ShadowTools::open(&host), &host).unwrap_err();
    let state = there(HASH);
    let refused = UserType::validate(&properties(&json!({"password_hash": "hunter2:$6$saltsalt$"}))).unwrap_err();
    let unread = serde_json::from_value::<Properties>(json!({"name": "a", "password_hash": ["saltsalt"]})).unwrap_err();
    for shown in [
        format!("{p:?} {error} {error:?} {:?} {state:?} {refused} {unread}", runner.ran()),
        UserType::redacted(&p).to_string(),
        serde_json::to_string(&state).unwrap(),
    ] {
        assert!(!shown.contains("saltsalt") && !shown.contains("hunter2"), "{shown}");
    }
}

#[test]
fn invalid_properties_are_refused() {
    for extra in [
        json!({"name": "a:b"}),
        json!({"name": "-r"}),
        json!({"name": "root", "ensure": "absent"}),
        json!({"uid": u32::MAX}),
        json!({"group": "a:b"}),
        json!({"groups": ["-x"]}),
        json!({"append": true}),
        json!({"home": "srv"}),
        json!({"home": "/srv/../etc"}),
        json!({"home": "/srv:x"}),
        json!({"home": "/srv\n/x"}),
        json!({"manage_home": true}),
        json!({"manage_home": true, "home": "/"}),
        json!({"shell": "bash"}),
        json!({"shell": "/bin/sh\nroot2:x:0:0::/:/bin/sh"}),
        json!({"comment": "a:b"}),
        json!({"comment": "a\nb"}),
        json!({"password_hash": "hunter2"}),
        json!({"password_hash": ""}),
        json!({"password_hash": "!"}),
        json!({"password_hash": "$6$salt$hash\nroot:x"}),
        json!({"expires": "tomorrow"}),
        json!({"expires": "2030-02-30"}),
        json!({"expires": "1970-01-01"}),
    ] {
        assert!(UserType::validate(&properties(&extra)).is_err(), "{extra}");
    }
    let superuser =
        UserState { account: there("!").account.map(|seen| ObservedAccount { uid: 0, ..seen }), ..UserState::default() };
    assert!(UserType::diff(&properties(&json!({"ensure": "absent"})), &superuser).is_err());
}

#[test]
fn a_home_is_moved_only_within_the_bounds_of_the_run() {
    let p: Properties = serde_json::from_value(json!({"name": "root", "home": "/srv/elsewhere", "manage_home": true})).unwrap();
    let paths = |path: &str| ResourceLimits {
        write_paths: Some(vec!["/srv".into(), "/etc".into(), path.into()]),
        ..ResourceLimits::default()
    };
    let seen = |path: &str| {
        let host = Host::system(None).with_limits(paths(path));
        UserType::observe(&p, &(UserType::PROVIDERS[0].open)(&host), &host)
            .map(|_| ())
            .map_err(|error| crate::diag::error_chain(&error))
    };
    assert_eq!(seen("/root"), Ok(()));
    let refused = seen("/var").unwrap_err();
    assert!(refused.contains("/root"), "{refused}");
}
