//! The environment of minijinja, in which Jinja and Jet templates render: limits, charges, functions, errors.

mod charges;
mod errors;
mod linked_template;
mod scope_functions;

pub(super) use self::charges::{MAX_PLAIN_TEXT, set_limits, weigh};
pub(super) use self::errors::{budget_error, error_reason, innermost_cause, template_error};
pub(super) use self::linked_template::{CodeOrigin, LinkedTemplate};
pub(super) use self::scope_functions::{add_scoped, all_to_json, to_item, to_json};
