//! The limit of mounts: the allowed file systems, options and devices.

use crate::model::{MountLimit, MountRequest};

use super::pattern;

/// Options that a mount must have unless the entry lists their opposites.
const REQUIRED: &[(&str, &str)] = &[("nosuid", "suid"), ("nodev", "dev")];

/// True when an entry allows a mount.
fn entry_allows(entry: &MountLimit, mounting: &MountRequest) -> bool {
    let MountRequest { device, fstype, options, .. } = mounting;
    let given: Vec<&str> = mounting.options().collect();
    let listed = |option: &&str| entry.options.iter().any(|pattern| pattern::matches(pattern, option));
    let is_safe = |(wanted, opposite): &(&str, &str)| given.contains(wanted) || entry.options.iter().any(|o| o == opposite);
    // Quotes, and dots in a path, let a pattern match other paths.
    let is_plain = !options.contains(['"', '\\']) && !device.split('/').any(|part| part == "..");
    is_plain
        && entry.fstype == *fstype
        && entry.devices.iter().any(|pattern| pattern::matches(pattern, device))
        && given.iter().all(listed)
        && REQUIRED.iter().all(is_safe)
}

/// True when some entry allows a mount. An unmount is allowed by any entry.
pub(in crate::trust) fn allowed(entries: &[MountLimit], mounting: &MountRequest) -> bool {
    if mounting.attaches { entries.iter().any(|entry| entry_allows(entry, mounting)) } else { !entries.is_empty() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_that_are_not_listed_are_denied() {
        let limit = |options: &[&str]| MountLimit {
            fstype: "nfs4".into(),
            options: options.iter().map(|&option| option.into()).collect(),
            devices: vec!["files:/export/*".into()],
        };
        let safe = limit(&["ro", "nosuid", "nodev", "noexec", "timeo=*"]);
        let loose = limit(&["defaults", "suid", "dev"]);
        for (entry, fstype, device, options, wanted) in [
            (&safe, "nfs4", "files:/export/a", "ro,nosuid,nodev,noexec", true),
            (&safe, "nfs4", "files:/export/a", "nosuid,nodev,timeo=5", true),
            (&safe, "nfs4", "files:/export/a", "ro,nodev", false),
            (&safe, "nfs4", "files:/export/a", "ro,nosuid", false),
            (&safe, "nfs4", "files:/export/a", "defaults", false),
            (&safe, "nfs4", "files:/export/a", "nosuid,nodev,rw", false),
            (&safe, "nfs4", "files:/export/a", "nosuid,nodev,suid", false),
            (&safe, "nfs4", "files:/export/a", "nosuid,nodev,bind", false),
            (&safe, "nfs4", "files:/export/a", "nosuid,nodev,helper=/x", false),
            (&safe, "nfs4", "files:/export/a", "nosuid,nodev,X-mount.mkdir", false),
            (&safe, "nfs4", "files:/export/a", "nosuid,nodev,timeo=\"5,bind\"", false),
            (&safe, "nfs4", "files:/export/a/b", "nosuid,nodev", false),
            (&safe, "nfs4", "files:/export/..", "nosuid,nodev", false),
            (&safe, "nfs4", "other:/export/a", "nosuid,nodev", false),
            (&safe, "nfs", "files:/export/a", "nosuid,nodev", false),
            (&safe, "tmpfs", "files:/export/a", "nosuid,nodev", false),
            (&loose, "nfs4", "files:/export/a", "defaults", true),
        ] {
            let mounting = MountRequest {
                device: device.into(),
                fstype: fstype.into(),
                options: options.into(),
                point: "/srv".into(),
                attaches: true,
            };
            assert_eq!(allowed(std::slice::from_ref(entry), &mounting), wanted, "{fstype} {device} {options}");
        }
    }
}
