//! Sprig: defaults, conditions, types, JSON.

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{PrettyFormatter, Serializer};

use super::arguments::{as_list, as_text, one_argument, three_arguments, two_arguments, wrong_arity};
use super::function::{ANY, GoFunction, function};
use crate::template::files::go::context::GoContext;
use crate::template::files::go::value::{GoValue, MapOrigin};
use crate::template::functions::escape::for_html;

pub(super) static TABLE: &[GoFunction] = &[
    function("default", 1, 2, |_, args| match args {
        [default, value] => Ok(if value.is_truthy() { value.clone() } else { default.clone() }),
        [default] => Ok(default.clone()),
        _ => wrong_arity(),
    }),
    function("empty", 1, 1, |_, args| Ok(GoValue::Bool(!one_argument(args)?.is_truthy()))),
    function("coalesce", 0, ANY, |_, args| Ok(args.iter().find(|item| item.is_truthy()).cloned().unwrap_or(GoValue::Nil))),
    function("all", 0, ANY, |_, args| Ok(GoValue::Bool(args.iter().all(GoValue::is_truthy)))),
    function("any", 0, ANY, |_, args| Ok(GoValue::Bool(args.iter().any(GoValue::is_truthy)))),
    function("compact", 1, 1, compact),
    function("mustCompact", 1, 1, compact),
    function("ternary", 3, 3, |_, args| {
        let (yes, no, condition) = three_arguments(args)?;
        match condition {
            GoValue::Bool(true) => Ok(yes.clone()),
            GoValue::Bool(false) => Ok(no.clone()),
            other => Err(format!("the condition must be true or false, not {}", other.type_name())),
        }
    }),
    function("fail", 1, 1, |c, args| Err(as_text(c, one_argument(args)?)?.to_string())),
    function("deepCopy", 1, 1, |c, args| one_argument(args)?.deep_copy(c)),
    function("mustDeepCopy", 1, 1, |c, args| one_argument(args)?.deep_copy(c)),
    function("deepEqual", 2, 2, |c, args| {
        let (one, two) = two_arguments(args)?;
        Ok(GoValue::Bool(one.equals(two, c)?))
    }),
    function("typeOf", 1, 1, |_, args| Ok(GoValue::text(one_argument(args)?.type_name()))),
    function("kindOf", 1, 1, |_, args| Ok(GoValue::text(one_argument(args)?.kind_name()))),
    function("typeIs", 2, 2, |c, args| {
        let (name, item) = two_arguments(args)?;
        Ok(GoValue::Bool(as_text(c, name)?.as_ref() == item.type_name()))
    }),
    function("typeIsLike", 2, 2, |c, args| {
        let (name, item) = two_arguments(args)?;
        Ok(GoValue::Bool(as_text(c, name)?.trim_start_matches('*') == item.type_name()))
    }),
    function("kindIs", 2, 2, |c, args| {
        let (name, item) = two_arguments(args)?;
        Ok(GoValue::Bool(as_text(c, name)?.as_ref() == item.kind_name()))
    }),
    function("fromJson", 1, 1, from_json),
    function("mustFromJson", 1, 1, from_json),
    function("toJson", 1, 1, |c, args| Ok(GoValue::text(for_html(&one_argument(args)?.to_json(c)?.to_string())))),
    function("mustToJson", 1, 1, |c, args| Ok(GoValue::text(for_html(&one_argument(args)?.to_json(c)?.to_string())))),
    function("toRawJson", 1, 1, |c, args| Ok(GoValue::text(one_argument(args)?.to_json(c)?.to_string()))),
    function("mustToRawJson", 1, 1, |c, args| Ok(GoValue::text(one_argument(args)?.to_json(c)?.to_string()))),
    function("toPrettyJson", 1, 1, |c, args| Ok(GoValue::text(for_html(&pretty(&one_argument(args)?.to_json(c)?)?)))),
    function("mustToPrettyJson", 1, 1, |c, args| Ok(GoValue::text(for_html(&pretty(&one_argument(args)?.to_json(c)?)?)))),
];

fn compact(_: &GoContext<'_>, args: &[GoValue]) -> Result<GoValue, String> {
    GoValue::list(as_list(one_argument(args)?)?.items.iter().filter(|item| item.is_truthy()).cloned().collect())
}

fn from_json(context: &GoContext<'_>, args: &[GoValue]) -> Result<GoValue, String> {
    let text = as_text(context, one_argument(args)?)?;
    context.consume_for(text.len())?;
    let value: Value = serde_json::from_str(&text).map_err(|error| format!("not JSON: {error}"))?;
    GoValue::from_json(&value, MapOrigin::Made)
}

fn pretty(value: &Value) -> Result<String, String> {
    let mut out = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut out, PrettyFormatter::with_indent(b"  "));
    value.serialize(&mut serializer).map_err(|error| error.to_string())?;
    String::from_utf8(out).map_err(|error| error.to_string())
}
