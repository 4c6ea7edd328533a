//! Unpacks an archive in two passes: one examines all of it, one writes. The first pass finds a hostile or broken archive, and
//! changes nothing.
//!
//! The result is that of `tar` and `unzip`: permission bits are kept regardless of the umask. As root, owners are those of the
//! archive, by name if this host knows the name. Setuid and setgid are never set, and no write follows a link.

use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use crate::diag::error_chain;
use crate::host::account::effective_uid;
use crate::host::fs::{self, FsError};
use crate::host::tree::Tree;
use crate::host::{Host, Meter, WriteSpec};
use crate::unpack::{self, ArchiveEntry, ArchiveLimits, CountingSink, Format, Sink, SinkCause};

use super::properties::{Properties, mark};
use crate::resource::ResourceError;

/// Size of one write, in bytes.
const CHUNK: usize = 1 << 16;
/// The error at the end of the run's time.
const OVER: &str = "the run was ended before it was complete";

pub(super) fn extract(p: &Properties, downloaded: Option<&str>, host: &Host) -> Result<(), ResourceError> {
    let failed = |why: String| {
        let why = if host.is_over() { OVER.to_owned() } else { why };
        ResourceError::State(format!("could not extract {}: {why}", p.name))
    };
    let format = Format::from_name(&p.name).ok_or_else(|| failed("archive type not supported".to_owned()))?;
    let rules = host.managed_paths(p.follow);
    let place = rules.existing_target(p.path())?;
    let (mut file, look) = place.open_regular()?;
    // The owner could change the archive while it is read.
    let private = if look.uid == effective_uid() && look.mode & 0o022 == 0 {
        None
    } else {
        Some(place.temp_file(&mut file, WriteSpec { uid: None, gid: None, mode: 0o600 })?)
    };
    if let Some(private) = &private {
        file = private.reader()?;
    }
    let read = |error| FsError::io("read", p.path(), error);
    let size = file.metadata().map_err(read)?.len();
    // The file may have been replaced since the check; this descriptor is stable.
    let digest = fs::sha256_of(&mut file).map_err(read)?;
    if downloaded.is_some_and(|downloaded| downloaded != digest) {
        return Err(failed("another process changed it meanwhile".to_owned()));
    }
    if !p.is_wanted(&digest) {
        return Err(failed(format!("checksum mismatch, expected \"{}\" got \"{digest}\"", p.checksum)));
    }
    let bounds = host.limits();
    let caps = ArchiveLimits { total: bounds.archive_size, entries: bounds.archive_entries, ratio: bounds.archive_ratio };
    let mut look = CountingSink::default();
    file.rewind().map_err(read)?;
    if let Err(error) = unpack::walk(format, CancellableReader { inner: &file, host }, size, &caps, &mut look) {
        // Nothing was written. The next run must see a difference: the path in `creates` is missing, or else the useless archive
        // is removed.
        let beside = rules.existing_place(p.path())?;
        if !host.is_over() {
            if p.creates.is_empty() || rules.exists(Path::new(&p.creates))? {
                beside.remove()?;
            }
            p.mark(&beside)?.remove()?;
        }
        return Err(failed(error_chain(&error)));
    }
    mark(p, &rules.existing_place(p.path())?)?;
    let what = format!("extracting {}", p.path().file_name().unwrap_or_default().to_string_lossy());
    let mut writer = Writer {
        tree: rules.create_directory(Path::new(&p.extract_parent), 0o755)?.tree()?,
        host,
        meter: Meter::new(host, what, Some(look.bytes)),
        directories: Vec::new(),
        as_root: effective_uid() == 0,
    };
    file.rewind().map_err(read)?;
    unpack::walk(format, CancellableReader { inner: &file, host }, size, &caps, &mut writer)
        .map_err(|error| failed(error_chain(&error)))?;
    writer.finish().map_err(|error| failed(error_chain(&error)))
}

/// A reader that fails at the end of the run.
struct CancellableReader<'a, R> {
    inner: R,
    host: &'a Host,
}

impl<R: Read> Read for CancellableReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.host.is_over() {
            return Err(std::io::Error::other(OVER));
        }
        self.inner.read(buffer)
    }
}

impl<R: Seek> Seek for CancellableReader<'_, R> {
    fn seek(&mut self, to: std::io::SeekFrom) -> std::io::Result<u64> {
        self.inner.seek(to)
    }
}

/// Writes entries below the directory.
struct Writer<'a> {
    tree: Tree,
    host: &'a Host,
    meter: Meter<'a>,
    /// Directories with attributes to set at the end: the attributes may forbid writing.
    directories: Vec<(PathBuf, WriteSpec, Option<i64>)>,
    as_root: bool,
}

impl Writer<'_> {
    fn spec(&self, item: &ArchiveEntry) -> WriteSpec {
        let owner = item.owner.as_ref().filter(|_| self.as_root);
        let accounts = self.host.accounts();
        let known = |name: &str| (!name.is_empty()).then_some(name.to_owned());
        let uid = owner.and_then(|owner| known(&owner.user).and_then(|name| accounts.uid(&name).ok()).or(owner.uid));
        let gid = owner.and_then(|owner| known(&owner.group).and_then(|name| accounts.gid(&name).ok()).or(owner.gid));
        WriteSpec { uid, gid, mode: item.mode }
    }

    fn finish(mut self) -> Result<(), FsError> {
        // Inner directories first: writing into a directory changes its time.
        self.directories.sort_by(|(one, ..), (other, ..)| other.cmp(one));
        for (path, spec, modified) in std::mem::take(&mut self.directories) {
            self.tree.set_directory(&path, spec, modified)?;
        }
        Ok(())
    }
}

impl Sink for Writer<'_> {
    fn directory(&mut self, item: &ArchiveEntry) -> Result<(), SinkCause> {
        self.tree.directory(&item.path)?;
        self.directories.push((item.path.clone(), self.spec(item), item.modified));
        Ok(())
    }

    fn file(&mut self, item: &ArchiveEntry, content: &mut dyn Read) -> Result<(), SinkCause> {
        let mut file = self.tree.create(&item.path)?;
        let mut buffer = vec![0; CHUNK];
        loop {
            let count = match content.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            file.write_all(buffer.get(..count).unwrap_or_default())?;
            self.meter.add(count as u64);
        }
        file.finish(self.spec(item), item.modified)?;
        Ok(())
    }

    fn symlink(&mut self, item: &ArchiveEntry, target: &Path) -> Result<(), SinkCause> {
        let WriteSpec { uid, gid, .. } = self.spec(item);
        Ok(self.tree.symlink(&item.path, target.as_os_str(), uid, gid)?)
    }

    fn hard_link(&mut self, item: &ArchiveEntry, target: &Path) -> Result<(), SinkCause> {
        Ok(self.tree.hard_link(&item.path, target)?)
    }
}
