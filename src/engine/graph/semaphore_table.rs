//! The semaphores of a graph: those that resources declare, and those of the parts of the host that they change.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;

use super::node::Node;
use super::semaphore::Semaphore;

/// Two resources that declare one semaphore with different counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountConflict {
    /// The name of the semaphore.
    pub name: String,
    /// The resource that declares it first, and its count.
    pub first: (usize, NonZeroUsize),
    /// The resource with another count, and that count.
    pub second: (usize, NonZeroUsize),
}

/// The semaphores of a graph, each with an index.
#[derive(Debug, Clone, Default)]
pub(super) struct SemaphoreTable {
    /// The number of holders of each semaphore.
    pub(super) counts: Vec<usize>,
    /// The semaphores of each resource that has some.
    by_node: HashMap<usize, Vec<usize>>,
}

impl SemaphoreTable {
    /// Reads the semaphores of all resources.
    ///
    /// # Errors
    /// The first semaphore with two counts.
    pub(super) fn new(nodes: &[Node]) -> Result<Self, CountConflict> {
        let mut table = Self::default();
        let mut declared: HashMap<&str, (usize, usize, NonZeroUsize)> = HashMap::new();
        for (at, node) in nodes.iter().enumerate() {
            for Semaphore { name, count } in &node.semaphores {
                let next = table.counts.len();
                let &mut (index, by, earlier) = declared.entry(name).or_insert((next, at, *count));
                if earlier != *count {
                    return Err(CountConflict { name: name.clone(), first: (by, earlier), second: (at, *count) });
                }
                if index == next {
                    table.counts.push(count.get());
                }
                table.add(at, index);
            }
        }
        let mut exclusive: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, node) in nodes.iter().enumerate() {
            node.exclusive.iter().for_each(|part| exclusive.entry(part).or_default().push(at));
        }
        for mut holders in exclusive.into_values() {
            holders.dedup();
            if holders.len() > 1 {
                let index = table.counts.len();
                table.counts.push(1);
                holders.into_iter().for_each(|at| table.add(at, index));
            }
        }
        Ok(table)
    }

    fn add(&mut self, at: usize, index: usize) {
        let held = self.by_node.entry(at).or_default();
        if !held.contains(&index) {
            held.push(index);
        }
    }

    /// Returns the semaphores of a resource.
    pub(super) fn of_node(&self, at: usize) -> &[usize] {
        self.by_node.get(&at).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(semaphores: &[&str], exclusive: &[&str]) -> Node {
        Node {
            semaphores: semaphores.iter().map(|id| id.parse().unwrap()).collect(),
            exclusive: exclusive.iter().map(|part| (*part).to_owned()).collect(),
            ..Node::default()
        }
    }

    #[test]
    fn one_name_has_one_count() {
        let table = SemaphoreTable::new(&[node(&["a", "b:2"], &[]), node(&["b:2", "b:2"], &[])]).unwrap();
        assert_eq!((table.counts.as_slice(), table.of_node(0), table.of_node(1)), ([1, 2].as_slice(), &[0, 1][..], &[1][..]));
        let conflict = SemaphoreTable::new(&[node(&["b"], &[]), node(&["b:1"], &[]), node(&["b:2"], &[])]).unwrap_err();
        assert_eq!((conflict.first.0, conflict.second.0, conflict.second.1.get()), (0, 2, 2));
    }

    #[test]
    fn a_part_of_the_host_is_exclusive_only_when_several_change_it() {
        let table = SemaphoreTable::new(&[node(&[], &["x", "y"]), node(&[], &["y"]), node(&["x:2"], &[])]).unwrap();
        assert_eq!((table.counts.as_slice(), table.of_node(0), table.of_node(1)), ([2, 1].as_slice(), &[1][..], &[1][..]));
    }
}
