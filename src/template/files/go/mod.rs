//! The template language of Go: `text/template` with the functions of Sprig.
//!
//! - `lex` and `parse` read a template. `render` renders files, `run` executes one over the values of `value`.
//! - `functions` has the functions for templates, `format` prints.
//! - `context` has the state that all templates of a tree share.
//!
//! The module is our own: available crates accept unclosed blocks, or report errors without a place.
//!
//! Deliberate differences from Go:
//! - Printing a missing value is an error (Go prints `<no value>`).
//! - Numbers of different types compare by value.
//! - Every step counts: each file has limited fuel, so rendering ends.

mod context;
mod format;
mod functions;
mod lex;
mod parse;
mod render;
mod run;
mod value;

pub(super) use self::render::render;

#[cfg(test)]
mod tests;
