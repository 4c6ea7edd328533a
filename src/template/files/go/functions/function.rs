//! The shape of a function, and its call.

use crate::template::files::go::context::GoContext;
use crate::template::files::go::value::GoValue;

/// The code of a function: takes the arguments, returns the result or the error message.
type FunctionBody = fn(&GoContext<'_>, &[GoValue]) -> Result<GoValue, String>;

/// A function of templates.
#[derive(Debug)]
pub(in crate::template::files::go) struct GoFunction {
    pub(in crate::template::files::go) name: &'static str,
    pub(in crate::template::files::go) shape: CallShape,
}

/// The way in which a function takes its arguments.
#[derive(Debug, Clone, Copy)]
pub(in crate::template::files::go) enum CallShape {
    /// Evaluates its arguments up to the first false value.
    And,
    /// Evaluates its arguments up to the first true value.
    Or,
    /// Renders another file of the tree.
    Render,
    /// With the minimum and maximum number of arguments.
    Plain(FunctionBody, usize, usize),
}

/// Any number of arguments.
pub(super) const ANY: usize = usize::MAX;

pub(super) const fn function(name: &'static str, least: usize, most: usize, call: FunctionBody) -> GoFunction {
    GoFunction { name, shape: CallShape::Plain(call, least, most) }
}

/// Calls a function with all its arguments.
pub(in crate::template::files::go) fn call(
    function: &GoFunction,
    context: &GoContext<'_>,
    args: &[GoValue],
) -> Result<GoValue, String> {
    match function.shape {
        CallShape::Plain(body, least, most) => call_with(function, least, most, args, |args| body(context, args)),
        CallShape::And | CallShape::Or | CallShape::Render => Err(format!("{} takes arguments", function.name)),
    }
}

/// Calls the body of a function that takes `least` to `most` arguments.
pub(in crate::template::files::go) fn call_with(
    function: &GoFunction,
    least: usize,
    most: usize,
    args: &[GoValue],
    body: impl FnOnce(&[GoValue]) -> Result<GoValue, String>,
) -> Result<GoValue, String> {
    let name = function.name;
    if args.len() < least || args.len() > most {
        let takes = match (least, most) {
            (least, ANY) => format!("at least {least}"),
            (least, most) if least == most => least.to_string(),
            (least, most) => format!("{least} to {most}"),
        };
        return Err(format!("wrong number of arguments for {name}: it takes {takes}, not {}", args.len()));
    }
    body(args).map_err(|why| format!("error calling {name}: {why}"))
}
