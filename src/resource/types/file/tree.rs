//! Directories with everything below: differences from a source, or only from the desired owner and mode.
//!
//! `compare` decides, without a host. The rest reads and acts through `host/tree`, which follows no link.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use crate::diag::error_chain;
use crate::host::fs::{self, FsError};
use crate::host::tree::{Tree, TreeEntry, TreeEntryKind};
use crate::host::{DirEntryHandle, Host, WriteSpec};

use super::properties::{Mode, Properties};
use crate::resource::ResourceError;

/// Most entries of a directory that is managed with everything below.
const ENTRIES: usize = 100_000;
/// Maximum number of listed steps.
const LISTED: usize = 200;

/// A task below the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// The path, relative to the directory.
    path: PathBuf,
    /// The task.
    action: TaskAction,
    /// The differences; none for a new or removed entry.
    details: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TaskAction {
    /// Remove the entry with everything below.
    Remove,
    /// Make the directory.
    Make,
    /// Copy the file from the source.
    Copy,
    /// Make the link with this target.
    Link(OsString),
    /// Set owner and mode of a file.
    SetFile,
    /// Set owner and mode of a directory.
    SetDirectory,
    /// Set the owner of a link.
    SetLink,
}

impl Task {
    fn describe(&self) -> String {
        let path = self.path.display();
        match (&self.action, self.details.as_slice()) {
            (TaskAction::Remove, _) => format!("removed {path}"),
            (_, []) => format!("created {path}"),
            (_, details) => format!("{path}: {}", details.join(", ")),
        }
    }
}

/// The desired attributes of every entry.
#[derive(Debug, Clone, Copy)]
struct DesiredAttributes {
    /// The number of the owner; none for a missing account.
    uid: Option<u32>,
    /// The number of the group; none for a missing group.
    gid: Option<u32>,
    /// The mode of files. The mode of directories is derived from it.
    mode: Mode,
    /// True when entries that the source lacks are removed, and entries of another kind replaced.
    purge: bool,
}

/// Describes the first tasks.
pub(super) fn describe(tasks: &[Task]) -> Vec<String> {
    let more = tasks.len().saturating_sub(LISTED);
    let more = (more > 0).then(|| format!("and {more} more"));
    tasks.iter().take(LISTED).map(Task::describe).chain(more).collect()
}

/// Summarises the tasks in one phrase.
pub(super) fn summarise(tasks: &[Task]) -> String {
    let count = |wanted: fn(&Task) -> bool| tasks.iter().filter(|task| wanted(task)).count();
    let removed = count(|task| task.action == TaskAction::Remove);
    let created = count(|task| task.action != TaskAction::Remove && task.details.is_empty());
    let counts = [("created", created), ("changed", tasks.len() - created - removed), ("removed", removed)];
    let counts: Vec<String> =
        counts.iter().filter(|(_, count)| *count > 0).map(|(verb, count)| format!("{verb} {count}")).collect();
    format!("{} below the directory", counts.join(", "))
}

/// Returns the tasks below the directory of these properties, which may be missing.
pub(super) fn below(p: &Properties, exists: bool, host: &Host) -> Result<Vec<Task>, String> {
    let accounts = host.accounts();
    let (uid, gid) = (accounts.uid(&p.owner).ok(), accounts.gid(&p.group).ok());
    let wanted = DesiredAttributes { uid, gid, mode: p.mode.unwrap_or(Mode(0)), purge: p.purge };
    pending_tasks(p, wanted, exists, host).map_err(|error| error_chain(&error))
}

fn pending_tasks(p: &Properties, wanted: DesiredAttributes, exists: bool, host: &Host) -> Result<Vec<Task>, ResourceError> {
    let place = host.managed_paths(p.follow).place(p.path())?;
    if exists && place.as_ref().map_or(Ok(false), DirEntryHandle::is_link)? {
        let message = format!("{} is a symlink; refusing to manage the directory through it: use its target as the name", p.name);
        return Err(ResourceError::State(message));
    }
    let tree = if exists { place.map(|place| place.tree()).transpose()? } else { None };
    let there = tree.as_ref().map_or_else(|| Ok(Vec::new()), |tree| tree.entries(ENTRIES))?;
    if p.source.is_empty() {
        return Ok(attributes_only(&there, wanted));
    }
    if !exists && check_source(p, host).is_err() {
        // An earlier resource of the dry run may make the source. A real run reports a missing source before it makes the
        // directory.
        return Ok(Vec::new());
    }
    let source = source(p, host)?;
    let is_same = |path: &Path| match &tree {
        Some(tree) => match sha256(tree, path) {
            // A file that may belong to another user is not read, but replaced.
            Err(FsError::Shared { .. }) => Ok(false),
            there => Ok(sha256(&source, path)? == there?),
        },
        None => Ok(false),
    };
    compare(&source.entries(ENTRIES)?, &there, wanted, is_same)
        .map_err(|error| ResourceError::State(format!("{}: {}", p.name, crate::diag::error_chain(&error))))
}

/// Checks that the source is a directory, if one is given.
pub(super) fn check_source(p: &Properties, host: &Host) -> Result<(), ResourceError> {
    let source = host.resolve(Path::new(&p.source));
    if p.source.is_empty() || host.source_paths(p.follow).is_directory(&source)? {
        return Ok(());
    }
    Err(ResourceError::State(format!("source {} is not a directory", source.display())))
}

/// Opens the directory to copy.
fn source(p: &Properties, host: &Host) -> Result<Tree, ResourceError> {
    check_source(p, host)?;
    let source = host.resolve(Path::new(&p.source));
    // A source within the target, or the reverse, would grow with every run, or be purged.
    let rules = host.source_paths(p.follow);
    let (real, own) = (rules.real(&source), rules.real(p.path()));
    if let (Some(real), Some(own)) = (real, own)
        && (real.starts_with(&own) || own.starts_with(&real))
    {
        return Err(ResourceError::State(format!("source {} and {} are within each other", source.display(), p.name)));
    }
    Ok(rules.existing_target(&source)?.tree()?)
}

fn sha256(tree: &Tree, path: &Path) -> Result<String, FsError> {
    fs::sha256_of(&mut tree.file(path)?).map_err(|error| FsError::io("read", path, error))
}

/// Applies all tasks, in order.
pub(super) fn apply(tasks: &[Task], p: &Properties, host: &Host) -> Result<(), ResourceError> {
    let file = WriteSpec { mode: p.mode.unwrap_or(Mode(0)).for_file(), ..p.write_spec(host)? };
    let directory = p.write_spec(host)?;
    let mut tree = host.managed_paths(p.follow).existing_place(p.path())?.tree()?;
    let source = if p.source.is_empty() { None } else { Some(source(p, host)?) };
    for task in tasks {
        if host.is_over() {
            return Err(ResourceError::State(format!("{}: the run ended before all entries below were done", p.name)));
        }
        let path = &task.path;
        match (&task.action, &source) {
            (TaskAction::Remove, _) => tree.remove(path)?,
            (TaskAction::Make, _) => {
                tree.directory(path)?;
                tree.set(path, directory)?;
            }
            (TaskAction::Copy, Some(source)) => {
                let mut content = source.file(path)?;
                let mut new = tree.create(path)?;
                io::copy(&mut content, &mut new).map_err(|error| FsError::io("write", &p.path().join(path), error))?;
                new.finish(file, None)?;
            }
            (TaskAction::Link(target), _) => tree.symlink(path, target, file.uid, file.gid)?,
            (TaskAction::SetFile, _) => tree.set(path, file)?,
            (TaskAction::SetDirectory, _) => tree.set(path, directory)?,
            (TaskAction::SetLink, _) => tree.set_link(path, file.uid, file.gid)?,
            (TaskAction::Copy, None) => {}
        }
    }
    Ok(())
}

/// Returns tasks for owner and mode of all entries. Devices, sockets and pipes stay unchanged.
fn attributes_only(there: &[TreeEntry], wanted: DesiredAttributes) -> Vec<Task> {
    there.iter().filter_map(|entry| attributes(entry, wanted)).collect()
}

/// Returns the task for owner and mode of an entry with the right content, if needed.
fn attributes(entry: &TreeEntry, wanted: DesiredAttributes) -> Option<Task> {
    let (what, mode) = match entry.kind {
        TreeEntryKind::File(_) => (TaskAction::SetFile, Some(wanted.mode.for_file())),
        TreeEntryKind::Directory { .. } => (TaskAction::SetDirectory, Some(wanted.mode.for_directory())),
        TreeEntryKind::Link(_) => (TaskAction::SetLink, None),
        TreeEntryKind::Other => return None,
    };
    let mut details = Vec::new();
    if wanted.uid != Some(entry.uid) {
        details.push("owner".to_owned());
    }
    if wanted.gid != Some(entry.gid) {
        details.push("group".to_owned());
    }
    if let Some(mode) = mode.filter(|mode| *mode != entry.mode) {
        details.push(format!("mode {} → {}", Mode(entry.mode), Mode(mode)));
    }
    (!details.is_empty()).then(|| Task { path: entry.path.clone(), action: what, details })
}

/// An entry that can't become like the source.
#[derive(Debug, thiserror::Error)]
pub(super) enum CompareError {
    /// An object of another kind is in the way.
    #[error("{} is {is}, in the source it is {wanted}; set purge: true to have it replaced", path.display())]
    InTheWay {
        /// The path.
        path: PathBuf,
        /// The kind of the entry.
        is: &'static str,
        /// The kind in the source.
        wanted: &'static str,
    },
    /// The source has an object that can't be copied.
    #[error("the source has {}, a device, socket or pipe; only files, directories and links are copied", .0.display())]
    NotCopied(PathBuf),
    /// A file system is mounted in a directory that would be removed.
    #[error("{} would be removed, but a file system is mounted there", .0.display())]
    Mounted(PathBuf),
    /// Content could not be compared.
    #[error(transparent)]
    Fs(#[from] FsError),
}

/// Returns the tasks that make a directory like its source: removals first, then the rest, a directory before its content.
fn compare(
    source: &[TreeEntry],
    there: &[TreeEntry],
    wanted: DesiredAttributes,
    is_same: impl Fn(&Path) -> Result<bool, FsError>,
) -> Result<Vec<Task>, CompareError> {
    let now: BTreeMap<&Path, &TreeEntry> = there.iter().map(|entry| (entry.path.as_path(), entry)).collect();
    let (mut gone, mut tasks): (Vec<PathBuf>, Vec<Task>) = (Vec::new(), Vec::new());
    for entry in source {
        // The content of a replaced directory is gone too.
        let there = now.get(entry.path.as_path()).copied().filter(|there| !is_below(&there.path, &gone));
        let (new, differs) = match (&entry.kind, there.map(|there| &there.kind)) {
            (TreeEntryKind::Other, _) => return Err(CompareError::NotCopied(entry.path.clone())),
            (TreeEntryKind::Directory { .. }, Some(TreeEntryKind::Directory { .. })) => (TaskAction::Make, None),
            (TreeEntryKind::File(size), Some(TreeEntryKind::File(other))) => {
                let same = size == other && is_same(&entry.path)?;
                (TaskAction::Copy, (!same).then(|| "content".to_owned()))
            }
            (TreeEntryKind::Link(target), Some(TreeEntryKind::Link(other))) => (
                TaskAction::Link(target.clone()),
                (target != other).then(|| format!("target {} → {}", other.display(), target.display())),
            ),
            // A link is replaced by a file, as everywhere in `file`.
            (TreeEntryKind::File(_), Some(TreeEntryKind::Link(_))) => (TaskAction::Copy, Some("link → file".to_owned())),
            (node, Some(other)) if !wanted.purge => {
                return Err(CompareError::InTheWay { path: entry.path.clone(), is: kind(other), wanted: kind(node) });
            }
            (node, Some(TreeEntryKind::Directory { .. })) => {
                gone.push(entry.path.clone());
                (create(node), Some(format!("directory → {}", noun(node))))
            }
            (node, Some(other)) => (create(node), Some(format!("{} → {}", noun(other), noun(node)))),
            (node, None) => (create(node), None),
        };
        match (there, differs) {
            (Some(_), Some(why)) => tasks.push(Task { path: entry.path.clone(), action: new, details: vec![why] }),
            (Some(there), None) => tasks.extend(attributes(there, wanted)),
            (None, _) => tasks.push(Task { path: entry.path.clone(), action: new, details: vec![] }),
        }
    }
    if wanted.purge {
        let known: BTreeMap<&Path, ()> = source.iter().map(|entry| (entry.path.as_path(), ())).collect();
        for entry in there {
            if !known.contains_key(entry.path.as_path()) && !is_below(&entry.path, &gone) {
                gone.push(entry.path.clone());
            }
        }
    }
    let holds =
        there.iter().find(|entry| entry.kind == TreeEntryKind::Directory { mounted: true } && is_below(&entry.path, &gone));
    if let Some(entry) = holds {
        return Err(CompareError::Mounted(entry.path.clone()));
    }
    gone.sort();
    let removed = gone.into_iter().map(|path| Task { path, action: TaskAction::Remove, details: vec![] });
    Ok(removed.chain(tasks).collect())
}

/// True for one of these paths, and for everything below.
fn is_below(path: &Path, gone: &[PathBuf]) -> bool {
    // The last path is the nearest: both lists have the same order.
    gone.last().is_some_and(|last| path.starts_with(last)) || gone.iter().any(|one| path.starts_with(one))
}

fn create(node: &TreeEntryKind) -> TaskAction {
    match node {
        TreeEntryKind::Directory { .. } => TaskAction::Make,
        TreeEntryKind::Link(target) => TaskAction::Link(target.clone()),
        TreeEntryKind::File(_) | TreeEntryKind::Other => TaskAction::Copy,
    }
}

fn noun(node: &TreeEntryKind) -> &'static str {
    match node {
        TreeEntryKind::File(_) => "file",
        TreeEntryKind::Directory { .. } => "directory",
        TreeEntryKind::Link(_) => "link",
        TreeEntryKind::Other => "device, socket or pipe",
    }
}

fn kind(node: &TreeEntryKind) -> &'static str {
    match node {
        TreeEntryKind::File(_) => "a file",
        TreeEntryKind::Directory { .. } => "a directory",
        TreeEntryKind::Link(_) => "a link",
        TreeEntryKind::Other => "a device, socket or pipe",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODE: Mode = Mode(0o640);

    fn entry(text: &str) -> TreeEntry {
        let (path, kind) = text.split_once(':').unwrap();
        let (node, mode) = match kind.split_at(1) {
            ("f", size) => (TreeEntryKind::File(size.parse().unwrap_or(1)), 0o640),
            ("d", mounted) => (TreeEntryKind::Directory { mounted: mounted == "m" }, 0o750),
            ("l", target) => (TreeEntryKind::Link(target.into()), 0o777),
            _ => (TreeEntryKind::Other, 0o600),
        };
        TreeEntry { path: path.into(), kind: node, uid: 0, gid: 0, mode }
    }

    fn entries(text: &str) -> Vec<TreeEntry> {
        text.split_whitespace().map(entry).collect()
    }

    fn wanted(purge: bool) -> DesiredAttributes {
        DesiredAttributes { uid: Some(0), gid: Some(0), mode: MODE, purge }
    }

    /// The decision table: source, target, purge, tasks. Files of one byte differ when in `other`.
    #[test]
    fn decisions() {
        for (source, there, purge, expected) in [
            ("", "", true, Ok("")),
            ("a:f d:d d/b:f l:lx", "", false, Ok("created a, created d, created d/b, created l")),
            ("a:f d:d d/b:f l:lx", "a:f d:d d/b:f l:lx", true, Ok("")),
            ("a:f2", "a:f3", false, Ok("a: content")),
            ("other:f", "other:f", false, Ok("other: content")),
            ("l:lx", "l:ly", false, Ok("l: target y → x")),
            ("a:f", "a:f b:f d:d d/c:f", false, Ok("")),
            ("a:f", "a:f b:f d:d d/c:f p:o", true, Ok("removed b, removed d, removed p")),
            ("a:f", "a:lx", false, Ok("a: link → file")),
            ("a:d", "a:f", false, Err("a is a file, in the source it is a directory; set purge")),
            ("a:d", "a:lx", false, Err("a is a link, in the source it is a directory")),
            ("a:f", "a:d", false, Err("a is a directory, in the source it is a file")),
            ("a:f", "a:o", false, Err("a is a device, socket or pipe")),
            ("a:lx", "a:f", false, Err("a is a file, in the source it is a link")),
            ("a:d a/b:f", "a:f", true, Ok("a: file → directory, created a/b")),
            ("a:f", "a:d a/b:f a/c:d", true, Ok("removed a, a: directory → file")),
            ("a:lx", "a:d a/b:f", true, Ok("removed a, a: directory → link")),
            ("a:o", "", true, Err("the source has a, a device")),
            ("", "a:d a/m:dm", true, Err("a/m would be removed, but a file system is mounted there")),
            ("a:d a/m:d", "a:d a/m:dm", true, Ok("")),
            ("ab:f", "a:d ab:f", true, Ok("removed a")),
        ] {
            let is_same = |path: &Path| Ok(path != Path::new("other"));
            let got = compare(&entries(source), &entries(there), wanted(purge), is_same);
            match (got, expected) {
                (Ok(tasks), Ok(text)) => assert_eq!(describe(&tasks).join(", "), text, "{source} | {there} | {purge}"),
                (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{source} | {there}: {error}"),
                (got, _) => panic!("{source} | {there} | {purge}: {got:?}"),
            }
        }
    }

    #[test]
    fn owners_and_modes_of_all() {
        let mut there = entries("a:f d:d d/l:lx p:o");
        assert_eq!(attributes_only(&there, wanted(false)), []);
        for entry in &mut there {
            (entry.uid, entry.mode) = (7, 0o4711);
        }
        let tasks = attributes_only(&there, wanted(false));
        assert_eq!(describe(&tasks), ["a: owner, mode 4711 → 0640", "d: owner, mode 4711 → 0750", "d/l: owner"]);
        assert_eq!(summarise(&tasks), "changed 3 below the directory");
        assert_eq!(attributes_only(&there, DesiredAttributes { uid: None, ..wanted(false) }).len(), 3);
    }

    #[test]
    fn many_steps_are_cut_short() {
        let there: Vec<TreeEntry> = (0..LISTED + 5).map(|number| entry(&format!("{number}:f"))).collect();
        let tasks = compare(&[], &there, wanted(true), |_| Ok(true)).unwrap();
        assert_eq!((describe(&tasks).len(), describe(&tasks)[LISTED].as_str()), (LISTED + 1, "and 5 more"));
        assert_eq!(summarise(&tasks), "removed 205 below the directory");
    }
}
