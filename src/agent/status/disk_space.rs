//! Whether the file system of the state directory has room left: said before it is too late.

use std::path::Path;

use crate::host::kernel::{self, Space};

/// Below this a file system is nearly full: the outbox alone may want as much.
const FLOOR: u64 = 64 << 20;
/// On a small one, the part of it below which it is: one in so many.
const SMALL: u64 = 20;
/// As many files are created by a run that unpacks something.
const INODES: u64 = 1000;

/// What is wrong with the room for the state, if anything; `before` says that it was wrong at the last look, and makes
/// it wrong until there is clearly more.
pub(in crate::agent) fn look(state_dir: &Path, before: bool) -> Option<String> {
    // That nothing can be said is no alarm: a disk that takes nothing is noticed when it is written to.
    let space = kernel::space(state_dir).ok()?;
    low(&space, before).map(|what| format!("{what} on the file system of {}", state_dir.display()))
}

fn low(space: &Space, before: bool) -> Option<String> {
    let (bytes, inodes) = (FLOOR.min(space.total / SMALL), INODES.min(space.inodes_total / SMALL));
    let more = |floor: u64| if before { floor + floor / 4 } else { floor };
    if space.free < more(bytes) {
        let floor = if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) };
        return Some(format!("less than {floor} are free"));
    }
    // Some file systems have no fixed number of inodes, and say that they have none.
    (space.inodes_total > 0 && space.inodes_free < more(inodes)).then(|| format!("less than {inodes} inodes are free"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_nearly_full_before_it_is_full() {
        let (gib, mib) = (1 << 30, 1 << 20);
        let space = |total, free, inodes_total, inodes_free| Space { total, free, used: total - free, inodes_total, inodes_free };
        for (space, before, wanted) in [
            (space(100 * gib, gib, 0, 0), false, None),
            (space(100 * gib, 63 * mib, 0, 0), false, Some("less than 64 MiB are free")),
            (space(100 * gib, 70 * mib, 0, 0), false, None),
            (space(100 * gib, 70 * mib, 0, 0), true, Some("less than 64 MiB are free")),
            (space(100 * gib, 81 * mib, 0, 0), true, None),
            (space(mib, 60 << 10, 0, 0), false, None),
            (space(mib, 40 << 10, 0, 0), false, Some("less than 51 KiB are free")),
            (space(100 * gib, gib, 100_000, 999), false, Some("less than 1000 inodes are free")),
            (space(100 * gib, gib, 200, 20), false, None),
        ] {
            assert_eq!(low(&space, before).as_deref(), wanted, "{space:?}");
        }
    }
}
