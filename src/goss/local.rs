//! The probes of files, mounts and kernel parameters, and of values from the author.

use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha512};

use super::matcher::ProbedValue;
use super::{Attributes, ProbeContext, found_value};
use crate::diag::error_chain;
use crate::host::{fs, kernel, lstat};

/// The largest file whose content a probe reads, in bytes.
const MAX_CONTENT: u64 = 64 << 20;
/// The largest file below `/proc` or `/sys` that a probe reads, in bytes.
const MAX_PROC: u64 = 16 << 20;

/// Reads a file of the system: the kernel's, or a file in `/etc`.
pub(super) fn read_system_file(path: &str) -> Result<String, String> {
    fs::read_text(Path::new(path), MAX_PROC).map_err(|error| error_chain(&error))
}

/// A path. For a symbolic link, the attributes are those of the link; content and digests are those of its target.
pub(super) fn file(look: &ProbeContext<'_>) -> Result<Attributes, String> {
    let path = look.name("path");
    let path = Path::new(&path);
    if path.is_relative() {
        return Err("the path must be absolute".to_owned());
    }
    let inode = lstat::lstat(path).map_err(|error| error_chain(&error))?;
    let mut found = Attributes::from([("exists", found_value(inode.is_some()))]);
    let Some(inode) = inode else { return Ok(found) };
    let accounts = look.host.accounts();
    found.extend([
        ("filetype", found_value(inode.kind.as_str())),
        ("mode", found_value(format!("{:04o}", inode.mode))),
        ("owner", found_value(accounts.user_name(inode.uid))),
        ("group", found_value(accounts.group_name(inode.gid))),
        ("uid", found_value(inode.uid)),
        ("gid", found_value(inode.gid)),
        ("size", found_value(inode.size)),
        (
            "linked-to",
            inode.target.ok_or_else(|| "not a symbolic link".to_owned()).map(|target| ProbedValue::Value(target.into())),
        ),
    ]);
    if look.is_wanted("contents") {
        let text = content(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        found.insert("contents", text.map(|text| ProbedValue::Text { text, shown: false }));
    }
    if look.is_wanted("sha256") {
        let digest = fs::stat(path, true).map_err(|error| error_chain(&error)).map(|look| look.and_then(|look| look.sha256));
        found.insert("sha256", digest.and_then(|digest| found_value(digest.ok_or("not a regular file")?)));
    }
    if look.is_wanted("sha512") {
        found.insert("sha512", content(path).and_then(|bytes| found_value(fs::hex(&Sha512::digest(&bytes)))));
    }
    Ok(found)
}

/// The content of a regular file. Other types are refused: a pipe would block the check.
fn content(path: &Path) -> Result<Vec<u8>, String> {
    let kind = fs::stat(path, false).map_err(|error| error_chain(&error))?.map(|look| look.kind);
    match kind {
        Some(fs::FileKind::File) => fs::read(path, MAX_CONTENT).map_err(|error| error_chain(&error)),
        _ => Err("not a regular file".to_owned()),
    }
}

/// A mounted file system, from `/proc/self/mountinfo` (proc(5)). Of several at one mount point, the last is on top.
pub(super) fn mount(look: &ProbeContext<'_>) -> Result<Attributes, String> {
    let point = look.name("mountpoint");
    let mount = find_mount(&read_system_file("/proc/self/mountinfo")?, &point);
    let mut found = Attributes::from([("exists", found_value(mount.is_some()))]);
    let Some(mount) = mount else { return Ok(found) };
    found.extend([
        ("opts", found_value(mount.options)),
        ("vfs-opts", found_value(mount.super_options)),
        ("source", found_value(mount.source)),
        ("filesystem", found_value(mount.kind)),
    ]);
    if look.is_wanted("usage") {
        let percent = kernel::space(Path::new(&point)).map_err(|error| error_chain(&error)).map(|space| {
            // The reserve for root does not count. Rounded up, as df does.
            let all = u128::from(space.used) + u128::from(space.free);
            u64::try_from((u128::from(space.used) * 100).div_ceil(all.max(1))).unwrap_or(100)
        });
        found.insert("usage", percent.and_then(found_value));
    }
    Ok(found)
}

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    options: Vec<String>,
    super_options: Vec<String>,
    source: String,
    kind: String,
}

fn find_mount(mountinfo: &str, point: &str) -> Option<Mount> {
    let mount = |line: &str| {
        let (here, system) = line.split_once(" - ")?;
        let mut here = here.split(' ').skip(4);
        let (at, options) = (here.next()?, here.next()?);
        let mut system = system.split(' ');
        let (kind, source, super_options) = (system.next()?, system.next()?, system.next()?);
        let list = |text: &str| text.split(',').map(str::to_owned).collect();
        (unescape(at) == point).then(|| Mount {
            options: list(options),
            super_options: list(super_options),
            source: unescape(source),
            kind: kind.to_owned(),
        })
    };
    mountinfo.lines().filter_map(mount).next_back()
}

/// Decodes the escapes of the kernel, as `\040` for a space. The backslash comes last, so that its result is not decoded
/// again.
fn unescape(text: &str) -> String {
    let codes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\043", "#"), ("\\134", "\\")];
    codes.iter().fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

/// A parameter below `/proc/sys`.
pub(super) fn kernel_param(look: &ProbeContext<'_>) -> Result<Attributes, String> {
    let name = look.name("name");
    // As in sysctl(8), a name with a slash is the path, and may have dots.
    let path = if name.contains('/') { name.clone() } else { name.replace('.', "/") };
    if path.split('/').any(|part| part.is_empty() || part == "..") {
        return Err(format!("\"{name}\" is no name of a parameter, as net.ipv4.ip_forward"));
    }
    let found = read_system_file(&format!("/proc/sys/{path}"))?;
    Ok(Attributes::from([("value", found_value(found.trim()))]))
}

/// A value from the author.
pub(super) fn matching(look: &ProbeContext<'_>) -> Result<Attributes, String> {
    let content = look.options.get("content").cloned().unwrap_or(Value::Null);
    Ok(Attributes::from([("matches", Ok(ProbedValue::Value(content)))]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_on_top_is_found() {
        let info = "22 29 0:21 / /proc rw,nosuid shared:12 - proc proc rw\n40 29 254:1 /srv /mnt/my\\040data ro,relatime - ext4 /dev/sda1 rw,errors=remount-ro\n41 29 0:5 / /proc ro - tmpfs tmp rw\nbroken\n";
        let mount = find_mount(info, "/mnt/my data").unwrap();
        assert_eq!((mount.kind.as_str(), mount.source.as_str()), ("ext4", "/dev/sda1"));
        assert_eq!(
            (mount.options, mount.super_options),
            (vec!["ro".into(), "relatime".into()], vec!["rw".into(), "errors=remount-ro".into()])
        );
        assert_eq!(find_mount(info, "/proc").unwrap().kind, "tmpfs");
        assert_eq!(find_mount(info, "/mnt"), None);
    }
}
