//! Sprig: defaults, conditions, types, JSON.

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{PrettyFormatter, Serializer};

use super::super::Context;
use super::super::item::{Item, Nature};
use super::{ANY, Function, arity, as_list, function, one, string, three, two};
use crate::template::escape::for_html;

pub(super) static TABLE: &[Function] = &[
    function("default", 1, 2, |_, args| match args {
        [default, value] => Ok(if value.truth() { value.clone() } else { default.clone() }),
        [default] => Ok(default.clone()),
        _ => arity(),
    }),
    function("empty", 1, 1, |_, args| Ok(Item::Bool(!one(args)?.truth()))),
    function("coalesce", 0, ANY, |_, args| Ok(args.iter().find(|item| item.truth()).cloned().unwrap_or(Item::Nil))),
    function("all", 0, ANY, |_, args| Ok(Item::Bool(args.iter().all(Item::truth)))),
    function("any", 0, ANY, |_, args| Ok(Item::Bool(args.iter().any(Item::truth)))),
    function("compact", 1, 1, compact),
    function("mustCompact", 1, 1, compact),
    function("ternary", 3, 3, |_, args| {
        let (yes, no, condition) = three(args)?;
        match condition {
            Item::Bool(true) => Ok(yes.clone()),
            Item::Bool(false) => Ok(no.clone()),
            other => Err(format!("the condition must be true or false, not {}", other.type_name())),
        }
    }),
    function("fail", 1, 1, |c, args| Err(string(c, one(args)?)?.to_string())),
    function("deepCopy", 1, 1, |c, args| one(args)?.deep_copy(c)),
    function("mustDeepCopy", 1, 1, |c, args| one(args)?.deep_copy(c)),
    function("deepEqual", 2, 2, |c, args| {
        let (one, two) = two(args)?;
        Ok(Item::Bool(one.same(two, c)?))
    }),
    function("typeOf", 1, 1, |_, args| Ok(Item::text(one(args)?.type_name()))),
    function("kindOf", 1, 1, |_, args| Ok(Item::text(one(args)?.kind_name()))),
    function("typeIs", 2, 2, |c, args| {
        let (name, item) = two(args)?;
        Ok(Item::Bool(string(c, name)?.as_ref() == item.type_name()))
    }),
    function("typeIsLike", 2, 2, |c, args| {
        let (name, item) = two(args)?;
        Ok(Item::Bool(string(c, name)?.trim_start_matches('*') == item.type_name()))
    }),
    function("kindIs", 2, 2, |c, args| {
        let (name, item) = two(args)?;
        Ok(Item::Bool(string(c, name)?.as_ref() == item.kind_name()))
    }),
    function("fromJson", 1, 1, from_json),
    function("mustFromJson", 1, 1, from_json),
    function("toJson", 1, 1, |c, args| Ok(Item::text(for_html(&one(args)?.plain(c)?.to_string())))),
    function("mustToJson", 1, 1, |c, args| Ok(Item::text(for_html(&one(args)?.plain(c)?.to_string())))),
    function("toRawJson", 1, 1, |c, args| Ok(Item::text(one(args)?.plain(c)?.to_string()))),
    function("mustToRawJson", 1, 1, |c, args| Ok(Item::text(one(args)?.plain(c)?.to_string()))),
    function("toPrettyJson", 1, 1, |c, args| Ok(Item::text(for_html(&pretty(&one(args)?.plain(c)?)?)))),
    function("mustToPrettyJson", 1, 1, |c, args| Ok(Item::text(for_html(&pretty(&one(args)?.plain(c)?)?)))),
];

fn compact(_: &Context<'_>, args: &[Item]) -> Result<Item, String> {
    Item::list(as_list(one(args)?)?.items.iter().filter(|item| item.truth()).cloned().collect())
}

fn from_json(context: &Context<'_>, args: &[Item]) -> Result<Item, String> {
    let text = string(context, one(args)?)?;
    context.afford(text.len())?;
    let value: Value = serde_json::from_str(&text).map_err(|error| format!("not JSON: {error}"))?;
    Item::of(&value, Nature::Made)
}

fn pretty(value: &Value) -> Result<String, String> {
    let mut out = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut out, PrettyFormatter::with_indent(b"  "));
    value.serialize(&mut serializer).map_err(|error| error.to_string())?;
    String::from_utf8(out).map_err(|error| error.to_string())
}
