//! The account files of this host: passwd(5), group(5) and shadow(5), read without a process and again only after a change.
//! `account.rs` looks up names from elsewhere (LDAP and the like).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use zeroize::Zeroizing;

use crate::model::{Secret, lock};

use super::fs::{self, FsError};

/// The largest account file that is read, in bytes.
const LIMIT: u64 = 64 << 20;

/// A line of passwd(5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PasswdEntry {
    /// The name.
    pub name: String,
    /// The number.
    pub uid: u32,
    /// The number of the primary group.
    pub gid: u32,
    /// The comment about the user (GECOS).
    pub comment: String,
    /// The home directory.
    pub home: String,
    /// The login shell.
    pub shell: String,
}

/// A line of group(5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupEntry {
    /// The name.
    pub name: String,
    /// The number.
    pub gid: u32,
    /// The listed users. Users whose primary group it is may be missing.
    pub members: Vec<String>,
}

/// A line of shadow(5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowEntry {
    /// The hashed password, after the prefix that locks it.
    pub password: Secret,
    /// The day on which the account expires, in days since 1970-01-01; none without expiry.
    pub expires: Option<i64>,
}

/// The account files, cached until they change.
#[derive(Debug)]
pub struct AccountFiles {
    directory: PathBuf,
    users: CachedFile<Vec<PasswdEntry>>,
    groups: CachedFile<Vec<GroupEntry>>,
    shadow: CachedFile<BTreeMap<String, ShadowEntry>>,
}

impl AccountFiles {
    /// Creates the account files of this directory.
    pub fn in_directory(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            users: CachedFile::default(),
            groups: CachedFile::default(),
            shadow: CachedFile::default(),
        }
    }

    /// All users of passwd(5).
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn users(&self) -> Result<Arc<Vec<PasswdEntry>>, FsError> {
        self.users.get(&self.directory.join("passwd"), |text| fields(text).filter_map(|line| user(&line)).collect())
    }

    /// All groups of group(5).
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn groups(&self) -> Result<Arc<Vec<GroupEntry>>, FsError> {
        self.groups.get(&self.directory.join("group"), |text| fields(text).filter_map(|line| group(&line)).collect())
    }

    /// All lines of shadow(5) by user; only root may read them.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn shadow(&self) -> Result<Arc<BTreeMap<String, ShadowEntry>>, FsError> {
        self.shadow.get(&self.directory.join("shadow"), |text| fields(text).filter_map(|line| shadow(&line)).collect())
    }

    /// Drops the cache.
    pub fn clear_cache(&self) {
        self.users.clear();
        self.groups.clear();
        self.shadow.clear();
    }
}

/// Time of the last change, and size: they differ between versions of a file.
type FileVersion = (Timestamp, u64);

/// A parsed file with its version.
#[derive(Debug)]
struct CachedFile<T>(Mutex<Option<(FileVersion, Arc<T>)>>);

impl<T> Default for CachedFile<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> CachedFile<T> {
    fn get(&self, path: &Path, parse: impl FnOnce(&str) -> T) -> Result<Arc<T>, FsError> {
        // Examined before the read: the next call sees a change in between.
        let now = fs::stat(path, false)?.map(|look| (look.mtime, look.size));
        let mut kept = lock(&self.0);
        if let (Some((then, known)), Some(now)) = (kept.as_ref(), now.as_ref())
            && then == now
        {
            return Ok(Arc::clone(known));
        }
        let bytes = Zeroizing::new(fs::read(path, LIMIT)?);
        // Comments may be in any encoding.
        let parsed = Arc::new(parse(&String::from_utf8_lossy(&bytes)));
        *kept = now.map(|now| (now, Arc::clone(&parsed)));
        Ok(parsed)
    }

    fn clear(&self) {
        *lock(&self.0) = None;
    }
}

/// The fields of each line, without comments and NIS references.
fn fields(text: &str) -> impl Iterator<Item = Vec<&str>> {
    let own = text.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', '+', '-']));
    own.map(|line| line.split(':').collect())
}

fn user(fields: &[&str]) -> Option<PasswdEntry> {
    let [name, _, uid, gid, comment, home, shell] = fields else { return None };
    let [name, comment, home, shell] = [name, comment, home, shell].map(|text| (*text).to_owned());
    Some(PasswdEntry { name, uid: uid.parse().ok()?, gid: gid.parse().ok()?, comment, home, shell })
}

fn group(fields: &[&str]) -> Option<GroupEntry> {
    let [name, _, gid, members] = fields else { return None };
    let members = members.split(',').map(str::trim).filter(|member| !member.is_empty()).map(str::to_owned).collect();
    Some(GroupEntry { name: (*name).to_owned(), gid: gid.parse().ok()?, members })
}

fn shadow(fields: &[&str]) -> Option<(String, ShadowEntry)> {
    let (name, password, expires) = (fields.first()?, fields.get(1)?, fields.get(7));
    let expires = expires.and_then(|days| days.parse().ok()).filter(|days| *days >= 0);
    Some(((*name).to_owned(), ShadowEntry { password: Secret::new(*password), expires }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_line_by_line_and_again_when_they_change() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &[u8]| std::fs::write(directory.path().join(name), text).unwrap();
        let files = AccountFiles::in_directory(directory.path());
        assert!(files.users().unwrap_err().is_not_found());
        write("passwd", b"root:x:0:0:root:/root:/bin/bash\n+::::::\nbroken\nm\xfcller:x:1000:100:M\xfcller,,,:/home/m:\n");
        let users = files.users().unwrap();
        assert_eq!(users.iter().map(|user| user.uid).collect::<Vec<_>>(), [0, 1000]);
        assert_eq!((users[1].home.as_str(), users[1].shell.as_str()), ("/home/m", ""));
        assert!(Arc::ptr_eq(&users, &files.users().unwrap()));
        write("passwd", b"a:x:7:7::/:/bin/sh\n");
        assert_eq!(files.users().unwrap()[0].name, "a");

        write("group", b"root:x:0:\ndevs:x:2000:alice,bob\nhuge:x:99999999999:\n");
        let groups = files.groups().unwrap();
        assert_eq!(groups.len(), 2);
        assert_eq!(groups[1].members, ["alice", "bob"]);
        files.clear_cache();
        assert!(!Arc::ptr_eq(&groups, &files.groups().unwrap()));

        write("shadow", b"root:*:19000:0:99999:7:::\nalice:!$6$x:19000:0:99999:7::20000:\nnis:x:::::::\nodd:y:::::: -1:\n");
        let shadow = files.shadow().unwrap();
        assert_eq!((shadow["alice"].password.reveal(), shadow["alice"].expires), ("!$6$x", Some(20000)));
        assert_eq!((shadow["root"].expires, shadow["odd"].expires), (None, None));
        assert!(!format!("{files:?}").contains("$6$"));
    }
}
