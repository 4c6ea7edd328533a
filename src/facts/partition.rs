//! Partition facts: `partition` with mounted disks and their space.

use std::path::Path;

use serde_json::{Value, json};

use super::{FactError, percent, text, text_or_empty};
use crate::host::{Host, kernel};

/// Gathers partition facts. A disk that does not report its space is listed without usage.
pub(super) fn gather(_: &Host) -> Result<Value, FactError> {
    let mut mounts = mounts(&text("/proc/self/mountinfo")?, &text_or_empty("/proc/filesystems"));
    // Single files that are bound over others have no space of their own.
    mounts.retain(|mount| !Path::new(&mount.point).is_file());
    let mut usage = Vec::new();
    for mount in &mounts {
        let Ok(space) = kernel::space(Path::new(&mount.point)) else { continue };
        let inodes_used = space.inodes_total.saturating_sub(space.inodes_free);
        usage.push(json!({
            "path": mount.point,
            "fstype": mount.kind,
            "total": space.total,
            "free": space.free,
            "used": space.used,
            // The percentage is of the usable space: some is reserved for root.
            "usedPercent": percent(space.used, space.used.saturating_add(space.free)),
            "inodesTotal": space.inodes_total,
            "inodesUsed": inodes_used,
            "inodesFree": space.inodes_free,
            "inodesUsedPercent": percent(inodes_used, space.inodes_total),
        }));
    }
    let describe =
        |mount: &Mount| json!({"device": mount.device, "mountpoint": mount.point, "fstype": mount.kind, "opts": mount.options});
    Ok(json!({"partitions": mounts.iter().map(describe).collect::<Vec<_>>(), "usage": usage}))
}

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    device: String,
    point: String,
    kind: String,
    options: Vec<String>,
    /// The directory of the file system that is mounted.
    root: String,
}

impl Mount {
    /// Returns true where a part of a file system is bound onto its own place. Service managers and containers bind such mounts
    /// for the processes of a namespace.
    fn is_part_in_place(&self, whole: &Self) -> bool {
        let below = |root: &str, part: &str| match root {
            "/" => part.strip_prefix('/').map(str::to_owned),
            root => part.strip_prefix(root).and_then(|rest| rest.strip_prefix('/')).map(str::to_owned),
        };
        self.device == whole.device
            && self.root != whole.root
            && below(&whole.root, &self.root).is_some_and(|part| Path::new(&whole.point).join(part) == Path::new(&self.point))
    }
}

/// Returns the mounts of file systems on disks; other file systems may be remote, and hang.
fn mounts(mountinfo: &str, filesystems: &str) -> Vec<Mount> {
    let disk_kinds: Vec<_> = filesystems.lines().filter(|line| !line.starts_with("nodev")).map(str::trim).collect();
    let mount = |line: &str| {
        let (mount, system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point, options) = (mount.next()?, mount.next()?, mount.next()?);
        let mut system = system.split(' ');
        let (kind, device) = (system.next()?, system.next()?);
        // A part of a file system, mounted elsewhere, shares the space of the whole.
        let bind = (root != "/").then_some("bind");
        let options = options.split(',').chain(bind).map(str::to_owned).collect();
        let on_disk = disk_kinds.contains(&kind) || kind == "zfs";
        on_disk.then(|| Mount {
            device: unescape(device),
            point: unescape(point),
            kind: kind.to_owned(),
            options,
            root: unescape(root),
        })
    };
    let found: Vec<Mount> = mountinfo.lines().filter_map(mount).collect();
    let is_itself = |mount: &Mount| found.iter().any(|whole| mount.is_part_in_place(whole));
    let keep: Vec<bool> = found.iter().map(|mount| !is_itself(mount)).collect();
    found.into_iter().zip(keep).filter_map(|(mount, keep)| keep.then_some(mount)).collect()
}

/// Replaces escapes of the kernel, as `\040` for a space. The backslash comes last, so that no result is unescaped again.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\043", "#"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &str = "22 29 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw
29 1 254:1 / / rw,relatime shared:1 - ext4 /dev/mapper/vg-root rw,errors=remount-ro
30 29 8:1 / /boot/efi rw,relatime shared:30 master:2 - vfat /dev/sda1 rw,fmask=0077
31 29 0:40 / /run rw,nosuid - tmpfs tmpfs rw,size=1608124k
40 29 254:1 /srv/data /mnt/my\\040data ro,relatime - ext4 /dev/mapper/vg-root rw
41 29 0:50 / /tank rw - zfs tank rw
42 29 0:51 / /nfs rw - nfs4 server:/export rw
43 29 254:1 /usr /usr ro,relatime shared:1 - ext4 /dev/mapper/vg-root rw
44 40 254:1 /srv/data/in /mnt/my\\040data/in ro - ext4 /dev/mapper/vg-root rw
broken
";

    const FILESYSTEMS: &str = "nodev\tsysfs\nnodev\ttmpfs\nnodev\tproc\nnodev\tnfs4\nnodev\tzfs\n\text3\n\text4\n\tvfat\n";

    #[test]
    fn only_file_systems_on_disks_are_listed() {
        let found = mounts(MOUNTINFO, FILESYSTEMS);
        let found: Vec<_> = found
            .iter()
            .map(|mount| (mount.device.as_str(), mount.point.as_str(), mount.kind.as_str(), mount.options.join(",")))
            .collect();
        let expected = [
            ("/dev/mapper/vg-root", "/", "ext4", "rw,relatime".to_owned()),
            ("/dev/sda1", "/boot/efi", "vfat", "rw,relatime".to_owned()),
            ("/dev/mapper/vg-root", "/mnt/my data", "ext4", "ro,relatime,bind".to_owned()),
            ("tank", "/tank", "zfs", "rw".to_owned()),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn names_are_unescaped_once() {
        let cases = [("/a", "/a"), ("/a\\040b", "/a b"), ("/a\\134040b", "/a\\040b"), ("/a\\011\\012\\043", "/a\t\n#")];
        for (written, expected) in cases {
            assert_eq!(unescape(written), expected);
        }
    }
}
