//! Functions with access to the scope: facts and data, files, other templates.

use std::rc::Rc;

use serde_json::Value;

use super::super::Context;
use super::super::item::{Fuel, Item, Nature};
use super::{ANY, Function, function, one, string, strings, two};

pub(super) static TABLE: &[Function] = &[
    function("lookup", 1, 2, |c, args| given(c.scope().lookup(&plain(c, args)?))),
    function("readFile", 1, 1, |c, args| given(c.scope().read_file(&plain(c, args)?))),
    function("file", 1, 1, |c, args| given(c.scope().read_file(&plain(c, args)?))),
    function("kvGet", 2, 2, |c, args| given(c.scope().asked("kvGet", &plain(c, args)?))),
    function("registrations", 4, 4, |c, args| given(c.scope().asked("registrations", &plain(c, args)?))),
    function("jet", 1, ANY, |c, args| given(c.scope().jet(&plain(c, args)?, c.nesting()))),
    function("render", 2, 2, |c, args| {
        let (file, dot) = two(args)?;
        c.render(&string(c, file)?, dot).map(Item::text).map_err(|error| error.to_string())
    }),
    function("write", 2, 2, |c, args| {
        let [path, content] = strings(c, args)?;
        c.write(&path, &content).map(|()| Item::text(""))
    }),
    function("env", 1, 1, |c, args| c.environ(&string(c, one(args)?)?).map(Item::text)),
    function("expandenv", 1, 1, |c, args| expanded(c, &string(c, one(args)?)?).map(Item::Text)),
];

fn plain(context: &Context<'_>, args: &[Item]) -> Result<Vec<Value>, String> {
    args.iter().map(|item| item.plain(context)).collect()
}

fn given(found: Result<Value, String>) -> Result<Item, String> {
    Item::of(&found?, Nature::Given)
}

/// Replaces `$NAME` and `${NAME}` in a text.
fn expanded(context: &Context<'_>, text: &str) -> Result<Rc<str>, String> {
    let put = |out: &mut String, name: &str| {
        let value = context.environ(name)?;
        context.make(value.len())?;
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
