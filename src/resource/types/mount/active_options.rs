//! The options of a mount that are not active.

use crate::host::mountinfo::Mounted;

/// Options that the kernel reports, with their opposites.
const FLAGS: &[(&str, &str)] =
    &[("ro", "rw"), ("nosuid", "suid"), ("nodev", "dev"), ("noexec", "exec"), ("noatime", "atime"), ("nodiratime", "diratime")];

/// Returns the desired options that are not active.
///
/// Checks only listed options that the kernel reports. A file system that became read-only because of a failing disk is made
/// writable again only on request.
pub(super) fn inactive_options(mounted: &Mounted, wanted: &str) -> Vec<&'static str> {
    let has = |options: &str, name: &str| options.split(',').any(|one| one == name);
    let mut lacking = Vec::new();
    for (flag, opposite) in FLAGS {
        let in_force = has(&mounted.options, flag) || (*flag == "ro" && has(&mounted.super_options, flag));
        // The last of both counts.
        match wanted.split(',').rfind(|one| one == flag || one == opposite) {
            Some(one) if one == *flag && !in_force => lacking.push(*flag),
            Some(one) if one == *opposite && in_force => lacking.push(*opposite),
            _ => {}
        }
    }
    lacking.extend(SIZES.iter().filter(|name| mounted.fstype == TMPFS && differs_in_size(mounted, wanted, name)));
    lacking
}

/// True when a limit of a tmpfs is set, and differs from the active one.
fn differs_in_size(mounted: &Mounted, wanted: &str, name: &str) -> bool {
    let of = |options: &str| {
        let mut values = options.split(',').filter_map(|one| one.split_once('=')).filter(|(key, _)| *key == name);
        values.next_back().map(|(_, value)| value.to_owned())
    };
    // The kernel computes a percentage of the memory.
    let Some(wanted) = of(wanted).and_then(|value| bytes(&value)) else { return false };
    let in_force = of(&mounted.super_options).and_then(|value| bytes(&value));
    // Sizes are whole pages, and the kernel shows them in kibibytes.
    let rounded = |size: u64| if name == "size" { size.div_ceil(PAGE) } else { size };
    in_force.map(rounded) != Some(rounded(wanted))
}

/// The file system whose limits a remount changes.
const TMPFS: &str = "tmpfs";
/// The names of these limits.
const SIZES: &[&str] = &["size", "nr_inodes"];
/// The largest page size of supported processors, in bytes: smaller differences of sizes do not count.
const PAGE: u64 = 64 << 10;

/// Parses a number as tmpfs does: `64k`, `1m`, `2G`.
fn bytes(text: &str) -> Option<u64> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text.get(number.len()..)?.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_are_named_are_compared() {
        for (options, of_all, wanted, lacking) in [
            ("rw,relatime", "rw", "defaults", vec![]),
            ("rw", "rw", "ro", vec!["ro"]),
            ("rw", "ro", "ro", vec![]),
            ("ro", "rw", "defaults", vec![]),
            ("ro", "rw", "rw", vec!["rw"]),
            ("rw", "ro", "rw", vec!["rw"]),
            ("rw,nosuid", "rw", "nosuid,noexec,nofail", vec!["noexec"]),
            ("rw,noexec", "rw", "noexec,exec", vec!["exec"]),
            ("rw", "rw", "noatime,size=10%", vec!["noatime"]),
            ("rw", "rw,size=1024k", "size=1m", vec![]),
            ("rw", "rw,size=1024k", "size=2m,size=1048576", vec![]),
            ("rw", "rw,size=1024k", "size=2M", vec!["size"]),
            ("rw", "rw", "size=2g,nr_inodes=1k", vec!["size", "nr_inodes"]),
            ("rw", "rw,size=64k,nr_inodes=1024", "size=50%,nr_inodes=1k", vec![]),
            ("rw", "rw,size=1024k", "defaults", vec![]),
        ] {
            let fstype = TMPFS.to_owned();
            let mounted = Mounted { fstype, options: options.into(), super_options: of_all.into(), ..Mounted::default() };
            assert_eq!(inactive_options(&mounted, wanted), lacking, "{options} {of_all} {wanted}");
        }
    }
}
