//! The Jet template language, translated into minijinja's language and rendered by minijinja.
//!
//! - `translate`, `statement` and `expression` translate with the state of `translator`, into the units of `unit`.
//! - `inheritance` links a unit with the blocks of other files, `block_use` writes the use of a block.
//! - `functions`, `macros` and `values` are the functions that translated templates call.
//! - `arithmetic` has the operators on numbers, `facts` the facts under two spellings.
//!
//! Fuel limits rendering, so loops end. Output is not escaped for HTML.

mod arithmetic;
mod block_use;
mod expression;
mod facts;
mod functions;
mod inheritance;
mod macros;
mod render;
mod statement;
mod translate;
mod translator;
mod unit;
mod values;

pub(super) use self::block_use::DOT;
pub(super) use self::expression::GIVEN;
pub(super) use self::facts::facts_item;
pub(super) use self::inheritance::{JetLibrary, link};
pub(in crate::template) use self::render::{check, render};
pub(super) use self::render::{environment, is_function};
pub(super) use self::translate::translate;
pub(super) use self::translator::TranslationContext;
pub(super) use self::unit::{JetError, JetUnit};

#[cfg(test)]
mod tests;
