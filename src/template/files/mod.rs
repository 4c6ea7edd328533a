//! Template files: directories of files, rendered in one of three languages.
//!
//! - `render` renders a directory, `session` has its files and limits, `error` the errors with their places.
//! - `jinja` and `jet` render with minijinja, within the limits of `minijinja_env`.
//! - `go` is the template language of Go.
//!
//! `jet` also renders the texts of manifests that call the function `jet`.

mod error;
mod go;
pub(super) mod jet;
mod jinja;
mod minijinja_env;
mod render;
mod session;

pub use self::error::FileError;
pub use self::render::render_tree;
pub use self::session::{Engine, PARTS_DIR, RenderedFile, TemplateFiles, TreeOptions};

#[cfg(test)]
mod jet_tests;
#[cfg(test)]
mod tests;
