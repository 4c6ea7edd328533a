//! Safe replacement of a file. A command accepts the new content before it is in place, and a backup of the old content is kept.
//! `file` and `line` share this.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::host::fs::{self, TempFile};
use crate::host::{DirEntryHandle, Host, ProcessCommand, WriteSpec};
use crate::model::{Effect, Effects};

use super::text;
use crate::resource::{Invalid, ResourceError};

/// Default number of backups of a file.
pub(in crate::resource) const KEEP: u32 = 10;
/// Default suffix of backups.
const SUFFIX: &str = ".bak";
/// Placeholder for the path of the new file in a validating command.
const PLACEHOLDER: &str = "%s";
/// Maximum duration of a validating command.
const VALIDATION_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum length of the command's output in an error, in characters.
const OUTPUT_EXCERPT: usize = 2000;
/// The permission bits of directories that are made for backups.
const PRIVATE: u32 = 0o700;
/// The time in the name of a backup, in UTC.
const STAMP: &str = "%Y%m%dT%H%M%S.%6fZ";
/// The form of this time: `0` is any digit.
const STAMP_SHAPE: &str = "00000000T000000.000000Z";

/// The default number of backups, for serde.
pub(in crate::resource) fn keep() -> u32 {
    KEEP
}

/// True for the default.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
pub(in crate::resource) fn is_keep(keep: &u32) -> bool {
    *keep == KEEP
}

/// The options of a replacement, from three properties of the resource.
#[derive(Debug, Clone, Copy)]
pub(in crate::resource) struct ReplaceOptions<'a> {
    /// The command that must accept the new content; none when empty.
    pub(in crate::resource) validate: &'a str,
    /// The place of backups: empty or `false`, `true`, a suffix that begins with a dot, or a directory.
    pub(in crate::resource) backup: &'a str,
    /// Number of backups to keep.
    pub(in crate::resource) keep: u32,
    /// True when links of any owner in the path of the backup directory are followed.
    pub(in crate::resource) follow: bool,
}

/// The directory of a file's backups, and the parts of their names: `stem`, a time, `suffix`.
struct BackupLocation {
    /// The directory; the directory of the file when none.
    directory: Option<PathBuf>,
    stem: OsString,
    suffix: String,
}

impl ReplaceOptions<'_> {
    /// Checks the options as far as possible without the host.
    ///
    /// # Errors
    /// The property at fault.
    pub(in crate::resource) fn check(&self) -> Result<(), Invalid> {
        if !self.validate.is_empty() {
            check_command(self.validate)?;
        }
        match self.backup {
            "" | "false" | "true" => {}
            directory if directory.starts_with('/') => text::check_path("backup", "backup directory", directory)?,
            suffix if suffix.starts_with('.') && suffix.len() > 1 && !suffix.contains(['/', '\0']) => {}
            other => {
                let message = format!(
                    "invalid backup \"{other}\": must be true, an ending that begins with a dot, or the absolute path of a directory"
                );
                return Err(Invalid::new("backup", message));
            }
        }
        if self.keep == 0 {
            return Err(Invalid::new("backup_keep", "backup_keep must be at least 1; leave backup out to keep none"));
        }
        Ok(())
    }

    /// Returns the effects of a replacement of the file at `path`, beside the write.
    pub(in crate::resource) fn effects(&self, path: &str) -> Effects {
        let validate = (!self.validate.is_empty()).then(|| Effect::run(self.validate));
        let backup = match self.backup {
            "" | "false" => None,
            "true" => Some(Effect::implied(format!("{path}.*{SUFFIX}"))),
            // The author's own suffix may turn the old content into something that others read or run, as `.sh`.
            suffix if suffix.starts_with('.') => Some(Effect::write(format!("{path}.*{suffix}"))),
            directory => Some(Effect::write_below(directory)),
        };
        validate.into_iter().chain(backup).collect()
    }

    /// Replaces the old content with the new, after the command accepts it. Makes a backup of the old content if requested.
    ///
    /// # Errors
    /// When the command rejects the new content, or the system refuses; then the old file is unchanged.
    pub(in crate::resource) fn replace(&self, at: &DirEntryHandle, new: TempFile, host: &Host) -> Result<(), ResourceError> {
        self.run_validation(at.path(), &new.path(), host)?;
        self.make_backup(at, host)?;
        Ok(new.persist()?)
    }

    /// Runs the command that must accept the new content.
    fn run_validation(&self, path: &Path, new: &Path, host: &Host) -> Result<(), ResourceError> {
        if self.validate.is_empty() {
            return Ok(());
        }
        let wrong = |why: String| ResourceError::State(format!("{} is unchanged: {why}", path.display()));
        let new = new.to_str().ok_or_else(|| wrong("its path is not text, and can't be given to a command".to_owned()))?;
        let words = text::words(self.validate).map_err(|error| wrong(error.to_string()))?;
        let mut words = words.into_iter().map(|word| word.replace(PLACEHOLDER, new));
        let mut command = ProcessCommand::new(words.next().unwrap_or_default(), words);
        command.timeout = Some(VALIDATION_TIMEOUT);
        let output = host.run(&command).map_err(|error| wrong(format!("validate: {}", crate::diag::error_chain(&error))))?;
        if output.code == 0 {
            return Ok(());
        }
        let said = host.output_excerpt(&output, OUTPUT_EXCERPT);
        let said = if said.is_empty() { String::new() } else { format!(": {said}") };
        Err(wrong(format!("its new content was refused by \"{}\", which exited with {}{said}", self.validate, output.code)))
    }

    /// Makes a backup of the present file, if requested and the file is regular. A symbolic link is not followed: its target is
    /// not replaced.
    ///
    /// # Errors
    /// When the file can't be copied.
    pub(in crate::resource) fn make_backup(&self, at: &DirEntryHandle, host: &Host) -> Result<(), ResourceError> {
        let Some(kept) = self.backup_location(at.path()) else { return Ok(()) };
        if !at.is_file()? {
            return Ok(());
        }
        let (mut old, look) = at.open_regular()?;
        let mut name = kept.stem.clone();
        name.push(host.now().strftime(STAMP).to_string());
        name.push(&kept.suffix);
        let place = match &kept.directory {
            Some(directory) => host.managed_paths(self.follow).create_directory(directory, PRIVATE)?.child(name)?,
            None => at.sibling(name)?,
        };
        // Without setuid and setgid: an old program must not run with other rights.
        let spec = WriteSpec { uid: Some(look.uid), gid: Some(look.gid), mode: look.mode & 0o777 };
        place.temp_file(&mut old, spec)?.persist_new()?;
        Ok(self.remove_old_backups(&kept, &place)?)
    }

    fn backup_location(&self, path: &Path) -> Option<BackupLocation> {
        let mut stem = path.file_name()?.to_owned();
        stem.push(".");
        let parent = path.parent()?;
        let beside = |suffix: &str| BackupLocation { directory: None, stem: stem.clone(), suffix: suffix.to_owned() };
        match self.backup {
            "" | "false" => None,
            "true" => Some(beside(SUFFIX)),
            directory if directory.starts_with('/') => {
                let below = parent.strip_prefix("/").unwrap_or(parent);
                Some(BackupLocation { directory: Some(Path::new(directory).join(below)), ..beside(SUFFIX) })
            }
            suffix => Some(beside(suffix)),
        }
    }

    /// Removes the oldest backups beyond the number to keep.
    fn remove_old_backups(&self, kept: &BackupLocation, place: &DirEntryHandle) -> Result<(), fs::FsError> {
        let mut old = Vec::new();
        for name in place.names()?.into_iter().filter(|name| kept.is_backup_name(name)) {
            let place = place.sibling(&name)?;
            if place.is_file()? {
                old.push((name, place));
            }
        }
        // Order by name, which is order by time.
        old.sort_by(|(one, _), (other, _)| one.cmp(other));
        let surplus = old.len().saturating_sub(usize::try_from(self.keep).unwrap_or(usize::MAX));
        old.iter().take(surplus).try_for_each(|(_, place)| place.remove())
    }
}

impl BackupLocation {
    /// True for the name of a backup that [`ReplaceOptions::make_backup`] made of the same file.
    fn is_backup_name(&self, name: &OsStr) -> bool {
        let (Some(name), Some(stem)) = (name.to_str(), self.stem.to_str()) else { return false };
        let stamp = name.strip_prefix(stem).and_then(|rest| rest.strip_suffix(&self.suffix));
        let fits = |(is, shape): (char, char)| if shape == '0' { is.is_ascii_digit() } else { is == shape };
        stamp.is_some_and(|stamp| stamp.len() == STAMP_SHAPE.len() && stamp.chars().zip(STAMP_SHAPE.chars()).all(fits))
    }
}

fn check_command(line: &str) -> Result<(), Invalid> {
    let wrong = |why: &str| Err(Invalid::new("validate", format!("invalid validate command \"{line}\": {why}")));
    match text::words(line) {
        Err(error) => wrong(&error.to_string()),
        Ok(words) if words.first().is_none_or(|program| program.contains(PLACEHOLDER)) => {
            wrong("it must begin with the program that checks the new content")
        }
        Ok(words) if !words.iter().any(|word| word.contains(PLACEHOLDER)) => {
            wrong("it has no \"%s\", the placeholder for the new file")
        }
        Ok(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::host::fake::{FakeClock, FakeRunner};
    use crate::host::{Runner, SystemRunner};

    fn at(path: &Path) -> DirEntryHandle {
        crate::host::PathResolver::new(false).existing_place(path).unwrap()
    }

    fn host(runner: Arc<dyn Runner>, time: &str) -> Host {
        Host::new(runner, Arc::new(FakeClock(time.parse().unwrap())))
    }

    fn system(time: &str) -> Host {
        host(Arc::new(SystemRunner::new(None)), time)
    }

    fn stage(path: &Path, content: &str) -> TempFile {
        TempFile::new(path, &mut content.as_bytes(), WriteSpec { uid: None, gid: None, mode: 0o640 }).unwrap()
    }

    fn names(directory: &Path) -> Vec<String> {
        fs::list(directory).unwrap().iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn invalid_options_are_refused() {
        for (validate, backup, keep, wrong) in [
            ("", "", 10, None),
            ("visudo -cf %s", "true", 1, None),
            ("sh -c 'nginx -t -c \"$1\"' - %s", ".orig", 1, None),
            ("x --file=%s", "/var/backups", 1, None),
            ("x", "", 1, Some("it has no \"%s\"")),
            ("x '%s", "", 1, Some("invalid validate command")),
            ("%s", "", 1, Some("must begin with the program")),
            ("  ", "", 1, Some("must begin with the program")),
            ("", "yes", 1, Some("invalid backup \"yes\"")),
            ("", ".", 1, Some("invalid backup")),
            ("", ".a/b", 1, Some("invalid backup")),
            ("", "/var/../backups", 1, Some("must be canonical")),
            ("", "true", 0, Some("at least 1")),
        ] {
            let checked = ReplaceOptions { validate, backup, keep, follow: false }.check().map_err(|invalid| invalid.message);
            match wrong {
                None => assert_eq!(checked, Ok(()), "{validate} {backup}"),
                Some(text) => assert!(checked.unwrap_err().contains(text), "{validate} {backup}"),
            }
        }
    }

    #[test]
    fn content_that_fails_validation_is_not_put_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("conf");
        std::fs::write(&path, "old").unwrap();
        let care = |validate| ReplaceOptions { validate, backup: "true", keep: 1, follow: false };
        let host = system("2026-11-20T10:00:00Z");
        for (validate, wrong) in [
            ("sh -c 'echo no such key >&2; exit 3' - %s", "exited with 3: no such key"),
            ("/no/such/program %s", "validate: could not start"),
            ("sh -c 'kill -9 $$' - %s", "was ended by signal 9"),
        ] {
            let error = care(validate).replace(&at(&path), stage(&path, "new"), &host).unwrap_err().to_string();
            assert!(error.contains("is unchanged") && error.contains(wrong), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
            assert_eq!(names(dir.path()), ["conf"]);
        }
        // The command sees the new file, complete, with its mode.
        let judge = "sh -c 'test \"$(cat $1)$(stat -c %%a $1)\" = new640' - %s".replace("%%", "%");
        care(&judge).replace(&at(&path), stage(&path, "new"), &host).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(names(dir.path()), ["conf", "conf.20261120T100000.000000Z.bak"]);
    }

    #[test]
    fn a_word_with_the_placeholder_stays_one_word() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a b; c");
        let runner = FakeRunner::exiting(&[0]);
        let care = ReplaceOptions { validate: "check --file=%s x", backup: "", keep: 1, follow: false };
        let new = stage(&path, "new");
        let place = at(&path);
        let at = new.path().display().to_string();
        care.replace(&place, new, &host(runner.clone(), "2026-11-20T10:00:00Z")).unwrap();
        assert_eq!(runner.ran(), [["check", &format!("--file={at}"), "x"]]);
    }

    #[test]
    fn the_requested_number_of_backups_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (path, kept) = (dir.path().join("conf"), dir.path().join("kept"));
        let care = ReplaceOptions { validate: "", backup: kept.to_str().unwrap(), keep: 2, follow: false };
        // Similar files of others are not removed.
        let place = kept.join(dir.path().strip_prefix("/").unwrap());
        fs::create_directory(&place, 0o755).unwrap();
        let others = ["conf.20200101T000000.000000Z", "conf.old.bak", "conf2.20200101T000000.000000Z.bak"];
        others.iter().for_each(|name| std::fs::write(place.join(name), "").unwrap());
        std::os::unix::fs::symlink("conf.old.bak", place.join("conf.20190101T000000.000000Z.bak")).unwrap();
        for (number, minute) in (1..).zip(["00", "01", "02", "03"]) {
            let host = system(&format!("2026-11-20T10:{minute}:00Z"));
            care.replace(&at(&path), stage(&path, &format!("content {number}")), &host).unwrap();
        }
        let mut found = names(&place);
        found.retain(|name| !others.contains(&name.as_str()) && !name.contains("2019"));
        assert_eq!(found, ["conf.20261120T100200.000000Z.bak", "conf.20261120T100300.000000Z.bak"]);
        assert_eq!(std::fs::read_to_string(place.join(&found[1])).unwrap(), "content 3");
        assert_eq!(fs::stat(&place.join(&found[1]), false).unwrap().unwrap().mode, 0o640);
        assert_eq!(names(&place).len(), 6);
    }

    #[test]
    fn kept_content_is_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("conf");
        let care = ReplaceOptions { validate: "", backup: ".old", keep: 5, follow: false };
        let host = system("2026-11-20T10:00:00Z");
        care.replace(&at(&path), stage(&path, "one"), &host).unwrap();
        care.replace(&at(&path), stage(&path, "two"), &host).unwrap();
        assert!(care.replace(&at(&path), stage(&path, "three"), &host).is_err());
        assert_eq!(std::fs::read_to_string(dir.path().join("conf.20261120T100000.000000Z.old")).unwrap(), "one");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
    }
}
