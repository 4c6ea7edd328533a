//! The probes of files, mounts and kernel parameters, and of values from the author.

use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha512};

use super::probe::{Attributes, ProbeContext, ProbedValue, found_value, read_system_file};
use crate::diag::error_chain;
use crate::host::{fs, kernel, lstat, mountinfo};

/// The largest file whose content a probe reads, in bytes.
const MAX_CONTENT: u64 = 64 << 20;

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

/// A mounted file system. Of several at one mount point, the last is on top.
pub(super) fn mount(look: &ProbeContext<'_>) -> Result<Attributes, String> {
    let point = look.name("mountpoint");
    let mounts = mountinfo::mounts().map_err(|error| error_chain(&error))?;
    let mount = mounts.into_iter().rfind(|mount| mount.point == point);
    let mut found = Attributes::from([("exists", found_value(mount.is_some()))]);
    let Some(mount) = mount else { return Ok(found) };
    found.extend([
        ("opts", found_value(option_list(&mount.options))),
        ("vfs-opts", found_value(option_list(&mount.super_options))),
        ("source", found_value(mount.source)),
        ("filesystem", found_value(mount.fstype)),
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

fn option_list(options: &str) -> Vec<&str> {
    options.split(',').collect()
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
