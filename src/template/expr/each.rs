//! The functions that take a predicate, as `filter(list, # > 2)`.

use std::cmp::Ordering;

use ::expr::Value as Item;

use super::eval::{Frame, Held, Run};
use super::parse::{Node, Op};
use super::{operate, weigh};
use crate::model::EvaluationBudget;

/// Their names.
pub(super) const NAMES: &[&str] = &[
    "all",
    "any",
    "count",
    "filter",
    "find",
    "findIndex",
    "findLast",
    "findLastIndex",
    "groupBy",
    "map",
    "none",
    "one",
    "reduce",
    "sortBy",
    "sum",
];

/// A function that takes a predicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Each {
    All,
    Any,
    Count,
    Filter,
    Find,
    FindIndex,
    FindLast,
    FindLastIndex,
    GroupBy,
    Map,
    None,
    One,
    Reduce,
    SortBy,
    Sum,
}

impl Each {
    pub(super) fn of(name: &str) -> Option<Self> {
        Some(match name {
            "all" => Self::All,
            "any" => Self::Any,
            "count" => Self::Count,
            "filter" => Self::Filter,
            "find" => Self::Find,
            "findIndex" => Self::FindIndex,
            "findLast" => Self::FindLast,
            "findLastIndex" => Self::FindLastIndex,
            "groupBy" => Self::GroupBy,
            "map" => Self::Map,
            "none" => Self::None,
            "one" => Self::One,
            "reduce" => Self::Reduce,
            "sortBy" => Self::SortBy,
            "sum" => Self::Sum,
            _ => return None,
        })
    }

    /// Without a predicate the elements themselves are taken.
    pub(super) fn works_alone(self) -> bool {
        matches!(self, Self::Count | Self::Sum)
    }
}

/// What a call consists of.
pub(super) struct Call<'n> {
    pub(super) what: Each,
    pub(super) predicate: Option<&'n Node>,
    /// The order of `sortBy`, or where `reduce` begins.
    pub(super) rest: Option<&'n Node>,
}

/// Calls a function that takes a predicate.
pub(super) fn call(run: &Run<'_>, call: &Call<'_>, list: Vec<Item>, frame: Option<&Frame<'_>>) -> Result<Item, String> {
    let says = |index: usize, item: &Item| {
        let taken = run.budget.mark();
        let item = weigh::copy(item, run.budget)?;
        let said = run.predicate(call.predicate, frame, index, item, Item::Nil)?;
        run.budget.settle(taken, weigh::of(&said));
        Ok(said)
    };
    let holds = |index: usize, item: &Item| {
        let taken = run.budget.mark();
        let holds = truth(&says(index, item)?);
        run.budget.settle(taken, 0);
        holds
    };
    let found = |index: Option<usize>| index.map_or(Item::Nil, |index| list.get(index).cloned().unwrap_or(Item::Nil));
    let place = |index: Option<usize>| index.map_or(Item::Nil, Item::from);
    Ok(match call.what {
        Each::All => Item::Bool(first(&list, |at, item| Ok(!holds(at, item)?))?.is_none()),
        Each::Any => Item::Bool(first(&list, holds)?.is_some()),
        Each::None => Item::Bool(first(&list, holds)?.is_none()),
        Each::One => Item::Bool(chosen(&list, run.budget, holds)?.len() == 1),
        Each::Count => Item::from(chosen(&list, run.budget, holds)?.len()),
        Each::Filter => Item::Array(chosen(&list, run.budget, holds)?),
        Each::Find => found(first(&list, holds)?),
        Each::FindIndex => place(first(&list, holds)?),
        Each::FindLast => found(last(&list, holds)?),
        Each::FindLastIndex => place(last(&list, holds)?),
        Each::Map => Item::Array(list.iter().enumerate().map(|(at, item)| says(at, item)).collect::<Result<_, _>>()?),
        Each::Sum => list
            .iter()
            .enumerate()
            .try_fold(Item::Integer(0), |sum, (at, item)| operate::binary(Op::Add, sum, says(at, item)?, run.budget))?,
        Each::GroupBy => group(&list, run.budget, says)?,
        Each::SortBy => sort(run, call, &list, frame, says)?,
        Each::Reduce => reduce(run, call, list, frame)?,
    })
}

fn truth(item: &Item) -> Result<bool, String> {
    item.as_bool().ok_or_else(|| format!("a predicate must be true or false, not {}", operate::kind(item)))
}

type Test<'t> = &'t dyn Fn(usize, &Item) -> Result<bool, String>;

fn first(list: &[Item], test: impl Fn(usize, &Item) -> Result<bool, String>) -> Result<Option<usize>, String> {
    seek(list.iter().enumerate(), &test)
}

fn last(list: &[Item], test: impl Fn(usize, &Item) -> Result<bool, String>) -> Result<Option<usize>, String> {
    seek(list.iter().enumerate().rev(), &test)
}

fn seek<'i>(items: impl Iterator<Item = (usize, &'i Item)>, test: Test<'_>) -> Result<Option<usize>, String> {
    for (index, item) in items {
        if test(index, item)? {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

fn chosen(
    list: &[Item],
    budget: &EvaluationBudget,
    test: impl Fn(usize, &Item) -> Result<bool, String>,
) -> Result<Vec<Item>, String> {
    let mut chosen = Vec::new();
    for (index, item) in list.iter().enumerate() {
        if test(index, item)? {
            chosen.push(weigh::copy(item, budget)?);
        }
    }
    Ok(chosen)
}

fn group(list: &[Item], budget: &EvaluationBudget, says: impl Fn(usize, &Item) -> Result<Item, String>) -> Result<Item, String> {
    let mut groups: Vec<(Item, Vec<Item>)> = Vec::new();
    for (index, item) in list.iter().enumerate() {
        let key = says(index, item)?;
        let item = weigh::copy(item, budget)?;
        // The key is compared with those of all groups.
        budget.work(weigh::of(&key).saturating_mul(1 + groups.len())).map_err(|spent| spent.to_string())?;
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, items)) => items.push(item),
            None => groups.push((key, vec![item])),
        }
    }
    let groups = groups.into_iter().map(|(key, items)| (key, Item::Array(items)));
    Ok(Item::KeyedMap(groups.collect()))
}

fn sort(
    run: &Run<'_>,
    call: &Call<'_>,
    list: &[Item],
    frame: Option<&Frame<'_>>,
    says: impl Fn(usize, &Item) -> Result<Item, String>,
) -> Result<Item, String> {
    let order = call.rest.map(|rest| run.eval(rest, frame)).transpose()?;
    let mut keyed = Vec::with_capacity(list.len());
    for (index, item) in list.iter().enumerate() {
        keyed.push((says(index, item)?, weigh::copy(item, run.budget)?));
    }
    sorted(keyed, order.as_ref()).map(Item::Array)
}

/// Values in the order of their keys: `asc`, which is the default, or `desc`.
pub(super) fn sorted(mut keyed: Vec<(Item, Item)>, order: Option<&Item>) -> Result<Vec<Item>, String> {
    let backwards = match order {
        None => false,
        Some(Item::String(order)) if order == "asc" => false,
        Some(Item::String(order)) if order == "desc" => true,
        Some(other) => return Err(format!("invalid order {other}, expected asc or desc")),
    };
    let mut wrong = None;
    keyed.sort_by(|(a, _), (b, _)| {
        let order = operate::compare(a, b).unwrap_or_else(|| {
            wrong.get_or_insert_with(|| format!("invalid operation: {} < {}", operate::kind(a), operate::kind(b)));
            Ordering::Equal
        });
        if backwards { order.reverse() } else { order }
    });
    match wrong {
        Some(wrong) => Err(wrong),
        None => Ok(keyed.into_iter().map(|(_, item)| item).collect()),
    }
}

fn reduce(run: &Run<'_>, call: &Call<'_>, list: Vec<Item>, frame: Option<&Frame<'_>>) -> Result<Item, String> {
    let start = call.rest.map(|rest| run.eval(rest, frame)).transpose()?;
    let mut items = list.into_iter().enumerate();
    let mut sum = match start {
        Some(start) => start,
        None => items.next().map(|(_, item)| item).ok_or("reduce of an empty list with no initial value")?,
    };
    // Before each step only the list and the sum are there.
    let taken = run.budget.mark();
    for (index, item) in items {
        sum = run.predicate(call.predicate, frame, index, item, sum)?;
        run.budget.settle(taken, weigh::of(&sum));
    }
    Ok(sum)
}

impl Run<'_> {
    /// What a predicate says of an item; without one, the item.
    fn predicate(
        &self,
        predicate: Option<&Node>,
        frame: Option<&Frame<'_>>,
        index: usize,
        item: Item,
        sum: Item,
    ) -> Result<Item, String> {
        let Some(predicate) = predicate else { return Ok(item) };
        let held = Held::Each { item, index: i64::try_from(index).unwrap_or(i64::MAX), sum };
        self.eval(predicate, Some(&Frame { outer: frame, held }))
    }
}
