//! The files of a directory and their limits, with `render` for parts and `write` for more files.
//!
//! Pure: the caller reads the templates into memory, and writes the rendered files.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use jiff::Zoned;
use serde_json::Value;

use super::error::FileError;
use crate::model::lock;
use crate::template::Scope;
use crate::template::expr::Root;
use crate::template::functions::gotime::Time;
use crate::template::text::ScopeState;

/// The name of directories for parts: only `render` renders their files.
pub const PARTS_DIR: &str = "_partials";
/// The deepest nesting of files that render files: each level needs stack.
const MAX_NESTING: usize = 16;
/// The most calls of `render` in one tree.
const MAX_RENDERS: usize = 100_000;
/// The most bytes of all rendered files of a tree.
const MAX_OUTPUT: usize = 128 << 20;
/// The language of template files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// Jinja, as minijinja has it.
    Jinja,
    /// Jet.
    Jet,
    /// Go's text/template with the functions of Sprig.
    Go,
}

impl Engine {
    /// The default delimiters.
    pub fn delimiters(self) -> (&'static str, &'static str) {
        match self {
            Self::Jet => ("[[", "]]"),
            Self::Jinja | Self::Go => ("{{", "}}"),
        }
    }
}

/// Template files, by their paths below the directory.
pub type TemplateFiles = BTreeMap<String, String>;

/// The options of a rendering.
pub struct TreeOptions {
    /// The language.
    pub engine: Engine,
    /// The left delimiter; the language's own when empty.
    pub left: String,
    /// The right delimiter; the language's own when empty.
    pub right: String,
    /// Leaves out files that have only white space.
    pub skip_empty: bool,
    /// The time, for `now`.
    pub now: Zoned,
    /// True when the run is over: rendering then ends with an error.
    pub is_over: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// A rendered file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedFile {
    /// The text of the file.
    pub text: String,
    /// The template of the file; none for a file from `write`.
    pub template: Option<String>,
}

/// The rendering of one tree.
pub(super) struct RenderSession {
    pub(super) scope: Arc<ScopeState>,
    pub(super) now: Time,
    pub(super) engine: Engine,
    files: TemplateFiles,
    delimiters: (String, String),
    skip_empty: bool,
    is_over: Arc<dyn Fn() -> bool + Send + Sync>,
    rendered_files: Mutex<BTreeMap<String, RenderedFile>>,
    /// The calls of `render` so far.
    renders: AtomicUsize,
    /// The bytes of the rendered files so far.
    size: AtomicUsize,
}

impl RenderSession {
    /// Begins the rendering of a tree.
    pub(super) fn new(scope: &Scope, files: TemplateFiles, options: TreeOptions) -> Self {
        let TreeOptions { engine, left, right, skip_empty, now, is_over } = options;
        let own = engine.delimiters();
        let or = |given: String, own: &str| if given.is_empty() { own.to_owned() } else { given };
        let scope = Arc::clone(&scope.inner);
        scope.parts.trace.begin_evaluation();
        Self {
            scope,
            now: now.into(),
            files,
            engine,
            delimiters: (or(left, own.0), or(right, own.1)),
            skip_empty,
            is_over,
            rendered_files: Mutex::default(),
            renders: AtomicUsize::new(0),
            size: AtomicUsize::new(0),
        }
    }

    /// Takes the files that are rendered so far.
    pub(super) fn take_rendered_files(&self) -> BTreeMap<String, RenderedFile> {
        std::mem::take(&mut *lock(&self.rendered_files))
    }

    pub(super) fn delimiters(&self) -> (&str, &str) {
        (&self.delimiters.0, &self.delimiters.1)
    }

    pub(super) fn files(&self) -> &TemplateFiles {
        &self.files
    }

    pub(super) fn source(&self, file: &str) -> Option<&str> {
        self.files.get(file).map(String::as_str)
    }

    /// The files that are not parts.
    pub(super) fn top_level_files(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str).filter(|file| !is_partial(file))
    }

    /// Returns a root of the templates, and records its use when a file mentions its name.
    ///
    /// Gathering facts is expensive, and most templates use none: without a mention there are no facts.
    pub(super) fn root(&self, root: Root) -> Option<&Value> {
        let is_mentioned = self.files.values().any(|text| root.is_mentioned(text));
        if is_mentioned {
            self.scope.note_root(root);
        }
        (is_mentioned || root != Root::Facts).then(|| self.scope.root(root))
    }

    /// Begins the budget of a file, and returns a mark for `end`.
    pub(super) fn begin(&self) -> Result<usize, String> {
        self.scope.parts.budget.begin_evaluation().map_err(|spent| spent.to_string())?;
        Ok(self.scope.parts.budget.used_memory())
    }

    /// Ends the budget of a file: the memory since the mark shrinks to its text, of `kept` bytes.
    pub(super) fn end(&self, taken: usize, kept: usize) {
        self.scope.parts.budget.release_since(taken, kept);
    }

    /// Fails when the run is over.
    pub(super) fn check_not_over(&self) -> Result<(), String> {
        if (self.is_over)() { Err("the run is over".to_owned()) } else { Ok(()) }
    }

    /// Checks the limits before a call of `render` at this depth. Returns the path of the file.
    pub(super) fn check_render(&self, file: &str, nesting: usize) -> Result<String, String> {
        self.check_not_over()?;
        if nesting >= MAX_NESTING {
            return Err(format!("render is nested more than {MAX_NESTING} deep"));
        }
        if self.renders.fetch_add(1, Ordering::Relaxed) >= MAX_RENDERS {
            return Err(format!("more than {MAX_RENDERS} calls of render"));
        }
        let path = path_below(file).ok_or_else(|| format!("{file} is not in the source directory"))?;
        if self.files.contains_key(&path) {
            return Ok(path);
        }
        Err(format!("there is no template {path} in the source directory"))
    }

    /// The file that `from` calls `name`: beside `from`, else from the source directory on. The name may lack the usual
    /// endings.
    pub(super) fn resolve_name(&self, from: &str, name: &str) -> Option<&str> {
        let beside = from.rsplit_once('/').map_or_else(|| name.to_owned(), |(directory, _)| format!("{directory}/{name}"));
        let places = if name.starts_with('/') { [Some(name), None] } else { [Some(beside.as_str()), Some(name)] };
        let paths = places.into_iter().flatten().filter_map(path_below);
        let mut ended = paths.flat_map(|path| ["", ".jet", ".html.jet", ".jet.html"].map(|ending| format!("{path}{ending}")));
        ended.find_map(|path| self.files.get_key_value(&path)).map(|(path, _)| path.as_str())
    }

    fn store(&self, path: String, made: RenderedFile) -> Result<(), String> {
        let size = self.size.fetch_add(made.text.len(), Ordering::Relaxed).saturating_add(made.text.len());
        if size > MAX_OUTPUT {
            return Err(format!("the rendered files are larger than {MAX_OUTPUT} bytes in total"));
        }
        lock(&self.rendered_files).insert(path, made);
        Ok(())
    }

    /// Stores a rendered file.
    pub(super) fn store_rendered(&self, file: &str, text: String) -> Result<(), FileError> {
        if self.skip_empty && text.trim().is_empty() {
            return Ok(());
        }
        let path = if self.engine == Engine::Jinja { file.strip_suffix(".j2").unwrap_or(file) } else { file };
        let path = if path.is_empty() || path.ends_with('/') { file } else { path };
        let made = RenderedFile { text, template: Some(file.to_owned()) };
        self.store(path.to_owned(), made).map_err(|message| FileError::without_place(file, message))
    }

    /// Stores one more file, for `write`.
    pub(super) fn write(&self, path: &str, content: &str) -> Result<(), String> {
        self.scope.check_choice(&format!("file \"{path}\""))?;
        let path = path_below(path).ok_or_else(|| format!("{path} is not in the target directory"))?;
        self.store(path, RenderedFile { text: content.to_owned(), template: None })
    }
}

fn is_partial(file: &str) -> bool {
    file.split('/').any(|part| part == PARTS_DIR)
}

/// A path below a directory, without `.` and `..`; none when the path leads out of the directory.
fn path_below(path: &str) -> Option<String> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    let path = parts.join("/");
    (!path.is_empty() && !path.contains('\0')).then_some(path)
}
