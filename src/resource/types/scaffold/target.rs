//! The target of a scaffold: compared, written, removed.
//!
//! Below the target no link is followed: a directory for rendered files may not be a link. This module checks this before the
//! first write, for a good error. `host::tree` enforces it during the writes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use crate::host::tree::TreeEntryKind;
use crate::host::{DirEntryHandle, FsError, Host, PathInfo, WriteSpec, fs};

use super::post;
use super::properties::Properties;
use super::rendered::{Content, Differences, Rendered};
use super::source::MAX_ENTRIES;
use crate::resource::{Preview, ResourceError};

/// The mode of new directories.
const DIRECTORY: u32 = 0o755;
/// Maximum amount of text in a diff, in bytes.
const PREVIEW_LIMIT: u64 = 1 << 20;

fn state(message: String) -> ResourceError {
    ResourceError::State(message)
}

/// True where the target exists; a link to a directory counts as existing.
pub(super) fn exists(p: &Properties, host: &Host) -> Result<bool, ResourceError> {
    let target = p.target().display();
    match host.managed_paths(p.follow).inspect(p.target(), false)? {
        PathInfo::Object { info: look, .. } if look.kind == fs::FileKind::Directory => Ok(true),
        PathInfo::Object { .. } | PathInfo::SharedFile => {
            Err(state(format!("{target} exists and is not a directory; remove it first")))
        }
        PathInfo::Dangling => Err(state(format!("{target} is a dangling symbolic link; remove it first"))),
        PathInfo::Link => Err(state(format!(
            "{target} is a symbolic link that is not followed: others than root could have made it, or it leads out of what this node \
             allows; use its target as the path, or set follow: true"
        ))),
        PathInfo::Nothing => Ok(false),
    }
}

/// Makes the target, and missing directories above it.
pub(super) fn create(p: &Properties, host: &Host) -> Result<DirEntryHandle, ResourceError> {
    Ok(host.managed_paths(p.follow).create_directory(p.target(), DIRECTORY)?)
}

/// Returns the directories above a path, outermost first.
fn above(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').filter_map(|(at, _)| path.get(..at))
}

/// Checks that the existing directories above a file are no links.
fn check_parents(p: &Properties, path: &str, known: &mut BTreeSet<String>, host: &Host) -> Result<(), ResourceError> {
    for directory in above(path) {
        if known.contains(directory) {
            continue;
        }
        let here = p.target().join(directory);
        let Some(place) = host.managed_paths(p.follow).place(&here)? else { return Ok(()) };
        if place.is_link()? {
            let message = format!("{} is a symbolic link; refusing to write through it", here.display());
            return Err(state(format!("{message}; put a directory there, or make the link the target")));
        }
        match place.inspect(false)? {
            PathInfo::Object { info: look, .. } if look.kind == fs::FileKind::Directory => {}
            PathInfo::Nothing => return Ok(()),
            _ => return Err(state(format!("{} exists and is not a directory; remove it first", here.display()))),
        }
        known.insert(directory.to_owned());
    }
    Ok(())
}

/// Compares a target with the rendered templates. Different files are processed by their `post` commands first.
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
            check_parents(p, path, &mut known, host)?;
            digest(p, path, host)?
        } else {
            None
        };
        let mut wanted = &content.sha256;
        if there.as_ref().and_then(Option::as_ref) != Some(wanted) && post::has_commands(&p.post, path) {
            let after = post::run(&p.post, path, content, host)?;
            wanted = &processed.entry(path.clone()).or_insert(after).sha256;
        }
        match there {
            None => differences.added.push(path.clone()),
            Some(Some(there)) if there == *wanted => differences.stable.push(path.clone()),
            Some(_) => differences.updated.push(path.clone()),
        }
    }
    if target_exists {
        extra(p, &rendered, &mut differences.extra, host)?;
    }
    if !processed.is_empty() {
        let mut files = rendered.files.clone();
        files.extend(processed);
        rendered = Arc::new(Rendered { engine: rendered.engine, directories: rendered.directories.clone(), files });
    }
    Ok((rendered, differences))
}

/// Returns the digest of a file, if it exists. A link is followed if root alone could have made it.
fn digest(p: &Properties, path: &str, host: &Host) -> Result<Option<Option<String>>, ResourceError> {
    let path = p.target().join(path);
    match host.managed_paths(p.follow).inspect(&path, true)? {
        PathInfo::Nothing | PathInfo::Dangling => Ok(None),
        PathInfo::Link | PathInfo::SharedFile => Ok(Some(None)),
        PathInfo::Object { info: look, .. } if look.kind == fs::FileKind::File => Ok(Some(look.sha256)),
        PathInfo::Object { info: look, .. } => {
            let what = if look.kind == fs::FileKind::Directory { "a directory" } else { "a device, socket or pipe" };
            Err(state(format!("{} is {what}, where the templates make a file; remove it first", path.display())))
        }
    }
}

/// Finds everything in the target that is no directory and not of the templates.
fn extra(p: &Properties, rendered: &Rendered, found: &mut Vec<String>, host: &Host) -> Result<(), ResourceError> {
    let tree = host.managed_paths(p.follow).existing_target(p.target())?.tree()?;
    for entry in tree.entries(MAX_ENTRIES + rendered.files.len() + rendered.directories.len())? {
        if matches!(entry.kind, TreeEntryKind::Directory { .. }) {
            continue;
        }
        let Some(below) = entry.path.to_str() else {
            return Err(state(format!("the name of {} is not UTF-8", p.target().join(&entry.path).display())));
        };
        if !rendered.files.contains_key(below) {
            found.push(below.to_owned());
        }
        if found.len() > MAX_ENTRIES {
            return Err(state(format!("the target has more than {MAX_ENTRIES} files that are not of the templates")));
        }
    }
    Ok(())
}

/// Returns the files of the templates that exist in a target with `ensure: absent`.
pub(super) fn remaining(p: &Properties, rendered: &Rendered, host: &Host) -> Result<Differences, ResourceError> {
    let mut differences = Differences::default();
    let mut known = BTreeSet::new();
    for (path, content) in &rendered.files {
        check_parents(p, path, &mut known, host)?;
        let Some(place) = host.managed_paths(p.follow).place(&p.target().join(path))? else { continue };
        match place.inspect(true)? {
            PathInfo::Nothing => {}
            PathInfo::Object { info: look, .. } if look.sha256.as_ref() == Some(&content.sha256) => {
                differences.stable.push(path.clone());
            }
            // A directory is no file of the templates.
            PathInfo::Object { info: look, .. } if look.kind == fs::FileKind::Directory => {}
            _ => differences.updated.push(path.clone()),
        }
    }
    extra(p, rendered, &mut differences.extra, host)?;
    Ok(differences)
}

/// Writes the different files, and removes purged files.
pub(super) fn write(p: &Properties, rendered: &Rendered, differences: &Differences, host: &Host) -> Result<(), ResourceError> {
    let target = p.target();
    let mut known = BTreeSet::new();
    let changed: Vec<&String> = differences.added.iter().chain(&differences.updated).collect();
    // All predictable failures are checked before the first write.
    for path in &changed {
        check_parents(p, path, &mut known, host)?;
    }
    let is_partial = |directory: &str| directory.split('/').any(|part| part == crate::template::PARTS_DIR);
    let directories: Vec<&String> = rendered.directories.iter().filter(|directory| !is_partial(directory)).collect();
    for directory in &directories {
        check_parents(p, &format!("{directory}/"), &mut known, host)?;
    }
    let mut tree = create(p, host)?.tree()?;
    for directory in directories {
        tree.ensure_directory(Path::new(directory))?;
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

/// Removes the files of the templates, then the empty directories above them, then the target if empty.
pub(super) fn remove(p: &Properties, differences: &Differences, host: &Host) -> Result<(), ResourceError> {
    let mut directories: BTreeSet<&str> = BTreeSet::new();
    let mut failed = None;
    let rules = host.managed_paths(p.follow);
    let tree = rules.existing_target(p.target())?.tree()?;
    for path in differences.updated.iter().chain(&differences.stable) {
        // The other files are removed nevertheless.
        match tree.unlink(Path::new(path)) {
            Ok(()) => directories.extend(above(path)),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    // A directory sorts before its content.
    directories.into_iter().rev().try_for_each(|directory| tree.remove_empty(Path::new(directory)))?;
    let place = rules.existing_place(p.target())?;
    if !place.is_link()? && place.is_empty()? {
        place.remove()?;
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// Returns the text of all different files, before and after.
pub(super) fn preview(p: &Properties, rendered: &Rendered, differences: &Differences, host: &Host) -> Option<Preview> {
    let mut preview = Preview { before: String::new(), after: String::new(), is_public: true };
    let purged: &[String] = if p.purge { &differences.extra } else { &[] };
    for path in differences.added.iter().chain(&differences.updated).chain(purged) {
        let title = format!("==> {path}\n");
        preview.is_public &= fs::is_reachable(&p.target().join(path));
        if !differences.added.contains(path) {
            let before = host.managed_paths(p.follow).read_text(&p.target().join(path), PREVIEW_LIMIT).ok()?;
            let seen = host.managed_paths(p.follow).inspect(&p.target().join(path), false).ok()?;
            preview.is_public &= matches!(seen, PathInfo::Object { info, .. } if info.is_public());
            preview.before.extend([title.as_str(), &before]);
        }
        if let Some(content) = rendered.files.get(path) {
            preview.is_public &= fs::is_public(content.mode);
            preview.after.extend([title.as_str(), std::str::from_utf8(&content.bytes).ok()?]);
        }
        if preview.before.len().max(preview.after.len()) as u64 > PREVIEW_LIMIT {
            return None;
        }
    }
    (preview.before != preview.after).then_some(preview)
}
