//! `user`: users of this host: number, groups, home, shell, password, expiry.
//!
//! State comes from passwd(5), group(5) and shadow(5). Changes use the shadow suite (`core/shadow_utils.rs`), with password
//! hashes on standard input, invisible to other users. `group` is its sibling.

use std::collections::BTreeSet;
use std::fmt;

use jiff::civil::Date;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::host::passwd::{PasswdEntry as Account, ShadowEntry};
use crate::host::{Host, PathResolver, ProcessCommand, WriteSpec};
use crate::model::effects::{EffectKind, PathScope};
use crate::model::{Effect, Effects, RedactedProperty, Secret};

use crate::resource::core::ensure::Presence;
use crate::resource::core::shadow_utils;
use crate::resource::core::shadow_utils::ShadowTools;
use crate::resource::core::text;
use crate::resource::{Change, Invalid, ProviderEntry, Resource, ResourceError, State};

/// The day 0 of shadow(5).
const EPOCH: Date = jiff::civil::date(1970, 1, 1);
/// The value of `expires` for an account without expiry.
const NEVER: &str = "never";
/// The prefix of a locked password.
const LOCK: char = '!';
/// The mode of a home that is made for an existing user.
const HOME_MODE: u32 = 0o700;

/// Users.
pub struct UserType;

/// Properties of a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Properties {
    /// The name: letters, digits, `_`, `.` and `-`, at most 32 of them.
    #[serde(deserialize_with = "text::text")]
    pub name: String,
    /// Desired state of the user.
    #[serde(default)]
    pub ensure: Presence,
    /// The number; when left out, an existing user keeps its number, and a new user gets the next free number. With another
    /// number, the files in the home follow; others keep their number.
    #[serde(default, deserialize_with = "text::number", skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The primary group, by name or number. A new user without it gets the group of the user's name, which is made if missing.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Further groups, by name: the complete list, unless `append` is set. Not managed when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<String>>,
    /// Add to `groups` and keep all others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub append: bool,
    /// The home directory.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub home: String,
    /// Manage the home: make it from `/etc/skel` for a new user, move it when `home` changes. When the user is removed, remove
    /// the home and the mail. An existing home stays unchanged. Needs `home`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub manage_home: bool,
    /// The login shell.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    pub shell: String,
    /// Full name and contact (GECOS). Empty text clears the field.
    #[serde(default, deserialize_with = "text::optional", skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// Take the numbers of a new user from the range for system accounts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub system: bool,
    /// The password hash of crypt(5), or `*` for no password. Always redacted.
    #[serde(default, deserialize_with = "secret", skip_serializing_if = "Option::is_none")]
    pub password_hash: Option<Secret>,
    /// Lock the password. Other logins, as with SSH keys, are not locked: `expires` closes those too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked: Option<bool>,
    /// Day from which no login is possible, as `2030-12-31`, or `never`.
    #[serde(default, deserialize_with = "text::or_empty", skip_serializing_if = "String::is_empty")]
    #[schemars(regex(pattern = r"^(|never|\d{4}-\d{2}-\d{2}|.*(\{\{|\$\{).*)$"))]
    pub expires: String,
}

fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
    Ok(text::optional(deserializer)?.map(Secret::new))
}

impl Properties {
    fn needs_shadow(&self) -> bool {
        self.password_hash.is_some() || self.locked.is_some() || !self.expires.is_empty()
    }

    /// Returns the desired expiry in days since 1970-01-01; the inner `None` means never, the outer means not managed.
    fn expiry_days(&self) -> Result<Option<Option<i64>>, Invalid> {
        match self.expires.as_str() {
            "" => Ok(None),
            NEVER => Ok(Some(None)),
            day => {
                let wrong = |_| Invalid::new("expires", format!("expires is a day, as 2030-12-31, or never, not {day:?}"));
                let day: Date = day.parse().map_err(wrong)?;
                let days = day.since((jiff::Unit::Day, EPOCH)).map_err(wrong)?.get_days();
                // shadow(5): 0 may be interpreted as never too.
                if days < 1 {
                    Err(Invalid::new("expires", "expires must be after 1970-01-01"))
                } else {
                    Ok(Some(Some(days.into())))
                }
            }
        }
    }

    /// True when the account has a home at another path, whose content is moved.
    fn moves_home_from(&self, seen: &ObservedAccount) -> bool {
        self.manage_home
            && self.ensure == Presence::Present
            && !self.home.is_empty()
            && self.home != seen.home
            && seen.home_is_there
    }

    /// Returns the desired further groups, without duplicates.
    fn wanted_groups(&self) -> Option<BTreeSet<&str>> {
        self.groups.as_ref().map(|groups| groups.iter().map(String::as_str).collect())
    }
}

/// The password of an account.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Password(Secret);

impl Password {
    /// Returns the hash without the lock; empty for no hash.
    fn hash(&self) -> &str {
        self.0.reveal().trim_start_matches(LOCK)
    }

    /// True for a locked password.
    fn is_locked(&self) -> bool {
        !self.hash().is_empty() && self.0.reveal().starts_with(LOCK)
    }

    /// True when no login with a password is possible: the password is locked, or was never set.
    fn denies_login(&self) -> bool {
        self.0.reveal().starts_with(LOCK)
    }
}

/// The observed entries in the account files.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct UserState {
    #[serde(flatten)]
    account: Option<ObservedAccount>,
    /// The number of the requested group; none for a missing group.
    #[serde(skip)]
    wanted_gid: Option<u32>,
    /// True when a group of the user's name exists.
    #[serde(skip)]
    own_group: bool,
    /// True when the requested home exists.
    #[serde(skip)]
    wanted_home: bool,
}

/// An existing account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct ObservedAccount {
    uid: u32,
    gid: u32,
    group: String,
    groups: Vec<String>,
    home: String,
    #[serde(skip)]
    home_is_there: bool,
    shell: String,
    comment: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    locked: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    #[serde(skip)]
    end: Option<i64>,
    #[serde(skip)]
    password: Option<Password>,
}

impl State for UserState {
    fn ensure(&self) -> &str {
        Presence::from_exists(self.account.is_some()).as_str()
    }
}

/// A step towards the desired user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserChange {
    /// Make the account.
    Create,
    /// Change the account with usermod(8).
    Modify {
        /// The arguments.
        args: Vec<String>,
        /// The differences.
        details: Vec<String>,
    },
    /// Make the home.
    MakeHome,
    /// Set the password.
    Password {
        /// True to set a locked password.
        locked: bool,
    },
    /// Lock the password.
    Lock,
    /// Unlock the password.
    Unlock,
    /// Remove the account.
    Remove {
        /// True to remove its home and mail too.
        home: bool,
    },
}

impl fmt::Display for UserChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "created the user",
            Self::Modify { .. } => "modified the user",
            Self::MakeHome => "made the home",
            Self::Password { .. } => "set the password",
            Self::Lock => "locked the password",
            Self::Unlock => "unlocked the password",
            Self::Remove { home: false } => "removed the user",
            Self::Remove { home: true } => "removed the user and the home",
        })
    }
}

impl Change for UserChange {
    fn details(&self) -> Vec<String> {
        match self {
            Self::Modify { details, .. } => details.clone(),
            _ => vec![self.to_string()],
        }
    }
}

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
    const PROVIDERS: &'static [ProviderEntry<ShadowTools>] = &[ProviderEntry {
        name: "shadow",
        only_on_request: false,
        works_on: ShadowTools::are_installed,
        open: ShadowTools::open,
    }];

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
        effects.extend(shadow_utils::USER_FILES.iter().chain(shadow_utils::GROUP_FILES).copied().map(Effect::implied));
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
        if let Some(seen) = account.as_ref().filter(|seen| p.moves_home_from(seen) && !wanted_home) {
            // The properties do not contain the path of the old home, so the limits of the run are checked here.
            host.managed_paths(false).place(&host.system_path(&seen.home))?;
        }
        Ok(UserState { account, wanted_gid, own_group: local(&p.name).is_some(), wanted_home })
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

/// True for characters that would end a field or a line of an account file.
fn is_separator(c: char) -> bool {
    c == ':' || c.is_control()
}

fn check_path(property: &'static str, path: &str) -> Result<(), Invalid> {
    if path.is_empty() {
        return Ok(());
    }
    if path.contains(is_separator) {
        return Err(Invalid::new(property, format!("{property} can't have a colon or a line break: {path:?}")));
    }
    text::check_path(property, property, path)
}

/// True for a hash of crypt(5), and `*`. A password in clear is none.
fn is_hash(text: &str) -> bool {
    let fine = |c: char| c.is_ascii_alphanumeric() || "./$=,+-_".contains(c);
    text == "*"
        || (text.len() >= 13
            && text.len() <= 512
            && text.starts_with('$')
            && text.matches('$').count() >= 3
            && text.chars().all(fine))
}

fn observe_account(
    user: &Account,
    group: String,
    groups: Vec<String>,
    home_is_there: bool,
    shadow: Option<&ShadowEntry>,
) -> ObservedAccount {
    let password = shadow.map(|shadow| Password(shadow.password.clone()));
    let end = shadow.and_then(|shadow| shadow.expires);
    let day = |days: i64| EPOCH.checked_add(jiff::Span::new().try_days(days).ok()?).ok().map(|day| day.to_string());
    ObservedAccount {
        uid: user.uid,
        gid: user.gid,
        group,
        groups,
        home: user.home.clone(),
        home_is_there,
        shell: user.shell.clone(),
        comment: user.comment.clone(),
        locked: password.as_ref().map(Password::denies_login),
        expires: shadow.map(|_| end.and_then(day).unwrap_or_else(|| NEVER.to_owned())),
        end,
        password,
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

fn removal(p: &Properties, seen: &ObservedAccount) -> Result<UserChange, ResourceError> {
    if seen.uid == 0 {
        return Err(ResourceError::State(format!("{} is the superuser (uid 0) and is not removed", p.name)));
    }
    if p.manage_home && seen.home != p.home {
        let message = format!("the home of {} is {}, not {}: it is not removed", p.name, seen.home, p.home);
        return Err(ResourceError::State(message));
    }
    Ok(UserChange::Remove { home: p.manage_home && seen.home_is_there })
}

fn creation(p: &Properties) -> Result<Vec<UserChange>, ResourceError> {
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

fn creation_args(p: &Properties, state: &UserState) -> Vec<String> {
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
fn modification(p: &Properties, state: &UserState, seen: &ObservedAccount) -> Result<Option<UserChange>, ResourceError> {
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
        if p.moves_home_from(seen) && !state.wanted_home {
            args.push(MOVE_HOME.to_owned());
        }
    }
    Ok((!args.is_empty()).then_some(UserChange::Modify { args, details }))
}

/// The option of usermod(8) that moves the content of the home.
const MOVE_HOME: &str = "--move-home";

fn moves_home(change: &UserChange) -> bool {
    matches!(change, UserChange::Modify { args, .. } if args.iter().any(|arg| arg == MOVE_HOME))
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
fn password(p: &Properties, seen: &ObservedAccount) -> Result<Option<UserChange>, ResourceError> {
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
