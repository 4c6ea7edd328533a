//! Inheritance between Jet files: the blocks that files define, import and override.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::statement::{Asks, parameters};
use super::translate::{VARIABLES, Wrong};

/// The maximum depth of `extends`.
const MAX_DEPTH: usize = 16;
/// The maximum number of files that one file takes blocks from; each file needs stack.
const MAX_FILES: usize = 64;

/// A fragment of a file in minijinja's language.
#[derive(Debug, Clone, Default)]
pub(super) struct Piece {
    pub(super) code: String,
    /// The start of each action in the code and in the source; in bytes, in order.
    pub(super) places: Vec<(usize, usize)>,
}

/// A translated file, not yet linked with other files.
#[derive(Default)]
pub(in super::super) struct Unit {
    pub(super) root: Piece,
    pub(super) blocks: BTreeMap<String, Piece>,
    /// The position of the statement, and the file that the statement names.
    pub(super) extends: Option<(usize, String)>,
    pub(super) imports: Vec<(usize, String)>,
    /// The open block definitions.
    pub(super) open: Vec<(String, Asks)>,
}

impl Unit {
    /// Returns the macro name of a block.
    pub(super) fn macro_of(block: &str) -> String {
        format!("block_{block}")
    }
}

/// The start of an action in linked code, with its origin.
#[derive(Debug, Clone)]
pub(in super::super) struct Place {
    /// In the code, in bytes.
    pub(in super::super) code: usize,
    /// In the file, in bytes.
    pub(in super::super) at: usize,
    pub(in super::super) file: Arc<str>,
}

/// A template in minijinja's language, with all inherited blocks.
#[derive(Default)]
pub(in super::super) struct Linked {
    pub(in super::super) code: String,
    pub(in super::super) places: Vec<Place>,
}

impl Linked {
    fn add(&mut self, piece: &Piece, file: &Arc<str>) {
        let start = self.code.len();
        let places = piece.places.iter().map(|(code, at)| Place { code: start + code, at: *at, file: Arc::clone(file) });
        self.places.extend(places);
        self.code.push_str(&piece.code);
    }

    /// Returns the origin of a byte of the code.
    pub(in super::super) fn written(&self, code: usize) -> Option<&Place> {
        let after = self.places.partition_point(|place| place.code <= code);
        self.places.get(after.checked_sub(1)?)
    }
}

/// The files of a tree, found by the names that other files use.
pub(in super::super) trait Library {
    /// Returns the path and the content of the file that `file` calls `name`.
    ///
    /// # Errors
    /// The file does not exist or can't be parsed.
    fn find(&self, file: &str, name: &str) -> Result<(&str, &Unit), String>;
}

/// A library without files.
pub(in super::super) struct Alone;

impl Library for Alone {
    fn find(&self, _: &str, name: &str) -> Result<(&str, &Unit), String> {
        Err(format!("there is no {name}"))
    }
}

type Blocks<'l> = BTreeMap<&'l str, (&'l str, &'l Piece)>;

/// Links a file with the blocks that other files define.
pub(in super::super) fn link(file: &str, unit: &Unit, library: &dyn Library) -> Result<Linked, Wrong> {
    let mut blocks = Blocks::new();
    collect(file, unit, library, &mut blocks, &mut BTreeSet::new())?;
    let mut linked = Linked::default();
    let (mut root, mut path) = (unit, file);
    let mut depth = 0;
    while let Some((at, name)) = &root.extends {
        depth += 1;
        if depth > MAX_DEPTH {
            let at = unit.extends.as_ref().map_or(0, |(at, _)| *at);
            return Err(Wrong { at, message: format!("extends is nested more than {MAX_DEPTH} deep") });
        }
        (path, root) = library.find(path, name).map_err(|message| Wrong { at: *at, message })?;
    }
    let parameters = parameters();
    for (name, (file, piece)) in blocks {
        linked.code.extend(["{% macro ", &Unit::macro_of(name), &parameters, " %}"]);
        linked.add(piece, &Arc::from(file));
        linked.code.push_str("{% endmacro %}");
    }
    linked.code.extend(["{% set ", VARIABLES, " = namespace() %}"]);
    linked.add(&root.root, &Arc::from(path));
    Ok(linked)
}

/// Collects the blocks of a file.
///
/// The file's own blocks have precedence over imported blocks, and those over the blocks of the extended file.
fn collect<'l>(
    file: &'l str,
    unit: &'l Unit,
    library: &'l dyn Library,
    blocks: &mut Blocks<'l>,
    seen: &mut BTreeSet<&'l str>,
) -> Result<(), Wrong> {
    // Each file is visited once, so that files which import each other come to an end.
    if !seen.insert(file) {
        return Ok(());
    }
    for (at, name) in unit.extends.iter().chain(&unit.imports) {
        let wrong = |message: String| Wrong { at: *at, message };
        if seen.len() > MAX_FILES {
            return Err(wrong(format!("a file takes blocks from more than {MAX_FILES} files")));
        }
        let (path, other) = library.find(file, name).map_err(wrong)?;
        collect(path, other, library, blocks, seen).map_err(|inner| wrong(format!("{path}: {}", inner.message)))?;
    }
    blocks.extend(unit.blocks.iter().map(|(name, piece)| (name.as_str(), (file, piece))));
    Ok(())
}
