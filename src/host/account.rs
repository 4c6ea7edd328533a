//! Users and groups: translates names to numbers and back. A run looks each name up only once.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;

use nix::unistd::{Gid, Group, Uid, User};

use super::passwd::AccountFiles;
use crate::model::lock;

/// A user or group that could not be found.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum AccountError {
    /// No such user.
    #[error("could not look up user \"{0}\": no such user on this host")]
    NoUser(String),
    /// No such group.
    #[error("could not look up group \"{0}\": no such group on this host")]
    NoGroup(String),
    /// The account database did not answer.
    #[error("could not look up {kind} \"{name}\": {errno}")]
    Lookup {
        /// `user` or `group`.
        kind: &'static str,
        /// The name or number.
        name: String,
        /// The error of the system.
        errno: nix::errno::Errno,
    },
}

/// A host has few accounts that matter: comparing is quicker than hashing.
type Cache<K, V> = Mutex<BTreeMap<K, V>>;

/// The account database, remembered for the length of a run.
#[derive(Debug)]
pub struct Accounts {
    uids: Cache<String, u32>,
    gids: Cache<String, u32>,
    users: Cache<u32, String>,
    groups: Cache<u32, String>,
    files: AccountFiles,
}

impl Default for Accounts {
    fn default() -> Self {
        Self::in_directory("/etc")
    }
}

fn cached<K, Q, V>(cache: &Cache<K, V>, key: &Q, look_up: impl FnOnce() -> V) -> V
where
    K: Ord + Borrow<Q>,
    Q: Ord + ToOwned<Owned = K> + ?Sized,
    V: Clone,
{
    let mut cache = lock(cache);
    if let Some(known) = cache.get(key) {
        return known.clone();
    }
    let found = look_up();
    cache.insert(key.to_owned(), found.clone());
    found
}

/// Returns the cached name, else looks it up. Failures are not cached: a later step of the run may make the account.
fn cached_name(
    cache: &Cache<String, u32>,
    name: &str,
    look_up: impl FnOnce() -> Result<u32, AccountError>,
) -> Result<u32, AccountError> {
    let known = lock(cache).get(name).copied();
    match known {
        Some(number) => Ok(number),
        None => look_up().map(|number| cached(cache, name, || number)),
    }
}

/// Returns the number that a text of digits is. No account needs to have the number.
fn as_number(name: &str) -> Option<u32> {
    (!name.is_empty() && name.bytes().all(|b| b.is_ascii_digit())).then(|| name.parse().ok()).flatten()
}

impl Accounts {
    /// Creates an account database over the files in this directory.
    pub fn in_directory(directory: impl Into<PathBuf>) -> Self {
        let files = AccountFiles::in_directory(directory);
        Self { uids: Cache::default(), gids: Cache::default(), users: Cache::default(), groups: Cache::default(), files }
    }

    /// The account files of this host.
    pub fn files(&self) -> &AccountFiles {
        &self.files
    }

    /// Drops the cache, after a change of an account.
    pub fn clear_cache(&self) {
        fn clear<K, V>(cache: &Cache<K, V>) {
            lock(cache).clear();
        }
        clear(&self.uids);
        clear(&self.gids);
        clear(&self.users);
        clear(&self.groups);
        self.files.clear_cache();
    }

    /// The number of a user given by name or number.
    ///
    /// # Errors
    /// When no user has this name.
    pub fn uid(&self, name: &str) -> Result<u32, AccountError> {
        if let Some(number) = as_number(name) {
            return Ok(number);
        }
        cached_name(&self.uids, name, || match User::from_name(name) {
            Ok(Some(user)) => Ok(user.uid.as_raw()),
            Ok(None) => Err(AccountError::NoUser(name.to_owned())),
            Err(errno) => Err(AccountError::Lookup { kind: "user", name: name.to_owned(), errno }),
        })
    }

    /// The number of a group given by name or number.
    ///
    /// # Errors
    /// When no group has this name.
    pub fn gid(&self, name: &str) -> Result<u32, AccountError> {
        if let Some(number) = as_number(name) {
            return Ok(number);
        }
        cached_name(&self.gids, name, || match Group::from_name(name) {
            Ok(Some(group)) => Ok(group.gid.as_raw()),
            Ok(None) => Err(AccountError::NoGroup(name.to_owned())),
            Err(errno) => Err(AccountError::Lookup { kind: "group", name: name.to_owned(), errno }),
        })
    }

    /// The name of a user, or the number as text when no user has it.
    pub fn user_name(&self, uid: u32) -> String {
        cached(&self.users, &uid, || {
            User::from_uid(Uid::from_raw(uid)).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
        })
    }

    /// The name of a group, or the number as text when no group has it.
    pub fn group_name(&self, gid: u32) -> String {
        cached(&self.groups, &gid, || {
            Group::from_gid(Gid::from_raw(gid)).ok().flatten().map_or_else(|| gid.to_string(), |group| group.name)
        })
    }
}

/// The effective user of this process.
pub fn effective_uid() -> u32 {
    Uid::effective().as_raw()
}

/// The effective group of this process.
pub fn effective_gid() -> u32 {
    Gid::effective().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        let accounts = Accounts::default();
        assert_eq!(accounts.uid("root"), Ok(0));
        assert_eq!(accounts.gid("root"), Ok(0));
        assert_eq!(accounts.uid("4242424"), Ok(4_242_424));
        assert_eq!(accounts.user_name(0), "root");
        assert_eq!(accounts.user_name(4_242_424), "4242424");
        assert_eq!(accounts.uid("nosuchuser"), Err(AccountError::NoUser("nosuchuser".into())));
        assert_eq!(accounts.gid("nosuchgroup"), Err(AccountError::NoGroup("nosuchgroup".into())));
    }
}
