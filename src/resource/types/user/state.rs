//! The observed state of a user, and the steps to the desired one.

use std::fmt;

use serde::Serialize;

use crate::host::passwd::{PasswdEntry, ShadowEntry};
use crate::model::Secret;
use crate::resource::core::ensure::Presence;
use crate::resource::{Change, State};

use super::properties::{EPOCH, NEVER};

/// The prefix of a locked password.
const LOCK: char = '!';

/// The password of an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Password(Secret);

impl Password {
    /// Returns the hash without the lock; empty for no hash.
    pub(super) fn hash(&self) -> &str {
        self.0.reveal().trim_start_matches(LOCK)
    }

    /// True for a locked password.
    pub(super) fn is_locked(&self) -> bool {
        !self.hash().is_empty() && self.0.reveal().starts_with(LOCK)
    }

    /// True when no login with a password is possible: the password is locked, or was never set.
    pub(super) fn denies_login(&self) -> bool {
        self.0.reveal().starts_with(LOCK)
    }
}

/// The observed entries in the account files.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct UserState {
    #[serde(flatten)]
    pub(super) account: Option<ObservedAccount>,
    /// The number of the requested group; none for a missing group.
    #[serde(skip)]
    pub(super) wanted_gid: Option<u32>,
    /// True when a group of the user's name exists.
    #[serde(skip)]
    pub(super) own_group: bool,
    /// True when the requested home exists.
    #[serde(skip)]
    pub(super) wanted_home: bool,
}

impl State for UserState {
    fn ensure(&self) -> &str {
        Presence::from_exists(self.account.is_some()).as_str()
    }
}

/// An existing account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ObservedAccount {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) group: String,
    pub(super) groups: Vec<String>,
    pub(super) home: String,
    #[serde(skip)]
    pub(super) home_is_there: bool,
    pub(super) shell: String,
    pub(super) comment: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) locked: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires: Option<String>,
    #[serde(skip)]
    pub(super) end: Option<i64>,
    #[serde(skip)]
    pub(super) password: Option<Password>,
}

pub(super) fn observe_account(
    user: &PasswdEntry,
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
