//! Partition facts: `partition` with mounted disks and their space.

use std::path::Path;

use serde_json::{Value, json};

use super::source::{FactError, percent, text_or_empty};
use crate::host::mountinfo::{self, Mounted};
use crate::host::{Host, fs, kernel};

/// Gathers partition facts. A disk that does not report its space is listed without usage.
pub(super) fn gather(_: &Host) -> Result<Value, FactError> {
    let mut mounts = on_disks(mountinfo::mounts()?, &text_or_empty("/proc/filesystems"));
    // Single files that are bound over others have no space of their own.
    mounts.retain(|mount| !fs::is_file(Path::new(&mount.point)));
    let mut usage = Vec::new();
    for mount in &mounts {
        let Ok(space) = kernel::space(Path::new(&mount.point)) else { continue };
        let inodes_used = space.inodes_total.saturating_sub(space.inodes_free);
        usage.push(json!({
            "path": mount.point,
            "fstype": mount.fstype,
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
    Ok(json!({"partitions": mounts.iter().map(partition).collect::<Vec<_>>(), "usage": usage}))
}

fn partition(mount: &Mounted) -> Value {
    // A part of a file system, mounted elsewhere, shares the space of the whole.
    let bind = (mount.root != "/").then_some("bind");
    let options: Vec<_> = mount.options.split(',').chain(bind).collect();
    json!({"device": mount.source, "mountpoint": mount.point, "fstype": mount.fstype, "opts": options})
}

/// Returns the mounts of file systems on disks; other file systems may be remote, and hang.
fn on_disks(mut mounts: Vec<Mounted>, filesystems: &str) -> Vec<Mounted> {
    let disk_kinds: Vec<_> = filesystems.lines().filter(|line| !line.starts_with("nodev")).map(str::trim).collect();
    mounts.retain(|mount| disk_kinds.contains(&mount.fstype.as_str()) || mount.fstype == "zfs");
    let is_kept = |mount: &&Mounted| !mounts.iter().any(|whole| is_part_in_place(mount, whole));
    mounts.iter().filter(is_kept).cloned().collect()
}

/// Returns true where a part of a file system is bound onto its own place. Service managers and containers bind such mounts
/// for the processes of a namespace.
fn is_part_in_place(mount: &Mounted, whole: &Mounted) -> bool {
    let below = |root: &str, part: &str| match root {
        "/" => part.strip_prefix('/').map(str::to_owned),
        root => part.strip_prefix(root).and_then(|rest| rest.strip_prefix('/')).map(str::to_owned),
    };
    mount.source == whole.source
        && mount.root != whole.root
        && below(&whole.root, &mount.root).is_some_and(|part| Path::new(&whole.point).join(part) == Path::new(&mount.point))
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
        let found = on_disks(mountinfo::parse(MOUNTINFO), FILESYSTEMS);
        let found: Vec<_> = found.iter().map(partition).collect();
        let expected = [
            json!({"device": "/dev/mapper/vg-root", "mountpoint": "/", "fstype": "ext4", "opts": ["rw", "relatime"]}),
            json!({"device": "/dev/sda1", "mountpoint": "/boot/efi", "fstype": "vfat", "opts": ["rw", "relatime"]}),
            json!({"device": "/dev/mapper/vg-root", "mountpoint": "/mnt/my data", "fstype": "ext4",
                "opts": ["ro", "relatime", "bind"]}),
            json!({"device": "tank", "mountpoint": "/tank", "fstype": "zfs", "opts": ["rw"]}),
        ];
        assert_eq!(found, expected);
    }
}
