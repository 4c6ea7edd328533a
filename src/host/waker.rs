//! Waits for several descriptors at once, and the descriptor that ends such a wait.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

/// Ends a wait in another thread. Clones end the same wait. A call before the wait ends the next wait at once.
#[derive(Debug, Clone)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Creates a waker with a descriptor of its own.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Ends the wait.
    pub fn wake(&self) {
        // The write fails only when 2^64 - 1 calls are pending, and then the wait ends as well.
        let _pending = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Clears the calls so far. True when there was a call.
    pub fn clear(&self) -> bool {
        rustix::io::read(&*self.0, &mut [0_u8; 8]).is_ok()
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Blocks until a descriptor of `readable` has data, `urgent` has an exceptional condition, or `until` has passed. May return
/// early. True when `urgent` has an exceptional condition.
///
/// # Errors
/// When the system call fails.
pub fn wait_for_descriptors(
    readable: &[BorrowedFd<'_>],
    urgent: Option<BorrowedFd<'_>>,
    until: Option<Instant>,
) -> io::Result<bool> {
    let mut all: Vec<PollFd<'_>> = readable.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    all.extend(urgent.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::PRI)));
    let timeout = until.map(|until| {
        let left = until.saturating_duration_since(Instant::now());
        Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() }
    });
    match poll(&mut all, timeout.as_ref()) {
        Ok(_) => Ok(urgent.is_some() && all.last().is_some_and(|last| !last.revents().is_empty())),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_ends_the_next_wait() {
        let waker = Waker::new().unwrap();
        waker.clone().wake();
        waker.wake();
        wait_for_descriptors(&[waker.as_fd()], None, None).unwrap();
        assert!(waker.clear());
        assert!(!waker.clear());
        let other = waker.clone();
        let thread = std::thread::spawn(move || other.wake());
        wait_for_descriptors(&[waker.as_fd()], None, None).unwrap();
        assert!(waker.clear());
        thread.join().unwrap();
        wait_for_descriptors(&[waker.as_fd()], None, Some(Instant::now())).unwrap();
    }
}
