//! Templates in the texts of a manifest.
//!
//! - `scope` has the values that expressions see, `sources` the readers behind them, `reads` the reads with their checks.
//! - `interpolation` finds the expressions of a text, `resolve` evaluates them, `calls` calls functions and other templates.
//! - `outputs` has the outputs of resources, `lookup` walks paths, `trace` records the uses of values.
//! - `check` finds errors before any value is resolved, `validate` has conditions over one value.

mod calls;
mod check;
mod error;
mod interpolation;
mod lookup;
mod outputs;
mod reads;
mod resolve;
mod scope;
mod sources;
mod trace;
mod validate;

pub use self::check::{mask_expressions, unclosed};
pub use self::error::TemplateError;
pub use self::interpolation::is_template;
pub(super) use self::interpolation::outside_quotes;
pub(super) use self::lookup::plain_steps;
pub use self::lookup::query;
pub use self::outputs::{OutputReference, OutputTable, OutputsOfResource};
pub use self::scope::Scope;
pub(super) use self::scope::ScopeState;
pub use self::sources::{FactsSource, SecretReader, TemplateFile, TemplateFileReader};
pub use self::trace::{TraceMark, ValueUses};
pub use self::validate::{expected_values, validate};
