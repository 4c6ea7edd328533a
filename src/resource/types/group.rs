//! `group`: groups of this host, with their numbers and members.
//!
//! State comes from group(5). Changes use the shadow suite (`core/shadow_utils.rs`), which takes the locks of other tools.
//! `user` is its sibling.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::host::{Host, ProcessCommand};
use crate::model::{Effect, Effects, Identity, Need, OnRemoval};

use crate::resource::core::account_files;
use crate::resource::core::ensure::Presence;
use crate::resource::core::shadow_utils;
use crate::resource::core::shadow_utils::ShadowTools;
use crate::resource::core::text;
use crate::resource::{Change, Invalid, ProviderEntry, Resource, ResourceError, ResourceOutput, State};

/// Groups.
pub struct GroupType;

/// Properties of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Properties {
    /// The name: letters, digits, `_`, `.` and `-`, at most 32 of them.
    #[serde(deserialize_with = "text::text")]
    pub name: String,
    /// Desired state of the group.
    #[serde(default)]
    pub ensure: Presence,
    /// The number; when left out, an existing group keeps its number, and a new group gets the next free number. Files of the
    /// group keep their number.
    #[serde(default, deserialize_with = "text::number", skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Take the number of a new group from the range for system groups.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub system: bool,
    /// The users in the group: the complete list, unless `append` is set. When left out, members are not managed. Users whose
    /// primary group it is may be missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<String>>,
    /// Add `members` and keep all others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub append: bool,
}

/// The entry in group(5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupState {
    #[serde(skip)]
    ensure: Presence,
    #[serde(skip_serializing_if = "Option::is_none")]
    gid: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    members: Vec<String>,
}

impl State for GroupState {
    fn ensure(&self) -> &str {
        self.ensure.as_str()
    }
}

/// A step towards the desired group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupChange {
    /// Make the group.
    Create,
    /// Change the number.
    Number {
        /// The old number.
        from: u32,
        /// The new number.
        to: u32,
    },
    /// Set the complete list of members.
    Members {
        /// The old members.
        from: Vec<String>,
        /// The desired members.
        to: Vec<String>,
    },
    /// Add these users.
    Add(Vec<String>),
    /// Remove the group.
    Remove,
}

impl fmt::Display for GroupChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "created the group",
            Self::Number { .. } => "changed the gid",
            Self::Members { .. } => "set the members",
            Self::Add(_) => "added members",
            Self::Remove => "removed the group",
        })
    }
}

impl Change for GroupChange {
    fn details(&self) -> Vec<String> {
        vec![match self {
            Self::Number { from, to } => format!("gid {from} → {to}"),
            Self::Members { from, to } => format!("members [{}] → [{}]", from.join(", "), to.join(", ")),
            Self::Add(users) => format!("added members {}", users.join(", ")),
            Self::Create | Self::Remove => self.to_string(),
        }]
    }
}

impl Resource for GroupType {
    const TYPE: &'static str = "group";
    const CHANGES_SYSTEM: bool = true;
    const ABOUT: &'static str = "Groups of this host: number and members.";
    const NO_EFFECTS: &'static [(&'static str, &'static str)] = &[
        ("ensure", "absent removes the same group"),
        ("gid", "the tools take no number that another group has"),
        ("system", "which number a new group gets"),
        ("append", "adds the members that are named anyway"),
    ];
    const OUTPUTS: &'static [ResourceOutput] =
        &[ResourceOutput::number("gid", "The number."), ResourceOutput::list("members", "The users in the group.")];
    const REVERSALS: &'static [OnRemoval] = &[OnRemoval::Absent, OnRemoval::Revert];
    const PROVIDERS: &'static [ProviderEntry<ShadowTools>] =
        &[ProviderEntry::new("shadow", ShadowTools::are_installed, ShadowTools::open)];

    type Properties = Properties;
    type State = GroupState;
    type Change = GroupChange;
    type Provider = ShadowTools;

    fn validate(p: &Properties) -> Result<(), Invalid> {
        shadow_utils::check_new_name(&p.name)?;
        shadow_utils::check_id("gid", p.gid)?;
        p.members.iter().flatten().try_for_each(|member| shadow_utils::check_reference("members", member))?;
        if p.append && p.members.is_none() {
            return Err(Invalid::new("append", "append modifies members: it needs members"));
        }
        Ok(())
    }

    fn name(p: &Properties) -> &str {
        &p.name
    }

    fn ensure(p: &Properties) -> &str {
        p.ensure.as_str()
    }

    fn effects(p: &Properties) -> Effects {
        let mut effects = Effects::default();
        effects.push(Effect::group(&p.name));
        effects.extend(p.members.iter().flatten().map(Effect::user));
        effects.extend(account_files::GROUP_FILES.iter().copied().map(Effect::implied));
        effects
    }

    fn provides(p: &Properties) -> Vec<Identity> {
        (p.ensure == Presence::Present).then(|| Identity::Group(p.name.clone())).into_iter().collect()
    }

    fn removes(p: &Properties) -> Vec<Identity> {
        (p.ensure == Presence::Absent).then(|| Identity::Group(p.name.clone())).into_iter().collect()
    }

    fn needs(p: &Properties) -> Vec<Need> {
        p.members.iter().flatten().map(Need::user).collect()
    }

    fn query(name: &str) -> Option<Properties> {
        let (name, ensure) = (name.to_owned(), Presence::Present);
        Some(Properties { name, ensure, gid: None, system: false, members: None, append: false })
    }

    fn observe(p: &Properties, _: &ShadowTools, host: &Host) -> Result<GroupState, ResourceError> {
        let groups = host.accounts().files().groups()?;
        let found = groups.iter().find(|group| group.name == p.name);
        Ok(GroupState {
            ensure: Presence::from_exists(found.is_some()),
            gid: found.map(|group| group.gid),
            members: found.map(|group| group.members.clone()).unwrap_or_default(),
        })
    }

    fn outputs(_: &Properties, state: &GroupState) -> Vec<(&'static str, Value)> {
        vec![("gid", json!(state.gid)), ("members", json!(state.gid.map(|_| &state.members)))]
    }

    fn restoring(p: &Properties, state: &GroupState, _: &Host) -> Result<Option<Properties>, ResourceError> {
        Ok(Self::removing(p, state))
    }

    fn removing(p: &Properties, state: &GroupState) -> Option<Properties> {
        // A group that was there before stays.
        if state.ensure() == "absent" {
            Self::query(&p.name).map(|query| Properties { ensure: Presence::Absent, ..query })
        } else {
            None
        }
    }

    fn diff(p: &Properties, state: &GroupState) -> Result<Vec<GroupChange>, ResourceError> {
        let gid = match (p.ensure, state.gid) {
            (Presence::Absent, None) => return Ok(vec![]),
            (Presence::Absent, Some(_)) => return Ok(vec![GroupChange::Remove]),
            (Presence::Present, None) => Some(GroupChange::Create),
            (Presence::Present, Some(from)) => p.gid.filter(|to| *to != from).map(|to| GroupChange::Number { from, to }),
        };
        Ok(gid.into_iter().chain(members(p, state)).collect())
    }

    fn apply(
        change: &GroupChange,
        p: &Properties,
        _: &mut GroupState,
        tools: &ShadowTools,
        host: &Host,
    ) -> Result<(), ResourceError> {
        let name = p.name.as_str();
        match change {
            GroupChange::Create => {
                let number = p.gid.map(|gid| ["--gid".to_owned(), gid.to_string()]);
                let system = p.system.then(|| "--system".to_owned());
                let args = number.into_iter().flatten().chain(system).chain([name.to_owned()]);
                tools.run(ProcessCommand::new("groupadd", args), host)
            }
            GroupChange::Number { to, .. } => tools.run(ProcessCommand::new("groupmod", ["--gid", &to.to_string(), name]), host),
            GroupChange::Members { to, .. } => {
                tools.run(ProcessCommand::new("gpasswd", ["--members", &to.join(","), name]), host)
            }
            GroupChange::Add(users) => {
                users.iter().try_for_each(|user| tools.run(ProcessCommand::new("gpasswd", ["--add", user, name]), host))
            }
            GroupChange::Remove => tools.run(ProcessCommand::new("groupdel", [name]), host),
        }
    }
}

/// Returns the step that corrects the members, if needed. Their order does not matter.
fn members(p: &Properties, state: &GroupState) -> Option<GroupChange> {
    let mut wanted = p.members.clone()?;
    wanted.sort_unstable();
    wanted.dedup();
    let missing: Vec<String> = wanted.iter().filter(|member| !state.members.contains(member)).cloned().collect();
    if p.append {
        return (!missing.is_empty()).then_some(GroupChange::Add(missing));
    }
    let right = missing.is_empty() && state.members.iter().all(|member| wanted.contains(member));
    (!right).then(|| GroupChange::Members { from: state.members.clone(), to: wanted })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::{FakeRunner, host};

    fn properties(extra: &serde_json::Value) -> Properties {
        let mut all = serde_json::json!({"name": "devs"});
        all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value(all).unwrap()
    }

    fn state(gid: Option<u32>, members: &[&str]) -> GroupState {
        let members = members.iter().map(|&member| member.to_owned()).collect();
        GroupState { ensure: Presence::from_exists(gid.is_some()), gid, members }
    }

    /// The decision table: properties, host, steps, commands.
    #[test]
    fn decisions() {
        let there = || state(Some(7), &["b", "a"]);
        for (extra, state, details, commands) in [
            (serde_json::json!({}), state(None, &[]), vec!["created the group"], vec!["groupadd devs"]),
            (
                serde_json::json!({"gid": 9, "system": true, "members": ["a"]}),
                state(None, &[]),
                vec!["created the group", "members [] → [a]"],
                vec!["groupadd --gid 9 --system devs", "gpasswd --members a devs"],
            ),
            (serde_json::json!({"members": []}), state(None, &[]), vec!["created the group"], vec!["groupadd devs"]),
            (serde_json::json!({}), there(), vec![], vec![]),
            (serde_json::json!({"gid": 7, "members": ["a", "b", "a"]}), there(), vec![], vec![]),
            (serde_json::json!({"gid": "8"}), there(), vec!["gid 7 → 8"], vec!["groupmod --gid 8 devs"]),
            (
                serde_json::json!({"members": ["c", "a"]}),
                there(),
                vec!["members [b, a] → [a, c]"],
                vec!["gpasswd --members a,c devs"],
            ),
            (serde_json::json!({"members": []}), there(), vec!["members [b, a] → []"], vec!["gpasswd --members  devs"]),
            (serde_json::json!({"members": ["a"], "append": true}), there(), vec![], vec![]),
            (
                serde_json::json!({"members": ["d", "a", "c"], "append": true}),
                there(),
                vec!["added members c, d"],
                vec!["gpasswd --add c devs", "gpasswd --add d devs"],
            ),
            (serde_json::json!({"ensure": "absent", "gid": 9}), there(), vec!["removed the group"], vec!["groupdel devs"]),
            (serde_json::json!({"ensure": "absent"}), state(None, &[]), vec![], vec![]),
        ] {
            let p = properties(&extra);
            GroupType::validate(&p).unwrap();
            let changes = GroupType::diff(&p, &state).unwrap();
            assert_eq!(changes.iter().flat_map(Change::details).collect::<Vec<_>>(), details, "{p:?}");
            let runner = FakeRunner::exiting(&[0; 4]);
            let host = host(runner.clone());
            for change in &changes {
                GroupType::apply(change, &p, &mut state.clone(), &ShadowTools::open(&host), &host).unwrap();
            }
            assert_eq!(runner.ran().iter().map(|words| words.join(" ")).collect::<Vec<_>>(), commands, "{p:?}");
        }
    }

    #[test]
    fn the_error_has_the_output_of_the_tool() {
        let host = host(FakeRunner::exiting(&[9]));
        let error = GroupType::apply(
            &GroupChange::Create,
            &properties(&serde_json::json!({})),
            &mut state(None, &[]),
            &ShadowTools::open(&host),
            &host,
        );
        assert!(error.unwrap_err().to_string().starts_with("groupadd failed with exit code 9"));
    }

    #[test]
    fn invalid_properties_are_refused() {
        for extra in [
            serde_json::json!({"name": "--root=/x"}),
            serde_json::json!({"gid": u32::MAX}),
            serde_json::json!({"members": ["a,b"]}),
            serde_json::json!({"members": ["-x"]}),
            serde_json::json!({"append": true}),
        ] {
            assert!(GroupType::validate(&properties(&extra)).is_err(), "{extra}");
        }
        assert!(serde_json::from_str::<Properties>(r#"{"name":"x","gid":-1}"#).is_err());
        assert!(serde_json::from_str::<Properties>(r#"{"name":"x","gid":"many"}"#).is_err());
    }
}

#[cfg(test)]
mod fixture {
    use crate::resource::properties_test::accounts::{accounts, with_accounts};
    use crate::resource::properties_test::prelude::*;

    use super::GroupType;

    impl TypeFixture for GroupType {
        const CASES: u32 = 60;
        const ROOT: bool = true;

        fn host(root: &Path) -> Host {
            with_accounts(root)
        }

        fn wanted(_: &Path) -> BoxedStrategy<Self::Properties> {
            let names = prop::sample::select(vec!["root", "users", "ann", "devs", "old", "new", "New.x-1"]);
            let gids = prop::option::of(prop::sample::select(vec![100, 2000, 2002, 65_000]));
            // Mostly users that exist: at least a quarter of the changes must succeed.
            let known = prop::sample::subsequence(vec!["ann", "bob"], 0..=2);
            let unknown = prop::sample::subsequence(vec!["ann", "bob", "unknown-user"], 1..=3);
            let members = prop_oneof![4 => known, 1 => unknown];
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

        fn samples() -> (Value, Value) {
            (
                json!({"name": "a", "ensure": "present", "gid": 1, "system": false, "members": ["x"], "append": false}),
                json!({"name": "b", "ensure": "absent", "gid": 2, "system": true, "members": ["y"], "append": true}),
            )
        }
    }

    #[test]
    fn keeps_the_laws() {
        check_type::<GroupType>();
    }
}
