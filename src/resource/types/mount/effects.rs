//! The effects of a mount: the paths that it exposes, the paths in its options, and the programs that run.

use crate::model::effects::{EffectKind, PathScope};
use crate::model::{Effect, Effects, MountRequest};

use super::properties::{MountEnsure, Properties};

/// Types of file systems that the kernel mounts by itself, or with a helper of the distribution. The helper runs no program of
/// the author's choice.
const PLAIN_FILE_SYSTEMS: &[&str] = &[
    "auto",
    "bpf",
    "btrfs",
    "ceph",
    "cgroup",
    "cgroup2",
    "cifs",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "exfat",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "hugetlbfs",
    "iso9660",
    "jfs",
    "mqueue",
    "nfs",
    "nfs4",
    "none",
    "ntfs3",
    "overlay",
    "proc",
    "pstore",
    "ramfs",
    "securityfs",
    "smb3",
    "squashfs",
    "sysfs",
    "tmpfs",
    "tracefs",
    "udf",
    "vfat",
    "xfs",
];
/// Options that attach a directory, for every type of file system.
const ATTACHING: &[&str] = &["bind", "rbind", "move", "rmove", "loop"];
/// Options that name a helper program.
const HELPERS: &[&str] = &["helper", "uhelper"];
/// Options that contain layers, separated by colons.
const LAYERS: &[&str] = &["lowerdir", "lowerdir+", "datadir+", "upperdir", "workdir"];
/// Options with values that are neither a path nor a program.
const VALUES: &[&str] = &[
    "actimeo",
    "bsize",
    "charset",
    "codepage",
    "commit",
    "compress",
    "context",
    "data",
    "defcontext",
    "dmask",
    "errors",
    "file_mode",
    "dir_mode",
    "fmask",
    "fscontext",
    "gid",
    "inode32",
    "iocharset",
    "logbsize",
    "logbufs",
    "mode",
    "namlen",
    "nconnect",
    "nr_blocks",
    "nr_inodes",
    "port",
    "proto",
    "retrans",
    "retry",
    "rootcontext",
    "rsize",
    "sec",
    "size",
    "subvolid",
    "timeo",
    "uid",
    "umask",
    "vers",
    "wsize",
    "x-systemd.device-timeout",
    "x-systemd.idle-timeout",
    "x-systemd.mount-timeout",
];

/// The effects of these properties.
pub(super) fn effects(p: &Properties) -> Effects {
    let mounting = MountRequest {
        device: p.device.clone(),
        fstype: p.fstype.clone(),
        options: p.options.clone(),
        point: p.name.clone(),
        attaches: p.ensure != MountEnsure::Absent,
    };
    let mut effects = Effects::default();
    effects.push(Effect::implied(MountRequest::TABLE));
    if mounting.attaches {
        if !PLAIN_FILE_SYSTEMS.contains(&p.fstype.as_str()) {
            // mount(8) runs `mount.TYPE`, and the helper of fuse runs the program in the device or the type.
            effects.push(Effect::run(format!("mount.{} {}", p.fstype, p.device)));
        }
        if mounting.options().any(|option| ATTACHING.contains(&split_option(option).0)) {
            effects.push(Effect::Expose(PathScope::below(&p.device)));
        } else if p.device.starts_with('/') {
            effects.push(Effect::Expose(PathScope::single(&p.device)));
        }
        effects.extend(mounting.options().flat_map(option_effects));
    }
    effects.push(Effect::Mount(mounting));
    effects
}

/// Splits an option into name and value, without quotes.
fn split_option(option: &str) -> (&str, Option<&str>) {
    let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
    (name.trim().trim_matches('"'), value.map(|value| value.trim_matches('"')))
}

fn option_effects(option: &str) -> Vec<Effect> {
    let (name, value) = split_option(option);
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Vec::new() };
    if HELPERS.contains(&name) {
        return vec![Effect::run(value)];
    }
    if LAYERS.contains(&name) {
        return value.split(':').filter(|part| !part.is_empty()).map(|part| Effect::Expose(PathScope::below(part))).collect();
    }
    if VALUES.contains(&name) && !value.contains('/') {
        return Vec::new();
    }
    if value.starts_with('/') {
        return vec![Effect::Read(PathScope::below(value))];
    }
    vec![Effect::unknown(Some(EffectKind::Mount), name)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(device: &str, fstype: &str, options: &str) -> String {
        let properties = serde_json::json!(
            {"name": "/m", "ensure": "mounted", "device": device, "fstype": fstype, "options": options}
        );
        let effects = effects(&serde_json::from_value(properties).unwrap());
        let kept = |effect: &&Effect| !matches!(effect, Effect::Mount(_) | Effect::Write { .. });
        effects.iter().filter(kept).map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn all_effects_of_a_mount_are_listed() {
        for (device, fstype, options, wanted) in [
            ("tmpfs", "tmpfs", "size=10m,nosuid", ""),
            ("UUID=1", "ext4", "defaults", ""),
            ("/dev/sda1", "ext4", "ro", "exposes \"/dev/sda1\""),
            ("/etc", "tmpfs", "bind", "exposes everything below \"/etc\""),
            ("etc", "none", "ro,rbind", "exposes everything below \"etc\""),
            ("etc", "none", "bind=", "exposes everything below \"etc\""),
            ("etc", "none", "\"bind\"", "exposes everything below \"etc\""),
            ("file", "auto", "loop", "exposes everything below \"file\""),
            ("overlay", "overlay", "lowerdir=../etc:/x", "exposes everything below \"../etc\" exposes everything below \"/x\""),
            ("overlay", "overlay", "lowerdir+=etc", "exposes everything below \"etc\""),
            ("//h/x", "cifs", "credentials=/root/pw", "exposes \"//h/x\" reads everything below \"/root/pw\""),
            ("/w/evil#x", "fuse", "ro", "runs \"mount.fuse /w/evil#x\" exposes \"/w/evil#x\""),
            ("x", "fuse.evil", "ro", "runs \"mount.fuse.evil x\""),
            ("x", "../../w/evil", "ro", "runs \"mount.../../w/evil x\""),
            ("tmpfs", "tmpfs", "helper=evil", "runs \"evil\""),
            ("tmpfs", "tmpfs", "unheard-of=x", "mounts \"unheard-of\", which is unknown"),
        ] {
            assert_eq!(of(device, fstype, options), wanted, "{device} {fstype} {options}");
        }
    }
}
