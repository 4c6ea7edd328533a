//! What the statements of Jet that minijinja does not have become: calls of macros.

use std::collections::BTreeMap;

use minijinja::value::{Rest, Value as Item, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use super::{failure, innermost, why};

/// Adds these functions.
pub(super) fn add(environment: &mut Environment<'_>) {
    // A name that nobody declared: what a file or a block was given, or a field of `.`.
    environment.add_function("named", |given: Item, dot: Item, name: String| {
        let among = |map: &Item| if map.kind() == ValueKind::Map { map.get_attr(&name).ok() } else { None };
        among(&given).filter(|found| !found.is_undefined()).or_else(|| among(&dot)).unwrap_or(Item::UNDEFINED)
    });
    environment.add_function("given", |outer: Item, own: Item| united(&outer, &own));
    environment.add_function("invoke", |state: &mut State<'_, '_>, block: Item, name: String, with: Rest<Item>| {
        invoke(state, &block, &name, &with)
    });
    environment.add_function("contents", |state: &mut State<'_, '_>, content: Item, context: Rest<Item>| {
        if content.is_undefined() || content.is_none() { Ok(Item::from("")) } else { content.call(state, &context) }
    });
    environment.add_function("attempt", |state: &mut State<'_, '_>, body: Item, instead: Item| attempt(state, &body, &instead));
}

/// Two maps in one; what the second says counts.
fn united(outer: &Item, own: &Item) -> Result<Item, Error> {
    let mut all = BTreeMap::new();
    for map in [outer, own].into_iter().filter(|map| map.kind() == ValueKind::Map) {
        for name in map.try_iter()? {
            all.insert(name.to_string(), map.get_item(&name)?);
        }
    }
    Ok(Item::from(all))
}

/// The text of a block: with what `.` is, what can be seen, its arguments and its content.
fn invoke(state: &mut State<'_, '_>, block: &Item, name: &str, with: &[Item]) -> Result<Item, Error> {
    let [dot, given, arguments, content] = with else { return Err(failure("invoke takes six arguments".to_owned())) };
    if block.is_undefined() {
        return Err(failure(format!("there is no block {name}")));
    }
    block.call(state, &[dot.clone(), united(given, arguments)?, arguments.clone(), content.clone()])
}

/// What a body comes to; when it fails, what is to be there instead.
fn attempt(state: &mut State<'_, '_>, body: &Item, instead: &Item) -> Result<Item, Error> {
    match body.call(state, &[]) {
        // There is nothing left to go on with.
        Err(error) if innermost(&error).kind() == ErrorKind::OutOfFuel => Err(error),
        Err(_) if instead.is_none() => Ok(Item::from("")),
        Err(error) => instead.call(state, &[Item::from(why(innermost(&error)))]),
        done => done,
    }
}
