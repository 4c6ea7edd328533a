//! `symlink`: symbolic links with their targets and owners.
//!
//! Only the link itself is observed and changed: its target belongs to others and need not exist. A link is replaced in one step
//! (`host/fs/temp_file.rs`), so that the path always has a link.

use std::fmt;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::host::fs::{self, LinkInfo};
use crate::host::{Host, PathInfo};
use crate::model::effects::PathScope;
use crate::model::{Effect, Effects, Identity, Need, OnRemoval};

use crate::resource::core::{parent_checks, path_order, text};
use crate::resource::{Change, Invalid, ProviderEntry, Resource, ResourceError, ResourceOutput, State};

/// Symbolic links.
pub struct SymlinkType;

/// Properties of a symbolic link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Properties {
    /// The path of the link: absolute, without `.`, `..` or doubled slashes.
    #[serde(deserialize_with = "text::text")]
    pub name: String,
    /// Desired state of the link.
    #[serde(default)]
    pub ensure: SymlinkEnsure,
    /// Target of the link, kept as written: a relative target starts at the directory of the link. The target need not exist.
    /// Needed unless absent.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// The owner of the link itself, by name or number; not managed when left out.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// The group of the link itself, by name or number; not managed when left out.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Replace, or with absent remove, a file or an empty directory in the place of the link.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// Follow links in the path that others than root could have made, which is refused otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub follow: bool,
}

/// The desired state of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SymlinkEnsure {
    /// A link to the target.
    #[default]
    Present,
    /// No link.
    Absent,
}

impl Properties {
    fn path(&self) -> &Path {
        Path::new(&self.name)
    }
}

/// The object at the path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FoundLink {
    Nothing,
    Link(LinkInfo),
    /// A regular file, device, socket or pipe.
    File,
    Directory {
        empty: bool,
    },
}

/// The observed state of the path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SymlinkState {
    #[serde(skip)]
    found: FoundLink,
    /// The reason why a link can't be made, or given to the owner.
    #[serde(skip)]
    obstacle: Option<String>,
    /// The desired numbers of owner and group. None for unmanaged owners and missing accounts.
    #[serde(skip)]
    wanted: (Option<u32>, Option<u32>),
    #[serde(skip_serializing_if = "String::is_empty")]
    target: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    owner: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    group: String,
}

impl State for SymlinkState {
    fn ensure(&self) -> &str {
        match self.found {
            FoundLink::Nothing => "absent",
            FoundLink::Link(_) => "present",
            FoundLink::File => "file",
            FoundLink::Directory { .. } => "directory",
        }
    }
}

/// A step towards the desired link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SymlinkChange {
    /// Make the missing link.
    Create,
    /// Change the target.
    ChangeTarget(Vec<String>),
    /// Replace a file by the link.
    ReplaceFile,
    /// Replace an empty directory by the link.
    ReplaceDirectory,
    /// Set owner and group.
    SetOwner(Vec<String>),
    /// Remove the link.
    Remove,
    /// Remove a file in the place of the link.
    RemoveFile,
    /// Remove an empty directory in the place of the link.
    RemoveDirectory,
}

impl fmt::Display for SymlinkChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "created the link",
            Self::ChangeTarget(_) => "changed the target of the link",
            Self::ReplaceFile => "replaced the file with a link",
            Self::ReplaceDirectory => "replaced the empty directory with a link",
            Self::SetOwner(_) => "set the owner of the link",
            Self::Remove => "removed the link",
            Self::RemoveFile => "removed the file",
            Self::RemoveDirectory => "removed the directory",
        })
    }
}

impl Change for SymlinkChange {
    fn details(&self) -> Vec<String> {
        match self {
            Self::ChangeTarget(details) | Self::SetOwner(details) => details.clone(),
            _ => vec![self.to_string()],
        }
    }
}

impl Resource for SymlinkType {
    const TYPE: &'static str = "symlink";
    const CHANGES_SYSTEM: bool = false;
    const ABOUT: &'static str = "Symbolic links: target and owner.";
    const CLAIMED_PATHS: &'static [&'static str] = &["ensure", "target", "owner", "group"];
    const NO_EFFECTS: &'static [(&'static str, &'static str)] = &[
        ("ensure", "absent removes the same path"),
        ("owner", "of the link itself"),
        ("group", "of the link itself"),
        ("force", "replaces what is at the same path"),
        ("follow", "links on the way are followed before rules and limits are asked again"),
    ];
    const OUTPUTS: &'static [ResourceOutput] = &[ResourceOutput::text("target", "The path that the link leads to.")];
    const REVERSALS: &'static [OnRemoval] = &[OnRemoval::Absent, OnRemoval::Revert];
    const PROVIDERS: &'static [ProviderEntry<()>] = &[ProviderEntry::only("posix")];

    type Properties = Properties;
    type State = SymlinkState;
    type Change = SymlinkChange;
    type Provider = ();

    fn validate(p: &Properties) -> Result<(), Invalid> {
        text::check_path("name", "path", &p.name)?;
        if p.name == "/" {
            return Err(Invalid::new("name", "the root can't be a link"));
        }
        if p.ensure == SymlinkEnsure::Present && p.target.is_empty() {
            return Err(Invalid::new("target", "target is required"));
        }
        if p.target == p.name {
            return Err(Invalid::new("target", "a link can't lead to itself"));
        }
        if p.target.contains('\0') {
            return Err(Invalid::new("target", "target must not contain a NUL character"));
        }
        Ok(())
    }

    fn name(p: &Properties) -> &str {
        &p.name
    }

    fn ensure(p: &Properties) -> &str {
        match p.ensure {
            SymlinkEnsure::Present => "present",
            SymlinkEnsure::Absent => "absent",
        }
    }

    fn effects(p: &Properties) -> Effects {
        let mut effects = Effects::default();
        effects.push(Effect::write(&p.name));
        if !p.target.is_empty() {
            effects.push(Effect::Expose(PathScope::single(text::link_target_path(&p.name, &p.target))));
        }
        effects
    }

    fn provides(p: &Properties) -> Vec<Identity> {
        path_order::path_if(p.ensure == SymlinkEnsure::Present, &p.name)
    }

    fn removes(p: &Properties) -> Vec<Identity> {
        path_order::path_if(p.ensure == SymlinkEnsure::Absent, &p.name)
    }

    fn needs(p: &Properties) -> Vec<Need> {
        if p.ensure == SymlinkEnsure::Absent {
            return vec![Need::below(&p.name)];
        }
        let mut needs = path_order::path_needs(&p.name, &p.owner, &p.group);
        needs.push(Need::path(text::link_target_path(&p.name, &p.target)));
        needs
    }

    fn query(name: &str) -> Option<Properties> {
        let (target, owner, group) = ("/".to_owned(), String::new(), String::new());
        Some(Properties {
            name: name.to_owned(),
            ensure: SymlinkEnsure::Present,
            target,
            owner,
            group,
            force: false,
            follow: false,
        })
    }

    fn observe(p: &Properties, (): &(), host: &Host) -> Result<SymlinkState, ResourceError> {
        let accounts = host.accounts();
        let found = find(p, host)?;
        let wanted = (accounts.uid(&p.owner).ok(), accounts.gid(&p.group).ok());
        let link = if let FoundLink::Link(link) = &found { Some(link) } else { None };
        let (target, owner, group) = link.map_or_else(Default::default, |link| {
            (link.target.display().to_string(), accounts.user_name(link.uid), accounts.group_name(link.gid))
        });
        let missing = match (&found, p.ensure) {
            (FoundLink::Nothing, SymlinkEnsure::Present) => {
                parent_checks::parent_error(p.path(), &host.managed_paths(p.follow), host)?
            }
            _ => None,
        };
        let obstacle = missing.or_else(|| parent_checks::account_error(&p.owner, &p.group, host));
        Ok(SymlinkState { found, obstacle, wanted, target, owner, group })
    }

    fn outputs(_: &Properties, state: &SymlinkState) -> Vec<(&'static str, Value)> {
        vec![("target", json!(matches!(state.found, FoundLink::Link(_)).then_some(&state.target)))]
    }

    fn restoring(p: &Properties, state: &SymlinkState, _: &Host) -> Result<Option<Properties>, ResourceError> {
        let base = Properties { force: false, ..p.clone() };
        match &state.found {
            FoundLink::Nothing => Ok(Self::removing(p, state)),
            FoundLink::Link(_) => Ok(Some(Properties {
                ensure: SymlinkEnsure::Present,
                target: state.target.clone(),
                owner: state.owner.clone(),
                group: state.group.clone(),
                ..base
            })),
            FoundLink::File | FoundLink::Directory { .. } => {
                Err(ResourceError::State(format!("{} is no link: only a link is kept", p.name)))
            }
        }
    }

    fn removing(p: &Properties, _: &SymlinkState) -> Option<Properties> {
        let (owner, group) = (String::new(), String::new());
        Some(Properties { ensure: SymlinkEnsure::Absent, target: String::new(), owner, group, force: false, ..p.clone() })
    }

    fn comparable(_: &Properties, state: &SymlinkState, _: &Host, _: bool) -> Result<Value, ResourceError> {
        Ok(json!({"ensure": state.ensure(), "target": state.target, "owner": state.owner, "group": state.group}))
    }

    fn diff(p: &Properties, state: &SymlinkState) -> Result<Vec<SymlinkChange>, ResourceError> {
        let changes = steps(p, state)?;
        match &state.obstacle {
            Some(why) if !changes.is_empty() && p.ensure == SymlinkEnsure::Present => Err(ResourceError::State(why.clone())),
            _ => Ok(changes),
        }
    }

    fn apply(change: &SymlinkChange, p: &Properties, _: &mut SymlinkState, (): &(), host: &Host) -> Result<(), ResourceError> {
        let place = host.managed_paths(p.follow).existing_place(p.path())?;
        match change {
            SymlinkChange::Remove | SymlinkChange::RemoveFile | SymlinkChange::RemoveDirectory => place.remove()?,
            SymlinkChange::SetOwner(_) => {
                let (uid, gid) = owner(p, host)?;
                place.set_link_owner(uid, gid)?;
            }
            SymlinkChange::Create
            | SymlinkChange::ChangeTarget(_)
            | SymlinkChange::ReplaceFile
            | SymlinkChange::ReplaceDirectory => {
                let (uid, gid) = owner(p, host)?;
                if *change == SymlinkChange::ReplaceDirectory {
                    // Only a directory can be renamed over a directory.
                    place.remove()?;
                }
                place.write_link(Path::new(&p.target), uid, gid)?;
            }
        }
        Ok(())
    }
}

/// Returns the steps for the observed object.
fn steps(p: &Properties, state: &SymlinkState) -> Result<Vec<SymlinkChange>, ResourceError> {
    let in_the_way = |what: &str, way_out: &str| Err(ResourceError::State(format!("{} is {what}, not a link{way_out}", p.name)));
    let force = "; set force: true to replace or remove it";
    let present = p.ensure == SymlinkEnsure::Present;
    match &state.found {
        FoundLink::Nothing => Ok(if present { vec![SymlinkChange::Create] } else { vec![] }),
        FoundLink::Link(_) if !present => Ok(vec![SymlinkChange::Remove]),
        FoundLink::Link(link) => Ok(link_changes(p, state, link)),
        FoundLink::File if !p.force => in_the_way("a file", force),
        FoundLink::File => Ok(vec![if present { SymlinkChange::ReplaceFile } else { SymlinkChange::RemoveFile }]),
        FoundLink::Directory { .. } if !p.force => in_the_way("a directory", force),
        FoundLink::Directory { empty: false } => in_the_way("a directory", ", and is not empty: remove it with a file resource"),
        FoundLink::Directory { empty: true } => {
            Ok(vec![if present { SymlinkChange::ReplaceDirectory } else { SymlinkChange::RemoveDirectory }])
        }
    }
}

fn find(p: &Properties, host: &Host) -> Result<FoundLink, ResourceError> {
    let Some(place) = host.managed_paths(p.follow).place(p.path())? else { return Ok(FoundLink::Nothing) };
    if let Some(link) = place.read_link()? {
        return Ok(FoundLink::Link(link));
    }
    Ok(match place.inspect(false)? {
        PathInfo::Nothing => FoundLink::Nothing,
        PathInfo::Object { info: look, .. } if look.kind == fs::FileKind::Directory => {
            FoundLink::Directory { empty: p.force && place.is_empty()? }
        }
        _ => FoundLink::File,
    })
}

fn owner(p: &Properties, host: &Host) -> Result<(Option<u32>, Option<u32>), ResourceError> {
    let accounts = host.accounts();
    let uid = if p.owner.is_empty() { None } else { Some(accounts.uid(&p.owner)?) };
    let gid = if p.group.is_empty() { None } else { Some(accounts.gid(&p.group)?) };
    Ok((uid, gid))
}

fn link_changes(p: &Properties, state: &SymlinkState, link: &LinkInfo) -> Vec<SymlinkChange> {
    let mut details = Vec::new();
    if !p.owner.is_empty() && state.wanted.0 != Some(link.uid) {
        details.push(format!("owner {} → {}", state.owner, p.owner));
    }
    if !p.group.is_empty() && state.wanted.1 != Some(link.gid) {
        details.push(format!("group {} → {}", state.group, p.group));
    }
    // Compared as text, which is managed: `a/` and `a` differ.
    if link.target.as_os_str() != p.target.as_str() {
        details.insert(0, format!("target {} → {}", link.target.display(), p.target));
        return vec![SymlinkChange::ChangeTarget(details)];
    }
    if details.is_empty() { vec![] } else { vec![SymlinkChange::SetOwner(details)] }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn properties(extra: &Value) -> Result<Properties, String> {
        let mut all = json!({"name": "/t/l", "target": "to"});
        all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let p: Properties = serde_json::from_value(all).map_err(|error| error.to_string())?;
        SymlinkType::validate(&p).map(|()| p).map_err(|invalid| invalid.message)
    }

    /// The decision table: properties, host, description of the dry run.
    #[test]
    fn decisions() {
        let link = |target: &str| FoundLink::Link(LinkInfo { target: target.into(), uid: 0, gid: 7 });
        let (full, empty) = (FoundLink::Directory { empty: false }, FoundLink::Directory { empty: true });
        for (extra, found, expected) in [
            (json!({}), FoundLink::Nothing, Ok("created the link")),
            (json!({}), link("to"), Ok("")),
            (json!({}), link("elsewhere"), Ok("target elsewhere → to")),
            (json!({}), link("to/"), Ok("target to/ → to")),
            (json!({"owner": 0, "group": 7}), link("to"), Ok("")),
            (json!({"owner": 5, "group": 7}), link("to"), Ok("owner root → 5")),
            (json!({"owner": 5, "group": 6}), link("x"), Ok("target x → to, owner root → 5, group seven → 6")),
            (json!({}), FoundLink::File, Err("/t/l is a file, not a link; set force: true")),
            (json!({"force": true}), FoundLink::File, Ok("replaced the file with a link")),
            (json!({}), full.clone(), Err("/t/l is a directory, not a link; set force: true")),
            (json!({"force": true}), empty.clone(), Ok("replaced the empty directory with a link")),
            (json!({"force": true}), full.clone(), Err("and is not empty")),
            (json!({"ensure": "absent"}), FoundLink::Nothing, Ok("")),
            (json!({"ensure": "absent"}), link("any"), Ok("removed the link")),
            (json!({"ensure": "absent"}), FoundLink::File, Err("set force: true")),
            (json!({"ensure": "absent", "force": true}), FoundLink::File, Ok("removed the file")),
            (json!({"ensure": "absent", "force": true}), empty, Ok("removed the directory")),
            (json!({"ensure": "absent", "force": true}), full, Err("and is not empty")),
        ] {
            let p = properties(&extra).unwrap();
            let wanted = (p.owner.parse().ok(), p.group.parse().ok());
            let state = SymlinkState {
                found: found.clone(),
                obstacle: None,
                wanted,
                target: String::new(),
                owner: "root".into(),
                group: "seven".into(),
            };
            match (SymlinkType::diff(&p, &state), expected) {
                (Ok(changes), Ok(expected)) => {
                    let details: Vec<String> = changes.iter().flat_map(Change::details).collect();
                    assert_eq!(details.join(", "), expected, "{extra} {found:?}");
                }
                (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{extra} {found:?}: {error}"),
                (got, _) => panic!("{extra} {found:?}: {got:?}"),
            }
        }
    }

    #[test]
    fn validation() {
        assert!(properties(&json!({"target": "../a b/ü"})).is_ok());
        assert!(properties(&json!({"ensure": "absent", "target": null})).is_ok());
        for (bad, message) in [
            (json!({"target": ""}), "target is required"),
            (json!({"target": "/t/l"}), "can't lead to itself"),
            (json!({"target": "a\0"}), "NUL"),
            (json!({"name": "l"}), "must be absolute"),
            (json!({"name": "/t/../l"}), "must be canonical"),
            (json!({"name": "/", "ensure": "absent"}), "the root can't be a link"),
            (json!({"mode": "0777"}), "unknown field"),
        ] {
            assert!(properties(&bad).unwrap_err().contains(message), "{bad}");
        }
    }
}

#[cfg(test)]
mod fixture {
    use crate::host::account::effective_uid;
    use crate::resource::properties_test::prelude::*;

    use super::SymlinkType;

    impl TypeFixture for SymlinkType {
        fn host(_: &Path) -> Host {
            Host::system(None)
        }

        fn wanted(root: &Path) -> BoxedStrategy<Self::Properties> {
            let root = root.to_owned();
            let owners = prop::sample::select(vec![String::new(), effective_uid().to_string()]);
            let names = prop::sample::select(vec!["a", "d", "full", "l", "new", "no/parent"]);
            let ensure = prop::sample::select(vec!["present", "absent"]);
            (names, ensure, prop::sample::select(vec!["a", "d/", "../x", "/no such/ü"]), owners, any::<bool>())
                .prop_map(move |(name, ensure, target, owner, force)| {
                    let name = root.join(name);
                    serde_json::from_value(
                        json!({"name": name, "ensure": ensure, "target": target, "owner": owner, "force": force}),
                    )
                    .unwrap()
                })
                .boxed()
        }

        fn before(_: &Path) -> BoxedStrategy<Vec<Preexisting>> {
            let links = prop::sample::select(vec!["a", "d", "../x"]);
            let others = vec![
                Preexisting::File("a", "x", 0o644),
                Preexisting::Directory("d", 0o755),
                Preexisting::Directory("full/below", 0o755),
            ];
            (prop::option::of(links), prop::sample::subsequence(others, 0..=3))
                .prop_map(|(link, others)| link.map(|target| Preexisting::Link("l", target)).into_iter().chain(others).collect())
                .boxed()
        }

        fn samples() -> (Value, Value) {
            (
                json!({"name": "/a", "ensure": "present", "target": "/t", "owner": "o", "group": "g", "force": false, "follow": false}),
                json!({"name": "/b", "ensure": "absent", "target": "/u", "owner": "p", "group": "h", "force": true, "follow": true}),
            )
        }
    }

    #[test]
    fn keeps_the_laws() {
        check_type::<SymlinkType>();
    }
}
