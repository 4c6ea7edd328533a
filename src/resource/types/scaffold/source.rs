//! Reads and renders the templates of a scaffold.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::host::tree::{Tree, TreeEntryKind};
use crate::host::{Host, PathInfo, fs};
use crate::template::{self, TemplateFiles, TreeOptions, render_tree};

use super::properties::{Properties, ScaffoldEngine};
use super::rendered::{Content, Rendered};
use crate::resource::ResourceError;

/// The largest template, in bytes.
const MAX_FILE: u64 = 16 << 20;
/// Maximum size of all templates together, in bytes.
const MAX_ALL: u64 = 128 << 20;
/// Maximum number of files and directories of a source or a target.
pub(super) const MAX_ENTRIES: usize = 100_000;
/// The mode of files that the function `write` makes.
const MODE: u32 = 0o644;

/// A directory of templates.
#[derive(Default)]
struct Source {
    directories: Vec<String>,
    templates: TemplateFiles,
    /// Files that are no text, and are copied.
    copies: BTreeMap<String, Vec<u8>>,
    /// Permission bits of all files.
    modes: BTreeMap<String, u32>,
    size: u64,
}

fn state(message: String) -> ResourceError {
    ResourceError::State(message)
}

/// Checks that the source is a directory.
pub(super) fn check_directory(p: &Properties, host: &Host) -> Result<(), ResourceError> {
    let source = p.source(host);
    let shown = source.display();
    match host.source_paths(p.follow).inspect(&source, false)? {
        PathInfo::Object { info: look, .. } if look.kind == fs::FileKind::Directory => Ok(()),
        PathInfo::Link => Err(state(format!(
            "cannot read source directory: {shown} is a symbolic link that others than root could have made; set follow: true to follow it"
        ))),
        PathInfo::Object { .. } | PathInfo::SharedFile => {
            Err(state(format!("cannot read source directory: {shown} is not a directory")))
        }
        PathInfo::Nothing | PathInfo::Dangling => {
            Err(state(format!("cannot read source directory: {shown}: no such directory; it must be on this host, not a URL")))
        }
    }
}

/// Checks that target and templates are disjoint: otherwise a rendered file would become a template, or a template be purged.
pub(super) fn check_disjoint(p: &Properties, host: &Host) -> Result<(), ResourceError> {
    let (source, target) = (p.source(host), p.target());
    if target.starts_with(&source) {
        return Err(state(format!("the target is in the source directory {}, and would become a template", source.display())));
    }
    if p.purge && source.starts_with(target) {
        return Err(state(format!("the source directory {} is in the target, and would be purged", source.display())));
    }
    Ok(())
}

/// Renders all templates.
pub(super) fn render(p: &Properties, host: &Host) -> Result<Rendered, ResourceError> {
    let root = p.source(host);
    check_directory(p, host)?;
    let mut source = Source::default();
    source.read(&host.source_paths(p.follow).existing_target(&root)?.tree()?, &root, host)?;
    let by_name = if source.modes.keys().any(|file| file.ends_with(".j2")) { ScaffoldEngine::Jinja } else { ScaffoldEngine::Jet };
    let engine = p.engine.unwrap_or(by_name);
    let over = host.clone();
    let options = TreeOptions {
        engine: template::Engine::from(engine),
        left: p.left_delimiter.clone(),
        right: p.right_delimiter.clone(),
        skip_empty: p.skip_empty,
        now: host.now().to_zoned(jiff::tz::TimeZone::system()),
        is_over: Arc::new(move || over.is_over()),
    };
    let made = render_tree(&p.scope(), source.templates, options).map_err(|error| state(format!("template {error}")))?;
    let mut files: BTreeMap<String, Content> = BTreeMap::new();
    for (path, copy) in source.copies {
        let mode = source.modes.get(&path).copied().unwrap_or(MODE);
        files.insert(path, Content::from_bytes(copy, mode));
    }
    for (path, made) in made {
        let mode = made.template.and_then(|template| source.modes.get(&template).copied()).unwrap_or(MODE);
        files.insert(path, Content::from_bytes(made.text.into_bytes(), mode));
    }
    check_paths(&files)?;
    Ok(Rendered { engine, directories: source.directories, files })
}

impl Source {
    /// Reads everything below a directory. Links are not followed.
    fn read(&mut self, tree: &Tree, root: &Path, host: &Host) -> Result<(), ResourceError> {
        for entry in tree.entries(MAX_ENTRIES)? {
            let path = root.join(&entry.path);
            let shown = path.display();
            if host.is_over() {
                return Err(state("the run is over".to_owned()));
            }
            let Some(below) = entry.path.to_str().map(str::to_owned) else {
                return Err(state(format!("invalid file in source: the name of {shown} is not UTF-8")));
            };
            match entry.kind {
                TreeEntryKind::Directory { .. } => self.directories.push(below),
                TreeEntryKind::File(_) => {
                    let bytes = fs::read_open(tree.file(&entry.path)?, &path, MAX_FILE)?;
                    self.add_file(bytes, below, entry.mode & 0o777)?;
                }
                TreeEntryKind::Link(_) | TreeEntryKind::Other => {
                    let message = format!("invalid file in source: {shown} is neither a file nor a directory");
                    return Err(state(format!("{message}; links are not followed: put the file itself there")));
                }
            }
        }
        Ok(())
    }

    fn add_file(&mut self, bytes: Vec<u8>, below: String, mode: u32) -> Result<(), ResourceError> {
        self.size += bytes.len() as u64;
        if self.size > MAX_ALL {
            return Err(state(format!("the files of the source are larger than {MAX_ALL} bytes together")));
        }
        self.modes.insert(below.clone(), mode);
        match String::from_utf8(bytes) {
            Ok(text) => drop(self.templates.insert(below, text)),
            Err(bytes) if !below.split('/').any(|part| part == template::PARTS_DIR) => {
                self.copies.insert(below, bytes.into_bytes());
            }
            Err(_) => {}
        }
        Ok(())
    }
}

/// Checks that no file has the path of a directory that another file needs.
fn check_paths(files: &BTreeMap<String, Content>) -> Result<(), ResourceError> {
    for path in files.keys() {
        let above = path.match_indices('/').filter_map(|(at, _)| path.get(..at)).find(|above| files.contains_key(*above));
        if let Some(above) = above {
            return Err(state(format!("the templates make both a file {above} and a file {path} below it")));
        }
    }
    Ok(())
}
