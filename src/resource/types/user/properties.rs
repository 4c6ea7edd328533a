//! The properties of a user, and the checks of their values.

use std::collections::BTreeSet;

use jiff::civil::Date;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::model::Secret;
use crate::resource::Invalid;
use crate::resource::core::ensure::Presence;
use crate::resource::core::text;

/// The day 0 of shadow(5).
pub(super) const EPOCH: Date = jiff::civil::date(1970, 1, 1);
/// The value of `expires` for an account without expiry.
pub(super) const NEVER: &str = "never";

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
    pub(super) fn needs_shadow(&self) -> bool {
        self.password_hash.is_some() || self.locked.is_some() || !self.expires.is_empty()
    }

    /// Returns the desired expiry in days since 1970-01-01; the inner `None` means never, the outer means not managed.
    pub(super) fn expiry_days(&self) -> Result<Option<Option<i64>>, Invalid> {
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

    /// Returns the desired further groups, without duplicates.
    pub(super) fn wanted_groups(&self) -> Option<BTreeSet<&str>> {
        self.groups.as_ref().map(|groups| groups.iter().map(String::as_str).collect())
    }
}

/// True for characters that would end a field or a line of an account file.
pub(super) fn is_separator(c: char) -> bool {
    c == ':' || c.is_control()
}

pub(super) fn check_path(property: &'static str, path: &str) -> Result<(), Invalid> {
    if path.is_empty() {
        return Ok(());
    }
    if path.contains(is_separator) {
        return Err(Invalid::new(property, format!("{property} can't have a colon or a line break: {path:?}")));
    }
    text::check_path(property, property, path)
}

/// True for a hash of crypt(5), and `*`. A password in clear is none.
pub(super) fn is_hash(text: &str) -> bool {
    let fine = |c: char| c.is_ascii_alphanumeric() || "./$=,+-_".contains(c);
    text == "*"
        || (text.len() >= 13
            && text.len() <= 512
            && text.starts_with('$')
            && text.matches('$').count() >= 3
            && text.chars().all(fine))
}
