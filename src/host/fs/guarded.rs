//! Guarded files. Only this user may read keys and secrets. Only this user may change configuration, trust and state.
//!
//! As in OpenSSH, a file that other users could have changed is refused, with the command that repairs the permissions. A file in
//! a directory that others could have exchanged is refused too. The owner must be this user or root; the group counts as others.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::super::account::effective_uid;
use super::{FsError, read};

/// Mode bits by which others may change a file.
const CHANGE: u32 = 0o022;
/// Mode bits by which others may read or change a file.
const ANYTHING: u32 = 0o077;
/// The mode bit that keeps others from removing and renaming in a directory that they can write to.
const STICKY: u32 = 0o1000;

/// Reads a secret text file of at most `limit` bytes. Only this user may read or change the file.
///
/// # Errors
/// When others can, and as [`super::read_text`].
pub fn read_private_text(path: &Path, limit: u64) -> Result<String, FsError> {
    let bytes = read_guarded(path, limit, ANYTHING)?;
    String::from_utf8(bytes).map_err(|_| FsError::NotText(path.to_owned()))
}

/// Reads a file of at most `limit` bytes that only this user may change.
///
/// # Errors
/// When others can, and as [`super::read()`].
pub fn read_trusted(path: &Path, limit: u64) -> Result<Vec<u8>, FsError> {
    read_guarded(path, limit, CHANGE)
}

/// Reads a text file of at most `limit` bytes that only this user may change.
///
/// # Errors
/// When others can, and as [`super::read_text`].
pub fn read_trusted_text(path: &Path, limit: u64) -> Result<String, FsError> {
    String::from_utf8(read_guarded(path, limit, CHANGE)?).map_err(|_| FsError::NotText(path.to_owned()))
}

/// Checks a secret file that another library opens.
///
/// # Errors
/// When others can read or change the file, or it can't be examined.
pub fn check_private(path: &Path) -> Result<(), FsError> {
    check(&read::open_named(path)?, path, ANYTHING)
}

/// Checks a file or directory that only this user may change.
///
/// # Errors
/// When others can change it, or it can't be examined.
pub fn check_trusted(path: &Path) -> Result<(), FsError> {
    check(&read::open_named(path)?, path, CHANGE)
}

fn read_guarded(path: &Path, limit: u64, forbidden: u32) -> Result<Vec<u8>, FsError> {
    let file = read::open_named(path)?;
    check(&file, path, forbidden)?;
    read::read_open(file, path, limit)
}

/// Checks the permissions of the open file and of every directory of its path, as named and with links resolved.
fn check(file: &File, path: &Path, forbidden: u32) -> Result<(), FsError> {
    let meta = file.metadata().map_err(|error| FsError::io("examine", path, error))?;
    if !meta.is_file() && !meta.is_dir() {
        // A pipe or terminal that the user named, as `/dev/stdin`: its creator already has the content.
        return Ok(());
    }
    check_permissions(path, &meta, forbidden)?;
    let named = std::path::absolute(path).map_err(|error| FsError::io("examine", path, error))?;
    let real = super::resolve_links(&named);
    for start in [&named, &real] {
        for directory in start.ancestors().skip(1) {
            let meta = std::fs::metadata(directory).map_err(|error| FsError::io("examine", directory, error))?;
            let sticky = meta.mode() & STICKY != 0;
            check_permissions(directory, &meta, if sticky { 0 } else { CHANGE })?;
        }
    }
    Ok(())
}

fn check_permissions(path: &Path, meta: &Metadata, forbidden: u32) -> Result<(), FsError> {
    let refuse = |what: &'static str, remedy: String| FsError::UnsafePermissions { path: path.to_owned(), what, remedy };
    let own = effective_uid();
    if meta.uid() != 0 && meta.uid() != own {
        return Err(refuse("belongs to another user", format!("chown {own} {}", quoted(path))));
    }
    let open = meta.mode() & forbidden;
    if open == 0 {
        return Ok(());
    }
    let what = if open & CHANGE != 0 { "can be changed by others" } else { "can be read by others" };
    let without = if forbidden == ANYTHING { "go=" } else { "go-w" };
    Err(refuse(what, format!("chmod {without} {}", quoted(path))))
}

/// The path, quoted for a shell.
fn quoted(path: &Path) -> String {
    shell_words::quote(&PathBuf::from(path).display().to_string()).into_owned()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn modes_decide() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a key");
        fs::write(&file, "x").unwrap();
        for (bits, private, trusted) in [
            (0o600, true, true),
            (0o400, true, true),
            (0o644, false, true),
            (0o640, false, true),
            (0o604, false, true),
            (0o660, false, false),
            (0o602, false, false),
            (0o666, false, false),
        ] {
            mode(&file, bits);
            assert_eq!(read_private_text(&file, 9).is_ok(), private, "{bits:o}");
            assert_eq!(check_private(&file).is_ok(), private, "{bits:o}");
            assert_eq!(read_trusted_text(&file, 9).is_ok(), trusted, "{bits:o}");
        }
        let said = read_trusted(&file, 9).unwrap_err().to_string();
        assert_eq!(said, format!("{0} can be changed by others: run `chmod go-w '{0}'`", file.display()));
        mode(&file, 0o604);
        let said = read_private_text(&file, 9).unwrap_err().to_string();
        assert!(said.contains("can be read by others: run `chmod go= "), "{said}");
    }

    #[test]
    fn directories_and_links_decide_too() {
        let dir = tempfile::tempdir().unwrap();
        let (open, file) = (dir.path().join("open"), dir.path().join("open/file"));
        fs::create_dir(&open).unwrap();
        fs::write(&file, "x").unwrap();
        mode(&file, 0o600);
        symlink(&file, dir.path().join("link")).unwrap();
        for (bits, taken) in [(0o755, true), (0o775, false), (0o757, false), (0o1777, true)] {
            mode(&open, bits);
            assert_eq!(read_trusted(&file, 9).is_ok(), taken, "{bits:o}");
            assert_eq!(read_trusted(&dir.path().join("link"), 9).is_ok(), taken, "{bits:o}");
        }
        // A link that others could exchange.
        mode(&open, 0o777);
        fs::write(dir.path().join("own"), "x").unwrap();
        symlink(dir.path().join("own"), open.join("link")).unwrap();
        assert!(read_trusted(&open.join("link"), 9).is_err());
        assert!(read_trusted(&dir.path().join("own"), 9).is_ok());
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        if effective_uid() != 0 {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        chown(&file, Some(65534), None).unwrap();
        let said = read_trusted(&file, 9).unwrap_err().to_string();
        assert!(said.contains("belongs to another user: run `chown 0 "), "{said}");
        assert!(read_trusted(Path::new("/dev/null"), 9).is_ok());
    }
}
