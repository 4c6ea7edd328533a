//! `partition`: mounted disks and their room.

use std::path::Path;

use serde_json::{Value, json};

use super::{FactError, percent, text, text_or_empty};
use crate::host::{Host, kernel};

/// Gathers them. A disk that does not tell its room is listed without it.
pub(super) fn gather(_: &Host) -> Result<Value, FactError> {
    let mounts = mounts(&text("/proc/self/mountinfo")?, &text_or_empty("/proc/filesystems"));
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
            // Of what can be used at all: some room is kept for root.
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
}

/// The mounts of file systems that live on disks; the others may be remote, and hang.
fn mounts(mountinfo: &str, filesystems: &str) -> Vec<Mount> {
    let disk_kinds: Vec<_> = filesystems.lines().filter(|line| !line.starts_with("nodev")).map(str::trim).collect();
    let mount = |line: &str| {
        let (mount, system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(4);
        let (point, options) = (mount.next()?, mount.next()?);
        let mut system = system.split(' ');
        let (kind, device) = (system.next()?, system.next()?);
        let options = options.split(',').map(str::to_owned).collect();
        let on_disk = disk_kinds.contains(&kind) || kind == "zfs";
        on_disk.then(|| Mount { device: unescape(device), point: unescape(point), kind: kind.to_owned(), options })
    };
    mountinfo.lines().filter_map(mount).collect()
}

/// The kernel writes a space as `\040`, and so on.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_told_from_the_rest() {
        let mountinfo = "22 27 0:21 / /proc rw,relatime - proc proc rw\n\
            27 1 254:1 / / rw,noatime shared:1 - ext4 /dev/vda1 rw\n\
            28 27 254:2 / /mnt/a\\040b rw - xfs /dev/vdb rw\n\
            29 27 0:40 / /nfs rw - nfs4 server:/x rw\nbroken\n";
        let found = mounts(mountinfo, "nodev\tproc\nnodev\tnfs4\n\text4\n\txfs\n");
        let found: Vec<_> =
            found.iter().map(|mount| (mount.device.as_str(), mount.point.as_str(), mount.kind.as_str())).collect();
        assert_eq!(found, [("/dev/vda1", "/", "ext4"), ("/dev/vdb", "/mnt/a b", "xfs")]);
    }
}
