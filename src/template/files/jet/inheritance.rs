//! Inheritance between Jet files: the blocks that files define, import and override.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::block_use::block_parameters;
use super::unit::{CodeFragment, JetError, JetUnit, VARIABLES};
use crate::template::files::minijinja_env::{CodeOrigin, LinkedTemplate};

/// The maximum depth of `extends`.
const MAX_EXTENDS: usize = 16;
/// The maximum number of files that one file takes blocks from; each file needs stack.
const MAX_FILES: usize = 64;

impl LinkedTemplate {
    fn append(&mut self, piece: &CodeFragment, file: &Arc<str>) {
        let start = self.code.len();
        let places = piece.places.iter().map(|(code, at)| CodeOrigin { code: start + code, at: *at, file: Arc::clone(file) });
        self.places.extend(places);
        self.code.push_str(&piece.code);
    }
}

/// The files of a tree, found by the names that other files use.
pub(in crate::template) trait JetLibrary {
    /// Returns the path and the content of the file that `file` calls `name`.
    ///
    /// # Errors
    /// The file does not exist or can't be parsed.
    fn find(&self, file: &str, name: &str) -> Result<(&str, &JetUnit), String>;
}

/// A library without files.
pub(in crate::template) struct NoLibrary;

impl JetLibrary for NoLibrary {
    fn find(&self, _: &str, name: &str) -> Result<(&str, &JetUnit), String> {
        Err(format!("there is no {name}"))
    }
}

type Blocks<'l> = BTreeMap<&'l str, (&'l str, &'l CodeFragment)>;

/// Links a file with the blocks that other files define.
pub(in crate::template) fn link(file: &str, unit: &JetUnit, library: &dyn JetLibrary) -> Result<LinkedTemplate, JetError> {
    let mut blocks = Blocks::new();
    collect_blocks(file, unit, library, &mut blocks, &mut BTreeSet::new())?;
    let mut linked = LinkedTemplate::default();
    let (mut root, mut path) = (unit, file);
    let mut depth = 0;
    while let Some((at, name)) = &root.extends {
        depth += 1;
        if depth > MAX_EXTENDS {
            let at = unit.extends.as_ref().map_or(0, |(at, _)| *at);
            return Err(JetError::syntax(at, format!("extends is nested more than {MAX_EXTENDS} deep")));
        }
        (path, root) = library.find(path, name).map_err(|message| JetError::syntax(*at, message))?;
    }
    let parameters = block_parameters();
    for (name, (file, piece)) in blocks {
        linked.code.extend(["{% macro ", &JetUnit::macro_of(name), &parameters, " %}"]);
        linked.append(piece, &Arc::from(file));
        linked.code.push_str("{% endmacro %}");
    }
    linked.code.extend(["{% set ", VARIABLES, " = namespace() %}"]);
    linked.append(&root.root, &Arc::from(path));
    Ok(linked)
}

/// Collects the blocks of a file.
///
/// The file's own blocks have precedence over imported blocks, and those over the blocks of the extended file.
fn collect_blocks<'l>(
    file: &'l str,
    unit: &'l JetUnit,
    library: &'l dyn JetLibrary,
    blocks: &mut Blocks<'l>,
    seen: &mut BTreeSet<&'l str>,
) -> Result<(), JetError> {
    // Each file is visited once, so that files which import each other come to an end.
    if !seen.insert(file) {
        return Ok(());
    }
    for (at, name) in unit.extends.iter().chain(&unit.imports) {
        let wrong = |message: String| JetError::syntax(*at, message);
        if seen.len() > MAX_FILES {
            return Err(wrong(format!("a file takes blocks from more than {MAX_FILES} files")));
        }
        let (path, other) = library.find(file, name).map_err(wrong)?;
        collect_blocks(path, other, library, blocks, seen).map_err(|inner| wrong(format!("{path}: {}", inner.message)))?;
    }
    blocks.extend(unit.blocks.iter().map(|(name, piece)| (name.as_str(), (file, piece))));
    Ok(())
}
