//! The database of rpm, read with a single `rpm -qa`, and again only after a change of its files.
//!
//! Input: the output of `rpm`. Output: the installed packages by name. Users: the dnf provider of `package`, and the health
//! checks of a run.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::command::{CommandError, Output, ProcessCommand};
use super::fs::{self, FsError};
use super::run_scope::RunScope;
use crate::model::lock;

/// The path of the program.
pub const RPM: &str = "/usr/bin/rpm";

/// The files of an rpm database, in all its formats.
pub(super) const FILES: [&str; 4] = ["rpmdb.sqlite", "rpmdb.sqlite-wal", "Packages.db", "Packages"];

/// The architectures of rpm, which may follow the last dot of a name.
const ARCHITECTURES: &[&str] = &[
    "noarch",
    "x86_64",
    "i386",
    "i486",
    "i586",
    "i686",
    "aarch64",
    "armv7hl",
    "ppc64le",
    "ppc64",
    "ppc",
    "s390x",
    "s390",
    "riscv64",
    "loongarch64",
];

const FIELDS: usize = 5;
const FORMAT: &str = "%{NAME}\\t%{EPOCHNUM}\\t%{VERSION}\\t%{RELEASE}\\t%{ARCH}\\n";

/// The database could not be queried.
#[derive(Debug, thiserror::Error)]
pub enum RpmError {
    /// rpm could not be run.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The files of the database can't be examined.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// rpm reported an error.
    #[error("rpm -qa exited {}: {}", .0.code, String::from_utf8_lossy(&.0.stderr).trim())]
    Failed(Output),
}

/// An installed package, for one architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpmPackage {
    /// The version as `E:V-R`, without an epoch of 0.
    pub version: String,
    /// The architecture, as `x86_64` or `noarch`.
    pub architecture: String,
}

/// Packages by name.
#[derive(Debug, Default)]
pub struct RpmPackages(HashMap<String, Vec<RpmPackage>>);

impl RpmPackages {
    /// Parses lines of name, epoch, version, release and architecture, separated by tabs. Other lines are skipped.
    pub fn read(text: &str) -> Self {
        let mut packages = Self::default();
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let Ok([name, epoch, version, release, architecture]) = <[&str; FIELDS]>::try_from(fields) else { continue };
            let package = RpmPackage { version: evr(epoch, version, release), architecture: architecture.to_owned() };
            packages.0.entry(name.to_owned()).or_default().push(package);
        }
        packages
    }

    /// Returns only the packages for which `holds` is true.
    #[must_use]
    pub fn retain(mut self, holds: impl Fn(&RpmPackage) -> bool) -> Self {
        self.0.values_mut().for_each(|packages| packages.retain(&holds));
        self
    }

    /// Returns the packages of a name, which may end in an architecture.
    pub fn by_name(&self, name: &str) -> Vec<RpmPackage> {
        let under = |name: &str| self.0.get(name).map_or(&[][..], Vec::as_slice);
        match (under(name), split_architecture(name)) {
            (found @ [_, ..], _) | (found, (_, None)) => found.to_vec(),
            ([], (plain, Some(architecture))) => {
                under(plain).iter().filter(|one| one.architecture == architecture).cloned().collect()
            }
        }
    }
}

/// Splits a name into the name and the architecture after its last dot.
pub fn split_architecture(name: &str) -> (&str, Option<&str>) {
    match name.rsplit_once('.') {
        Some((plain, architecture)) if ARCHITECTURES.contains(&architecture) => (plain, Some(architecture)),
        _ => (name, None),
    }
}

fn evr(epoch: &str, version: &str, release: &str) -> String {
    if matches!(epoch, "" | "0" | "(none)") { format!("{version}-{release}") } else { format!("{epoch}:{version}-{release}") }
}

/// Time and size of the files of the database. A change of the stamp shows a change of the database.
pub type RpmStamp = Vec<fs::Stamp>;

/// The database of this host, during one run.
#[derive(Debug, Default)]
pub struct Rpm {
    directory: Mutex<Option<PathBuf>>,
    installed: Mutex<Option<(RpmStamp, Arc<RpmPackages>)>>,
}

impl Rpm {
    /// Returns the directory of the database.
    ///
    /// # Errors
    /// When rpm can't be run.
    pub fn directory(&self, scope: &RunScope) -> Result<PathBuf, CommandError> {
        let mut known = lock(&self.directory);
        if let Some(directory) = known.as_ref() {
            return Ok(directory.clone());
        }
        let output = scope.run(&command(["--eval", "%{_dbpath}"]))?;
        let directory = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        Ok(known.insert(directory).clone())
    }

    /// The stamp of the database, for a later comparison.
    ///
    /// # Errors
    /// When the files can't be found or examined.
    pub fn stamp(&self, scope: &RunScope) -> Result<RpmStamp, RpmError> {
        let directory = self.directory(scope)?;
        let of = |name: &&str| fs::stamp(&directory.join(name));
        // An empty journal counts as missing: rpm creates and removes it when it reads the database.
        Ok(FILES.iter().map(of).collect::<Result<Vec<_>, FsError>>()?.into_iter().map(fs::Stamp::or_empty).collect())
    }

    /// Returns the installed packages.
    ///
    /// # Errors
    /// When rpm can't be run, or its output can't be parsed.
    pub fn packages(&self, scope: &RunScope) -> Result<Arc<RpmPackages>, RpmError> {
        let stamp = self.stamp(scope)?;
        let mut installed = lock(&self.installed);
        if let Some((of, packages)) = installed.as_ref()
            && *of == stamp
        {
            return Ok(Arc::clone(packages));
        }
        let output = scope.run(&command(["-qa", "--qf", FORMAT]))?;
        if output.code != 0 {
            return Err(RpmError::Failed(output));
        }
        let packages = Arc::new(RpmPackages::read(&String::from_utf8_lossy(&output.stdout)));
        *installed = Some((stamp, Arc::clone(&packages)));
        Ok(packages)
    }
}

fn command<const N: usize>(args: [&str; N]) -> ProcessCommand {
    let mut command = ProcessCommand::new(RPM, args);
    command.env = vec![("HOME".to_owned(), "/root".to_owned())];
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_found_by_name_and_architecture() {
        let text = "glibc\t0\t2.38\t1\tx86_64\nglibc\t0\t2.38\t1\ti686\npython3.11\t2\t3.11\t1\tnoarch\n\nodd line\n";
        let packages = RpmPackages::read(text);
        let all = |name: &str| {
            let found = packages.by_name(name);
            found.iter().map(|one| format!("{}.{}", one.version, one.architecture)).collect::<Vec<_>>()
        };
        assert_eq!(all("glibc"), ["2.38-1.x86_64", "2.38-1.i686"]);
        assert_eq!(all("glibc.i686"), ["2.38-1.i686"]);
        assert_eq!(all("python3.11"), ["2:3.11-1.noarch"]);
        assert_eq!(all("python3.11.noarch"), ["2:3.11-1.noarch"]);
        assert!(all("python3").is_empty() && all("glibc.noarch").is_empty());
        assert!(RpmPackages::read(text).retain(|one| one.architecture == "i686").by_name("python3.11").is_empty());
    }
}
