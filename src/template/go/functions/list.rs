//! Sprig: lists and maps.

use std::rc::Rc;

use super::super::Context;
use super::super::item::{Dict, Item, Pairs};
use super::{ANY, Function, arity, as_list, as_map, function, one, size, string, two};

pub(super) static TABLE: &[Function] = &[
    function("list", 0, ANY, |_, args| Item::list(args.to_vec())),
    function("tuple", 0, ANY, |_, args| Item::list(args.to_vec())),
    function("append", 2, 2, append),
    function("push", 2, 2, append),
    function("mustAppend", 2, 2, append),
    function("mustPush", 2, 2, append),
    function("prepend", 2, 2, prepend),
    function("mustPrepend", 2, 2, prepend),
    function("first", 1, 1, |_, args| Ok(items(args)?.first().cloned().unwrap_or(Item::Nil))),
    function("mustFirst", 1, 1, |_, args| Ok(items(args)?.first().cloned().unwrap_or(Item::Nil))),
    function("last", 1, 1, |_, args| Ok(items(args)?.last().cloned().unwrap_or(Item::Nil))),
    function("mustLast", 1, 1, |_, args| Ok(items(args)?.last().cloned().unwrap_or(Item::Nil))),
    function("rest", 1, 1, |_, args| Item::list(items(args)?.iter().skip(1).cloned().collect())),
    function("mustRest", 1, 1, |_, args| Item::list(items(args)?.iter().skip(1).cloned().collect())),
    function("initial", 1, 1, initial),
    function("mustInitial", 1, 1, initial),
    function("reverse", 1, 1, |_, args| Item::list(items(args)?.iter().rev().cloned().collect())),
    function("mustReverse", 1, 1, |_, args| Item::list(items(args)?.iter().rev().cloned().collect())),
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
        Item::list(all)
    }),
    function("chunk", 2, 2, chunk),
    function("mustChunk", 2, 2, chunk),
    function("dict", 0, ANY, |c, args| {
        let mut pairs = Pairs::new();
        for pair in args.chunks(2) {
            let [key, rest @ ..] = pair else { return arity() };
            pairs.insert(string(c, key)?, rest.first().cloned().unwrap_or_else(|| Item::text("")));
        }
        Item::map(pairs)
    }),
    function("get", 2, 2, |c, args| {
        let (map, key) = two(args)?;
        Ok(as_map(map)?.get(&string(c, key)?).unwrap_or_else(|| Item::text("")))
    }),
    function("set", 3, 3, |c, args| match args {
        [map, key, value] => {
            as_map(map)?.put(&string(c, key)?, Some(value.clone()), c)?;
            Ok(map.clone())
        }
        _ => arity(),
    }),
    function("unset", 2, 2, |c, args| {
        let (map, key) = two(args)?;
        as_map(map)?.put(&string(c, key)?, None, c)?;
        Ok(map.clone())
    }),
    function("hasKey", 2, 2, |c, args| {
        let (map, key) = two(args)?;
        Ok(Item::Bool(as_map(map)?.has(&string(c, key)?)))
    }),
    function("keys", 0, ANY, |c, args| {
        let mut keys = Vec::new();
        for map in args {
            c.afford(as_map(map)?.len())?;
            keys.extend(as_map(map)?.pairs().into_keys().map(Item::Text));
        }
        Item::list(keys)
    }),
    function("values", 1, 1, |_, args| Item::list(as_map(one(args)?)?.pairs().into_values().collect())),
    function("pluck", 1, ANY, |c, args| match args {
        [key, maps @ ..] => {
            let key = string(c, key)?;
            let found = maps.iter().map(|map| Ok(as_map(map)?.get(&key)));
            Item::list(found.collect::<Result<Vec<_>, String>>()?.into_iter().flatten().collect())
        }
        [] => arity(),
    }),
    function("pick", 1, ANY, |c, args| chosen(c, args, true)),
    function("omit", 1, ANY, |c, args| chosen(c, args, false)),
    function("merge", 1, ANY, |c, args| merged(c, args, false)),
    function("mustMerge", 1, ANY, |c, args| merged(c, args, false)),
    function("mergeOverwrite", 1, ANY, |c, args| merged(c, args, true)),
    function("mustMergeOverwrite", 1, ANY, |c, args| merged(c, args, true)),
    function("dig", 3, ANY, |c, args| match args {
        [keys @ .., default, map] => {
            let mut here = map.clone();
            for key in keys {
                match as_map(&here)?.get(&string(c, key)?) {
                    Some(found) => here = found,
                    None => return Ok(default.clone()),
                }
            }
            Ok(here)
        }
        _ => arity(),
    }),
];

fn items(args: &[Item]) -> Result<&[Item], String> {
    match one(args)? {
        // A key without a value is an empty list.
        Item::Nil => Ok(&[]),
        list => Ok(&as_list(list)?.items),
    }
}

fn append(_: &Context<'_>, args: &[Item]) -> Result<Item, String> {
    let (list, item) = two(args)?;
    Item::list(as_list(list)?.items.iter().chain([item]).cloned().collect())
}

fn prepend(_: &Context<'_>, args: &[Item]) -> Result<Item, String> {
    let (list, item) = two(args)?;
    Item::list([item].into_iter().chain(&as_list(list)?.items).cloned().collect())
}

fn initial(_: &Context<'_>, args: &[Item]) -> Result<Item, String> {
    let items = items(args)?;
    Item::list(items.iter().take(items.len().saturating_sub(1)).cloned().collect())
}

/// True when `items` contains the value.
fn holds(context: &Context<'_>, items: &[Item], wanted: &Item) -> Result<bool, String> {
    for item in items {
        if item.same(wanted, context)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn uniq(context: &Context<'_>, args: &[Item]) -> Result<Item, String> {
    let mut kept: Vec<Item> = Vec::new();
    for item in items(args)? {
        if !holds(context, &kept, item)? {
            kept.push(item.clone());
        }
    }
    Item::list(kept)
}

fn without(context: &Context<'_>, args: &[Item]) -> Result<Item, String> {
    let [list, unwanted @ ..] = args else { return arity() };
    let mut kept = Vec::new();
    for item in &as_list(list)?.items {
        if !holds(context, unwanted, item)? {
            kept.push(item.clone());
        }
    }
    Item::list(kept)
}

fn has(context: &Context<'_>, args: &[Item]) -> Result<Item, String> {
    let (wanted, list) = two(args)?;
    match list {
        Item::Nil => Ok(Item::Bool(false)),
        list => Ok(Item::Bool(holds(context, &as_list(list)?.items, wanted)?)),
    }
}

fn chunk(_: &Context<'_>, args: &[Item]) -> Result<Item, String> {
    let (length, list) = two(args)?;
    let chunks = as_list(list)?.items.chunks(size(length)?.max(1)).map(|chunk| Item::list(chunk.to_vec()));
    Item::list(chunks.collect::<Result<_, _>>()?)
}

/// Returns a map with only the named keys, or without them.
fn chosen(context: &Context<'_>, args: &[Item], listed: bool) -> Result<Item, String> {
    let [map, keys @ ..] = args else { return arity() };
    let keys: Vec<Rc<str>> = keys.iter().map(|key| string(context, key)).collect::<Result<_, _>>()?;
    let mut pairs = as_map(map)?.pairs();
    pairs.retain(|key, _| keys.contains(key) == listed);
    Item::map(pairs)
}

/// Merges other maps into the first, recursively. With `over`, later values have precedence.
fn merged(context: &Context<'_>, args: &[Item], over: bool) -> Result<Item, String> {
    let [into, others @ ..] = args else { return arity() };
    for other in others {
        merge(context, as_map(into)?, as_map(other)?, over)?;
    }
    Ok(into.clone())
}

fn merge(context: &Context<'_>, into: &Rc<Dict>, from: &Rc<Dict>, over: bool) -> Result<(), String> {
    context.enter()?;
    for (key, value) in from.pairs() {
        context.afford(1)?;
        match (into.get(&key), &value) {
            (Some(Item::Map(inner)), Item::Map(outer)) => {
                // A copy, as another map may share the inner map.
                let copy = Item::map(inner.pairs())?;
                merge(context, as_map(&copy)?, outer, over)?;
                into.put(&key, Some(copy), context)?;
            }
            (Some(known), _) if known.truth() && !(over && value.truth()) => {}
            _ => into.put(&key, Some(value), context)?,
        }
    }
    context.leave();
    Ok(())
}
