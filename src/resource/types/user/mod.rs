//! `user`: users of this host: number, groups, home, shell, password, expiry.
//!
//! State comes from passwd(5), group(5) and shadow(5). Changes use the shadow suite (`core/shadow_utils.rs`), with password
//! hashes on standard input, invisible to other users. `group` is its sibling.

mod properties;
mod state;
mod steps;

use serde_json::{Value, json};

use crate::host::passwd::ShadowEntry;
use crate::host::{Host, PathResolver, ProcessCommand, WriteSpec};
use crate::model::effects::{EffectKind, PathScope};
use crate::model::{Effect, Effects, Identity, Need, OnRemoval, RedactedProperty, Secret, WatchTarget};

use crate::resource::core::account_files;
use crate::resource::core::ensure::Presence;
use crate::resource::core::shadow_utils::ShadowTools;
use crate::resource::core::{path_order, shadow_utils, watch_targets};
use crate::resource::{Invalid, ProviderEntry, Resource, ResourceError, ResourceOutput, State};

use properties::{check_path, is_hash, is_separator};
use state::observe_account;
use steps::{creation, creation_args, modification, moves_home, moves_home_from, password, removal};

pub use properties::Properties;
pub use state::{UserChange, UserState};

/// The mode of a home that is made for an existing user.
const HOME_MODE: u32 = 0o700;

/// Users.
pub struct UserType;

impl Resource for UserType {
    const TYPE: &'static str = "user";
    const CHANGES_SYSTEM: bool = true;
    const ABOUT: &'static str = "Users of this host: number, groups, home, shell, password.";
    const NO_EFFECTS: &'static [(&'static str, &'static str)] = &[
        ("ensure", "absent removes the same account"),
        ("append", "adds to the groups that are named anyway"),
        ("shell", "runs with the rights of the account itself"),
        ("comment", "a text about the account"),
        ("system", "which number a new account gets"),
        ("password_hash", "of the same account"),
        ("locked", "of the same account"),
        ("expires", "of the same account"),
    ];
    const OUTPUTS: &'static [ResourceOutput] = &[
        ResourceOutput::number("uid", "The number."),
        ResourceOutput::number("gid", "The number of the primary group."),
        ResourceOutput::text("group", "The primary group."),
        ResourceOutput::list("groups", "The other groups."),
        ResourceOutput::text("home", "The home directory."),
        ResourceOutput::text("shell", "The login shell."),
    ];
    const REVERSALS: &'static [OnRemoval] = &[OnRemoval::Absent, OnRemoval::Revert];
    const PROVIDERS: &'static [ProviderEntry<ShadowTools>] =
        &[ProviderEntry::new("shadow", ShadowTools::are_installed, ShadowTools::open)];

    type Properties = Properties;
    type State = UserState;
    type Change = UserChange;
    type Provider = ShadowTools;

    fn validate(p: &Properties) -> Result<(), Invalid> {
        shadow_utils::check_new_name(&p.name)?;
        shadow_utils::check_id("uid", p.uid)?;
        if !p.group.is_empty() {
            shadow_utils::check_reference("group", &p.group)?;
        }
        p.groups.iter().flatten().try_for_each(|group| shadow_utils::check_reference("groups", group))?;
        if p.append && p.groups.is_none() {
            return Err(Invalid::new("append", "append modifies groups: it needs groups"));
        }
        check_path("home", &p.home)?;
        check_path("shell", &p.shell)?;
        if p.manage_home && matches!(p.home.as_str(), "" | "/") {
            return Err(Invalid::new("manage_home", "manage_home needs home, which can't be \"/\""));
        }
        if p.comment.as_ref().is_some_and(|comment| comment.contains(is_separator)) {
            return Err(Invalid::new("comment", "comment can't have a colon or a line break"));
        }
        if p.password_hash.as_ref().is_some_and(|hash| !is_hash(hash.reveal())) {
            let message = "password_hash is no hash of crypt(5), as \"$y$…\" or \"$6$…\" (mkpasswd makes one), nor \"*\"";
            return Err(Invalid::new("password_hash", message));
        }
        p.expiry_days()?;
        if p.name == "root" && p.ensure == Presence::Absent {
            return Err(Invalid::new("ensure", "root can't be absent"));
        }
        Ok(())
    }

    fn name(p: &Properties) -> &str {
        &p.name
    }

    fn ensure(p: &Properties) -> &str {
        p.ensure.as_str()
    }

    fn report_secrets(p: &Properties, note: &mut dyn FnMut(RedactedProperty<'_>)) {
        p.password_hash.iter().for_each(|hash| note(RedactedProperty::Value(hash.reveal())));
    }

    fn effects(p: &Properties) -> Effects {
        let mut effects = Effects::default();
        effects.push(Effect::user(&p.name));
        if p.uid == Some(0) {
            effects.push(Effect::user("root"));
        }
        let primary = Some(&p.group).filter(|group| !group.is_empty());
        effects.extend(primary.into_iter().chain(p.groups.iter().flatten()).map(Effect::group));
        effects.extend(account_files::USER_FILES.iter().chain(account_files::GROUP_FILES).copied().map(Effect::implied));
        if p.manage_home {
            effects.push(Effect::write_below(&p.home));
            effects.push(Effect::implied(format!("/var/mail/{}", p.name)));
        } else if p.uid.is_some() {
            // usermod(8) changes the owner of the files in the home.
            let home = "the home of an account whose number changes, which is not given";
            effects.push(match p.home.as_str() {
                "" => Effect::unknown(Some(EffectKind::Write), home),
                home => Effect::Write { place: PathScope::below(home), implied: true },
            });
        }
        effects
    }

    /// The files of accounts, and the home itself: the content of the home belongs to the user.
    fn watches(p: &Properties, host: &Host) -> Vec<WatchTarget> {
        let home = Some(&p.home).filter(|home| p.manage_home && !home.is_empty());
        watch_targets::accounts(host).into_iter().chain(home.map(watch_targets::path)).collect()
    }

    fn provides(p: &Properties) -> Vec<Identity> {
        if p.ensure == Presence::Absent {
            return Vec::new();
        }
        let mut objects = vec![Identity::User(p.name.clone())];
        objects.extend(p.group.is_empty().then(|| Identity::Group(p.name.clone())));
        objects.extend(path_order::path_if(p.manage_home, &p.home));
        objects
    }

    fn removes(p: &Properties) -> Vec<Identity> {
        if p.ensure == Presence::Present {
            return Vec::new();
        }
        std::iter::once(Identity::User(p.name.clone())).chain(path_order::path_if(p.manage_home, &p.home)).collect()
    }

    fn needs(p: &Properties) -> Vec<Need> {
        let primary = if p.group.is_empty() { &p.name } else { &p.group };
        let mut needs: Vec<Need> = std::iter::once(primary).chain(p.groups.iter().flatten()).map(Need::group).collect();
        match p.ensure {
            Presence::Present => {
                needs.extend(p.manage_home.then(|| Need::above(&p.home)));
                needs.extend(path_order::command_needs(&p.shell));
            }
            Presence::Absent => needs.extend(p.manage_home.then(|| Need::below(&p.home))),
        }
        needs
    }

    fn query(name: &str) -> Option<Properties> {
        serde_json::from_value(serde_json::json!({ "name": name })).ok()
    }

    fn observe(p: &Properties, _: &ShadowTools, host: &Host) -> Result<UserState, ResourceError> {
        let files = host.accounts().files();
        let (users, groups) = (files.users()?, files.groups()?);
        let local = |name: &str| groups.iter().find(|group| group.name == name).map(|group| group.gid);
        let wanted_gid = match p.group.as_str() {
            "" => None,
            group => local(group).or_else(|| host.accounts().gid(group).ok()),
        };
        let there = |home: &str| PathResolver::system().is_directory(&host.system_path(home));
        let account = match users.iter().find(|user| user.name == p.name) {
            None => None,
            Some(user) => {
                let of = groups.iter().filter(|group| group.members.contains(&user.name)).map(|group| group.name.clone());
                let group = groups.iter().find(|group| group.gid == user.gid);
                let group = group.map_or_else(|| host.accounts().group_name(user.gid), |group| group.name.clone());
                let home_is_there = p.manage_home && there(&user.home)?;
                Some(observe_account(user, group, of.collect(), home_is_there, shadow_line(p, host)?.as_ref()))
            }
        };
        let wanted_home = p.manage_home && there(&p.home)?;
        if let Some(seen) = account.as_ref().filter(|seen| moves_home_from(p, seen) && !wanted_home) {
            // The properties do not contain the path of the old home, so the limits of the run are checked here.
            host.managed_paths(false).place(&host.system_path(&seen.home))?;
        }
        Ok(UserState { account, wanted_gid, own_group: local(&p.name).is_some(), wanted_home })
    }

    fn outputs(_: &Properties, state: &UserState) -> Vec<(&'static str, Value)> {
        let Some(account) = &state.account else { return Vec::new() };
        vec![
            ("uid", json!(account.uid)),
            ("gid", json!(account.gid)),
            ("group", json!(account.group)),
            ("groups", json!(account.groups)),
            ("home", json!(account.home)),
            ("shell", json!(account.shell)),
        ]
    }

    fn restoring(p: &Properties, state: &UserState, _: &Host) -> Result<Option<Properties>, ResourceError> {
        Ok(Self::removing(p, state))
    }

    fn removing(p: &Properties, state: &UserState) -> Option<Properties> {
        // An account that was there before stays.
        if state.ensure() == "absent" {
            Self::query(&p.name).map(|query| Properties { ensure: Presence::Absent, ..query })
        } else {
            None
        }
    }

    fn diff(p: &Properties, state: &UserState) -> Result<Vec<UserChange>, ResourceError> {
        match (p.ensure, &state.account) {
            (Presence::Absent, None) => Ok(vec![]),
            (Presence::Absent, Some(seen)) => Ok(vec![removal(p, seen)?]),
            (Presence::Present, None) => creation(p),
            (Presence::Present, Some(seen)) => {
                let modification = modification(p, state, seen)?;
                let moves = modification.as_ref().is_some_and(moves_home);
                let home = (p.manage_home && !state.wanted_home && !moves).then_some(UserChange::MakeHome);
                Ok(modification.into_iter().chain(home).chain(password(p, seen)?).collect())
            }
        }
    }

    fn apply(
        change: &UserChange,
        p: &Properties,
        state: &mut UserState,
        tools: &ShadowTools,
        host: &Host,
    ) -> Result<(), ResourceError> {
        let name = p.name.as_str();
        match change {
            UserChange::Create => tools.run(ProcessCommand::new("useradd", creation_args(p, state)), host),
            UserChange::Modify { args, .. } => {
                tools.run(ProcessCommand::new("usermod", args.iter().map(String::as_str).chain([name])), host)
            }
            UserChange::MakeHome => make_home(p, host),
            UserChange::Password { locked } => {
                let hash = p.password_hash.as_ref().map(Secret::reveal).unwrap_or_default();
                let lock = if *locked { "!" } else { "" };
                let mut command = ProcessCommand::new("chpasswd", ["--encrypted"]);
                command.input = Some(Secret::new(format!("{name}:{lock}{hash}\n")));
                tools.run(command, host)
            }
            UserChange::Lock => tools.run(ProcessCommand::new("usermod", ["--lock", name]), host),
            UserChange::Unlock => tools.run(ProcessCommand::new("usermod", ["--unlock", name]), host),
            UserChange::Remove { home } => {
                let remove = home.then_some("--remove");
                tools.run(ProcessCommand::new("userdel", remove.into_iter().chain([name])), host)
            }
        }
    }
}

/// Returns the user's line of shadow(5), which only root may read. An unreadable file is an error if the properties need it.
fn shadow_line(p: &Properties, host: &Host) -> Result<Option<ShadowEntry>, ResourceError> {
    match host.accounts().files().shadow() {
        Ok(shadow) => Ok(shadow.get(&p.name).cloned()),
        Err(error) if p.needs_shadow() => Err(error.into()),
        Err(_) => Ok(None),
    }
}

/// Makes the home of an existing user; useradd(8) makes the home of a new one.
fn make_home(p: &Properties, host: &Host) -> Result<(), ResourceError> {
    let home = host.system_path(&p.home);
    let users = host.accounts().files().users()?;
    let user = users.iter().find(|user| user.name == p.name);
    let user = user.ok_or_else(|| ResourceError::State(format!("{} is not in /etc/passwd any more", p.name)))?;
    let place = PathResolver::system().create_place(&home, 0o755)?;
    place.make_directory(HOME_MODE)?;
    Ok(place.set(WriteSpec { uid: Some(user.uid), gid: Some(user.gid), mode: HOME_MODE })?)
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
