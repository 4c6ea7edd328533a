//! The steps for each state, with the arguments of useradd(8) and usermod(8).

use std::collections::BTreeSet;

use crate::resource::ResourceError;
use crate::resource::core::ensure::Presence;

use super::properties::{NEVER, Properties};
use super::state::{ObservedAccount, UserChange, UserState};

pub(super) fn removal(p: &Properties, seen: &ObservedAccount) -> Result<UserChange, ResourceError> {
    if seen.uid == 0 {
        return Err(ResourceError::State(format!("{} is the superuser (uid 0) and is not removed", p.name)));
    }
    if p.manage_home && seen.home != p.home {
        let message = format!("the home of {} is {}, not {}: it is not removed", p.name, seen.home, p.home);
        return Err(ResourceError::State(message));
    }
    Ok(UserChange::Remove { home: p.manage_home && seen.home_is_there })
}

pub(super) fn creation(p: &Properties) -> Result<Vec<UserChange>, ResourceError> {
    if p.locked == Some(false) && p.password_hash.is_none() {
        return Err(no_password(p));
    }
    let password = p.password_hash.as_ref().map(|_| UserChange::Password { locked: p.locked == Some(true) });
    Ok([UserChange::Create].into_iter().chain(password).collect())
}

fn no_password(p: &Properties) -> ResourceError {
    ResourceError::State(format!("{} has no password to unlock: set password_hash", p.name))
}

/// Returns an option with its value.
fn option(name: &str, value: impl Into<String>) -> [String; 2] {
    [format!("--{name}"), value.into()]
}

pub(super) fn creation_args(p: &Properties, state: &UserState) -> Vec<String> {
    let mut args = Vec::new();
    args.extend(p.uid.into_iter().flat_map(|uid| option("uid", uid.to_string())));
    if !p.group.is_empty() {
        args.extend(option("gid", &p.group));
    } else if state.own_group {
        // By default, useradd fails if a group of that name exists.
        args.extend(option("gid", &p.name));
    }
    if let Some(groups) = p.wanted_groups().filter(|groups| !groups.is_empty()) {
        args.extend(option("groups", joined(groups)));
    }
    if !p.home.is_empty() {
        args.extend(option("home-dir", &p.home));
    }
    args.push(if p.manage_home { "--create-home" } else { "--no-create-home" }.to_owned());
    if !p.shell.is_empty() {
        args.extend(option("shell", &p.shell));
    }
    args.extend(p.comment.iter().flat_map(|comment| option("comment", comment)));
    if !p.expires.is_empty() {
        args.extend(option("expiredate", day(p)));
    }
    if p.system {
        args.push("--system".to_owned());
    }
    args.push(p.name.clone());
    args
}

fn joined<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().collect::<Vec<_>>().join(",")
}

/// Returns the expiry in the form of the tools.
fn day(p: &Properties) -> &str {
    if p.expires == NEVER { "" } else { &p.expires }
}

/// Returns the changes for usermod(8), if any.
pub(super) fn modification(
    p: &Properties,
    state: &UserState,
    seen: &ObservedAccount,
) -> Result<Option<UserChange>, ResourceError> {
    let (mut args, mut details) = (Vec::new(), Vec::new());
    let mut differs = |option_name: &str, label: &str, from: &str, to: &str, value: &str| {
        args.extend(option(option_name, value));
        details.push(format!("{label} {} → {}", or_none(from), or_none(to)));
    };
    if let Some(uid) = p.uid.filter(|uid| *uid != seen.uid) {
        differs("uid", "uid", &seen.uid.to_string(), &uid.to_string(), &uid.to_string());
    }
    if !p.group.is_empty() && state.wanted_gid != Some(seen.gid) {
        differs("gid", "group", &seen.group, &p.group, &p.group);
    }
    if let Some((from, to)) = groups(p, seen) {
        let to = joined(to.iter().map(String::as_str));
        differs("groups", "groups", &joined(from.iter().map(String::as_str)), &to, &to);
    }
    if !p.shell.is_empty() && p.shell != seen.shell {
        differs("shell", "shell", &seen.shell, &p.shell, &p.shell);
    }
    if let Some(comment) = p.comment.as_ref().filter(|comment| **comment != seen.comment) {
        differs("comment", "comment", &seen.comment, comment, comment);
    }
    let end = p.expiry_days().map_err(|invalid| ResourceError::State(invalid.message))?;
    if end.is_some_and(|end| end != seen.end) {
        differs("expiredate", "expires", seen.expires.as_deref().unwrap_or(NEVER), &p.expires, day(p));
    }
    if !p.home.is_empty() && p.home != seen.home {
        differs("home", "home", &seen.home, &p.home, &p.home);
        if moves_home_from(p, seen) && !state.wanted_home {
            args.push(MOVE_HOME.to_owned());
        }
    }
    Ok((!args.is_empty()).then_some(UserChange::Modify { args, details }))
}

/// The option of usermod(8) that moves the content of the home.
const MOVE_HOME: &str = "--move-home";

pub(super) fn moves_home(change: &UserChange) -> bool {
    matches!(change, UserChange::Modify { args, .. } if args.iter().any(|arg| arg == MOVE_HOME))
}

/// True when the account has a home at another path, whose content is moved.
pub(super) fn moves_home_from(p: &Properties, seen: &ObservedAccount) -> bool {
    p.manage_home && p.ensure == Presence::Present && !p.home.is_empty() && p.home != seen.home && seen.home_is_there
}

fn or_none(value: &str) -> &str {
    if value.is_empty() { "(none)" } else { value }
}

/// Returns the observed and desired further groups, if they differ.
fn groups(p: &Properties, seen: &ObservedAccount) -> Option<(Vec<String>, Vec<String>)> {
    let wanted = p.wanted_groups()?;
    let now: BTreeSet<&str> = seen.groups.iter().map(String::as_str).collect();
    let to: BTreeSet<&str> = if p.append { now.union(&wanted).copied().collect() } else { wanted };
    let owned = |names: &BTreeSet<&str>| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    (to != now).then(|| (owned(&now), owned(&to)))
}

/// Returns the step that corrects the password.
pub(super) fn password(p: &Properties, seen: &ObservedAccount) -> Result<Option<UserChange>, ResourceError> {
    if p.password_hash.is_none() && p.locked.is_none() {
        return Ok(None);
    }
    let Some(now) = &seen.password else {
        return Err(ResourceError::State(format!("{} has no line in /etc/shadow to put a password into", p.name)));
    };
    let Some(hash) = &p.password_hash else {
        return match p.locked {
            Some(true) if !now.denies_login() => Ok(Some(UserChange::Lock)),
            Some(false) if now.is_locked() => Ok(Some(UserChange::Unlock)),
            Some(false) if now.denies_login() => Err(no_password(p)),
            _ => Ok(None),
        };
    };
    // Without `locked`, the lock stays.
    let locked = p.locked.unwrap_or_else(|| now.is_locked());
    let right = now.hash() == hash.reveal() && now.denies_login() == locked;
    Ok((!right).then_some(UserChange::Password { locked }))
}
