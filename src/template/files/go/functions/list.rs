//! Sprig: lists and maps.

use std::rc::Rc;

use super::arguments::{as_count, as_list, as_map, as_text, one_argument, two_arguments, wrong_arity};
use super::function::{ANY, GoFunction, function};
use crate::template::files::go::context::GoContext;
use crate::template::files::go::value::{GoMap, GoValue, Pairs};

pub(super) static TABLE: &[GoFunction] = &[
    function("list", 0, ANY, |_, args| GoValue::list(args.to_vec())),
    function("tuple", 0, ANY, |_, args| GoValue::list(args.to_vec())),
    function("append", 2, 2, append),
    function("push", 2, 2, append),
    function("mustAppend", 2, 2, append),
    function("mustPush", 2, 2, append),
    function("prepend", 2, 2, prepend),
    function("mustPrepend", 2, 2, prepend),
    function("first", 1, 1, |_, args| Ok(items(args)?.first().cloned().unwrap_or(GoValue::Nil))),
    function("mustFirst", 1, 1, |_, args| Ok(items(args)?.first().cloned().unwrap_or(GoValue::Nil))),
    function("last", 1, 1, |_, args| Ok(items(args)?.last().cloned().unwrap_or(GoValue::Nil))),
    function("mustLast", 1, 1, |_, args| Ok(items(args)?.last().cloned().unwrap_or(GoValue::Nil))),
    function("rest", 1, 1, |_, args| GoValue::list(items(args)?.iter().skip(1).cloned().collect())),
    function("mustRest", 1, 1, |_, args| GoValue::list(items(args)?.iter().skip(1).cloned().collect())),
    function("initial", 1, 1, initial),
    function("mustInitial", 1, 1, initial),
    function("reverse", 1, 1, |_, args| GoValue::list(items(args)?.iter().rev().cloned().collect())),
    function("mustReverse", 1, 1, |_, args| GoValue::list(items(args)?.iter().rev().cloned().collect())),
    function("uniq", 1, 1, uniq),
    function("mustUniq", 1, 1, uniq),
    function("without", 1, ANY, without),
    function("mustWithout", 1, ANY, without),
    function("has", 2, 2, has),
    function("mustHas", 2, 2, has),
    function("concat", 0, ANY, |_, args| {
        let mut all = Vec::new();
        for list in args {
            all.extend(as_list(list)?.items.iter().cloned());
        }
        GoValue::list(all)
    }),
    function("chunk", 2, 2, chunk),
    function("mustChunk", 2, 2, chunk),
    function("dict", 0, ANY, |c, args| {
        let mut pairs = Pairs::new();
        for pair in args.chunks(2) {
            let [key, rest @ ..] = pair else { return wrong_arity() };
            pairs.insert(as_text(c, key)?, rest.first().cloned().unwrap_or_else(|| GoValue::text("")));
        }
        GoValue::map(pairs)
    }),
    function("get", 2, 2, |c, args| {
        let (map, key) = two_arguments(args)?;
        Ok(as_map(map)?.get(&as_text(c, key)?).unwrap_or_else(|| GoValue::text("")))
    }),
    function("set", 3, 3, |c, args| match args {
        [map, key, value] => {
            as_map(map)?.set(&as_text(c, key)?, Some(value.clone()), c)?;
            Ok(map.clone())
        }
        _ => wrong_arity(),
    }),
    function("unset", 2, 2, |c, args| {
        let (map, key) = two_arguments(args)?;
        as_map(map)?.set(&as_text(c, key)?, None, c)?;
        Ok(map.clone())
    }),
    function("hasKey", 2, 2, |c, args| {
        let (map, key) = two_arguments(args)?;
        Ok(GoValue::Bool(as_map(map)?.has(&as_text(c, key)?)))
    }),
    function("keys", 0, ANY, |c, args| {
        let mut keys = Vec::new();
        for map in args {
            c.consume_for(as_map(map)?.len())?;
            keys.extend(as_map(map)?.pairs().into_keys().map(GoValue::Text));
        }
        GoValue::list(keys)
    }),
    function("values", 1, 1, |_, args| GoValue::list(as_map(one_argument(args)?)?.pairs().into_values().collect())),
    function("pluck", 1, ANY, |c, args| match args {
        [key, maps @ ..] => {
            let key = as_text(c, key)?;
            let found = maps.iter().map(|map| Ok(as_map(map)?.get(&key)));
            GoValue::list(found.collect::<Result<Vec<_>, String>>()?.into_iter().flatten().collect())
        }
        [] => wrong_arity(),
    }),
    function("pick", 1, ANY, |c, args| select_keys(c, args, true)),
    function("omit", 1, ANY, |c, args| select_keys(c, args, false)),
    function("merge", 1, ANY, |c, args| merge_all(c, args, false)),
    function("mustMerge", 1, ANY, |c, args| merge_all(c, args, false)),
    function("mergeOverwrite", 1, ANY, |c, args| merge_all(c, args, true)),
    function("mustMergeOverwrite", 1, ANY, |c, args| merge_all(c, args, true)),
    function("dig", 3, ANY, |c, args| match args {
        [keys @ .., default, map] => {
            let mut here = map.clone();
            for key in keys {
                match as_map(&here)?.get(&as_text(c, key)?) {
                    Some(found) => here = found,
                    None => return Ok(default.clone()),
                }
            }
            Ok(here)
        }
        _ => wrong_arity(),
    }),
];

fn items(args: &[GoValue]) -> Result<&[GoValue], String> {
    match one_argument(args)? {
        // A key without a value is an empty list.
        GoValue::Nil => Ok(&[]),
        list => Ok(&as_list(list)?.items),
    }
}

fn append(_: &GoContext<'_>, args: &[GoValue]) -> Result<GoValue, String> {
    let (list, item) = two_arguments(args)?;
    GoValue::list(as_list(list)?.items.iter().chain([item]).cloned().collect())
}

fn prepend(_: &GoContext<'_>, args: &[GoValue]) -> Result<GoValue, String> {
    let (list, item) = two_arguments(args)?;
    GoValue::list([item].into_iter().chain(&as_list(list)?.items).cloned().collect())
}

fn initial(_: &GoContext<'_>, args: &[GoValue]) -> Result<GoValue, String> {
    let items = items(args)?;
    GoValue::list(items.iter().take(items.len().saturating_sub(1)).cloned().collect())
}

/// True when `items` contains the value.
fn contains(context: &GoContext<'_>, items: &[GoValue], wanted: &GoValue) -> Result<bool, String> {
    for item in items {
        if item.equals(wanted, context)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn uniq(context: &GoContext<'_>, args: &[GoValue]) -> Result<GoValue, String> {
    let mut kept: Vec<GoValue> = Vec::new();
    for item in items(args)? {
        if !contains(context, &kept, item)? {
            kept.push(item.clone());
        }
    }
    GoValue::list(kept)
}

fn without(context: &GoContext<'_>, args: &[GoValue]) -> Result<GoValue, String> {
    let [list, unwanted @ ..] = args else { return wrong_arity() };
    let mut kept = Vec::new();
    for item in &as_list(list)?.items {
        if !contains(context, unwanted, item)? {
            kept.push(item.clone());
        }
    }
    GoValue::list(kept)
}

fn has(context: &GoContext<'_>, args: &[GoValue]) -> Result<GoValue, String> {
    let (wanted, list) = two_arguments(args)?;
    match list {
        GoValue::Nil => Ok(GoValue::Bool(false)),
        list => Ok(GoValue::Bool(contains(context, &as_list(list)?.items, wanted)?)),
    }
}

fn chunk(_: &GoContext<'_>, args: &[GoValue]) -> Result<GoValue, String> {
    let (length, list) = two_arguments(args)?;
    let chunks = as_list(list)?.items.chunks(as_count(length)?.max(1)).map(|chunk| GoValue::list(chunk.to_vec()));
    GoValue::list(chunks.collect::<Result<_, _>>()?)
}

/// Returns a map with only the named keys, or without them.
fn select_keys(context: &GoContext<'_>, args: &[GoValue], listed: bool) -> Result<GoValue, String> {
    let [map, keys @ ..] = args else { return wrong_arity() };
    let keys: Vec<Rc<str>> = keys.iter().map(|key| as_text(context, key)).collect::<Result<_, _>>()?;
    let mut pairs = as_map(map)?.pairs();
    pairs.retain(|key, _| keys.contains(key) == listed);
    GoValue::map(pairs)
}

/// Merges other maps into the first, recursively. With `over`, later values have precedence.
fn merge_all(context: &GoContext<'_>, args: &[GoValue], over: bool) -> Result<GoValue, String> {
    let [into, others @ ..] = args else { return wrong_arity() };
    for other in others {
        merge(context, as_map(into)?, as_map(other)?, over)?;
    }
    Ok(into.clone())
}

fn merge(context: &GoContext<'_>, into: &Rc<GoMap>, from: &Rc<GoMap>, over: bool) -> Result<(), String> {
    context.enter()?;
    for (key, value) in from.pairs() {
        context.consume_for(1)?;
        match (into.get(&key), &value) {
            (Some(GoValue::Map(inner)), GoValue::Map(outer)) => {
                // A copy, as another map may share the inner map.
                let copy = GoValue::map(inner.pairs())?;
                merge(context, as_map(&copy)?, outer, over)?;
                into.set(&key, Some(copy), context)?;
            }
            (Some(known), _) if known.is_truthy() && !(over && value.is_truthy()) => {}
            _ => into.set(&key, Some(value), context)?,
        }
    }
    context.leave();
    Ok(())
}
