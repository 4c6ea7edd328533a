//! Cycles: which resources are part of one, and which edges close one.

use std::collections::VecDeque;

/// The successors of each resource.
pub(super) type Successors = Vec<Vec<usize>>;

/// Returns the successors of `count` resources, by edges `(before, after)`.
pub(super) fn successors(count: usize, edges: impl IntoIterator<Item = (usize, usize)>) -> Successors {
    let mut next = vec![Vec::new(); count];
    for (before, after) in edges {
        if let Some(list) = next.get_mut(before) {
            list.push(after);
        }
    }
    next
}

/// Returns the resources that are in a cycle or between two cycles; empty for a graph without cycles.
pub(super) fn cyclic(count: usize, edges: &[(usize, usize)]) -> Vec<bool> {
    let all = vec![true; count];
    let behind = without_roots(&all, edges.iter().copied());
    if !behind.contains(&true) {
        return Vec::new();
    }
    without_roots(&behind, edges.iter().map(|(before, after)| (*after, *before)))
}

/// Removes resources that wait for no other among `among`, again and again. Returns the rest.
fn without_roots(among: &[bool], edges: impl Iterator<Item = (usize, usize)>) -> Vec<bool> {
    let is_among = |at: usize| among.get(at) == Some(&true);
    let edges: Vec<_> = edges.filter(|(before, after)| is_among(*before) && is_among(*after)).collect();
    let mut waits = vec![0_usize; among.len()];
    edges.iter().filter_map(|(_, after)| Some(after).copied()).for_each(|after| {
        if let Some(count) = waits.get_mut(after) {
            *count += 1;
        }
    });
    let next = successors(among.len(), edges);
    let mut rest = among.to_vec();
    let mut roots: VecDeque<usize> =
        waits.iter().enumerate().filter(|(at, count)| is_among(*at) && **count == 0).map(|(at, _)| at).collect();
    while let Some(root) = roots.pop_front() {
        if let Some(left) = rest.get_mut(root) {
            *left = false;
        }
        for after in next.get(root).into_iter().flatten() {
            if let Some(count) = waits.get_mut(*after) {
                *count -= 1;
                if *count == 0 {
                    roots.push_back(*after);
                }
            }
        }
    }
    rest
}

/// Returns the resources of a cycle in their order, the lowest first; none without a cycle.
pub(super) fn find(count: usize, edges: &[(usize, usize)]) -> Option<Vec<usize>> {
    let cyclic = cyclic(count, edges);
    let is_cyclic = |at: usize| cyclic.get(at) == Some(&true);
    let next = successors(count, edges.iter().copied());
    let mut path = vec![cyclic.iter().position(|is_cyclic| *is_cyclic)?];
    loop {
        // A resource that is in a cycle or between two has a successor of the same kind.
        let at = path.last()?;
        let following = next.get(*at)?.iter().copied().filter(|at| is_cyclic(*at)).min()?;
        if let Some(start) = path.iter().position(|earlier| *earlier == following) {
            path.drain(..start);
            let lowest = path.iter().enumerate().min_by_key(|(_, at)| **at)?.0;
            path.rotate_left(lowest);
            return Some(path);
        }
        path.push(following);
    }
}

/// Returns true when a path of edges leads from one resource to another.
pub(super) fn leads_to(next: &Successors, from: usize, to: usize) -> bool {
    let (mut left, mut visited) = (vec![from], vec![false; next.len()]);
    while let Some(at) = left.pop() {
        if at == to {
            return true;
        }
        if let Some(visited) = visited.get_mut(at).filter(|visited| !**visited) {
            *visited = true;
            left.extend(next.get(at).into_iter().flatten());
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_is_found_in_its_order() {
        for (edges, expected) in [
            (&[][..], None),
            (&[(0, 1), (1, 2), (0, 2)], None),
            (&[(0, 0)], Some(vec![0])),
            (&[(3, 2), (2, 1), (1, 3), (0, 3), (1, 4)], Some(vec![1, 3, 2])),
            // Two cycles, and a way between them.
            (&[(0, 1), (1, 0), (1, 2), (2, 3), (3, 4), (4, 3)], Some(vec![0, 1])),
            (&[(2, 0), (0, 1), (1, 3), (3, 1)], Some(vec![1, 3])),
        ] {
            assert_eq!(find(5, edges), expected, "{edges:?}");
        }
    }

    #[test]
    fn paths_are_followed_in_their_direction() {
        let next = successors(4, [(0, 1), (1, 2), (2, 1)]);
        assert!(leads_to(&next, 0, 2) && leads_to(&next, 2, 1) && leads_to(&next, 3, 3));
        assert!(!leads_to(&next, 2, 0) && !leads_to(&next, 0, 3));
    }
}
