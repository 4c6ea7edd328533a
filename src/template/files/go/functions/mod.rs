//! The functions of Go templates.
//!
//! The language's own functions, Sprig's functions with reproducible results, and the functions that need the scope.
//!
//! - `table` lists the groups of functions, a file each.
//! - `function` has the shape of a function and its call, `arguments` reads arguments.

mod arguments;
mod builtin;
mod context_functions;
mod data;
mod date;
mod encode;
mod function;
mod letters;
mod list;
mod number;
mod path;
mod regexes;
mod table;
mod text;
mod url;

pub(super) use self::arguments::{as_text, count_value, two_arguments};
pub(super) use self::date::method as time_method;
pub(super) use self::function::{CallShape, GoFunction, call, call_with};
pub(super) use self::table::{find, left_out, names};
