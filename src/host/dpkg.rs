//! The database of dpkg, read directly: `/var/lib/dpkg/status` and the journal beside it, in the format of deb822(5).
//!
//! `dpkg-query` gives the same, at the price of a process for each query. Users: the apt provider of `package`, and the health
//! checks of a run.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::{FsError, fs};
use crate::model::lock;

/// The largest file that is read, in bytes: the database of a full desktop has some megabytes.
const MAX: u64 = 256 << 20;

/// A package in the database of dpkg; see dpkg(1), "INFORMATION ABOUT PACKAGES".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DpkgRecord {
    /// The full version, as `1:1.0-1`.
    pub version: String,
    /// The architecture, as `amd64` or `all`.
    pub architecture: String,
    /// The package is on hold.
    pub held: bool,
    /// The package must be reinstalled before any other operation.
    pub reinstall: bool,
    /// The state: `installed`, `half-configured`, ...
    pub status: String,
}

/// All packages that dpkg knows.
#[derive(Debug, Default)]
pub struct DpkgDatabase {
    packages: HashMap<String, Vec<DpkgRecord>>,
}

impl DpkgDatabase {
    /// Returns the records of a name, for every architecture.
    pub fn records(&self, name: &str) -> &[DpkgRecord] {
        self.packages.get(name).map_or(&[], Vec::as_slice)
    }

    /// The architecture of this host: always the one of the package dpkg.
    pub fn native(&self) -> &str {
        self.records("dpkg").first().map_or("", |record| &record.architecture)
    }

    /// Adds the paragraphs of a file; later paragraphs replace earlier ones of the same name and architecture.
    fn read(&mut self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        for paragraph in text.split("\n\n") {
            let Some((name, record)) = parse_record(paragraph) else { continue };
            let records = self.packages.entry(name.to_owned()).or_default();
            match records.iter_mut().find(|known| known.architecture == record.architecture) {
                Some(known) => *known = record,
                None => records.push(record),
            }
        }
    }
}

fn parse_record(paragraph: &str) -> Option<(&str, DpkgRecord)> {
    let (mut name, mut status, mut version, mut architecture) = (None, None, "", "");
    for line in paragraph.lines().filter(|line| !line.starts_with([' ', '\t'])) {
        let Some((field, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        match field {
            "Package" => name = Some(value),
            "Status" => status = Some(value),
            "Version" => version = value,
            "Architecture" => architecture = value,
            _ => {}
        }
    }
    let mut words = status?.split(' ');
    let (want, flag, status) = (words.next()?, words.next()?, words.next()?);
    let record = DpkgRecord {
        version: version.to_owned(),
        architecture: architecture.to_owned(),
        held: want == "hold",
        reinstall: flag == "reinstreq",
        status: status.to_owned(),
    };
    Some((name?, record))
}

fn parse_dependencies(paragraph: &str) -> Option<(String, Vec<String>)> {
    let field = |name: &str| paragraph.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let names = ["Pre-Depends", "Depends"].into_iter().filter_map(field).flat_map(|list| list.split(','));
    let first = |one: &str| one.split(['|', '(', ':']).next().map(|name| name.trim().to_owned());
    Some((field("Package")?.to_owned(), names.filter_map(first).collect()))
}

/// Time and size of the files of the database. A change of the stamp shows a change of the database.
pub type DpkgStamp = Vec<fs::Stamp>;

/// The database, read again only when it has changed.
#[derive(Debug)]
pub struct Dpkg {
    directory: PathBuf,
    read: Mutex<Option<(DpkgStamp, Arc<DpkgDatabase>)>>,
}

impl Dpkg {
    /// Creates the database of this directory, which is `/var/lib/dpkg` on a host.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), read: Mutex::default() }
    }

    /// The current database with its stamp, which changes with the database.
    ///
    /// # Errors
    /// When its files can't be read.
    pub fn database(&self) -> Result<(DpkgStamp, Arc<DpkgDatabase>), FsError> {
        let journal = self.journal()?;
        let status = self.directory.join("status");
        let files = || std::iter::once(status.as_path()).chain(journal.iter().map(PathBuf::as_path));
        let stamp: DpkgStamp = files().map(fs::stamp).collect::<Result<_, _>>()?;
        let mut read = lock(&self.read);
        if let Some((of, database)) = read.as_ref()
            && *of == stamp
        {
            return Ok((stamp, Arc::clone(database)));
        }
        let mut database = DpkgDatabase::default();
        for file in files() {
            database.read(&fs::read(file, MAX)?);
        }
        let database = Arc::new(database);
        *read = Some((stamp.clone(), Arc::clone(&database)));
        Ok((stamp, database))
    }

    /// Returns the dependencies of every installed package, by name. Of alternatives the first counts, as for apt.
    ///
    /// # Errors
    /// When its files can't be read.
    pub fn dependencies(&self) -> Result<HashMap<String, Vec<String>>, FsError> {
        let bytes = fs::read(&self.directory.join("status"), MAX)?;
        Ok(String::from_utf8_lossy(&bytes).split("\n\n").filter_map(parse_dependencies).collect())
    }

    /// True when dpkg was interrupted, and refuses all work until `dpkg --configure -a` has run.
    ///
    /// # Errors
    /// When its directory can't be read.
    pub fn is_interrupted(&self) -> Result<bool, FsError> {
        Ok(!self.journal()?.is_empty())
    }

    /// Returns the journal of dpkg, not yet merged into its status file: files with numbers as names, in order.
    fn journal(&self) -> Result<Vec<PathBuf>, FsError> {
        let is_entry = |path: &Path| {
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            !name.is_empty() && name.iter().all(u8::is_ascii_digit)
        };
        match fs::list(&self.directory.join("updates")) {
            Ok(found) => Ok(found.into_iter().filter(|path| is_entry(path)).collect()),
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Package: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.21\n\
        Description: x\n Package: not this\n\n\
        Package: multi\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1:1.0-1\n\n\
        Package: multi\nStatus: hold ok half-configured\nArchitecture: i386\nVersion: 1:1.0-1\n\n\
        Package: gone\nStatus: deinstall ok config-files\nArchitecture: all\nVersion: 2\n\n\
        Package: b\u{e4}d\nNothing here\n";

    #[test]
    fn the_status_file_is_read() {
        let mut database = DpkgDatabase::default();
        database.read(STATUS.as_bytes());
        assert_eq!(database.native(), "amd64");
        let multi = database.records("multi");
        assert_eq!(multi.iter().map(|one| one.architecture.as_str()).collect::<Vec<_>>(), ["amd64", "i386"]);
        assert_eq!((multi[1].held, multi[1].status.as_str(), multi[1].version.as_str()), (true, "half-configured", "1:1.0-1"));
        assert_eq!(database.records("gone")[0].status, "config-files");
        assert!(database.records("not this").is_empty() && database.records("b\u{e4}d").is_empty());
    }

    #[test]
    fn dependencies_are_names() {
        let paragraph = "Package: a\nDepends: libc6 (>= 2.3), b:any | c, d\nPre-Depends: e (= 1)\nDescription: x\n Depends: no\n";
        let wanted = ["e", "libc6", "b", "d"].map(str::to_owned).to_vec();
        assert_eq!(parse_dependencies(paragraph), Some(("a".to_owned(), wanted)));
        assert_eq!(parse_dependencies("Package: b\n"), Some(("b".to_owned(), Vec::new())));
    }

    #[test]
    fn changes_and_the_journal_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        put("status", STATUS);
        let dpkg = Dpkg::new(dir.path());
        let status = |name: &str| dpkg.database().unwrap().1.records(name).first().map(|one| one.status.clone());
        assert_eq!(status("dpkg").unwrap(), "installed");
        assert!(!dpkg.is_interrupted().unwrap());
        assert!(Arc::ptr_eq(&dpkg.database().unwrap().1, &dpkg.database().unwrap().1));
        std::fs::create_dir(dir.path().join("updates")).unwrap();
        put("updates/0000", "Package: new\nStatus: install reinstreq half-installed\nArchitecture: all\nVersion: 1\n");
        put("updates/tmp.i", "Package: never\nStatus: install ok installed\n");
        assert!(dpkg.is_interrupted().unwrap());
        assert_eq!((status("new").as_deref(), status("never")), (Some("half-installed"), None));
        put("status", "Package: other\nStatus: install ok unpacked\nVersion: 1\nArchitecture: all\n");
        assert_eq!((status("dpkg"), status("other").as_deref()), (None, Some("unpacked")));
    }
}
