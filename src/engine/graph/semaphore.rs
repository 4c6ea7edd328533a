//! Semaphores: limits on the number of resources that run at the same time.

use std::num::NonZeroUsize;
use std::str::FromStr;

/// A semaphore, written `name` or `name:count`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Semaphore {
    /// The name.
    pub name: String,
    /// The number of resources or batches that may hold the semaphore at the same time.
    pub count: NonZeroUsize,
}

/// An invalid semaphore.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSemaphore {
    /// The name is missing.
    #[error("semaphore \"{0}\" has no name: write NAME or NAME:COUNT")]
    NoName(String),
    /// The count is not a whole number from 1 on.
    #[error("semaphore \"{0}\" has an invalid count: write NAME or NAME:COUNT, with a COUNT from 1 on")]
    Count(String),
}

impl FromStr for Semaphore {
    type Err = InvalidSemaphore;

    fn from_str(text: &str) -> Result<Self, InvalidSemaphore> {
        let (name, count) = match text.rsplit_once(':') {
            Some((name, count)) => (name, count.parse().map_err(|_| InvalidSemaphore::Count(text.to_owned()))?),
            None => (text, NonZeroUsize::MIN),
        };
        if name.trim().is_empty() {
            return Err(InvalidSemaphore::NoName(text.to_owned()));
        }
        Ok(Self { name: name.to_owned(), count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_a_name_and_a_count() {
        for (text, expected) in [
            ("dnf", Ok(("dnf", 1))),
            ("dnf:3", Ok(("dnf", 3))),
            ("a:b:2", Ok(("a:b", 2))),
            ("dnf:0", Err(())),
            ("dnf:x", Err(())),
            ("dnf:", Err(())),
            (":3", Err(())),
            ("", Err(())),
        ] {
            let read: Result<Semaphore, _> = text.parse();
            let read = read.as_ref().map(|semaphore| (semaphore.name.as_str(), semaphore.count.get())).map_err(|_| ());
            assert_eq!(read, expected, "{text}");
        }
    }
}
