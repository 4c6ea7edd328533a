//! Semaphores: limits on the number of resources that run at the same time.

use std::collections::{BTreeMap, HashMap};

use super::node::Node;

/// The semaphores of a graph, each with an index.
#[derive(Debug, Clone, Default)]
pub(super) struct SemaphoreTable {
    /// The number of holders of each semaphore.
    pub(super) counts: Vec<usize>,
    /// The semaphores of each resource that has some.
    by_node: HashMap<usize, Vec<usize>>,
}

impl SemaphoreTable {
    /// Reads the semaphores of all resources. The plan has refused a semaphore with two counts: the first one counts here.
    pub(super) fn new(nodes: &[Node]) -> Self {
        let mut table = Self::default();
        let mut indexes: HashMap<&str, usize> = HashMap::new();
        for (at, node) in nodes.iter().enumerate() {
            for semaphore in &node.semaphores {
                let index = *indexes.entry(&semaphore.name).or_insert_with(|| {
                    table.counts.push(0);
                    table.counts.len() - 1
                });
                let declared = semaphore.count.and_then(|count| usize::try_from(count.get()).ok());
                if let Some(count) = table.counts.get_mut(index).filter(|count| **count == 0) {
                    *count = declared.unwrap_or_default();
                }
                table.add(at, index);
            }
        }
        // Without a count, one resource at a time.
        table.counts.iter_mut().for_each(|count| *count = (*count).max(1));
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
        table
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
        let table = SemaphoreTable::new(&[node(&["a", "b"], &[]), node(&["b:2"], &[])]);
        assert_eq!((table.counts.as_slice(), table.of_node(0), table.of_node(1)), ([1, 2].as_slice(), &[0, 1][..], &[1][..]));
    }

    #[test]
    fn a_part_of_the_host_is_exclusive_only_when_several_change_it() {
        let table = SemaphoreTable::new(&[node(&[], &["x", "y"]), node(&[], &["y"]), node(&["x:2"], &[])]);
        assert_eq!((table.counts.as_slice(), table.of_node(0), table.of_node(1)), ([2, 1].as_slice(), &[1][..], &[1][..]));
    }
}
