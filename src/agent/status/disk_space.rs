//! The free space on the file system of the state directory, for an alarm before the disk is full.

use std::path::Path;

use crate::host::kernel::{self, FileSystemSpace};

/// Free bytes below which a file system is nearly full: the outbox alone may need as many.
const MIN_FREE_BYTES: u64 = 64 << 20;
/// The part of a small file system below which it is nearly full: a twentieth of its bytes or inodes.
const SMALL_FRACTION: u64 = 20;
/// Free inodes below which a file system is nearly full. A run that unpacks an archive may create as many files.
const MIN_FREE_INODES: u64 = 1000;

/// Returns the text of the alarm about too little space. `before` is true while the alarm is raised. The limits are
/// then higher, so that the alarm ends only with clearly more space.
pub(in crate::agent) fn alarm(state_dir: &Path, before: bool) -> Option<String> {
    // An unreadable file system raises no alarm here: the next write to the disk fails and raises one.
    let space = kernel::space(state_dir).ok()?;
    low(&space, before).map(|what| format!("{what} on the file system of {}", state_dir.display()))
}

fn low(space: &FileSystemSpace, before: bool) -> Option<String> {
    let (bytes, inodes) =
        (MIN_FREE_BYTES.min(space.total / SMALL_FRACTION), MIN_FREE_INODES.min(space.inodes_total / SMALL_FRACTION));
    let more = |floor: u64| if before { floor + floor / 4 } else { floor };
    if space.free < more(bytes) {
        let floor = if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) };
        return Some(format!("less than {floor} are free"));
    }
    // A file system without a fixed number of inodes reports a total of zero.
    (space.inodes_total > 0 && space.inodes_free < more(inodes)).then(|| format!("less than {inodes} inodes are free"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_nearly_full_before_it_is_full() {
        let (gib, mib) = (1 << 30, 1 << 20);
        let space = |total, free, inodes_total, inodes_free| FileSystemSpace {
            total,
            free,
            used: total - free,
            inodes_total,
            inodes_free,
        };
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
