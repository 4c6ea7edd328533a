//! Templates: `{{ expr }}` and `${ expr }` in the texts of a manifest, and template files.
//!
//! The module does no I/O: facts come from a function that is called at most once, files from a [`TemplateFileReader`].
//! A text is resolved once; expressions inside a resolved value are never evaluated.
//!
//! - `text` resolves the texts of a manifest, within the values and limits of a [`Scope`].
//! - `expr` is the language of expressions.
//! - `files` renders directories of files, and has the three languages of files: `jet`, `jinja` and `go`.
//! - `functions` is common to all languages: times, regular expressions, formats, values of the bus.
//!
//! `data` resolves with a restricted [`Scope`], `manifest` and `engine` with a full scope.

mod expr;
mod files;
mod functions;
mod text;

pub use self::expr::{MissingKey, TemplateErrorKind};
pub use self::files::{Engine, FileError, PARTS_DIR, RenderedFile, TemplateFiles, TreeOptions, render_tree};
pub use self::functions::print::to_text;
pub use self::text::{
    FactsSource, OutputReference, OutputTable, OutputsOfResource, Scope, SecretReader, TemplateError, TemplateFile,
    TemplateFileReader, TraceMark, ValueUses, expected_values, is_template, mask_expressions, query, unclosed, validate,
};

#[cfg(test)]
mod tests;
