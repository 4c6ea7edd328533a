//! Functions behind the statements of Jet that minijinja lacks; statements become calls of macros.

use std::collections::BTreeMap;

use minijinja::value::{Rest, Value as Item, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use crate::template::files::minijinja_env::{error_reason, innermost_cause, template_error};

/// Adds the functions to an environment.
pub(super) fn add(environment: &mut Environment<'_>) {
    // An undeclared name: a variable from the caller of a file or block, or a field of `.`.
    environment.add_function("named", |given: Item, dot: Item, name: String| {
        let among = |map: &Item| if map.kind() == ValueKind::Map { map.get_attr(&name).ok() } else { None };
        among(&given).filter(|found| !found.is_undefined()).or_else(|| among(&dot)).unwrap_or(Item::UNDEFINED)
    });
    environment.add_function("given", |outer: Item, own: Item| merge_maps(&outer, &own));
    environment.add_function("invoke", |state: &mut State<'_, '_>, block: Item, name: String, with: Rest<Item>| {
        call_block(state, &block, &name, &with)
    });
    environment.add_function("contents", |state: &mut State<'_, '_>, content: Item, context: Rest<Item>| {
        if content.is_undefined() || content.is_none() { Ok(Item::from("")) } else { content.call(state, &context) }
    });
    environment
        .add_function("attempt", |state: &mut State<'_, '_>, body: Item, instead: Item| call_or_else(state, &body, &instead));
}

/// Merges two maps; the second has precedence.
fn merge_maps(outer: &Item, own: &Item) -> Result<Item, Error> {
    let mut all = BTreeMap::new();
    for map in [outer, own].into_iter().filter(|map| map.kind() == ValueKind::Map) {
        for name in map.try_iter()? {
            all.insert(name.to_string(), map.get_item(&name)?);
        }
    }
    Ok(Item::from(all))
}

/// Returns the text of a block; `with` has `.`, the visible variables, the arguments and the content.
fn call_block(state: &mut State<'_, '_>, block: &Item, name: &str, with: &[Item]) -> Result<Item, Error> {
    let [dot, given, arguments, content] = with else { return Err(template_error("invoke takes six arguments".to_owned())) };
    if block.is_undefined() {
        return Err(template_error(format!("there is no block {name}")));
    }
    block.call(state, &[dot.clone(), merge_maps(given, arguments)?, arguments.clone(), content.clone()])
}

/// Returns the text of a body. When the body fails, returns the text of `instead`.
fn call_or_else(state: &mut State<'_, '_>, body: &Item, instead: &Item) -> Result<Item, Error> {
    match body.call(state, &[]) {
        // An exhausted budget can't be caught.
        Err(error) if innermost_cause(&error).kind() == ErrorKind::OutOfFuel => Err(error),
        Err(_) if instead.is_none() => Ok(Item::from("")),
        Err(error) => instead.call(state, &[Item::from(error_reason(innermost_cause(&error)))]),
        done => done,
    }
}
