//! Functions with access to the scope: facts and data, files, other templates.

use std::rc::Rc;

use serde_json::Value;

use super::arguments::{as_text, as_texts, one_argument};
use super::function::{ANY, CallShape, GoFunction, function};
use crate::template::files::go::context::GoContext;
use crate::template::files::go::value::{CostMeter, GoValue, MapOrigin};

pub(super) static TABLE: &[GoFunction] = &[
    function("lookup", 1, 2, |c, args| from_result(c.scope().call_lookup(&args_to_json(c, args)?))),
    function("readFile", 1, 1, |c, args| from_result(c.scope().call_read_file(&args_to_json(c, args)?))),
    function("file", 1, 1, |c, args| from_result(c.scope().call_read_file(&args_to_json(c, args)?))),
    function("kvGet", 2, 2, |c, args| from_result(c.scope().call_bus_function("kvGet", &args_to_json(c, args)?))),
    function("registrations", 4, 4, |c, args| from_result(c.scope().call_bus_function("registrations", &args_to_json(c, args)?))),
    function("jet", 1, ANY, |c, args| from_result(c.scope().call_jet(&args_to_json(c, args)?, c.nesting()))),
    GoFunction { name: "render", shape: CallShape::Render },
    function("write", 2, 2, |c, args| {
        let [path, content] = as_texts(c, args)?;
        c.write(&path, &content).map(|()| GoValue::text(""))
    }),
    function("env", 1, 1, |c, args| c.environ(&as_text(c, one_argument(args)?)?).map(GoValue::text)),
    function("expandenv", 1, 1, |c, args| expand_variables(c, &as_text(c, one_argument(args)?)?).map(GoValue::Text)),
];

fn args_to_json(context: &GoContext<'_>, args: &[GoValue]) -> Result<Vec<Value>, String> {
    args.iter().map(|item| item.to_json(context)).collect()
}

fn from_result(found: Result<Value, String>) -> Result<GoValue, String> {
    GoValue::from_json(&found?, MapOrigin::Given)
}

/// Replaces `$NAME` and `${NAME}` in a text.
fn expand_variables(context: &GoContext<'_>, text: &str) -> Result<Rc<str>, String> {
    let put = |out: &mut String, name: &str| {
        let value = context.environ(name)?;
        context.charge_memory(value.len())?;
        out.push_str(&value);
        Ok::<(), String>(())
    };
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let braced = after.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let length = after.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(after.len());
        rest = match braced {
            Some((name, after)) => {
                put(&mut out, name)?;
                after
            }
            None if length == 0 => {
                out.push('$');
                after
            }
            None => {
                put(&mut out, after.get(..length).unwrap_or_default())?;
                after.get(length..).unwrap_or_default()
            }
        };
    }
    out.push_str(rest);
    Ok(Rc::from(out))
}
