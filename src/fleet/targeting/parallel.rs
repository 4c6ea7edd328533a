//! Work on many items at a time, on all processors.

use std::thread;

/// Fewest items for which threads pay off: a check of one signature takes about a tenth of a millisecond.
const MIN_ITEMS: usize = 64;

/// Applies `work` to each item, on all processors when the items are many. For work that only computes, as signature checks.
pub async fn map_parallel<T, R>(items: Vec<T>, work: impl Fn(&T) -> R + Send + Sync + 'static) -> Vec<R>
where
    T: Send + Sync + 'static,
    R: Send + 'static,
{
    if items.len() < MIN_ITEMS {
        return items.iter().map(work).collect();
    }
    match tokio::task::spawn_blocking(move || map_parallel_blocking(&items, work)).await {
        Ok(done) => done,
        // A panic of the work is a bug, and panics here too.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Applies `work` to each item, on all processors when the items are many, and blocks the calling thread.
pub fn map_parallel_blocking<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if items.len() < MIN_ITEMS || threads < 2 {
        return items.iter().map(work).collect();
    }
    let size = items.len().div_ceil(threads);
    thread::scope(|scope| {
        let part = |part: &'_ [T]| part.iter().map(&work).collect::<Vec<R>>();
        let parts: Vec<_> = items.chunks(size).map(|items| scope.spawn(move || part(items))).collect();
        let done = parts.into_iter().map(|part| part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        done.flatten().collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn shared_work_stays_in_order() {
        for count in [0, 1, 63, 64, 1000] {
            let items: Vec<usize> = (0..count).collect();
            assert_eq!(map_parallel(items.clone(), |item| item * 2).await, items.iter().map(|item| item * 2).collect::<Vec<_>>());
        }
    }
}
