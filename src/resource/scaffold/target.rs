//! The target of a scaffold: compared, written, removed.
//!
//! Below the target no link is followed: a directory in which files are to be written may not be one. That is looked at
//! before anything is written, for a good error, and held to by `host::tree` while it is.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use crate::host::tree::Tree;
use crate::host::{FsError, Host, WriteSpec, fs};

use super::source::MAX_ENTRIES;
use super::{Content, Differences, Preview, Properties, Rendered, ResourceError, post};

/// The mode of directories that are made.
const DIRECTORY: u32 = 0o755;
/// How much text a diff is made of, in bytes.
const PREVIEW_LIMIT: u64 = 1 << 20;

fn state(message: String) -> ResourceError {
    ResourceError::State(message)
}

/// Whether the target is there; a link to a directory is one.
pub(super) fn exists(target: &Path) -> Result<bool, ResourceError> {
    match fs::look(target, false)? {
        Some(look) if look.kind == fs::Kind::Directory => Ok(true),
        Some(_) => Err(state(format!("{} exists and is not a directory; remove it first", target.display()))),
        None if fs::is_symlink(target) => {
            Err(state(format!("{} is a symbolic link that leads nowhere; remove it first", target.display())))
        }
        None => Ok(false),
    }
}

/// Makes the target, with the directories above it.
pub(super) fn create(target: &Path) -> Result<(), ResourceError> {
    Ok(fs::create_directory(target, DIRECTORY)?)
}

/// The directories above a path, outermost first.
fn above(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').filter_map(|(at, _)| path.get(..at))
}

/// Whether the directories above a file are directories of their own, as far as they are there.
fn check_way(target: &Path, path: &str, known: &mut BTreeSet<String>) -> Result<(), ResourceError> {
    for directory in above(path) {
        if known.contains(directory) {
            continue;
        }
        let here = target.join(directory);
        if fs::is_symlink(&here) {
            let message = format!("{} is a symbolic link; refusing to write through it", here.display());
            return Err(state(format!("{message}; put a directory there, or make the link the target")));
        }
        match fs::look(&here, false)? {
            Some(look) if look.kind == fs::Kind::Directory => {}
            Some(_) => return Err(state(format!("{} exists and is not a directory; remove it first", here.display()))),
            None => return Ok(()),
        }
        known.insert(directory.to_owned());
    }
    Ok(())
}

/// How a target differs from what the templates come to. What differs goes through its `post` commands first, and
/// comes back as they left it.
pub(super) fn compare(
    p: &Properties,
    mut rendered: Arc<Rendered>,
    target_exists: bool,
    host: &Host,
) -> Result<(Arc<Rendered>, Differences), ResourceError> {
    let mut differences = Differences::default();
    let mut known = BTreeSet::new();
    let mut processed: BTreeMap<String, Content> = BTreeMap::new();
    for (path, content) in &rendered.files {
        let there = if target_exists {
            check_way(p.target(), path, &mut known)?;
            digest(&p.target().join(path))?
        } else {
            None
        };
        let mut wanted = &content.sha256;
        if there.as_ref() != Some(wanted) && post::concerns(&p.post, path) {
            let after = post::run(&p.post, path, content, host)?;
            wanted = &processed.entry(path.clone()).or_insert(after).sha256;
        }
        match there {
            None => differences.added.push(path.clone()),
            Some(there) if there == *wanted => differences.stable.push(path.clone()),
            Some(_) => differences.updated.push(path.clone()),
        }
    }
    if target_exists {
        extra(p.target(), "", &rendered, &mut differences.extra)?;
    }
    if !processed.is_empty() {
        let mut files = rendered.files.clone();
        files.extend(processed);
        rendered = Arc::new(Rendered { engine: rendered.engine, directories: rendered.directories.clone(), files });
    }
    Ok((rendered, differences))
}

/// The digest of a file, a link to one followed; nothing when there is none.
fn digest(path: &Path) -> Result<Option<String>, ResourceError> {
    match fs::look(path, true)? {
        None => Ok(None),
        Some(look) if look.kind == fs::Kind::File => Ok(look.sha256),
        Some(look) => {
            let what = if look.kind == fs::Kind::Directory { "a directory" } else { "a device, socket or pipe" };
            Err(state(format!("{} is {what}, where the templates make a file; remove it first", path.display())))
        }
    }
}

/// Everything in the target that is no directory and not of the templates.
fn extra(directory: &Path, prefix: &str, rendered: &Rendered, found: &mut Vec<String>) -> Result<(), ResourceError> {
    for path in fs::list(directory)? {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let below = format!("{prefix}{name}");
        let is_directory = !fs::is_symlink(&path) && fs::look(&path, false)?.is_some_and(|look| look.kind == fs::Kind::Directory);
        if is_directory {
            extra(&path, &format!("{below}/"), rendered, found)?;
        } else if !rendered.files.contains_key(&below) {
            if path.to_str().is_none() {
                return Err(state(format!("the name of {} is not UTF-8", path.display())));
            }
            found.push(below);
        }
        if found.len() > MAX_ENTRIES {
            return Err(state(format!("the target has more than {MAX_ENTRIES} files that are not of the templates")));
        }
    }
    Ok(())
}

/// What is left of the templates in a target that shall have nothing of them.
pub(super) fn remaining(target: &Path, rendered: &Rendered) -> Result<Differences, ResourceError> {
    let mut differences = Differences::default();
    let mut known = BTreeSet::new();
    for (path, content) in &rendered.files {
        check_way(target, path, &mut known)?;
        let here = target.join(path);
        if fs::is_symlink(&here) {
            differences.updated.push(path.clone());
            continue;
        }
        match fs::look(&here, true)? {
            None => {}
            Some(look) if look.sha256.as_ref() == Some(&content.sha256) => differences.stable.push(path.clone()),
            // A directory is no file of the templates.
            Some(look) if look.kind == fs::Kind::Directory => {}
            Some(_) => differences.updated.push(path.clone()),
        }
    }
    extra(target, "", rendered, &mut differences.extra)?;
    Ok(differences)
}

/// Writes what differs, and removes what is purged.
pub(super) fn write(p: &Properties, rendered: &Rendered, differences: &Differences) -> Result<(), ResourceError> {
    let target = p.target();
    let mut known = BTreeSet::new();
    let changed: Vec<&String> = differences.added.iter().chain(&differences.updated).collect();
    // Everything that can be known to fail is known before the first write.
    for path in &changed {
        check_way(target, path, &mut known)?;
    }
    let is_partial = |directory: &str| directory.split('/').any(|part| part == crate::template::PARTIALS);
    let directories: Vec<&String> = rendered.directories.iter().filter(|directory| !is_partial(directory)).collect();
    for directory in &directories {
        check_way(target, &format!("{directory}/"), &mut known)?;
    }
    create(target)?;
    let mut tree = Tree::open(target)?;
    for directory in directories {
        tree.enter(Path::new(directory))?;
    }
    for path in changed {
        let Some(content) = rendered.files.get(path) else { continue };
        let mut file = tree.create(Path::new(path))?;
        file.write_all(&content.bytes).map_err(|error| FsError::io("write", &target.join(path), error))?;
        file.finish(WriteSpec { uid: None, gid: None, mode: content.mode }, None)?;
    }
    if p.purge {
        differences.extra.iter().try_for_each(|path| tree.unlink(Path::new(path)))?;
    }
    Ok(())
}

/// Removes the files of the templates, then the directories above them that are empty, then the target if it is.
pub(super) fn remove(target: &Path, differences: &Differences) -> Result<(), ResourceError> {
    let mut directories: BTreeSet<&str> = BTreeSet::new();
    let mut failed = None;
    let tree = Tree::open(target)?;
    for path in differences.updated.iter().chain(&differences.stable) {
        // The others are removed all the same.
        match tree.unlink(Path::new(path)) {
            Ok(()) => directories.extend(above(path)),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    // A directory sorts before what is below it.
    directories.into_iter().rev().try_for_each(|directory| tree.remove_empty(Path::new(directory)))?;
    if !fs::is_symlink(target) && fs::list(target)?.is_empty() {
        fs::remove(target)?;
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// The text of all files that differ, before and after.
pub(super) fn preview(p: &Properties, rendered: &Rendered, differences: &Differences) -> Option<Preview> {
    let mut preview = Preview { before: String::new(), after: String::new() };
    let purged: &[String] = if p.purge { &differences.extra } else { &[] };
    for path in differences.added.iter().chain(&differences.updated).chain(purged) {
        let title = format!("==> {path}\n");
        if !differences.added.contains(path) {
            let before = fs::read_text(&p.target().join(path), PREVIEW_LIMIT).ok()?;
            preview.before.extend([title.as_str(), &before]);
        }
        if let Some(content) = rendered.files.get(path) {
            preview.after.extend([title.as_str(), std::str::from_utf8(&content.bytes).ok()?]);
        }
        if preview.before.len().max(preview.after.len()) as u64 > PREVIEW_LIMIT {
            return None;
        }
    }
    (preview.before != preview.after).then_some(preview)
}
