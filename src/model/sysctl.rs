//! Keys of kernel settings, as in sysctl(8) and sysctl.d(5): `net.ipv4.ip_forward` or `net/ipv4/ip_forward`.

use std::fmt;
use std::str::FromStr;

/// The longest key, in bytes: with prefix and suffix it is a file name.
const MAX_KEY_BYTES: usize = 160;

/// The key of a kernel setting: the parts of its path below `/proc/sys`.
///
/// The first separator separates the parts. The other separator then means a dot within a part:
/// `net.ipv4.conf.eth0/100.forwarding` and `net/ipv4/conf/eth0.100/forwarding` are the same key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SysctlKey(Vec<String>);

/// The reason for which a text is not a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSysctlKey(&'static str);

impl FromStr for SysctlKey {
    type Err = InvalidSysctlKey;

    fn from_str(text: &str) -> Result<Self, InvalidSysctlKey> {
        let slashes = text.find(['.', '/']).is_some_and(|at| text.get(at..).is_some_and(|rest| rest.starts_with('/')));
        let parts: Vec<String> = match slashes {
            true => text.split('/').map(str::to_owned).collect(),
            false => text.split('.').map(|part| part.replace('/', ".")).collect(),
        };
        // Patterns, comments, assignments and "-", which ignores errors, mean something else in sysctl.d(5).
        let odd = |c: char| !c.is_ascii_graphic() || "=*?[]{}\\#;\"'".contains(c);
        if text.len() > MAX_KEY_BYTES {
            return Err(InvalidSysctlKey("it is too long"));
        }
        if text.starts_with('-') || text.contains(odd) {
            return Err(InvalidSysctlKey("it has a character that no key has"));
        }
        if parts.iter().any(|part| matches!(part.as_str(), "" | "." | "..")) {
            return Err(InvalidSysctlKey("it has an empty part, \".\" or \"..\""));
        }
        if parts.len() < 2 {
            return Err(InvalidSysctlKey("it has one part only"));
        }
        Ok(Self(parts))
    }
}

impl SysctlKey {
    /// Returns the path below `/proc/sys`.
    pub fn path(&self) -> String {
        self.0.join("/")
    }

    /// Returns a file name that is unique to this key.
    pub fn file_name(&self) -> String {
        let parts: Vec<String> = self.0.iter().map(|part| part.replace('%', "%25").replace('.', "%2E")).collect();
        parts.join(".")
    }
}

/// Writes the form of configuration files: with dots, unless a part has a dot.
impl fmt::Display for SysctlKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dotted = self.0.iter().any(|part| part.contains('.'));
        f.write_str(&self.0.join(if dotted { "/" } else { "." }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_separators_name_the_same_key() {
        for (text, path, shown, file) in [
            ("net.ipv4.ip_forward", "net/ipv4/ip_forward", "net.ipv4.ip_forward", "net.ipv4.ip_forward"),
            ("vm/swappiness", "vm/swappiness", "vm.swappiness", "vm.swappiness"),
            ("net.ipv4.conf.e0/1.mtu", "net/ipv4/conf/e0.1/mtu", "net/ipv4/conf/e0.1/mtu", "net.ipv4.conf.e0%2E1.mtu"),
            ("net/ipv4/conf/e0.1/mtu", "net/ipv4/conf/e0.1/mtu", "net/ipv4/conf/e0.1/mtu", "net.ipv4.conf.e0%2E1.mtu"),
        ] {
            let key: SysctlKey = text.parse().unwrap();
            assert_eq!((key.path().as_str(), key.to_string().as_str(), key.file_name().as_str()), (path, shown, file));
            assert_eq!(shown.parse::<SysctlKey>().unwrap(), key, "{text}: is read back");
        }
    }

    #[test]
    fn no_key_leaves_proc_sys() {
        let long = format!("a.{}", "b".repeat(MAX_KEY_BYTES));
        for text in [
            "",
            "swappiness",
            ".",
            "..",
            "a..b",
            "a.",
            ".a",
            "/a/b",
            "a//b",
            "a/../b",
            "../a/b",
            "a.//.b",
            "a./.b",
            "-a.b",
            "a. b",
            "a.b=1",
            "a.*",
            "a.b\n",
            "a.ü",
            &long,
        ] {
            assert!(text.parse::<SysctlKey>().is_err(), "{text:?}");
        }
    }
}
